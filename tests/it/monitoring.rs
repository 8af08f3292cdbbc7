//! The rules, alerts and dashboard in `deploy/monitoring` against the metrics of a running daemon: no query is about a
//! series, a label or a value that does not exist. What the alerts do is tested by promtool (`make lint-metrics`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use paced::metric::{self, Kind};
use serde_json::Value;

use crate::authority::Authority;
use crate::support::client::Client;
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::site::Site;
use crate::support::{LONG, until};

use query::{Matcher, Query};

pub mod query;

/// The labels that Prometheus adds to what it scrapes.
const TARGET: [&str; 3] = ["namespace", "job", "instance"];

/// Labels whose values are names that people give, or bounds.
const FREE: [&str; 7] = ["namespace", "job", "instance", "downstream", "limit", "setting", "le"];

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A rule: an alert, or a series that is recorded.
#[derive(Debug)]
pub struct Rule {
    pub name: String,
    is_alert: bool,
    pub query: String,
    text: String,
}

/// The rules of the file. It reads the little of YAML that the file uses: `expr:` with a text of one line, or one that is
/// folded over lines that are indented further.
pub fn rules() -> Vec<Rule> {
    let text = file("deploy/monitoring/rules.yml");
    let mut rules: Vec<Rule> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = |line: &str| line.len() - line.trim_start().len();
        let (key, value) = line.trim_start().trim_start_matches("- ").split_once(':').unwrap_or_default();
        if matches!(key, "alert" | "record") {
            let (name, is_alert) = (value.trim().to_owned(), key == "alert");
            rules.push(Rule { name, is_alert, query: String::new(), text: String::new() });
        }
        let Some(rule) = rules.last_mut() else { continue };
        rule.text += line;
        rule.text.push('\n');
        if key != "expr" {
            continue;
        }
        assert!(rule.query.is_empty(), "{} has two queries", rule.name);
        rule.query = value.trim().to_owned();
        if rule.query == ">-" {
            rule.query.clear();
            while let Some(more) = lines.next_if(|more| indent(more) > indent(line)) {
                rule.query += more.trim();
                rule.query.push(' ');
            }
        }
    }
    assert_eq!(rules.len(), text.matches("- alert:").count() + text.matches("- record:").count());
    assert!(rules.iter().all(|rule| !rule.query.is_empty()), "{rules:?}");
    rules
}

/// The queries of the dashboard, each with the name of what shows it.
fn dashboard() -> Vec<(String, Query)> {
    let board: Value = serde_json::from_str(&file("deploy/monitoring/dashboard.json")).unwrap();
    let mut queries = Vec::new();
    let panels = board["panels"].as_array().unwrap();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} shows nothing");
        for target in targets {
            let text = target["expr"].as_str().unwrap();
            queries.push((
                title.to_owned(),
                Query::read(text).unwrap_or_else(|error| panic!("{title}: {error}")),
            ));
        }
    }
    let shown = queries.len();
    for variable in board["templating"]["list"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        if variable["type"] == "query" {
            let text = variable["query"]["query"].as_str().unwrap();
            queries.push((format!("${name}"), Query::read_label_values(text).unwrap()));
        }
    }
    assert_eq!(queries.len() - shown, 2, "the variables $job and $downstream");
    queries
}

/// The labels of a series, and the values of each.
type Labels = BTreeMap<String, BTreeSet<String>>;

/// The series that there are.
struct Series(BTreeMap<String, Labels>);

impl Series {
    /// Those on a page of metrics.
    fn on(page: &str) -> Self {
        let mut all: BTreeMap<String, Labels> = BTreeMap::new();
        for line in page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let known = all.entry(name.to_owned()).or_default();
            let labels = labels.strip_suffix('}').unwrap();
            for (label, value) in labels.split(',').filter_map(|label| label.split_once('=')) {
                known.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
            }
        }
        Self(all)
    }

    /// Adds a series that is recorded, with the labels that it is grouped by.
    fn record(&mut self, name: &str, query: &Query) {
        let labels = query.grouped_by.iter().map(|label| (label.clone(), BTreeSet::new()));
        let before = self.0.insert(name.to_owned(), labels.collect());
        assert!(before.is_none(), "{name} exists already");
    }

    /// What is wrong with the query: each name, label and value that does not exist.
    fn problems(&self, query: &Query) -> Vec<String> {
        let mut problems = Vec::new();
        let mut labels: BTreeSet<&str> = TARGET.into();
        for selector in &query.selectors {
            let Some(known) = self.0.get(&selector.name) else {
                problems.push(format!("no such series: {}", selector.name));
                continue;
            };
            labels.extend(known.keys().map(String::as_str));
            problems.extend(
                selector.matchers.iter().filter_map(|matcher| problem(&selector.name, known, matcher)),
            );
        }
        if query.selectors.is_empty() {
            problems.push("no series at all".to_owned());
        }
        let unknown = query.grouped_by.iter().filter(|label| !labels.contains(label.as_str()));
        problems.extend(unknown.map(|label| format!("no such label: {label}")));
        problems
    }
}

