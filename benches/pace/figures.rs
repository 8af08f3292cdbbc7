//! Measurements: named figures, in columns to compare, over several runs, with their bounds.

/// The unit of a value, which determines its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A whole number.
    Count,
    /// A number with this many decimals.
    Plain(usize),
    /// A percentage with this many decimals.
    Percent(usize),
    Nanos,
    Micros,
    Millis,
    PerSecond,
    Bytes,
    KiB,
    MiB,
}

/// The aggregation of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    Median,
    /// The highest value: for bounds that must hold every time.
    Highest,
}

/// A figure, which is a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    pub name: &'static str,
    pub unit: Unit,
    pub fold: Fold,
}

impl Figure {
    /// The median of all runs counts.
    pub const fn median(name: &'static str, unit: Unit) -> Self {
        Self { name, unit, fold: Fold::Median }
    }

    /// Every run counts: the highest is shown and judged.
    pub const fn highest(name: &'static str, unit: Unit) -> Self {
        Self { name, unit, fold: Fold::Highest }
    }
}

/// The bound of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// The value must lie between minus and plus this.
    Within(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::Within(much) => value.abs() <= much,
        }
    }

    fn show(self, unit: Unit) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {}", shown(most, unit)),
            Self::AtLeast(least) => format!("≥ {}", shown(least, unit)),
            Self::Within(much) => format!("within ± {}", shown(much, unit)),
        }
    }
}

/// One scenario's figures.
#[derive(Debug)]
pub struct Section {
    pub name: &'static str,
    pub title: &'static str,
    /// What is done and how it is counted, for readers of the report.
    pub about: String,
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
    /// The number of runs that have ended.
    pub runs: usize,
    /// Whether columns are shown as lines, which suits many columns and few figures.
    pub lines: bool,
}

/// One figure in all columns.
#[derive(Debug)]
pub struct Row {
    pub figure: Figure,
    /// The cells of the columns that have been filled so far.
    cells: Vec<Cell>,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    values: Vec<f64>,
    bound: Option<Bound>,
    /// Whether it was asked for, and could not be measured.
    missing: bool,
}

impl Section {
    pub fn new(name: &'static str, title: &'static str, about: &str) -> Self {
        let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
        Self { name, title, about, columns: Vec::new(), rows: Vec::new(), runs: 0, lines: false }
    }

    /// Records one value of one run; `None` if it could not be measured.
    pub fn note(&mut self, column: &str, figure: Figure, value: impl Into<Option<f64>>) {
        self.put(column, figure, value.into(), None);
    }

    /// As [`Section::note`], for a figure with a bound.
    pub fn judge(&mut self, column: &str, figure: Figure, value: impl Into<Option<f64>>, bound: Bound) {
        self.put(column, figure, value.into(), Some(bound));
    }

    fn put(&mut self, column: &str, figure: Figure, value: Option<f64>, bound: Option<Bound>) {
        let text = value.map_or_else(|| "n/a".to_owned(), |value| shown(value, figure.unit));
        eprintln!("    {column}: {}: {text}", figure.name);
        let column = self.columns.iter().position(|known| known == column).unwrap_or_else(|| {
            self.columns.push(column.to_owned());
            self.columns.len() - 1
        });
        let row = self.rows.iter().position(|row| row.figure.name == figure.name).unwrap_or_else(|| {
            self.rows.push(Row { figure, cells: Vec::new() });
            self.rows.len() - 1
        });
        let cells = &mut self.rows[row].cells;
        if cells.len() <= column {
            cells.resize(column + 1, Cell::default());
        }
        let cell = &mut cells[column];
        cell.values.extend(value);
        cell.missing |= value.is_none();
        cell.bound = bound.or(cell.bound);
    }

    /// The bounds that were missed, for people.
    pub fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        for row in &self.rows {
            for (column, cell) in self.columns.iter().zip(&row.cells) {
                let unit = row.figure.unit;
                if let (Some(value), Some(bound)) = (cell.value(row.figure.fold), cell.bound)
                    && !bound.holds(value)
                {
                    let (value, bound) = (shown(value, unit), bound.show(unit));
                    missed.push(format!("{}: {column}: {}: {value} ({bound})", self.name, row.figure.name));
                }
            }
        }
        missed
    }

    /// The figures with a bound that could not be measured.
    pub fn unmeasured(&self) -> Vec<String> {
        let mut unmeasured = Vec::new();
        for row in &self.rows {
            for (column, cell) in self.columns.iter().zip(&row.cells) {
                if cell.bound.is_some() && cell.values.is_empty() {
                    unmeasured.push(format!("{}: {column}: {}", self.name, row.figure.name));
                }
            }
        }
        unmeasured
    }
}

impl Row {
    /// The content of a cell: the figure, and whether it keeps its bound.
    pub fn cell(&self, column: usize) -> Shown {
        let Some(cell) = self.cells.get(column) else { return Shown::plain("") };
        let Some(value) = cell.value(self.figure.fold) else {
            return Shown::plain(if cell.missing { "n/a" } else { "" });
        };
        let unit = self.figure.unit;
        let bound = cell.bound.map(|bound| format!(" ({})", bound.show(unit))).unwrap_or_default();
        let kept = cell.bound.is_none_or(|bound| bound.holds(value));
        Shown { text: format!("{}{bound}", shown(value, unit)), kept }
    }
}

/// A cell for people.
#[derive(Debug)]
pub struct Shown {
    pub text: String,
    pub kept: bool,
}

impl Shown {
    /// A text without a bound.
    pub fn plain(text: &str) -> Self {
        Self { text: text.to_owned(), kept: true }
    }
}

impl Cell {
    fn value(&self, fold: Fold) -> Option<f64> {
        match fold {
            Fold::Median => median(&self.values),
            Fold::Highest => self.values.iter().copied().reduce(f64::max),
        }
    }
}

/// The middle value; of an even number, the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) })
}

fn shown(value: f64, unit: Unit) -> String {
    let text = written(value, unit);
    // A negative value that rounds to zero has no sign.
    match text.strip_prefix('-') {
        Some(zero) if !zero.contains(|digit: char| ('1'..='9').contains(&digit)) => zero.to_owned(),
        _ => text,
    }
}

fn written(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Count => grouped(value),
        Unit::Plain(decimals) => format!("{value:.decimals$}"),
        Unit::Percent(decimals) => format!("{value:.decimals$} %"),
        Unit::Nanos => format!("{value:.1} ns"),
        Unit::Micros if value.abs() >= 100.0 => format!("{} µs", grouped(value)),
        Unit::Micros => format!("{value:.1} µs"),
        Unit::Millis => format!("{value:.1} ms"),
        Unit::PerSecond => format!("{}/s", grouped(value)),
        Unit::Bytes => format!("{value:.0} B"),
        Unit::KiB => format!("{value:.1} KiB"),
        Unit::MiB => format!("{value:.1} MiB"),
    }
}

/// Formats 12345.6 as 12 346.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < -0.5 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push('\u{a0}');
        }
        text.push(digit);
    }
    text
}
