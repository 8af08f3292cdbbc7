//! What is made from the declarations of the keys: `config/paced.toml` below its head, and tables of the reference. The
//! tests compare the files with it; `make generated` writes them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::config::document::quote;
use crate::config::key::{Absent, Change, Declared};
use crate::config::limits::{ALGORITHMS, KEYS};
use crate::config::schema::declared;

/// The longest line of `config/paced.toml` to which the bounds are added.
const WIDTH: usize = 130;

/// All declarations, with the questions that depend on several of them.
struct Declarations(Vec<Declared>);

impl Declarations {
    fn parent(&self, one: &Declared) -> Option<&Declared> {
        let (parent, _) = one.path.rsplit_once('.')?;
        self.0.iter().find(|other| other.path == parent)
    }

    /// The table of known keys that it is in.
    fn table_of(&self, one: &Declared) -> Option<&Declared> {
        let parent = self.parent(one)?;
        if parent.is_table() { Some(parent) } else { self.table_of(parent) }
    }

    /// Whether it is, or is in, a table that may be absent.
    fn is_optional(&self, one: &Declared) -> bool {
        let is_itself = is_any_table(one) && one.key.absent == Absent::Unset;
        is_itself || self.parent(one).is_some_and(|parent| self.is_optional(parent))
    }

    /// The array whose tables it belongs to.
    fn array_of(&self, one: &Declared) -> Option<&Declared> {
        let parent = self.parent(one)?;
        if parent.node["type"] == "array" { Some(parent) } else { self.array_of(parent) }
    }

    fn is_in_array(&self, one: &Declared) -> bool {
        self.array_of(one).is_some()
    }

    /// The keys that may be set.
    fn values(&self) -> impl Iterator<Item = &Declared> {
        self.0.iter().filter(|one| !is_any_table(one) && !self.is_in_array(one))
    }
}

fn is_any_table(one: &Declared) -> bool {
    one.node["type"] == "object"
}

/// The text as a TOML value of the type.
fn toml(one: &Declared, text: &str) -> String {
    if one.node["type"] == "string" { quote(text) } else { text.to_owned() }
}

/// The default as the reference has it.
fn default_cell(all: &Declarations, one: &Declared) -> String {
    let otherwise = one.key.otherwise;
    let parent = all.parent(one).filter(|parent| parent.key.absent == Absent::Unset);
    match (one.default_text(), one.key.absent, parent) {
        (Some(text), ..) => format!("`{}`", toml(one, text)),
        (None, Absent::Mistake(_), Some(parent)) if parent.is_table() => {
            format!("required in `{}`", parent.key.name)
        }
        (None, Absent::Mistake(_), _) if otherwise.is_empty() => "required".to_owned(),
        (None, Absent::Mistake(_), _) => format!("required, {otherwise}"),
        _ if otherwise.is_empty() => "unset".to_owned(),
        _ => format!("unset: {otherwise}"),
    }
}

/// What a reload does with a change of the key, in a word.
fn change(one: &Declared) -> &'static str {
    let is_of_downstreams = one.path.starts_with("downstreams.") || one.path.starts_with("plans.");
    match one.key.change {
        Change::Reload => "reload",
        Change::Followed | Change::Restart if is_of_downstreams => "downstream",
        Change::Followed | Change::Restart => "restart",
    }
}

/// What a reload does with a change of each key, by the tables of the file.
fn changes_table(all: &Declarations) -> String {
    let mut tables: Vec<(&str, [Vec<String>; 3])> = Vec::new();
    for one in all.values() {
        let table = all.table_of(one).map_or("", |table| table.path.as_str());
        let key = one.path[table.len()..].trim_start_matches('.');
        let column =
            ["reload", "downstream", "restart"].iter().position(|word| *word == change(one)).unwrap();
        let place = tables.iter().position(|(known, _)| *known == table).unwrap_or_else(|| {
            tables.push((table, Default::default()));
            tables.len() - 1
        });
        tables[place].1[column].push(format!("`{key}`"));
    }
    let mut text =
        "| table | applies at once | the downstream restarts | paced has to be restarted |\n|---|---|---|---|\n"
            .to_owned();
    for (table, keys) in tables {
        let name = if table.is_empty() { "(above all tables)".to_owned() } else { format!("`[{table}]`") };
        let [reload, downstream, restart] = keys.map(|keys| keys.join(", "));
        let _ = writeln!(text, "| {name} | {reload} | {downstream} | {restart} |");
    }
    text
}

