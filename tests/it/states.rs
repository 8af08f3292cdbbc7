//! The states of `states.toml`: each is made with real servers and daemons, and then `paced status`, `/readyz`, the metrics
//! and the log say what its row says. `docs/troubleshooting.md` has the rows as a table (`make generated`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use paced::time::wall_now;
use serde::Deserialize;
use serde_json::Value;

use crate::admin::api::{AdminReplica, TOKEN};
use crate::monitoring::query::{Matcher, Query, Selector};
use crate::monitoring::{promtool_cases, rules};
use crate::support::{LONG, real_now, until};

mod changes;
mod downstreams;
mod fleet;
mod servers;

const DATA: &str = include_str!("states.toml");
const PAGE: &str = "docs/troubleshooting.md";

/// The tests that make the states.
const SETTINGS: [&str; 12] = [
    "broker",
    "changes",
    "downstreams",
    "drain",
    "file",
    "fleet",
    "leader",
    "parking",
    "resume",
    "stall",
    "store",
    "stuck",
];

/// The table `[admin]` of replicas that are asked.
fn admin() -> String {
    format!("[admin]\nlisten = '127.0.0.1:0'\ntoken = '{TOKEN}'\n")
}

#[derive(Deserialize)]
struct Data {
    state: Vec<State>,
}

/// A state, and what says so.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// The name of its downstream, or another one that the test gives it.
    id: String,
    /// The test that makes it.
    setting: String,
    what: String,
    #[serde(default)]
    status: Vec<String>,
    #[serde(default)]
    json: Vec<String>,
    #[serde(default = "yes")]
    is_ready: bool,
    readyz: Option<String>,
    #[serde(default = "yes")]
    is_alive: bool,
    metric: String,
    alert: Option<String>,
    /// The condition under which the alert fires, where the state alone is none.
    alert_if: Option<String>,
    log: Option<String>,
}

const fn yes() -> bool {
    true
}

fn all() -> Vec<State> {
    toml::from_str::<Data>(DATA).unwrap().state
}

/// The states that this test is to make.
fn of(setting: &str) -> Vec<State> {
    let states: Vec<State> = all().into_iter().filter(|state| state.setting == setting).collect();
    assert!(!states.is_empty(), "{setting}");
    states
}

/// The state of this id.
#[track_caller]
fn state<'s>(states: &'s [State], id: &str) -> &'s State {
    states.iter().find(|state| state.id == id).unwrap_or_else(|| panic!("no state {id}"))
}

/// A state that is made: its row, its downstream, and the host and port of what fails.
struct Made<'s> {
    row: &'s State,
    downstream: String,
    host: String,
}

impl<'s> Made<'s> {
    fn new(row: &'s State, downstream: &str, host: impl Into<String>) -> Self {
        Self { row, downstream: downstream.to_owned(), host: host.into() }
    }

    /// The text of a row with the names of this test.
    fn text(&self, text: &str) -> String {
        text.replace("HOST:PORT", &self.host).replace("NAME", &self.downstream)
    }
}

/// Waits until this replica has reported all that the rows of these states have, in lines of its log from the given one on. What
/// a row says is so at one time.
async fn are_shown(replica: &AdminReplica, since: usize, states: Vec<Made<'_>>) {
    let (mut left, start) = (states, real_now());
    until("all states are shown", LONG, async || {
        let look = Look::at(replica, since).await;
        let (mut lacking, mut later) = (BTreeMap::new(), Vec::new());
        for made in std::mem::take(&mut left) {
            let lacks = look.lacks(&made).await;
            if !lacks.is_empty() {
                lacking.insert(made.row.id.as_str(), lacks);
                later.push(made);
            }
        }
        left = later;
        // Shortly before the end the missing parts are shown.
        let is_late = start.elapsed() > LONG - Duration::from_secs(2);
        assert!(!is_late, "{lacking:#?}\n{}\n{:#}\n{}", look.table, look.state, look.readyz.1);
        left.is_empty()
    })
    .await;
}

