//! The terminal: steps with a tick, a line of progress, and what the terminal can show.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use paced::Rate;
use rustix::termios::tcgetwinsize;
use tokio::time::Instant;

use crate::support::{api, count};

/// What standard output can show.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    terminal: bool,
    colour: bool,
    unicode: bool,
    width: usize,
}

/// Colours, as SGR codes.
#[derive(Clone, Copy, Debug)]
pub enum Colour {
    Bold = 1,
    Dim = 2,
    Red = 31,
    Green = 32,
    Yellow = 33,
    Cyan = 36,
}

const NARROWEST: usize = 40;
const WIDEST: usize = 100;

impl Screen {
    /// As the environment says: NO_COLOR, TERM, the locale, the size of the terminal.
    pub fn new() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let terminal = std::io::stdout().is_terminal() && set("TERM").is_none_or(|term| term != "dumb");
        let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
        let locale = locale.to_lowercase();
        let size = tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_col));
        let columns = set("COLUMNS").and_then(|columns| columns.parse().ok());
        let width = if size > 0 { size } else { columns.unwrap_or(80) };
        Self {
            terminal,
            colour: terminal && set("NO_COLOR").is_none(),
            unicode: locale.contains("utf-8") || locale.contains("utf8"),
            width: width.clamp(NARROWEST, WIDEST),
        }
    }

    /// Whether lines can be drawn again.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Whether there are more than ASCII's characters.
    pub fn is_unicode(&self) -> bool {
        self.unicode
    }

    /// Columns, 100 at most.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The text in this colour, where there are colours.
    pub fn paint(&self, colour: Colour, text: &str) -> String {
        if self.colour { format!("\x1b[{}m{text}\x1b[0m", colour as u8) } else { text.to_owned() }
    }

    pub fn title(&self, text: &str) {
        self.lines(&[String::new(), format!("  {}", self.paint(Colour::Bold, text)), String::new()]);
    }

    pub fn lines(&self, lines: &[String]) {
        self.put(&(lines.join("\n") + "\n"));
    }

    /// Begins a step; on a terminal the line stays open for its result.
    pub fn step(&self, what: &str) -> Step {
        let mark = if self.unicode { "·" } else { "-" };
        // A line that will be drawn over must not wrap.
        let what: String = what.chars().take(self.width - 10).collect();
        let line = format!("  {} {what} ...", self.paint(Colour::Dim, mark));
        self.put(&if self.terminal { line } else { line + "\n" });
        Step { screen: *self, start: Instant::now() }
    }

    /// Says on a line of its own why there is no more.
    pub fn fail(&self, error: &str) {
        self.clear();
        let _ = std::io::stdout().flush();
        eprintln!("demo: {error}");
    }

    pub fn note(&self, text: &str) {
        self.clear();
        self.lines(&[format!("  {text}")]);
    }

    /// The line of progress of this many jobs.
    pub fn progress(&self, jobs: usize, rate: Rate) -> Progress {
        Progress { screen: *self, jobs, rate, start: Instant::now() }
    }

    fn clear(&self) {
        if self.terminal {
            self.put("\r\x1b[2K");
        }
    }

    fn put(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        // A reader that went away is no reason to stop.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

/// A step that was begun.
pub struct Step {
    screen: Screen,
    start: Instant,
}

impl Step {
    /// Ends it with what came of it, and how long it took if that was long.
    pub fn done(self, what: &str) {
        let mark = self.screen.paint(Colour::Green, if self.screen.unicode { "✓" } else { "+" });
        let took = self.start.elapsed();
        let took = if took < Duration::from_millis(500) {
            String::new()
        } else {
            self.screen.paint(Colour::Dim, &format!("  {:.1} s", took.as_secs_f64()))
        };
        self.screen.clear();
        self.screen.lines(&[format!("  {mark} {what}{took}")]);
    }
}

/// How far the jobs have come.
pub struct Progress {
    screen: Screen,
    jobs: usize,
    rate: Rate,
    start: Instant,
}

impl Progress {
    /// Draws the state that these stamps (ascending) show.
    pub fn draw(&mut self, stamps: &[u64]) {
        let done = stamps.len().min(self.jobs);
        let left = f64::from(u32::try_from(self.jobs - done).unwrap_or(u32::MAX)) / self.rate.per_second();
        let current = format!("{:.0}/s", current(stamps));
        let left = if done == self.jobs { "done".to_owned() } else { format!("{left:.1} s left") };
        let counts = format!("{}/{}", grouped(done as u64), grouped(self.jobs as u64));
        if !self.screen.terminal {
            let elapsed = self.start.elapsed().as_secs_f64();
            self.screen.lines(&[format!("  {elapsed:4.1} s  {counts} arrived  now {current}  {left}")]);
            return;
        }
        let text = format!(" {counts}  {current:>6}  {left:>10}");
        let bar = self.bar(done, self.screen.width.saturating_sub(text.len() + 4).min(48));
        self.screen.clear();
        self.screen.put(&format!("  {bar}{text}"));
    }

    /// Leaves the last state on the screen.
    pub fn end(self) {
        if self.screen.terminal {
            self.screen.put("\n");
        }
    }

    fn bar(&self, done: usize, width: usize) -> String {
        let filled = width * done / self.jobs;
        let (full, empty) = if self.screen.unicode { ("█", "░") } else { ("#", ".") };
        let (full, empty) = (full.repeat(filled), empty.repeat(width - filled));
        self.screen.paint(Colour::Cyan, &full) + &self.screen.paint(Colour::Dim, &empty)
    }
}

/// Arrivals in the last second, or since the first where that is less: per second.
fn current(stamps: &[u64]) -> f64 {
    let since = api::stamp().saturating_sub(1_000_000_000);
    let recent = &stamps[stamps.partition_point(|&at| at < since)..];
    count::effective_rate(recent)
}

/// A number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}
