//! Tests of private parts; the others are in `tests/it/config.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use figment::Provider as _;
use tempfile::tempdir;

use super::source::Layers;
use super::{Reader, Sources, load_with, read, reload};

pub(super) const NOWHERE: &str = "nowhere/paced.toml";

fn in_dir(dir: &Path, files: &[&str], env: &[(&str, &str)]) -> Sources {
    Sources {
        files: files.iter().map(PathBuf::from).collect(),
        env: env.iter().map(|(name, text)| (name.into(), text.into())).collect(),
        set: Vec::new(),
        cwd: dir.to_path_buf(),
    }
}

fn rate_of(sources: &Sources, system: &Path) -> String {
    match load_with(sources, system) {
        Ok(loaded) => loaded.settings.downstreams["a"].limits.rate().to_string(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn files_are_found_in_the_documented_order() {
    let dir = tempdir().unwrap();
    let write = |name: &str, rate: &str| {
        let text = format!("[downstreams.a]\nrate = \"{rate}\"\nhttp.base_url = \"http://localhost/\"\n");
        fs::write(dir.path().join(name), text).unwrap();
    };
    for (name, rate) in [("system", "1/s"), ("paced.toml", "2/s"), ("b", "3/s"), ("c", "4/s"), ("d", "5/s")] {
        write(name, rate);
    }
    let system = dir.path().join("system");
    let named = [("PACED_CONFIG", "b:c")];
    assert_eq!(rate_of(&in_dir(dir.path(), &["d"], &named), &system), "5/s");
    assert_eq!(rate_of(&in_dir(dir.path(), &["d", "b"], &[]), &system), "3/s");
    assert_eq!(rate_of(&in_dir(dir.path(), &[], &named), &system), "4/s");
    assert_eq!(rate_of(&in_dir(dir.path(), &[], &[("PACED_CONFIG", "")]), &system), "2/s");
    assert_eq!(rate_of(&in_dir(dir.path(), &[], &[]), &system), "2/s");
    fs::remove_file(dir.path().join("paced.toml")).unwrap();
    assert_eq!(rate_of(&in_dir(dir.path(), &[], &[]), &system), "1/s");
}

#[test]
fn without_any_source_the_error_says_what_to_do() {
    let dir = tempdir().unwrap();
    assert_eq!(
        rate_of(&in_dir(dir.path(), &[], &[("PACED_PORT", "tcp://10.0.0.1:80")]), Path::new(NOWHERE)),
        "./paced.toml: not found, nor is nowhere/paced.toml; write one, or name it with -c FILE or PACED_CONFIG"
    );
    let env = [
        ("PACED_DOWNSTREAMS__A__RATE", "7/s"),
        ("PACED_DOWNSTREAMS__A__HTTP__BASE_URL", "http://localhost/"),
    ];
    assert_eq!(rate_of(&in_dir(dir.path(), &[], &env), Path::new(NOWHERE)), "7/s");
}

pub(super) const ALGORITHMS: [&str; 7] =
    ["leaky-bucket", "gcra", "token-bucket", "fixed-window", "sliding-window", "sliding-log", "quota"];

/// Every key of the settings, collected from a tree with one downstream, plan and header, and a limit of each
/// algorithm.
pub(super) fn known_keys() -> BTreeSet<String> {
    let dir = tempdir().unwrap();
    let limits = ALGORITHMS.map(|algorithm| format!("{{ algorithm = \"{algorithm}\" }}")).join(", ");
    let limits = format!("[{limits}]");
    let env = [
        ("PACED_DOWNSTREAMS__BILLING__LIMITS", &*limits),
        ("PACED_DOWNSTREAMS__BILLING__RETRY__STATUS", "{503={}}"),
        ("PACED_DOWNSTREAMS__BILLING__RETRY__WHEN", "{pointer=\"/a\"}"),
        ("PACED_PLANS__FREE__LIMITS", "[]"),
    ];
    let layers = Layers::read(&in_dir(dir.path(), &[], &env), Path::new(NOWHERE));
    let figment = layers.merge();
    let root = figment.data().unwrap().remove(&figment::Profile::Default).unwrap();
    let mut reader = Reader::new(&figment, &layers.all, &root);
    read::settings(&mut reader);
    let tables = reader.opened.clone();
    let leaf =
        |path: &String| !tables.contains(path) || path.ends_with("headers") || path.ends_with("params");
    reader.asked.into_keys().filter(leaf).collect()
}

#[test]
fn the_default_file_has_every_key() {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/config/paced.toml")).unwrap();
    // The file is read with its commented keys; then every key must be in it, under its table.
    let mut table = String::new();
    let mut there = BTreeSet::new();
    for line in text.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        if let Some(header) = line.strip_prefix('[') {
            table = header.trim_end_matches(']').to_owned();
        } else if let Some((key, _)) = line.split_once(" = ")
            && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        {
            there.insert(format!("{table}.{key}").trim_start_matches('.').to_owned());
        }
    }
    let (limits, known): (BTreeSet<String>, BTreeSet<String>) =
        known_keys().into_iter().partition(|key| key.contains("limits["));
    assert_eq!(there, known);
    // Each algorithm has a line with all of its keys.
    for (index, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let start = format!("#     {{ algorithm = \"{algorithm}\"");
        let line = text.lines().find(|line| line.starts_with(&start)).unwrap();
        let path = format!("downstreams.billing.limits[{index}].");
        let keys: Vec<&str> = limits.iter().filter_map(|key| key.strip_prefix(&path)).collect();
        assert!(keys.contains(&"rate") && keys.contains(&"name"), "{keys:?}");
        for key in keys.into_iter().filter(|key| *key != "name") {
            assert!(line.contains(&format!("{key} = ")), "{key} in {line}");
        }
    }
    assert!(text.contains("name = \"per-minute\""));
}

/// The cells of the tables of docs/reference/configuration.md whose rows have three, without their heads.
fn reference() -> Vec<[String; 3]> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/configuration.md");
    let text = fs::read_to_string(path).unwrap();
    let rows =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |").map(str::to_owned));
    let cells = |row: String| -> [String; 3] {
        let cells: Vec<String> =
            row.split(" | ").map(|cell| cell.trim_matches(['`', '|', ' ']).to_owned()).collect();
        cells.try_into().unwrap()
    };
    rows.map(cells).collect()
}

#[test]
fn the_reference_has_every_key_with_its_default_and_what_a_reload_does() {
    let rows = reference();
    let (keys, algorithms): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| !ALGORITHMS.contains(&row[0].as_str()));
    let (limits, known): (BTreeSet<String>, BTreeSet<String>) =
        known_keys().into_iter().partition(|key| key.contains("limits["));
    let general = |key: &str| {
        let key =
            key.replace("downstreams.billing.", "downstreams.NAME.").replace("plans.free.", "plans.NAME.");
        key.replace(".status.503.", ".status.S.")
    };
    let (files, plain): (BTreeSet<String>, BTreeSet<String>) = known
        .iter()
        .map(|key| general(key))
        .partition(|key| key.ends_with("_file") && !key.contains(".tls."));
    let there: BTreeSet<String> = keys.iter().map(|row| row[0].clone()).collect();
    assert_eq!((there.len(), there), (keys.len(), plain));
    let text =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/configuration.md")).unwrap();
    for file in files {
        assert!(text.contains(&format!("`{file}`")), "{file}");
    }

    let bare = "[downstreams.billing]\nrate = \"1/s\"\nhttp.base_url = \"http://localhost/\"\n";
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("paced.toml"), bare).unwrap();
    let loaded = load_with(&in_dir(dir.path(), &["paced.toml"], &[]), Path::new(NOWHERE)).unwrap();
    let defaults: BTreeSet<(String, String)> = loaded
        .entries
        .iter()
        .filter(|entry| entry.origin == "default")
        .map(|entry| (general(&entry.path()), entry.value.clone()))
        .collect();
    let said = |word: &str| ["unset", "required"].iter().any(|none| word.starts_with(none));
    let told = keys.iter().filter(|row| !said(&row[1])).map(|row| (row[0].clone(), row[1].clone()));
    assert_eq!(told.collect::<BTreeSet<_>>(), defaults);

    for row in &keys {
        let pattern = row[0].replace(".NAME.", ".*.").replace(".S.", ".*.");
        let expected = if reload::LIVE.contains(&pattern.as_str()) { "reload" } else { "restart" };
        assert_eq!(row[2], expected, "{}", row[0]);
    }
    assert_eq!(algorithms.len(), ALGORITHMS.len());
    for (index, (row, algorithm)) in algorithms.iter().zip(ALGORITHMS).enumerate() {
        assert_eq!(row[0], algorithm);
        let path = format!("downstreams.billing.limits[{index}].");
        let own = limits.iter().filter_map(|key| key.strip_prefix(&path));
        let own: BTreeSet<&str> = own.filter(|key| !["algorithm", "rate", "name"].contains(key)).collect();
        let told: BTreeSet<&str> =
            row[1].split(", ").map(|key| key.trim_matches('`')).filter(|key| *key != "none").collect();
        assert_eq!(told, own, "{algorithm}");
    }
}