/// What is wrong with a matcher of the series `name`.
fn problem(name: &str, known: &Labels, matcher: &Matcher) -> Option<String> {
    let Matcher { label, operator, value } = matcher;
    if !known.contains_key(label) && !TARGET.contains(&label.as_str()) {
        return Some(format!("{name} has no label {label}"));
    }
    if FREE.contains(&label.as_str()) {
        return None;
    }
    let values: Vec<&str> =
        if operator.ends_with('~') { value.split('|').collect() } else { vec![value.as_str()] };
    let missing = values.into_iter().find(|value| !known[label].contains(*value))?;
    Some(format!("{name} never has {label}=\"{missing}\""))
}

/// The metrics of a daemon that has a quota used up, jobs that wait, a dead letter, and a certificate.
async fn exported() -> String {
    let downstream =
        "rate = '100/s'\nlimits = [{ algorithm = 'quota', rate = '5/day' }]\nqueue = { prefetch = 5 }";
    let site = Site::shared("monitoring", downstream).await;
    let folder = tempfile::TempDir::new().unwrap();
    let (certificate, key) = Authority::new("ours").issue(&["paced"]).put(folder.path(), "client");
    let config = format!(
        "{}[downstreams.secure]\nrate = '1/s'\nhttp.base_url = 'https://127.0.0.1:1/'\n\
         [downstreams.secure.tls]\ncert_file = '{}'\nkey_file = '{}'\nca_file = '{}'\n\
         [admin]\nlisten = '127.0.0.1:0'\n",
        site.config(),
        certificate.display(),
        key.display(),
        crate::support::tls::CA,
    );
    let paced = Paced::start(&config, &[], &[("PACED_TEST_HASTE", "10")]).await;
    let line = paced.wait_line("probes and metrics are served", LONG).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let base = format!("http://{}", line["address"].as_str().unwrap());
    // The exchange is there.
    paced.wait_ready().await;
    let client = Client::new();
    let mut jobs = vec![Job::new("dies").header("paced-nonsense", "1")];
    jobs.extend(Job::many("job", 20));
    site.publish(jobs).await;
    let mut page = String::new();
    let value = |page: &str, series: &str| -> Option<f64> {
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        line.parse().ok()
    };
    until("the lengths of the queues are there, and the quota is used up", LONG, async || {
        // The queues are checked more often while somebody reads the state.
        client.get(&format!("{base}/api/v1/status")).await.unwrap();
        page = client.get(&format!("{base}/metrics")).await.unwrap().text;
        let of = |name: &str| value(&page, &format!("{name}{{downstream=\"billing\"}}"));
        let left = value(&page, "paced_limit_remaining{downstream=\"billing\",limit=\"quota-1\"}");
        of("paced_dead_letters") == Some(1.0)
            // Five of twenty were sent, and some of the others are held.
            && of("paced_jobs_ready").is_some_and(|ready| ready > 0.0 && ready <= 15.0)
            && left == Some(0.0)
    })
    .await;
    let quota =
        |name: &str| value(&page, &format!("{name}{{downstream=\"billing\",limit=\"quota-1\"}}")).unwrap();
    assert_eq!(quota("paced_limit_capacity"), 5.0);
    let reset = quota("paced_limit_reset_seconds");
    assert!(reset > 0.0 && reset <= 86_400.0, "{reset}");
    assert_eq!(paced.stop().await, 0);
    page
}

#[tokio::test]
async fn every_query_is_about_what_a_daemon_exports() {
    let mut series = Series::on(&exported().await);
    for metric in metric::ALL {
        let suffix = if matches!(metric.kind, Kind::Histogram(_)) { "_bucket" } else { "" };
        assert!(
            series.0.contains_key(&format!("{}{suffix}", metric.name)),
            "{} is not exported",
            metric.name
        );
    }
    let mut used = BTreeSet::new();
    let mut check = |series: &Series, what: &str, query: &Query| {
        let problems = series.problems(query);
        assert!(problems.is_empty(), "{what}: {problems:?}");
        used.extend(query.selectors.iter().map(|selector| selector.name.clone()));
    };
    for rule in rules() {
        let query = Query::read(&rule.query).unwrap_or_else(|error| panic!("{}: {error}", rule.name));
        check(&series, &rule.name, &query);
        for label in rule.text.split("$labels.").skip(1).filter_map(|rest| rest.split_whitespace().next()) {
            let recorded = query.selectors.iter().filter(|selector| selector.name.contains(':'));
            let mut recorded = recorded.flat_map(|selector| series.0[&selector.name].keys());
            let is_there = query.grouped_by.contains(label) || recorded.any(|known| known == label);
            assert!(is_there, "{} names {label}, which its query has not", rule.name);
        }
        if !rule.is_alert {
            series.record(&rule.name, &query);
        }
    }
    for (title, query) in dashboard() {
        check(&series, &title, &query);
    }
    let is_used = |name: &str| {
        let is_of = |series: &String| {
            series.strip_prefix(name).is_some_and(|rest| ["", "_bucket", "_sum"].contains(&rest))
        };
        used.iter().any(is_of)
    };
    let unused: Vec<&str> =
        metric::ALL.map(|metric| metric.name).into_iter().filter(|name| !is_used(name)).collect();
    assert!(unused.is_empty(), "neither the dashboard nor a rule shows these: {unused:?}");
}

