//! Tests of private parts; the others are in `tests/it/config.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::tempdir;

use super::reader::Paths;
use super::schema::read_example;
use super::{Sources, limits, load_with};

mod generated;

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
        "./paced.toml: not found, and neither is nowhere/paced.toml; write one, or name it with -c FILE or PACED_CONFIG"
    );
    let env = [
        ("PACED_DOWNSTREAMS__A__RATE", "7/s"),
        ("PACED_DOWNSTREAMS__A__HTTP__BASE_URL", "http://localhost/"),
    ];
    assert_eq!(rate_of(&in_dir(dir.path(), &[], &env), Path::new(NOWHERE)), "7/s");
}

pub(super) use limits::ALGORITHMS;

/// Every key that the reader asks for, where each name of the user's own and each algorithm is given once. Headers and
/// parameters are one key each.
pub(super) fn known_keys() -> BTreeSet<String> {
    read_example(|reader| {
        let Paths { asked, opened, .. } = reader.paths;
        let names = [".headers", ".params", "lanes.by", "lanes.weights"];
        let is_of_names = |path: &str| names.iter().any(|name| path.ends_with(name));
        let is_key = |path: &String| {
            let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
            !is_of_names(parent) && (!opened.contains(path) || is_of_names(path))
        };
        asked.into_keys().filter(is_key).collect()
    })
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
    let (limits, known): (BTreeSet<String>, BTreeSet<String>) = known_keys()
        .into_iter()
        .filter(|key| !key.contains("answers["))
        .partition(|key| key.contains("limits["));
    assert_eq!(there, known);
    // Each algorithm has a line with each of its keys; those that all have are there once.
    for (index, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let start = format!("#     {{ algorithm = \"{algorithm}\"");
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&start)).collect();
        let path = format!("downstreams.billing.limits[{index}].");
        let keys: Vec<&str> = limits.iter().filter_map(|key| key.strip_prefix(&path)).collect();
        assert!(keys.contains(&"rate") && keys.contains(&"name"), "{keys:?}");
        let of_all = ["name", "margin", "cost", "default_cost", "max_cost"];
        for key in keys.into_iter().filter(|key| !of_all.contains(key)) {
            assert!(lines.iter().any(|line| line.contains(&format!("{key} = "))), "{key} in {lines:?}");
        }
    }
    assert!(text.contains("name = \"per-minute\", margin = \"50ms\""));
    assert!(text.contains("cost = \"header:tokens\", default_cost = 10, max_cost = 50"));
}
