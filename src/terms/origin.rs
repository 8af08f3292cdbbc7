//! Which replica put limits in force, and when. People are shown this; and of terms that are restored
//! after a loss and terms that are in force, those count that were loaded last.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use super::Terms;
use crate::limit::{Limit, LimitSet};
use crate::time::Micros;

/// The name of a process that agrees with others on terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replica {
    /// An id that the process has for as long as it runs.
    pub id: String,
    /// The name of its machine; empty where that is not known.
    pub host: String,
}

/// The replica that put something in force, and when.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// When it did, on the store's clock.
    pub at: Micros,
    /// The replica whose file it is, or that an operator asked for it.
    pub replica: Replica,
}

impl Replica {
    /// The name of this process.
    pub fn of_this_process() -> &'static Self {
        static THIS: LazyLock<Replica> = LazyLock::new(|| {
            // The kernel knows it without a call to a name server; elsewhere than on Linux it is not known.
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            Replica { id: format!("{:08x}", fastrand::u32(..)), host: host.trim().to_owned() }
        });
        &THIS
    }
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.as_str() {
            "" => f.write_str(&self.id),
            host => write!(f, "{} on {host}", self.id),
        }
    }
}

impl Terms {
    /// The replica from whose file the limits are, and since when they have been those of its file; `None` where that is
    /// not known, as in terms that were never put in force.
    pub const fn loaded(&self) -> Option<&Origin> {
        self.loaded.as_ref()
    }

    /// Since when the limit of this name has had the numbers that it has at `now`, and from which replica they are;
    /// `None` where that is not known.
    pub fn in_force_since(&self, name: &str, now: Micros) -> Option<Origin> {
        let origin = self.since.get(name)?;
        let set = self.overrides.get(name).filter(|set| self.checked(name, set.rate).is_ok());
        // Where a rate has ended, the file's rate has been in force since then.
        let end = set.and_then(|set| set.until).filter(|end| *end <= now);
        Some(Origin { at: end.map_or(origin.at, |end| end.max(origin.at)), ..origin.clone() })
    }

    /// These terms as `replica` puts them in force at `now` in place of `before`, which are `None` where none were. A
    /// limit whose numbers stay the same keeps its origin.
    #[must_use]
    pub fn put_in_force(mut self, before: Option<&Self>, now: Micros, replica: &Replica) -> Self {
        let origin = Origin { at: now, replica: replica.clone() };
        let same_file =
            before.filter(|before| before.has_limits_of(&self) && before.revision == self.revision);
        self.loaded = match same_file {
            Some(before) => before.loaded.clone(),
            None => Some(origin.clone()),
        };
        let old = before.map(|before| before.numbers(now)).unwrap_or_default();
        let since = self.numbers(now).into_iter().filter_map(|(name, limit)| {
            let same_numbers = before.filter(|_| old.get(&name) == Some(&limit));
            let origin = match same_numbers {
                Some(before) => before.in_force_since(&name, now)?,
                None => origin.clone(),
            };
            Some((name, origin))
        });
        self.since = since.collect();
        self
    }

