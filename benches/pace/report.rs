//! Reports the measurements: on the terminal, and in docs/benchmarks.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::figures::{Section, Shown};

/// The machine and its programs, as labels and values.
#[derive(Clone, Debug)]
pub struct Machine(Vec<(&'static str, String)>);

impl Machine {
    pub fn new(facts: Vec<(&'static str, String)>) -> Self {
        Self(facts)
    }
}

/// The beginning of the page.
const HEAD: &str = "# Benchmarks\n\n\
    `make bench` writes this page; every number on it comes from a run. A private Redis, a private RabbitMQ, the APIs, \
    the release binary of `paced` and the loops for comparison share one machine. So these are ratios and distances to \
    compare, not capacities to plan with. A figure is the median of the runs. If it must hold in every run (jobs lost, \
    jobs doubled), it is the worst. The bound of a figure is in parentheses; a figure that misses its bound is in \
    bold.\n\n";

/// When and how a section was measured.
#[derive(Clone, Debug)]
pub struct Run {
    pub date: String,
    pub command: String,
    pub paced: String,
}

/// Formats a section as a table for a terminal.
pub fn table(section: &Section) -> String {
    let table = cells(section);
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let texts = table.iter().filter_map(|line| line.get(column));
        texts.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = format!("\n{} ({})\n\n", section.title, runs(section));
    for line in table {
        for (cell, width) in line.iter().zip(&widths) {
            let mark = if cell.kept { ' ' } else { '!' };
            let _ = write!(text, "{mark}{:width$} ", cell.text);
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Header and lines; the corner is empty.
fn cells(section: &Section) -> Vec<Vec<Shown>> {
    let header =
        std::iter::once(Shown::plain("")).chain(section.columns.iter().map(|column| Shown::plain(column)));
    let mut table: Vec<Vec<Shown>> = vec![header.collect()];
    for row in &section.rows {
        let cells = (0..section.columns.len()).map(|column| row.cell(column));
        table.push(std::iter::once(Shown::plain(row.figure.name)).chain(cells).collect());
    }
    if section.lines { transpose(table) } else { table }
}

fn transpose(table: Vec<Vec<Shown>>) -> Vec<Vec<Shown>> {
    let mut turned: Vec<Vec<Shown>> = Vec::new();
    for line in table {
        for (index, cell) in line.into_iter().enumerate() {
            if turned.len() <= index {
                turned.push(Vec::new());
            }
            turned[index].push(cell);
        }
    }
    turned
}

/// The path of `docs/benchmarks.md`.
pub fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks.md")
}

/// Writes the page: the sections measured now, and, where the machine is the same, those of the page
/// that is there. `order` is that of all scenarios.
pub fn write(sections: &[Section], machine: &Machine, run: &Run, order: &[&str]) -> Result<(), String> {
    let file = file();
    let table = machine_table(machine);
    let old = fs::read_to_string(&file).unwrap_or_default();
    let mut parts = if old.contains(&table) { parts(&old) } else { BTreeMap::new() };
    for section in sections {
        parts.insert(section.name.to_owned(), render(section, run));
    }
    let mut text = format!("{HEAD}{table}");
    for name in order {
        if let Some(part) = parts.get(*name) {
            let _ = write!(text, "\n{}{part}{}", begin(name), end(name));
        }
    }
    let folder = file.parent().ok_or("no folder for the page")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&file, text))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))
}

fn begin(name: &str) -> String {
    format!("<!-- begin {name} -->\n")
}

fn end(name: &str) -> String {
    format!("<!-- end {name} -->\n")
}

/// The sections of a page, by name.
fn parts(page: &str) -> BTreeMap<String, String> {
    let mut parts = BTreeMap::new();
    for part in page.split("<!-- begin ").skip(1) {
        let Some((name, rest)) = part.split_once(" -->\n") else { continue };
        if let Some((text, _)) = rest.split_once(&end(name)) {
            parts.insert(name.to_owned(), text.to_owned());
        }
    }
    parts
}

fn machine_table(machine: &Machine) -> String {
    let mut text = "| | |\n|---|---|\n".to_owned();
    for (name, value) in &machine.0 {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    text
}

fn render(section: &Section, run: &Run) -> String {
    let Run { date, command, paced } = run;
    let runs = runs(section);
    let mut text =
        format!("## {}\n\n{}\n\n*{date}, {paced}, `{command}`, {runs}.*\n\n", section.title, section.about);
    for (index, line) in cells(section).iter().enumerate() {
        for cell in line {
            let cell = if cell.kept { cell.text.clone() } else { format!("**{}**", cell.text) };
            let _ = write!(text, "| {cell} ");
        }
        text.push_str("|\n");
        if index == 0 {
            let _ = writeln!(text, "|---{}|", "|---:".repeat(line.len() - 1));
        }
    }
    for missed in section.missed() {
        let _ = writeln!(text, "\nMissed: {missed}.");
    }
    for unmeasured in section.unmeasured() {
        let _ = writeln!(text, "\nNot measured: {unmeasured}.");
    }
    text
}

fn runs(section: &Section) -> String {
    if section.runs == 1 { "1 run".to_owned() } else { format!("{} runs", section.runs) }
}
