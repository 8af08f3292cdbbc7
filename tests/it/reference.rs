//! The pages of `docs/reference` against the code: nothing is missing there, and nothing is there that does not exist.

use std::collections::BTreeSet;
use std::path::Path;

use paced::dispatch::ParkReason;
use paced::job::{self, Content, Message, Reason, ndjson};
use paced::metric::{self, Kind};

use crate::admin::metrics::LABELS;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text below the heading of this name, up to the next heading.
fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let text = page.split_once(&format!("\n## {heading}\n")).map(|(_, rest)| rest);
    let text = text.unwrap_or_else(|| panic!("no heading `{heading}`"));
    text.split("\n## ").next().unwrap_or_default()
}

/// The cells of the table whose head begins with this column.
fn table<'p>(text: &'p str, first: &str) -> Vec<Vec<&'p str>> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&format!("| {first} |")));
    assert!(lines.next().is_some(), "no table that begins with `{first}`");
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    let cells = |line: &'p str| line.trim_matches('|').split(" | ").map(str::trim).collect();
    rows.map(cells).collect()
}

/// What stands between backticks.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The names in the first column of the table.
fn first_column<'p>(text: &'p str, first: &str) -> Vec<&'p str> {
    table(text, first).into_iter().flat_map(|cells| names(cells[0])).collect()
}

#[track_caller]
fn same<'s>(there: impl IntoIterator<Item = &'s str>, expected: impl IntoIterator<Item = &'s str>) {
    let there: Vec<&str> = there.into_iter().collect();
    let set: BTreeSet<&str> = there.iter().copied().collect();
    assert_eq!(set.len(), there.len(), "nothing is there twice: {there:?}");
    assert_eq!(set, expected.into_iter().collect());
}

#[test]
fn every_property_is_in_the_reference() {
    // A field that is added does not compile here until it is named.
    let Message {
        routing_key: _,
        content: Content { body: _, content_type: _, content_encoding: _ },
        message_id: _,
        priority: _,
        correlation_id: _,
        reply_to: _,
        timestamp: _,
        headers: _,
        malformed: _,
    } = Message::default();
    let fields = [
        "routing_key",
        "body",
        "content_type",
        "content_encoding",
        "message_id",
        "priority",
        "correlation_id",
        "reply_to",
        "timestamp",
        "headers",
    ];
    same(first_column(section(&page("reference/messages.md"), "Properties"), "property"), fields);
}

#[test]
fn every_header_is_in_the_reference() {
    let messages = page("reference/messages.md");
    let headers = section(&messages, "Headers");
    let known = job::PRODUCER_HEADERS.map(|name| format!("paced-{name}"));
    let others = ["paced-cost-LIMIT", "http-NAME", "traceparent", "tracestate"];
    same(first_column(headers, "header"), known.iter().map(String::as_str).chain(others));

    let (_, forbidden) = headers.split_once("No job sets these").unwrap();
    let (_, forbidden) = forbidden.split_once("lists:").unwrap();
    same(names(forbidden), job::FORBIDDEN_HEADERS);
    let methods = table(headers, "header").into_iter().find(|cells| cells[0] == "`paced-method`").unwrap();
    let mut methods = names(methods[2]);
    assert_eq!(methods.pop(), Some("POST"), "the default comes last");
    same(methods, job::METHODS);

    let dead = first_column(section(&messages, "Dead letters"), "header");
    let parked = first_column(section(&messages, "Parked jobs"), "header");
    let own = job::OWN_HEADERS.map(|name| format!("paced-{name}"));
    same(dead.into_iter().chain(parked), own.iter().map(String::as_str));
}

#[test]
fn every_key_of_a_line_is_in_the_reference() {
    let messages = page("reference/messages.md");
    let text = section(&messages, "A job as a line of JSON");
    same(first_column(text, "key"), ndjson::KEYS);
    let example = text.lines().find(|line| line.starts_with("    {")).unwrap();
    ndjson::parse(example.trim().as_bytes()).unwrap();
}

#[test]
fn every_reason_is_in_the_reference_in_its_order() {
    let messages = page("reference/messages.md");
    let reasons = table(section(&messages, "Dead letters"), "reason");
    let documented: Vec<(&str, bool)> =
        reasons.iter().map(|cells| (names(cells[0])[0], cells[1] == "yes")).collect();
    let expected = Reason::ALL.map(|reason| (reason.as_str(), !reason.is_rejection()));
    assert_eq!(documented, expected);

    let parked = table(section(&messages, "Parked jobs"), "header");
    let why = parked.iter().find(|cells| cells[0] == "`paced-parked-for`").unwrap();
    same(names(why[1]), ParkReason::ALL.map(ParkReason::as_str));
}

