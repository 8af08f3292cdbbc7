//! Sets of HTTP statuses.

use std::fmt;
use std::str::FromStr;

/// The lowest status.
const LOWEST: u16 = 100;
/// The highest status.
const HIGHEST: u16 = 599;
/// The number of 64-bit words that hold one bit for each status.
const WORDS: usize = 8;

/// A set of HTTP statuses from 100 to 599.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Statuses([u64; WORDS]);

impl Statuses {
    /// The empty set.
    pub const NONE: Self = Self([0; WORDS]);

    /// The answers after which a job may be tried again unless the configuration says otherwise: 408, 425, 429 and 5xx.
    #[must_use]
    pub fn temporary() -> Self {
        Self::NONE.with(408, 408).with(425, 425).with(429, 429).with(500, 599)
    }

    /// The set with these statuses as well, both included. Statuses outside of 100 to 599 are left out.
    #[must_use]
    pub fn with(mut self, first: u16, last: u16) -> Self {
        for status in first.max(LOWEST)..=last.min(HIGHEST) {
            let (word, bit) = Self::place(status);
            self.0[word] |= bit;
        }
        self
    }

    /// The statuses of either set.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
        self
    }

    /// The statuses that are not in the other set.
    #[must_use]
    pub fn without(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= !other);
        self
    }

    /// Whether the set contains this status.
    #[must_use]
    pub fn contains(&self, status: u16) -> bool {
        if !(LOWEST..=HIGHEST).contains(&status) {
            return false;
        }
        let (word, bit) = Self::place(status);
        self.0[word] & bit != 0
    }

    /// The lowest status that is in both sets.
    #[must_use]
    pub fn common(&self, other: &Self) -> Option<u16> {
        (LOWEST..=HIGHEST).find(|status| self.contains(*status) && other.contains(*status))
    }

    const fn place(status: u16) -> (usize, u64) {
        let index = status - LOWEST;
        ((index / 64) as usize, 1 << (index % 64))
    }
}

impl FromStr for Statuses {
    type Err = String;

    /// Parses a status (`503`), a range (`500-504`) or a class (`5xx`).
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "no status; write one such as 503, \"500-504\" or \"5xx\"".to_owned();
        let status = |text: &str| {
            let is_number = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse::<u16>().ok()).flatten().filter(|s| (LOWEST..=HIGHEST).contains(s))
        };
        if let Some(class) = text.strip_suffix("xx") {
            let first = status(&format!("{class}00")).ok_or_else(wrong)?;
            return Ok(Self::NONE.with(first, first + 99));
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (status(first).ok_or_else(wrong)?, status(last).ok_or_else(wrong)?);
        if first > last {
            return Err(format!("a range without a status; write \"{last}-{first}\""));
        }
        Ok(Self::NONE.with(first, last))
    }
}

impl fmt::Debug for Statuses {
    /// Writes the ranges of the set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for status in (LOWEST..=HIGHEST).filter(|status| self.contains(*status)) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == status => *last = status,
                _ => ranges.push((status, status)),
            }
        }
        let texts = ranges.iter().map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        f.debug_list().entries(texts).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Statuses {
        text.parse().unwrap()
    }

    #[test]
    fn a_status_a_range_and_a_class() {
        for (text, within, outside) in [
            ("503", vec![503], vec![502, 504, 500, 99, 0, 600, u16::MAX]),
            ("500-502", vec![500, 501, 502], vec![499, 503]),
            ("5xx", vec![500, 555, 599], vec![499, 600]),
            ("1xx", vec![100, 163, 164, 199], vec![99, 200]),
            ("100-599", vec![100, 228, 420, 599], vec![99, 600]),
        ] {
            let statuses = parse(text);
            for status in 0..700 {
                if within.contains(&status) {
                    assert!(statuses.contains(status), "{text}: {status}");
                }
                if outside.contains(&status) {
                    assert!(!statuses.contains(status), "{text}: {status}");
                }
            }
        }
        for wrong in
            ["", "5", "5x", "xx", "6xx", "0xx", "99", "600", "1000", "50-502", "+50", "500-", "-500", "500-6"]
        {
            assert!(wrong.parse::<Statuses>().unwrap_err().contains("no status"), "{wrong}");
        }
        assert!("502-500".parse::<Statuses>().unwrap_err().contains("\"500-502\""));
    }

    #[test]
    fn sets_are_joined_and_taken_from_each_other() {
        let set = parse("5xx").and(parse("404")).without(parse("501-503"));
        assert_eq!(format!("{set:?}"), r#"["404", "500", "504-599"]"#);
        assert_eq!(set.common(&parse("400-500")), Some(404));
        assert_eq!(set.common(&parse("501")), None);
        assert_eq!(format!("{:?}", Statuses::temporary()), r#"["408", "425", "429", "500-599"]"#);
    }
}
