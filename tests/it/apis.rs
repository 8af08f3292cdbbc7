//! What public APIs answer to a caller that is too fast, and what that means: each answer of `apis.toml` is decided on as its
//! vendor asks for. `docs/apis.md` is made from it (`make generated`).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use paced::config::{Sources, load};
use paced::sink::AnswerPolicy;
use paced::sink::http::{Answered, Decision, decide};
use serde::Deserialize;

const DATA: &str = include_str!("apis.toml");
const PAGE: &str = "docs/apis.md";

#[derive(Deserialize)]
struct Data {
    answer: Vec<Answer>,
}

/// An answer, and what its vendor asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    vendor: String,
    what: String,
    url: String,
    status: u16,
    #[serde(default)]
    headers: toml::Table,
    #[serde(default)]
    body: String,
    /// The rules that it takes, as in `retry.answers`.
    #[serde(default)]
    answers: Vec<toml::Value>,
    is: String,
    wait_ms: Option<u128>,
    note: Option<String>,
}

fn data() -> Vec<Answer> {
    toml::from_str::<Data>(DATA).unwrap().answer
}

impl Answer {
    fn headers(&self) -> HeaderMap {
        let field = |(name, value): (&String, &toml::Value)| {
            (name.parse::<HeaderName>().unwrap(), value.as_str().unwrap().parse::<HeaderValue>().unwrap())
        };
        self.headers.iter().map(field).collect()
    }

    /// The rules as a configuration has them.
    fn rules(&self) -> Vec<String> {
        self.answers.iter().map(inline).collect()
    }

    fn policy(&self) -> AnswerPolicy {
        let dir = tempfile::tempdir().unwrap();
        let rules = self.rules().join(", ");
        let text = format!(
            "[downstreams.api]\nrate = '1/s'\nhttp.base_url = 'http://localhost/'\nretry.max_pause = '1d'\nretry.answers = [{rules}]\n"
        );
        fs::write(dir.path().join("paced.toml"), text).unwrap();
        let files = vec!["paced.toml".into()];
        let loaded = load(Sources { files, cwd: dir.path().to_path_buf(), ..Sources::default() });
        let settings = loaded.unwrap_or_else(|errors| panic!("{}: {errors}", self.what)).settings;
        settings.downstreams["api"].retry.answers.clone()
    }
}

/// A value as TOML on one line.
fn inline(value: &toml::Value) -> String {
    match value {
        toml::Value::Table(table) => {
            let pairs: Vec<String> =
                table.iter().map(|(key, value)| format!("{key} = {}", inline(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        toml::Value::Array(items) => {
            format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        toml::Value::String(text) => serde_json::to_string(text).unwrap(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Boolean(truth) => truth.to_string(),
        toml::Value::Datetime(_) => panic!("no rule has a date"),
    }
}

#[test]
fn each_answer_means_what_its_vendor_asks_for() {
    let all = data();
    assert!(all.len() >= 40);
    for answer in &all {
        let Answer { vendor, what, .. } = answer;
        let (headers, body) = (answer.headers(), answer.body.as_bytes());
        let status = StatusCode::from_u16(answer.status).unwrap();
        let Decision { is, wait, by } =
            decide(&answer.policy(), &Answered::new(status, &headers, Some(body)));
        let found = (is.word(), wait.map(|wait| wait.as_millis()));
        assert_eq!(found, (&answer.is[..], answer.wait_ms), "{vendor}, {what}: {by}");
    }
}

#[test]
fn the_page_is_made_from_the_answers() {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let made = page();
    if env::var_os("PACED_WRITE_GENERATED").is_some() {
        return fs::write(&path, made).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(there == made, "{PAGE} is not what tests/it/apis.toml says; run make generated");
}

fn page() -> String {
    let all = data();
    let mut text = "# What APIs answer\n\n\
        This page has the answers of some APIs to a caller that is too fast, and what they mean to paced. If the status and headers are not enough, put the rules into\n\
        `[downstreams.NAME.retry]` as [`answers`](retries.md#rules). Try one with `paced explain-answer NAME --status S --header \"N: V\" --body FILE`.\n\n\
        `make generated` makes this page from the data of a test (`tests/it/apis.toml`). Vendors change their answers: check the answers of yours. A wait is the time\n\
        in the answer or a rule. `max_pause` bounds it, and must be at least the `wait` of a rule.\n"
        .to_owned();
    let mut vendor = "";
    for answer in &all {
        if answer.vendor != vendor {
            vendor = &answer.vendor;
            let _ = writeln!(text, "\n## {vendor}\n");
        }
        let wait = answer.wait_ms.map(|wait| format!(", {} s", wait as f64 / 1000.0)).unwrap_or_default();
        let _ = writeln!(
            text,
            "- [{}]({}): {}, **{}**{wait}.",
            answer.what, answer.url, answer.status, answer.is
        );
        if let Some(note) = &answer.note {
            let _ = writeln!(text, "  {}{}", note[..1].to_uppercase(), &note[1..]);
        }
        if !answer.answers.is_empty() {
            let rules: String = answer.rules().iter().map(|rule| format!("      {rule},\n")).collect();
            let _ = writeln!(
                text,
                "\n      answers = [\n  {}      ]",
                rules.replace("\n      ", "\n        ").trim_end_matches(' ')
            );
        }
    }
    text
}