/// What a replica says at one time.
struct Look<'r> {
    replica: &'r AdminReplica,
    /// What `paced status` prints, and what it prints as JSON.
    table: String,
    state: Value,
    readyz: (u16, String),
    livez: u16,
    metrics: String,
    log: Vec<String>,
}

impl<'r> Look<'r> {
    async fn at(replica: &'r AdminReplica, since: usize) -> Self {
        let table = replica.tool(TOKEN, &["status"]).await.stdout;
        let state = replica.tool(TOKEN, &["-o", "json", "status"]).await.stdout;
        let page = async |path: &str| {
            let reply = replica.client.get(&format!("{}{path}", replica.base)).await.unwrap();
            (reply.status, reply.text)
        };
        Self {
            replica,
            table,
            // A daemon that drains may not say it.
            state: serde_json::from_str(&state).unwrap_or_default(),
            readyz: page("/readyz?verbose").await,
            livez: page("/livez").await.0,
            metrics: page("/metrics").await.1,
            log: replica.paced.log().split_off(since),
        }
    }

    /// What of the row of this state the JSON does not say.
    fn lacks_in_json(&self, made: &Made<'_>) -> Vec<String> {
        let mut lacks = Vec::new();
        for text in made.row.json.iter().map(|text| made.text(text)) {
            let Condition { of, operator, value } = Condition::read(&text);
            let wanted = wanted(value);
            let found = values(&self.state, of, &made.downstream);
            let numbers = |found: &Value| found.as_f64().zip(wanted.as_f64());
            let holds = |found: &&Value| match operator {
                "=" => **found == wanted,
                "!=" => **found != wanted,
                ">" => numbers(found).is_some_and(|(found, wanted)| found > wanted),
                "<" => numbers(found).is_some_and(|(found, wanted)| found < wanted),
                other => panic!("{text}: no operator {other}"),
            };
            if !found.iter().any(holds) {
                lacks.push(format!("{text}, but {found:?}"));
            }
        }
        lacks
    }

    /// What of the row of this state it does not say.
    async fn lacks(&self, made: &Made<'_>) -> Vec<String> {
        let (row, mut lacks) = (made.row, self.lacks_in_json(made));
        let metric = made.text(&row.metric);
        let Condition { of, operator, value } = Condition::read(&metric);
        let found = match of.strip_prefix("absent(").and_then(|of| of.strip_suffix(')')) {
            Some(of) if self.samples(of, &made.downstream).is_empty() => vec![1.0],
            Some(_) => Vec::new(),
            None => self.samples(of, &made.downstream),
        };
        let holds = |found: &f64| match operator {
            "=" => *found == number(value),
            ">" => *found > number(value),
            "<" => *found < number(value),
            other => panic!("{metric}: no operator {other}"),
        };
        if !found.iter().any(holds) {
            lacks.push(format!("{metric}, but {found:?}"));
        }
        let readyz = made.text(row.readyz.as_deref().unwrap_or_default());
        if (self.readyz.0 == 200) != row.is_ready || !self.readyz.1.contains(&readyz) {
            lacks.push(format!("readyz: {} {readyz}", row.is_ready));
        }
        if (self.livez == 200) != row.is_alive {
            lacks.push(format!("livez: {}", row.is_alive));
        }
        let log = made.text(row.log.as_deref().unwrap_or_default());
        if !self.log.iter().any(|line| line.contains(&log) && is_about(line, &made.downstream)) {
            lacks.push(format!("log: {log}"));
        }
        // This takes a process, and most states need some time until all the rest is so.
        if lacks.is_empty() {
            let shown = self.shown(&made.downstream).await;
            let texts = row.status.iter().map(|text| made.text(text));
            lacks.extend(texts.filter(|text| !shown.contains(text)).map(|text| format!("status: {text}")));
        }
        lacks
    }