/// The table of all keys.
fn keys_table(all: &Declarations) -> String {
    let mut text = "| key | default | a change |\n|---|---|---|\n".to_owned();
    for one in all.values() {
        let _ = writeln!(text, "| `{}` | {} | {} |", one.path, default_cell(all, one), change(one));
    }
    text
}

/// The keys that may be read from a file of their own.
fn files_list(all: &Declarations) -> String {
    let files = all.values().filter(|one| !one.key.file.is_empty());
    files.map(|one| format!("- `{}_file`\n", one.path)).collect()
}

/// The table of the algorithms, with the keys of each.
fn limits_table(all: &Declarations) -> String {
    let mut text =
        "| algorithm | keys besides `algorithm`, `rate` and `name` | their defaults |\n|---|---|---|\n"
            .to_owned();
    for algorithm in ALGORITHMS {
        let keys = KEYS.iter().filter(|(_, algorithms)| algorithms.contains(&algorithm));
        let paths = keys.map(|(key, _)| format!("downstreams.NAME.limits.{}", key.name));
        let own: Vec<&Declared> =
            paths.filter_map(|path| all.0.iter().find(|one| one.path == path)).collect();
        let cells = |cell: &dyn Fn(&Declared) -> String, separator| {
            own.iter().map(|one| cell(one)).collect::<Vec<_>>().join(separator)
        };
        let names = cells(&|one| format!("`{}`", one.key.name), ", ");
        let defaults = cells(&|one| default_cell(all, one).trim_start_matches("unset: ").to_owned(), "; ");
        let _ = writeln!(text, "| `{algorithm}` | {names} | {defaults} |");
    }
    text
}

/// The path with the names of the example.
fn example_path(path: &str) -> String {
    let path = path.replace("downstreams.NAME", "downstreams.billing").replace("plans.NAME", "plans.free");
    let path = path.replace("by.NAME", "by.tenant").replace("weights.NAME", "weights.acme");
    path.replace("status.S", "status.503").replace("tokens.NAME", "tokens.alice")
}

/// `config/paced.toml` below its head.
fn paced_toml(all: &Declarations) -> String {
    let mut text = String::new();
    for one in &all.0 {
        let is_named = all.parent(one).is_some_and(has_names);
        if all.is_in_array(one) || (is_named && !one.is_table()) {
            continue;
        }
        let is_inline = has_names(one) && !one.key.example.is_empty();
        // What is under a name of the user's own has the text of all such names.
        if !is_named {
            let gap = if is_any_table(one) && !is_inline { "\n" } else { "" };
            let help = help(all, one).into_iter().map(|line| format!("# {line}\n"));
            text.push_str(gap);
            text.extend(help);
        }
        let comment = if all.is_optional(one) { "# " } else { "" };
        if one.is_table() {
            let _ = writeln!(text, "{comment}[{}]", example_path(&one.path));
        } else if is_inline || !has_names(one) {
            lines(&mut text, one, comment);
        }
    }
    text
}

/// Whether its keys are names of the user's own.
fn has_names(one: &Declared) -> bool {
    one.node.get("patternProperties").is_some()
}