#[test]
fn every_metric_is_in_the_reference() {
    let metrics = page("reference/metrics.md");
    let rows = table(&metrics, "metric");
    let documented: Vec<(&str, &str, &str)> =
        rows.iter().map(|cells| (names(cells[0])[0], cells[1], *cells.last().unwrap())).collect();
    let kind = |kind: Kind| match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    let expected = metric::ALL.map(|metric| (metric.name, kind(metric.kind), metric.help));
    assert_eq!(documented, expected, "in the order of the code, with its text");
    // Another test compares these with the answers of a running daemon.
    for (series, label, values) in LABELS {
        let name = series.trim_end_matches("_count").trim_end_matches("_sum");
        let row = rows.iter().find(|cells| names(cells[0]) == [name]).unwrap();
        let expected: Vec<&str> =
            [label].into_iter().filter(|label| !label.is_empty()).chain(values.iter().copied()).collect();
        assert_eq!(names(row[2]), expected, "{name}");
    }
    let used = metrics.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    for name in used.filter(|word| word.starts_with("paced_")) {
        let known = |metric: &metric::Metric| {
            name == metric.name || name.strip_suffix("_bucket") == Some(metric.name)
        };
        assert!(metric::ALL.iter().any(known), "{name}");
    }
}

/// The text of all source files, in which a text that continues in the next line is one.
fn sources() -> String {
    fn read(folder: &Path, out: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                read(&entry, out);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                out.push_str(&std::fs::read_to_string(&entry).unwrap());
            }
        }
    }
    let mut text = String::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
    let mut whole = String::with_capacity(text.len());
    for (place, part) in text.split("\\\n").enumerate() {
        whole.push_str(if place == 0 { part } else { part.trim_start() });
    }
    whole
}

/// The commands of a page: in its text, and in its blocks.
fn commands(page: &str) -> BTreeSet<&str> {
    let mut is_fenced = false;
    let mut all = BTreeSet::new();
    for line in page.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    ") {
            let line = line.trim_start().trim_start_matches("$ ");
            all.insert(line.split(" #").next().unwrap_or_default().trim());
        } else {
            all.extend(names(line));
        }
    }
    all.retain(|text| text.starts_with("paced "));
    all
}

#[test]
fn the_texts_of_troubleshooting_are_those_of_the_program() {
    const OTHERS: [&str; 6] = ["paced", "curl", "rabbitmqctl", "rabbitmq-diagnostics", "systemctl", "in"];
    let (page, sources) = (page("troubleshooting.md"), sources());
    // Those of the table are tried one by one.
    let (before, after) = crate::states::around_the_table(&page);
    let texts: Vec<&str> = before
        .lines()
        .chain(after.lines())
        .flat_map(names)
        .filter(|text| text.contains(' ') && !text.contains(" = "))
        .filter(|text| !OTHERS.contains(&text.split(' ').next().unwrap_or_default()))
        .filter(|text| *text != "check --online")
        .collect();
    assert!(texts.len() > 40, "{texts:?}");
    for text in texts {
        assert!(sources.contains(text), "no such text: {text}");
    }
    for link in page.split("](#").skip(1).map(|rest| rest.split(')').next().unwrap_or_default()) {
        let anchor = |line: &str| -> Option<String> {
            let kept = line.strip_prefix("## ")?.to_lowercase().replace(' ', "-");
            Some(kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect())
        };
        assert!(page.lines().any(|line| anchor(line).as_deref() == Some(link)), "no heading #{link}");
    }
}

#[test]
fn every_command_of_the_pages_exists_with_its_options() {
    let mut number = 0;
    for name in ["troubleshooting.md", "operations.md", "cancelling.md", "tour.md", "../README.md"] {
        let page = page(name);
        for command in commands(&page) {
            let words: Vec<&str> = command.split_whitespace().skip(1).collect();
            let verb = |word: &&&str| word.bytes().all(|b| b.is_ascii_lowercase());
            let first = words.first().filter(verb);
            let Some(first) = first else { continue };
            let second = words
                .get(1)
                .filter(verb)
                .filter(|_| matches!(*first, "dead" | "downstream" | "rate" | "config"));
            let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_paced"));
            let asked = program.arg(first).args(second).arg("--help").output().unwrap();
            let help = String::from_utf8(asked.stdout).unwrap();
            assert!(asked.status.success(), "{name}: {command}: {}", String::from_utf8_lossy(&asked.stderr));
            for option in words.iter().take_while(|word| **word != "|").filter(|word| word.starts_with("--"))
            {
                let option = option.split('=').next().unwrap_or_default();
                assert!(help.contains(option), "{name}: {command}: no {option}");
            }
            number += 1;
        }
    }
    assert!(number > 30, "{number}");
}

#[test]
fn every_argument_of_a_queue_is_in_the_reference() {
    let page = page("reference/topology.md");
    let code = include_str!("../../src/amqp/topology.rs");
    let arguments: BTreeSet<&str> = code
        .split('"')
        .filter(|text| text.starts_with("x-") || *text == "alternate-exchange")
        .filter(|text| !text.contains(' '))
        .collect();
    let exchanges = table(&page, "exchange");
    let of_exchanges =
        exchanges.iter().flat_map(|cells| names(cells[2])).filter(|name| name.contains("exchange"));
    let documented: BTreeSet<&str> = of_exchanges.chain(first_column(&page, "argument")).collect();
    assert_eq!(documented, arguments);
    assert!(page.contains("1000000") && code.contains("DELIVERY_LIMIT: i64 = 1_000_000"));
    for name in ["billing.#", "reject-publish", "at-least-once"] {
        assert!(page.contains(name) && code.contains(name.trim_start_matches("billing")), "{name}");
    }
}
