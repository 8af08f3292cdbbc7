//! Values by key; with each new key, some expired ones are removed.

use std::ops::Range;

use indexmap::IndexMap;

/// The number of other keys that each new key has examined, so that no call sweeps all of them.
const STEP: usize = 4;

/// Values by key.
#[derive(Debug, Default)]
pub(super) struct Swept<V> {
    values: IndexMap<Box<str>, V>,
    /// The index at which the next sweep continues.
    cursor: usize,
}

impl<V: Default> Swept<V> {
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    #[cfg(feature = "redis")]
    pub(super) fn get(&self, key: &str) -> Option<&V> {
        self.values.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        self.values.get_mut(key)
    }

    /// The index of a key, for [`Swept::at`], until a key is removed.
    pub(super) fn index(&self, key: &str) -> Option<usize> {
        self.values.get_index_of(key)
    }

    pub(super) fn at(&mut self, index: usize) -> &mut V {
        &mut self.values[index]
    }

    /// The values whose indices lie in this range, by key.
    pub(super) fn range(&self, range: Range<usize>) -> impl Iterator<Item = (&str, &V)> {
        range.filter_map(move |index| self.values.get_index(index)).map(|(key, value)| (&**key, value))
    }

    /// Adds a key, and returns its index.
    pub(super) fn insert(&mut self, key: &str) -> usize {
        self.values.insert_full(key.into(), V::default()).0
    }

    /// Removes some of the keys whose values have expired.
    pub(super) fn sweep(&mut self, is_expired: impl Fn(&V) -> bool) {
        for _ in 0..STEP {
            match self.values.get_index(self.cursor) {
                Some((_, value)) if is_expired(value) => {
                    self.values.swap_remove_index(self.cursor);
                }
                Some(_) => self.cursor += 1,
                None => self.cursor = 0,
            }
        }
    }
}