/// The help, with what a reload does and with the keys of an array's tables.
fn help(all: &Declarations, one: &Declared) -> Vec<String> {
    let mut lines = one.key.help();
    if one.key.change == Change::Reload {
        match lines.last_mut() {
            Some(last) if last.len() < WIDTH => last.push_str(" [reload]"),
            _ => lines.push("[reload]".to_owned()),
        }
    }
    let own: Vec<&Declared> = own_keys(all, one).collect();
    if !own.is_empty() {
        let besides = if is_among(one, OTHER_LIMITS) { " besides those of other limits" } else { "" };
        lines.push(format!("Each is a table with these keys{besides}:"));
        for key in own {
            let default = key.default_text().map(|text| format!(" = {}", toml(key, text)));
            let help = key.key.help().join("\n      ");
            let name = &key.path[one.path.len() + 1..];
            let line = format!("  {name}{}: {help}", default.unwrap_or_default());
            lines.extend(line.lines().map(str::to_owned));
        }
    }
    lines
}

/// Limits, and those whose tables have the same keys, and perhaps more.
const LIMITS: &str = "downstreams.NAME.limits";
const OTHER_LIMITS: &[&str] = &["plans.NAME.limits", "downstreams.NAME.lanes.limits"];

fn is_among(one: &Declared, paths: &[&str]) -> bool {
    paths.contains(&&*one.path)
}

/// The keys of an array's tables that are described with it.
fn own_keys<'d>(all: &'d Declarations, one: &'d Declared) -> impl Iterator<Item = &'d Declared> {
    let is_of_array = move |key: &&Declared| all.array_of(key).is_some_and(|array| array.path == one.path);
    let is_known = move |key: &Declared| {
        let of_limits = key.path.replace(&one.path, LIMITS);
        is_among(one, OTHER_LIMITS) && all.0.iter().any(|other| other.path == of_limits)
    };
    all.0.iter().filter(is_of_array).filter(move |key| !is_known(key))
}

/// The lines of a key: its default, or else an example; and that of its file.
fn lines(text: &mut String, one: &Declared, comment: &str) {
    let (name, example) = (one.key.name, one.key.example);
    let is_default = comment.is_empty() || example.is_empty();
    let value = match (one.default_text().filter(|_| is_default), one.key.absent) {
        (Some(text), _) => format!("{comment}{name} = {}", toml(one, text)),
        (None, Absent::Mistake(_)) if comment.is_empty() => format!("{name} = {}", toml(one, example)),
        _ => format!("{name} = {}", toml(one, example)).lines().map(|line| format!("# {line}\n")).collect(),
    };
    let _ = writeln!(text, "{}", value.trim_end());
    if !one.key.file.is_empty() {
        let _ = writeln!(text, "# {name}_file = {}", quote(one.key.file));
    }
}

/// Compares the file with its text as `make` makes it, or writes it.
#[track_caller]
fn compare(file: &str, make: impl Fn(&str) -> String) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let there = fs::read_to_string(&path).unwrap();
    let made = make(&there);
    if env::var_os("PACED_WRITE_GENERATED").is_some() {
        fs::write(&path, made).unwrap();
    } else {
        assert!(there == made, "{file} is not what the declarations of the keys say; run make generated");
    }
}

/// The text with another part between the comments that name it.
fn with_part(text: &str, name: &str, part: &str) -> String {
    let (start, end) = (format!("<!-- generated: {name} -->\n"), format!("\n<!-- end: {name} -->"));
    let (before, rest) = text.split_once(&start).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    format!("{before}{start}\n{part}{end}{after}")
}

#[test]
fn the_default_file_is_made_from_the_keys() {
    let all = Declarations(declared());
    // The head goes to the first empty line.
    compare("config/paced.toml", |there| {
        format!("{}\n\n{}", there.split("\n\n").next().unwrap(), paced_toml(&all).trim_start())
    });
}

#[test]
fn the_table_of_reloads_is_made_from_the_keys() {
    let all = Declarations(declared());
    compare("docs/operations.md", |there| with_part(there, "changes", &changes_table(&all)));
}

#[test]
fn the_reference_is_made_from_the_keys() {
    let all = Declarations(declared());
    compare("docs/reference/configuration.md", |there| {
        let text = with_part(there, "keys", &keys_table(&all));
        let text = with_part(&text, "files", &files_list(&all));
        with_part(&text, "limits", &limits_table(&all))
    });
}