#[test]
fn what_does_not_exist_is_found() {
    let series = Series::on("# TYPE a counter\na{downstream=\"x\",reason=\"late\"} 1\nb 2\n");
    let problems = |text: &str| series.problems(&Query::read(text).unwrap());
    assert!(
        problems("sum by (job, reason) (rate(a{downstream=\"any\",reason=~\"late\"}[5m])) / b").is_empty()
    );
    for (text, problem) in [
        ("rate(aa[5m])", "no such series: aa"),
        ("a{outcome=\"late\"}", "a has no label outcome"),
        ("a{reason=\"lat\"}", "a never has reason=\"lat\""),
        ("a{reason=~\"late|paused\"}", "a never has reason=\"paused\""),
        ("sum by (op) (a)", "no such label: op"),
        ("b{reason=\"late\"}", "b has no label reason"),
        ("time()", "no series at all"),
    ] {
        assert_eq!(problems(text), [problem], "{text}");
    }
}

#[test]
fn a_base_can_be_put_before_each_runbook() {
    const BASE: &str = "https://git.example.com/paced/blob/v0.1.0/";
    let page = file("docs/monitoring.md");
    let command = page.lines().find_map(|line| line.strip_prefix("    sed ")).unwrap();
    let command = format!("sed {}", command.split(" >").next().unwrap());
    let mut shell = std::process::Command::new("sh");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring");
    let output = shell.args(["-c", &command]).current_dir(folder).output().unwrap();
    let made = String::from_utf8(output.stdout).unwrap();
    let alerts = rules().iter().filter(|rule| rule.is_alert).count();
    assert_eq!(
        made.matches(&format!("runbook_url: {BASE}docs/monitoring.md#paced")).count(),
        alerts,
        "{made}"
    );
    // The chart replaces the same.
    let template = file("deploy/helm/paced/templates/rules.yaml");
    let replaces =
        "replace \"runbook_url: docs/\" (printf \"runbook_url: %sdocs/\" .Values.rules.runbookBase)";
    assert!(template.contains(replaces), "{template}");
    assert!(file("docs/deploy.md").contains(&format!("runbookBase: {BASE}")));
}

/// Of each alert that promtool tests: whether it fires in a test, and whether it is silent in one.
pub fn promtool_cases() -> BTreeMap<String, [bool; 2]> {
    let mut cases: BTreeMap<String, [bool; 2]> = BTreeMap::new();
    for case in file("deploy/monitoring/rules_test.yml").split("alertname: ").skip(1) {
        let mut lines = case.lines().map(str::trim);
        let name = lines.next().unwrap();
        let [fires, is_silent] = cases.entry(name.to_owned()).or_default();
        match lines.next() {
            Some("exp_alerts: []") => *is_silent = true,
            other => {
                let labels = lines.next().is_some_and(|line| line.starts_with("- exp_labels: "));
                assert!(other == Some("exp_alerts:") && labels, "{name}: {other:?}");
                *fires = true;
            }
        }
    }
    cases
}

#[test]
fn every_alert_is_explained_and_fires_in_its_test() {
    let page = file("docs/monitoring.md");
    let alerts: Vec<Rule> = rules().into_iter().filter(|rule| rule.is_alert).collect();
    let names: BTreeSet<&str> = alerts.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names.len(), alerts.len(), "no alert is there twice");
    let explained: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    assert_eq!(explained, names);
    for Rule { name, text, .. } in &alerts {
        let link = format!("runbook_url: docs/monitoring.md#{}\n", name.to_lowercase());
        assert!(text.contains(&link), "{name} has no {link}");
        for part in ["severity: ", "summary: ", "description: "] {
            assert!(text.contains(part), "{name} has no {part}");
        }
    }
    let fired: BTreeSet<String> =
        promtool_cases().into_iter().filter(|(_, [fires, _])| *fires).map(|(name, _)| name).collect();
    assert_eq!(fired, names.into_iter().map(str::to_owned).collect(), "promtool sees each of them fire");
}
