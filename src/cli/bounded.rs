//! Lines of one kind on stderr, of which a bounded number is printed.

use std::fmt::Display;

/// The most lines of one kind that are printed, unless all are wanted.
const MOST: u64 = 100;

/// The lines of one kind.
#[derive(Debug)]
pub(super) struct Bounded {
    /// What they are, such as `bad lines`.
    what: &'static str,
    most: u64,
    count: u64,
}

impl Bounded {
    /// The first [`MOST`] lines of a kind, or all of them.
    pub(super) const fn new(what: &'static str, all: bool) -> Self {
        Self { what, most: if all { u64::MAX } else { MOST }, count: 0 }
    }

    /// Counts one more; the text to print, if any.
    pub(super) fn next(&mut self, line: impl Display) -> Option<String> {
        let before = self.count;
        self.count += 1;
        if before < self.most {
            return Some(line.to_string());
        }
        let what = self.what;
        (before == self.most).then(|| format!("more {what}, which are only counted; -v shows each"))
    }

    /// How many there were.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_counted() {
        for (all, printed) in [(false, 101), (true, 300)] {
            let mut lines = Bounded::new("bad lines", all);
            let texts: Vec<String> = (0..300).filter_map(|n| lines.next(n)).collect();
            assert_eq!((texts.len(), lines.count()), (printed, 300));
            assert_eq!((texts[0].as_str(), texts[99].as_str()), ("0", "99"));
            let last = if all { "100" } else { "more bad lines, which are only counted; -v shows each" };
            assert_eq!(texts[100], last);
        }
    }
}
