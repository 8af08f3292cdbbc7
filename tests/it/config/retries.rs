//! docs/retries.md, which says what the code does.

use super::*;

const PAGE: &str = include_str!("../../../docs/retries.md");

/// The keys of `[downstreams.NAME.retry]` and of the tables in it.
fn keys() -> Vec<String> {
    fn collect(node: &serde_json::Value, keys: &mut Vec<String>) {
        for (key, node) in node["properties"].as_object().into_iter().flatten() {
            keys.push(key.clone());
            collect(node, keys);
        }
        node["patternProperties"]
            .as_object()
            .into_iter()
            .flat_map(|all| all.values())
            .for_each(|node| collect(node, keys));
    }
    let schema = paced::config::schema();
    let downstreams = schema["properties"]["downstreams"]["patternProperties"].as_object().unwrap();
    let mut keys = Vec::new();
    collect(&downstreams.values().next().unwrap()["properties"]["retry"], &mut keys);
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The rows of the page's tables, as cells.
fn rows() -> Vec<Vec<&'static str>> {
    let cells = |line: &'static str| line.trim_matches('|').split(" | ").map(str::trim).collect();
    PAGE.lines().filter(|line| line.starts_with('|')).map(cells).collect()
}

#[test]
fn each_key_is_described() {
    let keys = keys();
    assert!(keys.len() >= 13, "not all were found: {keys:?}");
    for key in keys {
        let is_named = [format!("`{key}`"), format!("`{key}.S`")].iter().any(|name| PAGE.contains(name));
        assert!(is_named, "docs/retries.md does not describe `{key}`");
    }
}

#[test]
fn the_defaults_are_those_of_the_code() {
    let shown: toml::Table = show(&Scene::new(LEAST).right()).parse().unwrap();
    let defaults = shown["downstreams"]["a"]["retry"].as_table().unwrap();
    let described: Vec<(&str, &str)> = rows()
        .into_iter()
        .skip_while(|row| row[0] != "key")
        .skip(2)
        .map(|row| (row[0].trim_matches('`'), row[1].trim_matches('`')))
        .collect();
    for (key, value) in defaults {
        let (_, found) = described.iter().find(|(name, _)| name == key).expect(key);
        let found: toml::Table = format!("default = {found}").parse().unwrap();
        assert_eq!(found["default"], *value, "{key}");
    }
    let unset: Vec<&str> =
        described.iter().filter(|(_, value)| *value == "unset").map(|(key, _)| *key).collect();
    assert_eq!(unset, ["answers", "max_throttled", "max_age", "status.S"]);
    assert_eq!(described.len(), defaults.len() + unset.len());
}

/// How long that is, for people.
fn in_words(seconds: u64) -> String {
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "min"), (seconds % 60, "s")];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count} {unit}"));
    parts.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_waits_are_those_of_the_default_backoff() {
    let policy = paced::dispatch::RetryPolicy::default();
    let (min, max) = (policy.backoff.min.as_secs(), policy.backoff.max.as_secs());
    let bound = |failed: u32| (min << failed.min(32)).min(max);
    let rows = rows();
    let (mut all, mut table) = (0, Vec::new());
    for failed in 1..policy.max_attempts {
        all += bound(failed);
        let wait = format!("{min} s to {} s", bound(failed));
        table.push([failed.to_string(), wait, format!("at most {}", in_words(all))]);
        for _ in 0..1000 {
            let wait = policy.backoff(failed, Some(500), None).unwrap();
            assert!(wait >= Duration::from_secs(min) && wait <= Duration::from_secs(bound(failed)));
        }
    }
    assert_eq!(policy.backoff(policy.max_attempts, Some(500), None), None);
    for attempts in [policy.max_attempts, 12, 20, 100] {
        let (least, most): (u64, u64) = (u64::from(attempts - 1) * min, (1..attempts).map(bound).sum());
        let row = [in_words(least), in_words((least + most).div_ceil(2)), in_words(most)];
        let found = rows.iter().find(|found| found[0] == attempts.to_string() && found.len() == 4);
        assert_eq!(
            found.map(|found| &found[1..]),
            Some(&row.each_ref().map(String::as_str)[..]),
            "{attempts}"
        );
    }
    for row in table {
        assert!(rows.iter().any(|found| *found == row), "{row:?}");
    }
}

#[test]
fn the_examples_are_right() {
    let mut count = 0;
    for example in PAGE.split("```toml\n").skip(1) {
        let example = example.split("```").next().unwrap();
        let least = LEAST.replace("downstreams.a", "downstreams.billing");
        Scene::new(&format!("{least}{example}")).right();
        count += 1;
    }
    assert_eq!(count, 5);
}
