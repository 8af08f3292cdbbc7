//! The schema against the reader: neither knows a key or a type that the other does not, and both take the same forms.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use jsonschema::Validator;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use super::schema;
use crate::config::tests::{ALGORITHMS, NOWHERE, known_keys};
use crate::config::{ConfigErrors, Loaded, Sources, load_with};

mod forms;

/// The shortest valid configuration, in lines that another value of the same key replaces.
const LEAST: [(&str, &str); 2] =
    [("downstreams.billing.rate", "\"1/s\""), ("downstreams.billing.http.base_url", "\"http://localhost/\"")];

/// What a client of OAuth2 has at least.
const CLIENT: [(&str, &str); 3] = [
    ("downstreams.billing.http.oauth2.token_url", "\"https://localhost/token\""),
    ("downstreams.billing.http.oauth2.client_id", "\"paced\""),
    ("downstreams.billing.http.oauth2.client_secret", "\"secret\""),
];

/// What a token with a name has.
const TOKEN: [(&str, &str); 2] =
    [("admin.tokens.alice.token", "\"0123456789abcdef\""), ("admin.tokens.alice.role", "\"read\"")];

/// The names that stand for those of one's own, as [`known_keys`] has them.
fn example(path: &str) -> &'static str {
    match path {
        "admin.tokens" => "alice",
        "plans" => "free",
        "downstreams" => "billing",
        "downstreams.billing.retry.status" => "503",
        other => panic!("no name for {other}"),
    }
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Every table of the schema by its path, and every key that is no table.
fn walk(node: &Value, path: &str, tables: &mut BTreeSet<String>, keys: &mut BTreeMap<String, Value>) {
    let named = node["patternProperties"].as_object().and_then(|all| all.values().next());
    if let Some(known) = node["properties"].as_object() {
        tables.insert(path.to_owned());
        for (key, node) in known {
            walk(node, &joined(path, key), tables, keys);
        }
    } else if let Some(named) = named.filter(|named| named["properties"].is_object()) {
        walk(named, &joined(path, example(path)), tables, keys);
    } else {
        keys.insert(path.to_owned(), node.clone());
    }
}

/// The schema, and a reader.
struct Bench {
    validator: Validator,
    tables: BTreeSet<String>,
    keys: BTreeMap<String, Value>,
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let schema = schema();
        jsonschema::draft4::meta::validate(&schema).unwrap();
        let (mut tables, mut keys) = (BTreeSet::new(), BTreeMap::new());
        walk(&schema, "", &mut tables, &mut keys);
        let validator = jsonschema::draft4::new(&schema).unwrap();
        Self { validator, tables, keys, folder: tempdir().unwrap() }
    }

    fn read(&self, text: &str) -> Result<Loaded, ConfigErrors> {
        let dir = self.folder.path();
        fs::write(dir.join("paced.toml"), text).unwrap();
        let sources = Sources { files: vec!["paced.toml".into()], cwd: dir.to_owned(), ..Sources::default() };
        load_with(&sources, Path::new(NOWHERE))
    }

    /// What the schema finds in a text.
    fn validate(&self, text: &str) -> Vec<String> {
        let table: toml::Table = toml::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let instance = serde_json::to_value(table).unwrap();
        let shown = |error: jsonschema::ValidationError<'_>| format!("{}: {error}", error.instance_path());
        self.validator.iter_errors(&instance).map(shown).collect()
    }

    /// The properties of a limit.
    fn limit(&self) -> BTreeMap<String, Value> {
        let limit = &self.keys["downstreams.billing.limits"]["items"];
        limit["properties"].as_object().unwrap().clone().into_iter().collect()
    }
}

