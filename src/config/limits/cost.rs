//! Reads what jobs cost a limit, where that is not their `paced-cost`.

use serde_json::json;

use super::NamedLimit;
use super::keys::{COST, DEFAULT_COST, OWN_MAX_COST};
use crate::config::reader::{Reader, Table};
use crate::dispatch::max_cost_of;
use crate::job::{CostBound, CostSource};
use crate::limit::LimitSet;

/// What jobs cost one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCost {
    /// The name of the limit, with that of its plan.
    pub limit: String,
    /// Where the cost is from.
    pub source: CostSource,
    /// The cost of a job whose header has none.
    pub default: Option<u32>,
    /// The highest cost of one job, if it is given.
    pub max_cost: Option<u32>,
}

impl LimitCost {
    /// The cost of a job that says nothing, if it has one.
    fn implied(&self) -> Option<u32> {
        match self.source {
            CostSource::Fixed(cost) => Some(cost),
            CostSource::Header(_) => self.default,
        }
    }

    /// The key that gives the cost of a job that says nothing.
    pub(super) fn key(&self) -> &'static str {
        if self.default.is_some() { DEFAULT_COST.name } else { COST.name }
    }
}

/// Whether a job that says nothing may have the cost that it has for this limit of the set. Otherwise each would be dead,
/// which is reported.
pub(super) fn fits<'v>(reader: &mut Reader<'v>, given: &NamedLimit<'v>, set: &LimitSet) -> bool {
    let Some(cost) = &given.cost else { return true };
    let most = max_cost_of(set, &cost.limit, cost.max_cost);
    let Some((units, most)) = cost.implied().zip(most).filter(|(units, most)| *units > most.units) else {
        return true;
    };
    let way = match most.bound {
        CostBound::Given => "lower it, or raise `max_cost` beside it",
        CostBound::Minute(_) => "lower it, or set `max_cost` beside it",
        CostBound::Held(_) | CostBound::Uncounted => "lower it, or let the limit hold more",
    };
    let problem = format!("{units} for each job, and the highest cost of one job is {most}: {way}");
    reader.wrong(given.cost_at.as_ref().unwrap_or(&given.at), problem);
    false
}

/// The `cost` and `default_cost` of the limit of this name, if they are given and right.
pub(super) fn cost<'v>(reader: &mut Reader<'v>, table: &Table<'v>, limit: &str) -> Option<LimitCost> {
    let node = || {
        json!({ "oneOf": [
            { "type": "integer", "minimum": 1, "maximum": u32::MAX },
            { "type": "string", "pattern": "^header:[!-~]+$" },
        ] })
    };
    let fixed = |cost: u64| u32::try_from(cost).ok().map(CostSource::Fixed);
    let source = reader.integer_or_text(table, &COST, node, fixed, header);
    let max_cost = reader.integer(table, &OWN_MAX_COST);
    if matches!(source, Some(CostSource::Fixed(_))) {
        let hint = "a cost that is a number is never absent";
        reader.hint(table, DEFAULT_COST.name, hint.to_owned());
        return Some(LimitCost { limit: limit.to_owned(), source: source?, default: None, max_cost });
    }
    let default = reader.integer(table, &DEFAULT_COST);
    for key in [DEFAULT_COST, OWN_MAX_COST].iter().filter(|key| table.has(key.name) && !table.has(COST.name))
    {
        let problem = "has no `cost` beside it; write such as cost = \"header:tokens\"";
        reader.wrong_value(table, key.name, problem);
    }
    Some(LimitCost { limit: limit.to_owned(), source: source?, default, max_cost })
}

fn header(text: &str) -> Result<CostSource, String> {
    match text.strip_prefix("header:") {
        Some(name) if (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(CostSource::Header(name.to_owned()))
        }
        _ => Err("is no cost; write an integer, or header:NAME for a header of the messages, such as header:tokens".to_owned()),
    }
}
