//! What a pipe says on stderr: a bounded number of failures, and figures at its end.

use std::fmt;
use std::sync::Mutex;

use paced::lock::lock;
use paced::pipe::{Notice, Notify, Totals};

use super::bar::Messages;
use crate::cli::bounded::Bounded;

/// Reports failures: each once, and a bounded number of each kind unless all are wanted.
pub(super) fn reporter(messages: Messages, wanted: Wanted) -> Notify {
    let bounded = |what| Mutex::new(Bounded::new(what, wanted == Wanted::All));
    let (skipped, failed) = (bounded("bad lines"), bounded("failures"));
    Notify::new(move |notice| {
        let lines = match notice {
            Notice::Skipped { .. } => &skipped,
            Notice::Failed { .. } => &failed,
            Notice::Unreadable { .. } | Notice::Lost { .. } | Notice::Mismatch(_) => {
                return messages.print(&format!("paced: {notice}"));
            }
        };
        let line = lock(lines).next(notice);
        if let Some(line) = line.filter(|_| wanted != Wanted::Nothing) {
            messages.print(&format!("paced: {line}"));
        }
    })
}

/// Which failures are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// None: the outcomes have them.
    Nothing,
    Some,
    All,
}

/// The figures at the end.
pub(super) struct Closing {
    pub(super) totals: Totals,
    /// The number of entries of the input, if it is known.
    pub(super) total: Option<u64>,
    /// Jobs whose requests were cut off, so that nobody knows whether they were delivered.
    pub(super) cut_off: u64,
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { totals, total, cut_off } = *self;
        let Totals { delivered, dead, rejected, cancelled, skipped, returned, before, blank, .. } = totals;
        write!(f, "delivered {delivered}")?;
        if before.delivered > 0 {
            write!(f, " and {} before", before.delivered)?;
        }
        write!(f, ", dead {dead}, rejected {rejected}")?;
        match cancelled + before.cancelled {
            0 => {}
            cancelled => write!(f, ", cancelled {cancelled}")?,
        }
        write!(f, ", bad lines {skipped}")?;
        if blank > 0 {
            write!(f, ", blank rows {blank}")?;
        }
        if cut_off > 0 {
            write!(f, ", cut off {cut_off} (perhaps delivered)")?;
        }
        match total {
            Some(total) => write!(f, ", left {}", total.saturating_sub(totals.done() + cut_off)),
            None => {
                write!(f, ", left {} and what was not read", returned.saturating_sub(cut_off))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use paced::pipe::Before;

    use super::*;

    #[test]
    fn every_line_is_in_one_figure() {
        let totals = Totals { delivered: 5, dead: 2, skipped: 1, returned: 4, ..Totals::default() };
        let shown = |totals, total, cut_off| Closing { totals, total, cut_off }.to_string();
        assert_eq!(shown(totals, Some(8), 0), "delivered 5, dead 2, rejected 0, bad lines 1, left 0");
        assert_eq!(
            shown(totals, Some(100), 3),
            "delivered 5, dead 2, rejected 0, bad lines 1, cut off 3 (perhaps delivered), left 89"
        );
        assert_eq!(
            shown(Totals { before: Before { delivered: 40, cancelled: 0 }, ..totals }, Some(100), 0),
            "delivered 5 and 40 before, dead 2, rejected 0, bad lines 1, left 52"
        );
        assert_eq!(
            shown(
                Totals { before: Before { delivered: 0, cancelled: 4 }, cancelled: 3, ..totals },
                Some(100),
                0
            ),
            "delivered 5, dead 2, rejected 0, cancelled 7, bad lines 1, left 85"
        );
        assert_eq!(
            shown(Totals { blank: 3, ..totals }, Some(8), 0),
            "delivered 5, dead 2, rejected 0, bad lines 1, blank rows 3, left 0"
        );
        assert_eq!(
            shown(totals, None, 1),
            "delivered 5, dead 2, rejected 0, bad lines 1, cut off 1 (perhaps delivered), left 3 and what was not read"
        );
    }
}
