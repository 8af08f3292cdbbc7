//! `paced check`: is the configuration right, and with `--online`, are the servers there?

use std::fmt::Display;

use paced::config::{self, Downstream, Loaded};
use paced::job::{CostSource, PlanRules};
use serde_json::{Value, json};

use super::exit::Exit;
use super::{Global, Output, out, parts};

mod online;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Also connects to the broker and the store, and fetches a token of each OAuth2 client; changes nothing there
    #[arg(long)]
    online: bool,
}

pub(super) async fn run(global: &Global, args: &Args) -> Result<(), Exit> {
    let mut report = Report { is_json: global.output == Output::Json, ..Report::default() };
    check(global, args, &mut report).await?;
    report.end()
}

async fn check(global: &Global, args: &Args, report: &mut Report) -> Result<(), Exit> {
    let loaded = match config::load(parts::sources(global)) {
        Ok(loaded) => loaded,
        Err(errors) => {
            errors.iter().for_each(|error| report.error(error, Exit::Config));
            return Ok(());
        }
    };
    loaded.warnings.iter().for_each(|warning| report.warn(warning));
    offline(&loaded, report)?;
    if args.online {
        online::check(&loaded, report).await?;
    }
    Ok(())
}

/// What jobs cost limits, where that is not their paced-cost.
fn costs(
    name: &str,
    downstream: &Downstream,
    report: &mut Report,
) -> Result<serde_json::Map<String, serde_json::Value>, Exit> {
    let mut costs = serde_json::Map::new();
    for rule in downstream.cost_rules() {
        let source = match &rule.source {
            CostSource::Fixed(cost) => cost.to_string(),
            CostSource::Header(header) => format!("header:{header}"),
        };
        let default = rule.default.map(|cost| format!(" (or {cost})")).unwrap_or_default();
        let limit = rule.limit.to_string();
        report.line(format_args!(
            "{name}: limit {limit}: cost {source}{default}, max_cost {}",
            rule.max_cost
        ))?;
        costs.insert(
            limit,
            json!({ "cost": source, "default_cost": rule.default, "max_cost": rule.max_cost.units }),
        );
    }
    Ok(costs)
}

fn offline(loaded: &Loaded, report: &mut Report) -> Result<(), Exit> {
    let settings = &loaded.settings;
    let names: Vec<&str> = settings.downstreams.keys().map(String::as_str).collect();
    report.line(format_args!("configuration ok: {} downstream(s): {}", names.len(), names.join(", ")))?;
    let mut downstreams = serde_json::Map::new();
    for (name, downstream) in &settings.downstreams {
        let (of_lanes, rules): (Vec<_>, Vec<_>) =
            downstream.plan_rules().into_iter().partition(|plan| plan.name == PlanRules::LANES);
        // With lanes, jobs without a plan keep the limits of lanes besides.
        let most = of_lanes.first().map_or_else(|| downstream.max_cost(), |plan| plan.max_cost.clone());
        report.line(format_args!("{name}: a job may cost up to {most} (max_cost)"))?;
        report.line(format_args!("{name}: methods {}", downstream.http.methods.join(", ")))?;
        let mut plans = serde_json::Map::new();
        for plan in rules {
            let (plan_name, most) = (&plan.name, &plan.max_cost);
            report
                .line(format_args!("{name}: a job of plan {plan_name} may cost up to {most} (max_cost)"))?;
            plans.insert(plan.name, json!({ "max_cost": plan.max_cost.units }));
        }
        let costs = costs(name, downstream, report)?;
        let max_cost = most.units;
        let methods = &downstream.http.methods;
        let found = json!({ "max_cost": max_cost, "methods": methods, "plans": plans, "costs": costs });
        downstreams.insert(name.clone(), found);
    }
    report.set("files", json!(loaded.files));
    report.set("downstreams", downstreams.into());
    Ok(())
}

/// What the check found. Lines for people are printed as they come; JSON is printed at the end.
#[derive(Default)]
struct Report {
    is_json: bool,
    found: serde_json::Map<String, Value>,
    warnings: Vec<String>,
    errors: Vec<String>,
    exits: Vec<Exit>,
}

impl Report {
    /// Prints a line for people.
    fn line(&self, text: impl Display) -> Result<(), Exit> {
        if self.is_json { Ok(()) } else { out::line(text) }
    }

    /// Adds a part of the JSON.
    fn set(&mut self, key: &str, value: Value) {
        self.found.insert(key.to_owned(), value);
    }

    /// Prints a warning, which changes nothing of the exit code.
    fn warn(&mut self, warning: impl Display) {
        out::say(&warning);
        self.warnings.push(warning.to_string());
    }

    /// Prints an error.
    fn error(&mut self, error: impl Display, exit: Exit) {
        out::say(&error);
        self.errors.push(error.to_string());
        self.exits.push(exit);
    }

    /// Prints the JSON, and returns the exit code.
    fn end(self) -> Result<(), Exit> {
        let exit = Exit::worst(self.exits);
        if self.is_json {
            let mut all = self.found;
            all.insert("ok".to_owned(), exit.is_none().into());
            all.insert("warnings".to_owned(), json!(self.warnings));
            all.insert("errors".to_owned(), json!(self.errors));
            out::json(&all)?;
        }
        exit.map_or(Ok(()), Err)
    }
}
