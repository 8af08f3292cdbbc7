//! Reads what jobs cost a limit, where that is not their `paced-cost`.

use serde_json::json;

use super::keys::{COST, DEFAULT_COST};
use crate::config::reader::{Reader, Table};
use crate::job::CostSource;

/// What jobs cost one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCost {
    /// The name of the limit, with that of its plan.
    pub limit: String,
    /// Where the cost is from.
    pub source: CostSource,
    /// The cost of a job whose header has none.
    pub default: Option<u32>,
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
    if matches!(source, Some(CostSource::Fixed(_))) {
        let hint = "a cost that is a number is never absent";
        reader.hint(table, DEFAULT_COST.name, hint.to_owned());
        return Some(LimitCost { limit: limit.to_owned(), source: source?, default: None });
    }
    let default = reader.integer(table, &DEFAULT_COST);
    if table.has(DEFAULT_COST.name) && !table.has(COST.name) {
        reader.wrong_value(
            table,
            DEFAULT_COST.name,
            "has no `cost` beside it; write such as cost = \"header:tokens\"",
        );
    }
    Some(LimitCost { limit: limit.to_owned(), source: source?, default })
}

fn header(text: &str) -> Result<CostSource, String> {
    match text.strip_prefix("header:") {
        Some(name) if (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(CostSource::Header(name.to_owned()))
        }
        _ => Err("is no cost; write an integer, or header:NAME for a header of the messages, such as header:tokens".to_owned()),
    }
}
