//! How many checks of queues that are probably missing a sweep over many downstreams may make. It has no I/O.
//!
//! Each such check spends a number of a channel for as long as the connection lives, and a connection of which all are
//! spent is replaced, with its consumers. A connection has two thousand.

/// Up to this number of downstreams all queues are checked when they are due.
pub(super) const FEW: usize = 250;

/// The most of these checks in a sweep over more downstreams, unless [`PART`] allows more.
const MOST: usize = 20;

/// A sweep over more downstreams may make one of these checks for each group of this many, since it takes long: a sweep
/// over ten thousand takes twenty-five minutes.
const PART: usize = 50;

/// The checks that are left in a sweep, and where the last one ended.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    /// The number of downstreams of this sweep.
    downstreams: usize,
    spent: usize,
    /// The last downstream, by name, that had such a check in an earlier sweep. This sweep continues after it, so that
    /// all downstreams have their turn. `None` if the sweep before came to its end with checks left.
    after: Option<String>,
    /// The last downstream that had such a check in this sweep.
    last: Option<String>,
    /// Whether no check is left.
    is_spent: bool,
    /// Whether the sweep came to its end with checks left, so that the next one begins with the first downstream.
    is_whole: bool,
}

impl Allowance {
    /// Begins a sweep over this number of downstreams.
    pub(super) fn begin(&mut self, downstreams: usize) {
        let last = self.last.take().or_else(|| self.after.take());
        *self = Self { downstreams, after: last.filter(|_| !self.is_whole), ..Self::default() };
    }

    /// Whether there are so few downstreams that everything may be checked.
    pub(super) const fn is_free(&self) -> bool {
        self.downstreams <= FEW
    }

    /// Whether queues of this downstream may be checked that are probably missing. The downstreams of a sweep come by
    /// name.
    pub(super) fn allows(&self, downstream: &str) -> bool {
        self.is_free() || !self.is_spent && self.after.as_deref().is_none_or(|after| downstream > after)
    }

    /// Records how many checks of a downstream found no queue.
    pub(super) fn spend(&mut self, downstream: &str, checks: usize) {
        if checks == 0 || self.is_spent {
            return;
        }
        self.spent += checks;
        self.last = Some(downstream.to_owned());
        self.is_spent = self.spent >= MOST.max(self.downstreams / PART);
    }

    /// Records that the sweep came to its end.
    pub(super) const fn end(&mut self) {
        self.is_whole = !self.is_spent;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// How many checks each sweep makes, and how often each downstream has one: all of them lack a queue, which is due in
    /// each sweep.
    fn swept(downstreams: usize, sweeps: usize) -> (Vec<usize>, Vec<usize>) {
        let mut allowance = Allowance::default();
        let mut checks: BTreeMap<String, usize> =
            (0..downstreams).map(|number| (format!("d{number:05}"), 0)).collect();
        let mut of_sweeps = Vec::new();
        for _ in 0..sweeps {
            allowance.begin(downstreams);
            let mut made = 0;
            for (name, count) in &mut checks {
                if allowance.allows(name) {
                    (made, *count) = (made + 1, *count + 1);
                    allowance.spend(name, 1);
                }
            }
            allowance.end();
            of_sweeps.push(made);
        }
        (of_sweeps, checks.into_values().collect())
    }

    #[test]
    fn many_downstreams_that_lack_queues_have_their_turns_and_few_need_none() {
        assert_eq!(swept(FEW, 3), (vec![FEW; 3], vec![3; FEW]));
        let (of_sweeps, checks) = swept(FEW + 1, 14);
        assert!(of_sweeps.iter().all(|made| *made <= MOST), "{of_sweeps:?}");
        assert!(checks.iter().all(|count| (1..=2).contains(count)), "{checks:?}");
        let (of_sweeps, checks) = swept(10_000, 51);
        assert!(of_sweeps.iter().all(|made| *made <= 10_000 / PART), "{of_sweeps:?}");
        assert!(checks.iter().all(|count| (1..=2).contains(count)));
    }

    #[test]
    fn a_sweep_that_ends_early_leaves_the_turn_where_it_was() {
        let mut allowance = Allowance::default();
        let mut checked = Vec::new();
        let names: Vec<_> = (0..1_000).map(|number| format!("d{number:05}")).collect();
        // Each sweep ends when the first seven downstreams that may be checked were.
        for _ in 0..3 {
            allowance.begin(names.len());
            for name in names.iter().filter(|name| allowance.allows(name)).take(7).collect::<Vec<_>>() {
                allowance.spend(name, 1);
                checked.push(name.clone());
            }
        }
        assert_eq!(checked, names[..21]);
        // One that meets no missing queue at all loses no turn either, until it came to its end.
        allowance.begin(names.len());
        allowance.begin(names.len());
        assert!(!allowance.allows(&names[20]) && allowance.allows(&names[21]));
        allowance.end();
        allowance.begin(names.len());
        assert!(allowance.allows(&names[0]));
    }
}
