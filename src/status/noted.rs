//! Whether the store knows which downstreams this replica serves.

use std::collections::{BTreeMap, BTreeSet};

/// Which of these downstreams the store knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// None was ever reported.
    Never,
    /// These were reported, and the store knew them since.
    Yes(BTreeSet<String>),
    /// The store has lost what was reported: the next report also has the downstreams that nobody serves.
    Lost,
}

impl Noted {
    /// Whether the store knows just these.
    pub(super) fn has<T>(&self, all: &BTreeMap<String, T>) -> bool {
        matches!(self, Self::Yes(names) if names.iter().eq(all.keys()))
    }

    /// Whether the store has lost what was reported, if `new` of these names were new to it. A downstream that was added since is
    /// new to it in any case.
    pub(super) fn is_lost(&self, names: &BTreeSet<String>, new: usize) -> bool {
        match self {
            Self::Yes(before) => new > names.difference(before).count(),
            Self::Never | Self::Lost => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_added_is_no_loss() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let noted = Noted::Yes(names(&["a", "b"]));
        for (now, new, is_lost) in [
            (&["a", "b"][..], 0, false),
            (&["a", "b"], 1, true),
            (&["a", "b", "c"], 1, false),
            (&["a", "b", "c"], 2, true),
            (&["a", "c"], 1, false),
            (&["a", "c"], 2, true),
            (&["c", "d"], 2, false),
            (&[], 0, false),
        ] {
            assert_eq!(noted.is_lost(&names(now), new), is_lost, "{now:?} {new}");
        }
        let all = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), ())).collect();
        let has =
            [&["a", "b"][..], &["a"], &["a", "b", "c"], &["a", "c"]].map(|names| noted.has(&all(names)));
        assert_eq!(has, [true, false, false, false]);
        assert!(!Noted::Never.has(&all(&["a"])) && !Noted::Lost.has(&all(&["a"])));
        assert!(!Noted::Never.is_lost(&names(&["a"]), 1) && !Noted::Lost.is_lost(&names(&["a"]), 1));
    }
}
