//! What came of it, checked against what was promised.

use std::collections::BTreeMap;
use std::time::Duration;

use paced::Rate;

use crate::machine::Delays;
use crate::plot;
use crate::screen::{Colour, Screen, grouped};
use crate::support::api::Arrival;
use crate::support::count;

/// The request header that names the replica.
pub const REPLICA: &str = "x-replica";

const SECOND: Duration = Duration::from_secs(1);
const TENTH: Duration = Duration::from_millis(100);

/// The arrivals, counted.
#[derive(Debug)]
pub struct Report {
    rate: Rate,
    published: usize,
    delivered: usize,
    /// Requests beyond the first of their job.
    doubled: usize,
    /// Jobs that are still in a queue.
    left: u32,
    shares: BTreeMap<String, usize>,
    windows: [Window; 2],
    stamps: Vec<u64>,
}

/// The busiest window of one length, and the most that is allowed.
#[derive(Clone, Copy, Debug)]
struct Window {
    name: &'static str,
    seen: usize,
    /// The slots in it. What else is allowed came late.
    slots: usize,
    allowed: usize,
    /// What the machine itself added in a window with more than that.
    delay: Option<Duration>,
    /// More than the delay explains, in some window.
    exceeded: bool,
}

impl Report {
    /// Counts the arrivals, which are in the order of their stamps.
    pub fn new(rate: Rate, published: usize, arrivals: &[Arrival], left: u32, delays: &Delays) -> Self {
        let mut times: BTreeMap<&str, usize> = BTreeMap::new();
        let mut shares: BTreeMap<String, usize> = BTreeMap::new();
        for arrival in arrivals {
            *times.entry(arrival.id()).or_default() += 1;
            *shares.entry(arrival.header(REPLICA).unwrap_or("?").to_owned()).or_default() += 1;
        }
        let stamps: Vec<u64> = arrivals.iter().map(|arrival| arrival.at).collect();
        let window = |name, length| Window::busiest(name, rate, length, &stamps, delays);
        let windows = [window("1 s", SECOND), window("100 ms", TENTH)];
        let (delivered, doubled) = (times.len(), arrivals.len() - times.len());
        Self { rate, published, delivered, doubled, left, shares, windows, stamps }
    }

    /// Nothing lost, doubled, left over or too fast.
    pub fn is_good(&self) -> bool {
        self.lost() == 0
            && self.doubled == 0
            && self.left == 0
            && !self.windows.iter().any(|window| window.exceeded)
    }

    fn lost(&self) -> usize {
        self.published.saturating_sub(self.delivered)
    }

    /// For the screen.
    pub fn render(&self, screen: &Screen) -> Vec<String> {
        let mut lines = vec![String::new()];
        lines.extend(plot::render(screen, self.rate, &self.stamps));
        lines.push(String::new());
        let mut row = |name: &str, text: String| {
            lines.push(format!("  {} {text}", screen.paint(Colour::Bold, &format!("{name:<10}"))));
        };
        row("Delivered", self.deliveries(screen));
        row("Replicas", self.replicas());
        row(
            "Rate",
            format!(
                "{:.2}/s from the first to the last; the limit is {}",
                count::effective_rate(&self.stamps),
                self.rate
            ),
        );
        for (index, window) in self.windows.iter().enumerate() {
            row(if index == 0 { "Busiest" } else { "" }, window.describe(screen));
        }
        row("Spacing", self.spacing());
        lines.push(String::new());
        lines.push(format!("  {}", self.verdict(screen)));
        lines.push(String::new());
        lines
    }

    fn deliveries(&self, screen: &Screen) -> String {
        let count = |what: &str, number: usize| {
            let colour = if number == 0 { Colour::Green } else { Colour::Red };
            screen.paint(colour, &format!("{} {what}", grouped(number as u64)))
        };
        format!(
            "{} of {}, {}, {}",
            grouped(self.delivered as u64),
            grouped(self.published as u64),
            count("lost", self.lost()),
            count("doubled", self.doubled)
        )
    }

    fn replicas(&self) -> String {
        let all = self.stamps.len().max(1);
        let share = |(name, count): (&String, &usize)| {
            format!("{name}: {} ({} %)", grouped(*count as u64), (count * 100 + all / 2) / all)
        };
        self.shares.iter().map(share).collect::<Vec<_>>().join(", ")
    }

    fn spacing(&self) -> String {
        let gaps = count::gaps(&self.stamps);
        #[expect(clippy::cast_precision_loss, reason = "shown to people only")]
        let at = |share: f64| count::quantile(&gaps, share) as f64 / 1e6;
        format!(
            "{:.2} ms in the middle, {:.2} to {:.2} ms for 98 of 100; a metronome keeps {:.2} ms",
            at(0.5),
            at(0.01),
            at(0.99),
            1000.0 / self.rate.per_second()
        )
    }

    fn verdict(&self, screen: &Screen) -> String {
        if self.is_good() {
            let mark = if screen.is_unicode() { "✓" } else { "+" };
            let text = format!("{mark} The limit was kept at every instant, and every job arrived once.");
            return screen.paint(Colour::Green, &text);
        }
        let mut wrong = Vec::new();
        if self.lost() > 0 {
            wrong.push(format!("{} jobs did not arrive", self.lost()));
        }
        if self.doubled > 0 {
            wrong.push(format!("{} requests were repeated", self.doubled));
        }
        if self.left > 0 {
            wrong.push(format!("{} jobs are left in the queues", self.left));
        }
        for window in self.windows.iter().filter(|window| window.exceeded) {
            wrong.push(format!("{} in {} where {} are allowed", window.seen, window.name, window.allowed));
        }
        screen.paint(Colour::Red, &format!("Not as promised: {}.", wrong.join("; ")))
    }
}

impl Window {
    fn busiest(name: &'static str, rate: Rate, length: Duration, stamps: &[u64], delays: &Delays) -> Self {
        let slots = usize::try_from(rate.units_in(length)).unwrap_or(usize::MAX);
        let allowed = count::allowed(rate, length);
        let seen = count::busiest(stamps, length);
        let (mut delay, mut exceeded) = (None, false);
        for window in count::windows(stamps, length).filter(|window| window.len() > allowed) {
            let added = delays.between(window[0], window[window.len() - 1]);
            exceeded |= window.len() > count::allowed_with(rate, length, count::tolerance(rate) + added);
            delay = delay.max(Some(added));
        }
        Self { name, seen, slots, allowed, delay, exceeded }
    }

    fn describe(self, screen: &Screen) -> String {
        let colour = match (self.exceeded, self.delay) {
            (true, _) => Colour::Red,
            (false, Some(_)) => Colour::Yellow,
            (false, None) => Colour::Green,
        };
        let seen = screen.paint(colour, &self.seen.to_string());
        let delay = self.delay.map_or(String::new(), |delay| {
            format!(" (threads waited {} ms for a processor)", delay.as_millis())
        });
        let Self { name, slots, allowed, .. } = self;
        let late = allowed.saturating_sub(slots);
        format!(
            "at most {seen} arrivals in any {name}; {allowed} are allowed: {slots} slots, and {late} that came late{delay}"
        )
    }
}