    /// The limits with the numbers in force at `now`, by their names.
    fn numbers(&self, now: Micros) -> BTreeMap<String, Limit> {
        let (limits, plans) = self.effective(now);
        let all = std::iter::once(&limits).chain(plans.values()).flat_map(LimitSet::iter);
        all.map(|limit| (limit.name().to_owned(), limit.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::terms::{Load, Override};

    const SECOND: i64 = 1_000_000;

    fn replica(id: &str) -> Replica {
        Replica { id: id.to_owned(), host: "api-7".to_owned() }
    }

    fn origin(second: i64, id: &str) -> Option<Origin> {
        Some(Origin { at: Micros(second * SECOND), replica: replica(id) })
    }

    /// The terms of a file with these rates for the limits `a` and `b`.
    fn file(a: &str, b: &str) -> Terms {
        let limit = |name: &str, rate: &str| Limit::gcra(name, rate.parse().unwrap(), 2).unwrap();
        Terms::new(LimitSet::new(vec![limit("a", a), limit("b", b)]).unwrap(), BTreeMap::new(), None)
    }

    fn set(rate: &str, until: Option<i64>) -> Override {
        let until = until.map(|until| Micros(until * SECOND));
        Override { rate: rate.parse().unwrap(), until, reason: None, by: None, set_at: Micros(0) }
    }

    fn since(terms: &Terms, second: i64) -> [Option<Origin>; 2] {
        ["a", "b"].map(|name| terms.in_force_since(name, Micros(second * SECOND)))
    }

    /// Puts a change in force.
    fn changed(before: &Terms, second: i64, id: &str, change: impl FnOnce(&mut Terms)) -> Terms {
        let mut after = before.clone();
        change(&mut after);
        after.put_in_force(Some(before), Micros(second * SECOND), &replica(id))
    }

    /// Loads a file in place of these terms.
    fn loaded(before: &Terms, second: i64, id: &str, own: &Terms) -> Terms {
        let Load::Replace(after) = Terms::load(Some(before), own) else { panic!("not replaced") };
        after.put_in_force(Some(before), Micros(second * SECOND), &replica(id))
    }

    #[test]
    fn a_limit_has_its_numbers_since_they_last_changed() {
        let file_terms = file("5/s", "7/s");
        assert_eq!((file_terms.loaded(), since(&file_terms, 0)), (None, [None, None]), "nowhere in force");
        let first = file_terms.put_in_force(None, Micros(SECOND), &replica("x"));
        assert_eq!(
            (first.loaded().cloned(), since(&first, 2)),
            (origin(1, "x"), [origin(1, "x"), origin(1, "x")])
        );
        let other = loaded(&first, 3, "y", &file("5/s", "8/s"));
        assert_eq!(
            (other.loaded().cloned(), since(&other, 4)),
            (origin(3, "y"), [origin(1, "x"), origin(3, "y")])
        );
        let over =
            changed(&other, 5, "z", |terms| drop(terms.set_rate(Some("a"), set("9/s", None)).unwrap()));
        assert_eq!(
            (over.loaded().cloned(), since(&over, 6)),
            (origin(3, "y"), [origin(5, "z"), origin(3, "y")])
        );
        let unset = changed(&over, 7, "x", |terms| drop(terms.unset_rate(Some("a")).unwrap()));
        assert_eq!(
            (unset.loaded().cloned(), since(&unset, 8)),
            (origin(3, "y"), [origin(7, "x"), origin(3, "y")])
        );
        // The same rate for longer changes no number.
        let again =
            changed(&over, 7, "x", |terms| drop(terms.set_rate(Some("a"), set("9/s", Some(60))).unwrap()));
        assert_eq!(since(&again, 8), [origin(5, "z"), origin(3, "y")]);
    }

    #[test]
    fn where_a_rate_has_ended_the_one_of_the_file_is_in_force_since_then() {
        let first = file("5/s", "7/s").put_in_force(None, Micros(SECOND), &replica("x"));
        let over =
            changed(&first, 2, "z", |terms| drop(terms.set_rate(Some("a"), set("9/s", Some(10))).unwrap()));
        assert_eq!(since(&over, 9), [origin(2, "z"), origin(1, "x")]);
        let ended = [origin(10, "z"), origin(1, "x")];
        assert_eq!(since(&over, 50), ended, "before any replica has removed it");
        let removed = over.expired(Micros(50 * SECOND)).unwrap();
        let removed = removed.put_in_force(Some(&over), Micros(50 * SECOND), &replica("y"));
        assert_eq!(since(&removed, 60), ended, "and after that");
        // A rate that fits no limit never was in force, so its end changes nothing.
        let log = Limit::sliding_log("a", 20, Duration::from_secs(60)).unwrap();
        let log = Terms::new(LimitSet::new(vec![log]).unwrap(), BTreeMap::new(), None);
        let over = changed(&first, 2, "z", |terms| {
            drop(terms.set_rate(Some("a"), set("20000/m", Some(10))).unwrap())
        });
        let idle = loaded(&over, 5, "y", &log);
        assert_eq!(idle.in_force_since("a", Micros(50 * SECOND)), origin(5, "y"));
    }

    #[test]
    fn a_replica_is_named_with_its_machine() {
        assert_eq!(replica("3f2a91bc").to_string(), "3f2a91bc on api-7");
        assert_eq!(Replica { host: String::new(), ..replica("3f2a91bc") }.to_string(), "3f2a91bc");
        let this = Replica::of_this_process();
        assert_eq!((this.id.len(), this), (8, Replica::of_this_process()));
    }
}