    /// What `paced status` and `paced status NAME` print, without the lines of other downstreams.
    async fn shown(&self, downstream: &str) -> String {
        let downstreams = self.state["downstreams"].as_array().into_iter().flatten();
        let others: Vec<&str> = downstreams
            .filter_map(|other| other["name"].as_str())
            .filter(|name| *name != downstream)
            .collect();
        let lines = self.table.lines().filter(|line| {
            let first = line.split(' ').next().unwrap_or_default();
            !others.contains(&first)
        });
        let mut text = lines.collect::<Vec<_>>().join("\n");
        text += &self.replica.tool(TOKEN, &["status", downstream]).await.stdout;
        text
    }

    /// The values of the series with these labels, which are of this downstream or of the process.
    fn samples(&self, of: &str, downstream: &str) -> Vec<f64> {
        let (name, labels) = series(of);
        let own = format!("downstream=\"{downstream}\"");
        let sample = |line: &str| {
            let (its, value) = line.rsplit_once(' ')?;
            let (its_name, its_labels) = series(its);
            let is_meant = its_name == name && labels.iter().all(|label| its_labels.contains(label));
            let is_others = |label: &&str| label.starts_with("downstream=") && **label != own;
            (is_meant && !its_labels.iter().any(is_others)).then(|| value.parse().unwrap())
        };
        self.metrics.lines().filter_map(sample).collect()
    }
}

/// A condition such as `paced_paused = 1`.
struct Condition<'t> {
    of: &'t str,
    operator: &'t str,
    value: &'t str,
}

impl<'t> Condition<'t> {
    #[track_caller]
    fn read(text: &'t str) -> Self {
        let mut parts = text.splitn(3, ' ');
        let mut next = || parts.next().unwrap_or_else(|| panic!("no condition: {text}"));
        Self { of: next(), operator: next(), value: next() }
    }
}

/// The name of a series, and its labels with their values.
fn series(text: &str) -> (&str, Vec<&str>) {
    let (name, labels) = text.split_once('{').unwrap_or((text, ""));
    let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
    (name, labels.collect())
}

/// A value, or an instant in ms: `(now - 3600) * 1000`.
fn wanted(text: &str) -> Value {
    let seconds = text.strip_prefix("(now - ").and_then(|rest| rest.strip_suffix(") * 1000"));
    match seconds {
        Some(seconds) => Value::from(wall_now().0 / 1000 - seconds.parse::<i64>().unwrap() * 1000),
        None => serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}")),
    }
}

/// A number, or an instant in seconds: `time()`, or `time() + 14d`.
fn number(text: &str) -> f64 {
    let Some(after) = text.strip_prefix("time()") else { return text.parse().unwrap() };
    let days = after.trim_start_matches(" + ").trim_end_matches('d');
    let days: f64 = if days.is_empty() { 0.0 } else { days.parse().unwrap() };
    wall_now().0 as f64 / 1e6 + days * 86_400.0
}

/// All values at a path such as `.downstreams[].binding.reason`; of the downstreams those of this one alone.
fn values<'v>(state: &'v Value, path: &str, downstream: &str) -> Vec<&'v Value> {
    let mut found = vec![state];
    for part in path.split('.').skip(1) {
        let name = part.trim_end_matches("[]");
        let inner = found.into_iter().flat_map(|value| {
            let value = &value[name];
            match value.as_array().filter(|_| name != part) {
                Some(items) => items.iter().collect(),
                None => vec![value],
            }
        });
        found = inner.filter(|value| name != "downstreams" || value["name"] == downstream).collect();
    }
    found
}

/// Whether a line of the log is about this downstream or about none.
fn is_about(line: &str, downstream: &str) -> bool {
    let line: Value = serde_json::from_str(line).unwrap_or_default();
    line["downstream"].is_null() || line["downstream"] == downstream
}

