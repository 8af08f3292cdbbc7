//! What a pipe says on stderr: a bounded number of failures, and figures at its end.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use paced::pipe::{Notice, Notify, Totals};

use super::bar::Messages;

/// The failures of jobs, and likewise the bad lines, that are reported one by one.
const MAX_SINGLES: u64 = 100;

/// Reports failures: each once, and no more than [`MAX_SINGLES`] of each kind unless all are wanted.
pub(super) fn reporter(messages: Messages, wanted: Wanted) -> Notify {
    let (skipped, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    Notify::new(move |notice| {
        let (count, what) = match notice {
            Notice::Skipped { .. } => (&skipped, "bad lines"),
            Notice::Failed { .. } => (&failed, "failures"),
            Notice::Unreadable { .. } | Notice::Lost { .. } | Notice::Mismatch(_) => {
                return messages.print(&format!("paced: {notice}"));
            }
        };
        match (wanted, count.fetch_add(1, Ordering::Relaxed)) {
            (Wanted::Nothing, _) => {}
            (Wanted::Some, MAX_SINGLES) => {
                messages.print(&format!("paced: more {what}, which are only counted; -v shows each"));
            }
            (Wanted::Some, before) if before > MAX_SINGLES => {}
            _ => messages.print(&format!("paced: {notice}")),
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