/// The shortest configuration, with this value of this key.
fn with(key: &str, value: &str) -> String {
    let is_replaced = |line: &&(&str, &str)| {
        line.0 == key || line.0.starts_with(&format!("{key}.")) || key.starts_with(&format!("{}.", line.0))
    };
    let client: &[_] = match key {
        key if key.starts_with("downstreams.billing.http.oauth2.") => &CLIENT,
        key if key.starts_with("admin.tokens.alice.") => &TOKEN,
        _ => &[],
    };
    let kept = LEAST.iter().chain(client).filter(|line| !is_replaced(line));
    kept.chain([&(key, value)]).map(|(key, value)| format!("{key} = {value}\n")).collect()
}

/// The same for a key of a limit of this algorithm.
fn with_limit(algorithm: &str, key: &str, value: &str) -> String {
    let rate = if key == "rate" { String::new() } else { ", rate = \"10/s\"".to_owned() };
    let algorithm = if key == "algorithm" { String::new() } else { format!(", algorithm = \"{algorithm}\"") };
    with("downstreams.billing.limits", &format!("[{{ {key} = {value}{rate}{algorithm} }}]"))
}

#[test]
fn both_know_the_same_keys() {
    let bench = Bench::new();
    let known = known_keys();
    let (limits, known): (BTreeSet<String>, BTreeSet<String>) =
        known.into_iter().filter(|key| !key.contains("answers[")).partition(|key| key.contains("limits["));
    assert_eq!(bench.keys.keys().cloned().collect::<BTreeSet<_>>(), known);
    let properties = bench.limit();
    for (index, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let path = format!("downstreams.billing.limits[{index}].");
        let own: BTreeSet<&str> = limits.iter().filter_map(|key| key.strip_prefix(&path)).collect();
        for (key, node) in &properties {
            let value =
                node.get("default").or(node["enum"].get(0)).cloned().unwrap_or_else(|| match key.as_str() {
                    "rate" => "1/s".into(),
                    "name" => "any".into(),
                    "capacity" | "cost" | "default_cost" | "max_cost" => 5.into(),
                    "time_zone" => "UTC".into(),
                    other => panic!("give {other} a value here"),
                });
            // The algorithm is that of the row.
            let value = if key == "algorithm" { algorithm.into() } else { value };
            let found = bench.validate(&with_limit(algorithm, key, &value.to_string()));
            assert_eq!(found.is_empty(), own.contains(key.as_str()), "{algorithm} {key}: {found:?}");
        }
        assert!(own.iter().all(|key| properties.contains_key(*key)), "{algorithm}: {own:?}");
    }
}

#[test]
fn each_key_says_what_it_is_for() {
    let bench = Bench::new();
    let limit = bench.limit();
    for (key, node) in bench.keys.iter().chain(&limit) {
        let text = node["description"].as_str().unwrap_or_default();
        assert!(text.ends_with('.') && text.len() > 10, "{key}: {text:?}");
    }
}

#[test]
fn both_have_the_same_defaults() {
    let bench = Bench::new();
    let json = |toml: &str| {
        let table: toml::Table = toml::from_str(&format!("value = {toml}")).unwrap();
        serde_json::to_value(table).unwrap()["value"].clone()
    };
    // The keys of a client have their defaults where there is a client.
    let loaded = bench.read(&with("downstreams.billing.http.oauth2.client_id", "\"paced\"")).unwrap();
    let defaults = loaded.entries.iter().filter(|entry| &*entry.origin == "default");
    let expected: BTreeMap<String, Value> =
        defaults.map(|entry| (entry.path(), json(&entry.value))).collect();
    let defaults_of_schema =
        bench.keys.iter().filter_map(|(key, node)| Some((key.clone(), node.get("default")?.clone())));
    assert_eq!(defaults_of_schema.collect::<BTreeMap<_, _>>(), expected);
}

/// Values of each type. A key accepts their form only by chance.
const SAMPLES: [&str; 7] = ["\"zzz zzz\"", "7", "0.5", "true", "[\"zzz zzz\"]", "[7]", "{ zzz = 1 }"];