/// The table of the page.
fn table() -> String {
    let mut text =
        "| state | `paced status` | `paced -o json status` | `/readyz?verbose` | a metric | alert | log |\n\
                    |---|---|---|---|---|---|---|\n"
            .to_owned();
    let code = |text: &String| format!("`{}`", text.trim());
    let codes = |texts: &[String]| texts.iter().map(code).collect::<Vec<_>>().join("<br>");
    for State { what, status, json, is_ready, readyz, is_alive, metric, alert, alert_if, log, .. } in all() {
        let ready = if is_ready { "200" } else { "503" };
        let ready = if is_alive { ready.to_owned() } else { format!("{ready}, `/livez` 503") };
        let readyz = readyz.iter().map(code).fold(ready, |text, more| format!("{text} {more}"));
        let alert = alert.map(|alert| format!("[{alert}](monitoring.md#{})", alert.to_lowercase()));
        let alert_if = alert_if.map(|condition| format!(" if {condition}")).unwrap_or_default();
        let alert = alert.map_or_else(String::new, |alert| alert + &alert_if);
        let log = log.iter().map(code).collect::<String>();
        let (status, json) = (codes(&status), codes(&json));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {what} | {status} | {json} | {readyz} | `{metric}` | {alert} | {log} |");
    }
    text
}

/// The comments of the page between which the table stands.
const BOUNDS: [&str; 2] = ["<!-- generated: states -->\n", "\n<!-- end: states -->"];

/// What stands on the page before the table and after it.
pub fn around_the_table(page: &str) -> (&str, &str) {
    let (before, rest) = page.split_once(BOUNDS[0]).unwrap();
    (before, rest.split_once(BOUNDS[1]).unwrap().1)
}

#[test]
fn the_table_is_made_from_the_states() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let there = fs::read_to_string(&path).unwrap();
    let (before, after) = around_the_table(&there);
    let made = format!("{before}{}\n{}{}{after}", BOUNDS[0], table(), BOUNDS[1]);
    if env::var_os("PACED_WRITE_GENERATED").is_some() {
        return fs::write(&path, made).unwrap();
    }
    assert!(there == made, "{PAGE} is not what tests/it/states.toml says; run make generated");
}

#[test]
fn each_state_has_a_test_that_makes_it() {
    let states = all();
    assert!(states.len() >= 60, "{}", states.len());
    let ids: BTreeSet<&str> = states.iter().map(|state| state.id.as_str()).collect();
    assert_eq!(ids.len(), states.len(), "no state is there twice");
    let settings: BTreeSet<&str> = states.iter().map(|state| state.setting.as_str()).collect();
    assert_eq!(settings, BTreeSet::from(SETTINGS));
}

/// Whether the labels of a series are among those that a selector chooses.
fn chooses(selector: &Selector, labels: &[&str]) -> bool {
    let value = |name: &str| labels.iter().find_map(|label| label.strip_prefix(name)?.strip_prefix('='));
    selector.matchers.iter().all(|Matcher { label, operator, value: wanted }| {
        let Some(value) = value(label) else { return true };
        let is_one = wanted.split('|').any(|one| one == value.trim_matches('"'));
        is_one != operator.starts_with('!')
    })
}

#[test]
fn each_alert_is_about_the_metric_of_its_row_and_is_tested() {
    let rules = rules();
    let query = |name: &str| {
        let rule = rules.iter().find(|rule| rule.name == name);
        rule.map(|rule| Query::read(&rule.query).unwrap())
    };
    let cases = promtool_cases();
    for State { id, metric, alert, .. } in all() {
        let Some(alert) = alert else { continue };
        let mut selectors = query(&alert).unwrap_or_else(|| panic!("{id}: no alert {alert}")).selectors;
        // A series that is recorded stands for those that it is made of.
        let recorded: Vec<Query> = selectors.iter().filter_map(|selector| query(&selector.name)).collect();
        selectors.extend(recorded.into_iter().flat_map(|query| query.selectors));
        let (name, labels) = series(Condition::read(&metric).of);
        let is_about_it =
            selectors.iter().any(|selector| selector.name == name && chooses(selector, &labels));
        assert!(is_about_it, "{id}: {alert} is not about {metric}: {selectors:?}");
        assert_eq!(
            cases.get(&alert),
            Some(&[true, true]),
            "{id}: {alert} fires in a test, and is silent in one"
        );
    }
}
