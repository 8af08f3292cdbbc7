//! The floors of CONTRIBUTING.md, held against the imports of `src`.

use std::collections::{BTreeMap, BTreeSet};

use super::structure::{Names, USES, root};

/// A row of the table: some folders, and the folders that it names for them to use.
pub struct Row {
    pub folders: Vec<String>,
    pub uses: Vec<String>,
}

/// The rows of the table, from the top. Each uses folders of rows above it only.
pub fn rows() -> Vec<Row> {
    let text = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| folder |")).skip(2);
    let names = |cell: &str| -> Vec<String> {
        let quoted = cell.split('`').skip(1).step_by(2);
        quoted.map(|name| name.trim_start_matches("src/").to_owned()).collect()
    };
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        Row { folders: names(cells[1]), uses: names(cells[3]) }
    })
    .collect()
}

/// The folders of the table, each with all that it may use: what its row names, and what those may use.
pub fn floors() -> BTreeMap<String, BTreeSet<String>> {
    let mut floors = BTreeMap::<String, BTreeSet<String>>::new();
    for Row { folders, uses } in rows() {
        let mut may_use = BTreeSet::new();
        for name in uses {
            let below =
                floors.get(&name).unwrap_or_else(|| panic!("`{name}`, for {folders:?}, is in no row above"));
            may_use.extend(below.iter().cloned());
            may_use.insert(name);
        }
        for folder in folders {
            assert!(floors.insert(folder.clone(), may_use.clone()).is_none(), "`{folder}` is in two rows");
        }
    }
    floors
}

#[test]
fn each_folder_uses_only_what_is_below_it() {
    let floors = floors();
    let mut wrong = Vec::new();
    let mut folders = BTreeSet::new();
    for module in USES.iter().filter(|module| !module.names.is_empty()) {
        let folder = &module.names[0];
        folders.insert(folder.clone());
        for (used, paths) in &module.uses {
            // The root passes on what lies in the folders, and has nothing of its own but macros of the build.
            let Some(other) = used.first() else { continue };
            if other != folder && !floors.get(folder).is_some_and(|may_use| may_use.contains(other)) {
                wrong.push(format!("{} uses {paths:?}", module.file.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert_eq!(folders, floors.into_keys().collect(), "the folders of src, and those of CONTRIBUTING.md");
    assert!(wrong.is_empty(), "imports that CONTRIBUTING.md does not allow:\n{}", wrong.join("\n"));
}

/// A file and the folder of its name are one here. Files may use what the file of their folder has, and it may use them.
#[test]
fn files_beside_each_other_do_not_use_each_other_in_a_circle() {
    let mut uses = BTreeMap::<Names, BTreeMap<Names, BTreeSet<String>>>::new();
    for module in USES.iter() {
        for (used, paths) in &module.uses {
            let common = module.names.iter().zip(used).take_while(|(one, other)| one == other).count();
            // One is the file of the folder in which the other one is.
            if common == module.names.len() || common == used.len() {
                continue;
            }
            let (from, to) = (module.names[..=common].to_vec(), used[..=common].to_vec());
            uses.entry(from).or_default().entry(to).or_default().extend(paths.iter().cloned());
        }
    }
    // What nothing of is used by others is in no circle, and neither is what uses nothing: what is left is.
    loop {
        let before: usize = uses.values().map(BTreeMap::len).sum();
        let users: BTreeSet<Names> = uses.keys().cloned().collect();
        uses.values_mut().for_each(|used| used.retain(|name, _| users.contains(name)));
        let used: BTreeSet<Names> = uses.values().flat_map(|used| used.keys().cloned()).collect();
        uses.retain(|name, names| !names.is_empty() && used.contains(name));
        if before == uses.values().map(BTreeMap::len).sum::<usize>() {
            break;
        }
    }
    let shown: Vec<String> = uses
        .iter()
        .flat_map(|(from, used)| {
            used.iter().map(|(to, paths)| format!("{} uses {}: {paths:?}", from.join("/"), to.join("/")))
        })
        .collect();
    assert!(shown.is_empty(), "files that use each other in a circle:\n{}", shown.join("\n"));
}
