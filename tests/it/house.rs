//! Rules for the source, the package and the dependencies: floors, sizes, files, compiler versions and licences.

mod floors;
mod picture;
mod public;
mod sizes;
mod structure;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;
use sizes::each_file;
use structure::root;

/// The packages of the lock file that are built on this platform, including those for tests.
static PACKAGES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--all-features"])
        .args(["--filter-platform", &platform, "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let mut metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let Value::Array(packages) = metadata["packages"].take() else { panic!("no packages") };
    assert!(packages.len() > 100, "only {} packages", packages.len());
    packages
});

fn name(package: &Value) -> String {
    format!("{} {}", package["name"].as_str().unwrap(), package["version"].as_str().unwrap())
}

/// Parses a version, such that 1.88 and 1.88.0 are equal.
fn version(text: &str) -> Vec<u32> {
    let mut parts: Vec<u32> = text.split('.').map(|part| part.parse().unwrap()).collect();
    parts.resize(3, 0);
    parts
}

/// What the package has in its first folder. A file that belongs there is added here, and any other removed.
const PACKAGED: [&str; 19] = [
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "benches",
    "clippy.toml",
    "config",
    "deny.toml",
    "docs",
    "examples",
    "rustfmt.toml",
    "src",
    "tests",
];

/// The files of the package.
fn packaged() -> String {
    let list = Command::new(env!("CARGO"))
        .args(["package", "--list", "--offline", "--locked", "--allow-dirty", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .unwrap();
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    String::from_utf8(list.stdout).unwrap()
}

/// The library and the program are built from the package alone, without the rest of the repository.
#[test]
fn the_package_has_each_file_of_the_source_and_what_that_includes() {
    let list = packaged();
    let packaged: BTreeSet<&str> = list.lines().collect();
    let (base, mut missing, mut included) = (root().canonicalize().unwrap(), Vec::new(), 0);
    each_file(&root().join("src"), &mut |file, text| {
        if !packaged.contains(file) {
            missing.push(file.to_owned());
        }
        for path in text.split("include_str!(\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let path = base.join(file).parent().unwrap().join(path).canonicalize().unwrap();
            let name = path.strip_prefix(&base).unwrap().display().to_string();
            included += 1;
            if !packaged.contains(&*name) {
                missing.push(format!("{name}, which {file} includes"));
            }
        }
    });
    assert!(included > 20, "only {included} files are included");
    assert!(missing.is_empty(), "the package lacks {missing:?}; see `exclude` in Cargo.toml");
}

#[test]
fn the_package_has_nothing_that_was_left_there() {
    let list = packaged();
    let first = list.lines().filter_map(|file| file.split('/').next());
    // Cargo itself adds these.
    let first = first.filter(|name| !["Cargo.toml.orig", ".cargo_vcs_info.json"].contains(name));
    let first: Vec<&str> = first.collect::<BTreeSet<_>>().into_iter().collect();
    assert_eq!(first, PACKAGED, "remove what does not belong there; see `exclude` in Cargo.toml");
}

#[test]
fn docs_rs_is_given_features_that_exist() {
    let paced = PACKAGES.iter().find(|package| package["name"] == env!("CARGO_PKG_NAME")).unwrap();
    let shown = paced["metadata"]["docs"]["rs"]["features"].as_array().unwrap();
    let known = paced["features"].as_object().unwrap();
    let unknown: Vec<&Value> =
        shown.iter().filter(|name| name.as_str().is_none_or(|name| !known.contains_key(name))).collect();
    assert!(!shown.is_empty() && unknown.is_empty(), "{unknown:?}");
}

#[test]
fn no_dependency_wants_a_newer_compiler_than_we_promise() {
    let promised = version(env!("CARGO_PKG_RUST_VERSION"));
    let newer: Vec<String> = PACKAGES
        .iter()
        .filter(|package| package["rust_version"].as_str().is_some_and(|wanted| version(wanted) > promised))
        .map(name)
        .collect();
    assert!(newer.is_empty(), "these want a newer Rust; pin an older version in Cargo.lock: {newer:?}");
}

#[test]
fn every_licence_is_allowed() {
    let file = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml")).unwrap();
    let file: toml::Table = file.parse().unwrap();
    let allowed: Vec<&str> =
        file["licenses"]["allow"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let refused: Vec<String> = PACKAGES
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(|text| is_allowed(text, &allowed)))
        .map(|package| format!("{}: {}", name(package), package["license"]))
        .collect();
    assert!(refused.is_empty(), "not in deny.toml's [licenses]: {refused:?}");
}

/// Whether an SPDX expression can be satisfied with these licences. `/` is the old form of OR.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let expression = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = expression.split_whitespace().peekable();
    any(&mut words, allowed)
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut met = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words, allowed);
    }
    met
}

fn all(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let word = words.next().unwrap();
    if word == "(" {
        let met = any(words, allowed);
        assert_eq!(words.next(), Some(")"));
        return met;
    }
    // A licence with an exception counts as a licence of its own.
    let excepted = words.next_if_eq(&"WITH").and_then(|_| words.next()).is_some();
    !excepted && allowed.contains(&word)
}

#[test]
fn licence_expressions_are_read_as_spdx_means_them() {
    for (text, met) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT/GPL-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("GPL-3.0 OR MIT AND AGPL-3.0", false),
        ("MIT WITH something", false),
    ] {
        assert_eq!(is_allowed(text, &["MIT", "ISC"]), met, "{text}");
    }
}