/// Checks that both refuse what the reader refuses for its type or as unknown, and that the schema refuses nothing else.
#[track_caller]
fn judge(bench: &Bench, text: &str) {
    let found = bench.validate(text);
    match bench.read(text) {
        Ok(_) => assert!(found.is_empty(), "only the schema refuses this: {found:?}\n{text}"),
        Err(errors) => {
            let errors = errors.to_string();
            let is_of_type = errors.contains(" belongs; write ") || errors.contains("unknown key");
            assert!(!is_of_type || !found.is_empty(), "only the reader refuses this: {errors}\n{text}");
        }
    }
}

#[test]
fn both_refuse_the_same_types() {
    let bench = Bench::new();
    for key in bench.keys.keys() {
        SAMPLES.iter().for_each(|value| judge(&bench, &with(key, value)));
    }
    for key in bench.limit().keys() {
        for algorithm in ALGORITHMS {
            SAMPLES.iter().for_each(|value| judge(&bench, &with_limit(algorithm, key, value)));
        }
    }
    // Values in place of tables.
    for table in bench.tables.iter().filter(|table| !table.is_empty()) {
        ["\"x\"", "7", "true", "[]", "[7]"].iter().for_each(|value| judge(&bench, &with(table, value)));
    }
}

#[test]
fn both_refuse_unknown_keys() {
    let bench = Bench::new();
    assert!(bench.tables.len() > 15, "{:?}", bench.tables);
    for table in &bench.tables {
        let text = with(&joined(table, "zzz"), "\"x\"");
        let errors = bench.read(&text).unwrap_err().to_string();
        assert!(errors.contains("zzz: unknown key"), "{table}: {errors}");
        assert!(!bench.validate(&text).is_empty(), "{text}");
    }
    for text in ALGORITHMS.map(|algorithm| with_limit(algorithm, "zzz", "1")) {
        judge(&bench, &text);
    }
}

#[test]
fn both_refuse_wrong_forms() {
    let bench = Bench::new();
    for (key, value) in forms::WRONG {
        let text = with(key, value);
        assert!(bench.read(&text).is_err(), "only the schema refuses this: {text}");
        assert!(!bench.validate(&text).is_empty(), "only the reader refuses this: {text}");
    }
    fs::write(bench.folder.path().join("url"), "memory:\n").unwrap();
    let both = with("store", "{ url = \"memory:\", url_file = \"url\" }");
    assert!(bench.read(&both).is_err() && !bench.validate(&both).is_empty());
    let one = with("store", "{ url_file = \"url\" }");
    assert!(bench.read(&one).is_ok() && bench.validate(&one).is_empty());
}

#[test]
fn both_take_every_form_there_is() {
    let bench = Bench::new();
    for (key, value) in forms::RIGHT {
        let text = with(key, value);
        assert!(bench.read(&text).is_ok(), "{}\n{text}", bench.read(&text).unwrap_err());
        assert_eq!(bench.validate(&text), [""; 0], "{text}");
    }
}

/// The blocks of TOML of a page that are configurations of paced.
fn blocks(page: &str) -> Vec<&str> {
    let all = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    // What Cargo reads is another matter.
    all.filter(|block| !block.contains("[dependencies]") && !block.starts_with("paced = ")).collect()
}

#[test]
fn what_is_shipped_and_shown_is_valid() {
    let bench = Bench::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = |folder: &str, extension: &str| {
        let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|it| it == extension)).collect::<Vec<_>>()
    };
    let configurations = [files("config", "toml"), files("config/examples", "toml"), files("deploy", "toml")];
    let configurations = configurations.concat();
    assert!(configurations.len() > 10, "{configurations:?}");
    for path in configurations {
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(bench.validate(&text), [""; 0], "{}", path.display());
    }
    let mut number = 0;
    let pages = [files(".", "md"), files("docs", "md"), files("docs/reference", "md")];
    for path in pages.concat() {
        let page = fs::read_to_string(&path).unwrap();
        for block in blocks(&page) {
            assert_eq!(bench.validate(block), [""; 0], "{}:\n{block}", path.display());
            number += 1;
        }
    }
    assert!(number >= 7, "{number}");
}
