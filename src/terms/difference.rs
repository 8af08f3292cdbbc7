//! What differs between the limits of two terms, in words.

use super::{Terms, rate_text};
use crate::limit::Limit;
use crate::time::Micros;

impl Terms {
    /// The limits that change if those of `new` at `now` follow those of these terms at `then`, such as
    /// `leaky-bucket-0 100/m → 20/s, quota-1 is removed`; empty if all stay as they are. What is set for values of lanes is not
    /// named one by one.
    pub fn changes(&self, then: Micros, new: &Self, now: Micros) -> String {
        let (before, after) = (self.counted(None, then), new.counted(None, now));
        // Terms always have a limit.
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        let called = |all: &[Limit], name: &str| all.iter().find(|limit| limit.name() == name).cloned();
        let changed = after.iter().filter_map(|limit| {
            let (name, rate) = (limit.name(), rate_text(limit));
            match called(&before, name) {
                Some(old) if old == *limit => None,
                Some(old) if rate_text(&old) == rate => {
                    Some(format!("{name} {rate} has other numbers besides its rate"))
                }
                Some(old) => Some(format!("{name} {} → {rate}", rate_text(&old))),
                None => Some(format!("{name} {rate} is added")),
            }
        });
        let removed = before.iter().filter(|old| called(&after, old.name()).is_none());
        let removed = removed.map(|old| format!("{} is removed", old.name()));
        let set = |terms: &Self, at| {
            let paused: Vec<String> = terms.values.paused_at(at).map(str::to_owned).collect();
            let weights = terms.values.weights_at(at).map(|(value, weight)| (value.to_owned(), weight));
            (weights.collect::<Vec<_>>(), paused)
        };
        let of_values = (set(self, then) != set(new, now)).then(|| "weights or pauses of lanes".to_owned());
        changed.chain(removed).chain(of_values).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{Override, SetValue};
    use super::*;
    use crate::limit::LimitSet;

    fn terms(limits: Vec<Limit>) -> Terms {
        Terms::new(LimitSet::new(limits).unwrap(), BTreeMap::new(), None)
    }

    #[test]
    fn each_limit_that_changes_is_named_with_its_rates() {
        let pace = |rate: &str, burst| Limit::leaky_bucket("pace", rate.parse().unwrap(), burst).unwrap();
        let window = || Limit::fixed_window("hour", 500, std::time::Duration::from_secs(3600)).unwrap();
        let (start, end) = (Micros(1_000_000), Micros(9_000_000));
        let before = terms(vec![pace("100/m", 1)]);
        let changes = |after: &Terms| before.changes(start, after, start);
        assert_eq!(changes(&before), "");
        assert_eq!(changes(&terms(vec![pace("20/s", 1)])), "pace 100/m → 20/s");
        assert_eq!(changes(&terms(vec![pace("100/m", 3)])), "pace 100/m has other numbers besides its rate");
        assert_eq!(changes(&terms(vec![pace("100/m", 1), window()])), "hour 500/h is added");
        assert_eq!(changes(&terms(vec![window()])), "hour 500/h is added, pace is removed");
        let mut over = before.clone();
        let set = Override {
            rate: "2/s".parse().unwrap(),
            until: Some(end),
            reason: None,
            by: None,
            set_at: start,
        };
        over.set_rate(Some("pace"), set).unwrap();
        assert_eq!(changes(&over), "pace 100/m → 2/s");
        assert_eq!(
            over.changes(start, &over.expired(end).unwrap(), end),
            "pace 2/s → 100/m",
            "it has expired"
        );
        let mut paused = before.clone();
        let set = SetValue { to: (), until: Some(end), reason: None, by: None, set_at: start };
        paused.pause_value("acme", set).unwrap();
        assert_eq!(changes(&paused), "weights or pauses of lanes");
        assert_eq!(paused.changes(start, &paused, start), "");
        assert_eq!(paused.changes(start, &paused, end), "weights or pauses of lanes", "it has expired");
    }
}
