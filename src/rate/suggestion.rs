//! Suggestions for rates that were written in another notation.

use super::amount;

/// The longest text that is considered. No rate is longer, and a longer text may be anything, even a secret.
const LONGEST: usize = 40;

/// Usual names of the units of a rate.
const NOUNS: [&str; 15] = [
    "r", "req", "reqs", "request", "requests", "call", "calls", "job", "jobs", "msg", "msgs", "message",
    "messages", "token", "tokens",
];

/// Shorthands for a separator together with a unit.
const SHORTHANDS: [(&str, &str); 7] =
    [("rps", "s"), ("qps", "s"), ("tps", "s"), ("hz", "s"), ("rpm", "m"), ("rph", "h"), ("rpd", "d")];

/// Returns the amount that `text` evidently means, as a text in the grammar of amounts. It consists of the numbers and
/// the unit that were recognized, and repeats nothing else of `text`.
pub(super) fn of(text: &str) -> Option<String> {
    if text.len() > LONGEST || !text.is_ascii() {
        return None;
    }
    let text = text.trim();
    let text = text.strip_suffix('.').unwrap_or(text);
    let (count, rest) = Fraction::read(text)?;
    let scaled = |prefix: char, by: u64| {
        let rest = rest.trim_start().strip_prefix(prefix)?;
        Some((count.times(by)?, rest))
    };
    // `5M/day` means millions, but `5m/day` is ambiguous.
    let readings = [Some((count, rest)), scaled('k', 1_000), scaled('K', 1_000), scaled('M', 1_000_000)];
    readings.into_iter().flatten().find_map(|(count, rest)| amount_of(count, rest))
}

fn amount_of(count: Fraction, rest: &str) -> Option<String> {
    let (number, unit) = period(rest)?;
    // A rate of a/b units in c/d periods is a*d units in b*c periods.
    let written = count.top.checked_mul(number.bottom)?;
    let text = match count.bottom.checked_mul(number.top)? {
        1 => format!("{written}/{unit}"),
        number => format!("{written}/{number}{unit}"),
    };
    amount::read(&text)?.ok()?;
    Some(text)
}

/// Reads the number of time units in the period, and the unit.
fn period(text: &str) -> Option<(Fraction, &'static str)> {
    let spaced = text.starts_with(' ');
    let text = text.trim_start();
    let (word, _) = split_word(text);
    let shorthand = SHORTHANDS.iter().find(|(short, _)| text.eq_ignore_ascii_case(short));
    if let Some((_, unit)) = shorthand {
        return Some((Fraction::ONE, unit));
    }
    let noun = NOUNS.iter().any(|noun| word.eq_ignore_ascii_case(noun));
    let text = if noun { text[word.len()..].trim_start() } else { text };
    let Some(per) = text.strip_prefix('/').or_else(|| strip_per(text)) else {
        // This is `10 s`; but `10s` is a duration.
        return Some((Fraction::ONE, unit_of(text)?)).filter(|_| spaced && !noun);
    };
    let per = per.trim_start();
    let (number, unit) = if per.starts_with(|c: char| c.is_ascii_digit()) {
        Fraction::read(per)?
    } else {
        (Fraction::ONE, per)
    };
    Some((number, unit_of(unit.trim_start())?))
}

fn split_word(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len()))
}

fn strip_per(text: &str) -> Option<&str> {
    let (per, rest) = text.split_at_checked(3)?;
    per.eq_ignore_ascii_case("per").then_some(rest)
}

/// Returns the unit of the grammar for any of its usual names.
fn unit_of(text: &str) -> Option<&'static str> {
    // `M` may be minutes, months or millions.
    if text == "M" {
        return None;
    }
    Some(match text.to_ascii_lowercase().as_str() {
        "us" | "usec" => "us",
        "ms" | "msec" => "ms",
        "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "min" | "mins" | "minute" | "minutes" => "m",
        "h" | "hr" | "hrs" | "hour" | "hours" => "h",
        "d" | "day" | "days" => "d",
        "w" | "wk" | "wks" | "week" | "weeks" => "week",
        "mo" | "mth" | "month" | "months" => "month",
        _ => return None,
    })
}

/// A decimal number, exactly, in lowest terms.
#[derive(Clone, Copy)]
struct Fraction {
    top: u64,
    bottom: u64,
}

impl Fraction {
    const ONE: Self = Self { top: 1, bottom: 1 };

    /// Reads the number at the beginning of `text`. Returns it with the rest of the text.
    fn read(text: &str) -> Option<(Self, &str)> {
        let end = text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '_' | '.')).unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let number = number.replace('_', "");
        let (whole, decimals) = match number.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (number.as_str(), ""),
        };
        let bottom = 10_u64.checked_pow(decimals.len().try_into().ok()?)?;
        // Parsing fails if a second decimal point is left.
        let top: u64 = format!("{whole}{decimals}").parse().ok()?;
        Some((Self { top, bottom }.reduced(), rest))
    }

    fn times(self, by: u64) -> Option<Self> {
        Some(Self { top: self.top.checked_mul(by)?, ..self }.reduced())
    }

    fn reduced(self) -> Self {
        // A divisor of either fits as they do; for 1 and 0 it is 1.
        let divisor = u64::try_from(super::gcd(self.top.into(), self.bottom.into())).unwrap_or(1);
        Self { top: self.top / divisor, bottom: self.bottom / divisor }
    }
}
