//! Which downstreams replicas serve, and which nobody serves any more.

use std::time::Duration;

use super::StoreError;
use super::error::ensure;
use crate::time::Micros;

/// The most downstreams that a store remembers for one prefix: those that were served last.
pub const MAX_SERVED: usize = 10_000;

/// The most names in one call, and in one answer.
pub const MAX_SERVED_BATCH: usize = 1_000;

/// How long the names are kept after the last call.
#[cfg(feature = "redis")]
pub(super) const SERVED_KEPT: Duration = Duration::from_secs(400 * 86_400);

/// The longest name of a downstream, and the longest prefix, in bytes.
const LONGEST_NAME: usize = 64;

/// A call about which downstreams are served; see [`Store::served`](super::Store::served).
#[derive(Clone, Copy, Debug, Default)]
pub struct Served<'a> {
    /// The prefix of the queues. Names under another prefix are other downstreams, with queues of their own.
    pub prefix: &'a str,
    /// The downstreams that the caller serves now, at most [`MAX_SERVED_BATCH`].
    pub names: &'a [&'a str],
    /// Downstreams that the store may have lost, at most [`MAX_SERVED_BATCH`]. Those that it knows stay as they are.
    pub recalled: &'a [Unserved],
    /// A downstream that the store forgets before it uses the other fields.
    pub forgotten: Option<&'a str>,
    /// The answer lists the downstreams that nobody has served for this long.
    pub unserved_for: Duration,
}

/// A downstream that nobody serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// Its name.
    pub name: String,
    /// When it was served last, on the store's clock; 0 if that is not known.
    pub served_at: Micros,
}

/// The answer to [`Served`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedReply {
    /// How many of [`Served::names`] the store did not know. If the caller has named them before, the store has lost them.
    pub new: usize,
    /// The downstreams that nobody has served for [`Served::unserved_for`], those first that were served longest ago;
    /// at most [`MAX_SERVED_BATCH`].
    pub unserved: Vec<Unserved>,
}

impl Served<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] for too many names, or one that is empty or too long.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        for count in [self.names.len(), self.recalled.len()] {
            ensure(count <= MAX_SERVED_BATCH, || {
                format!("{count} downstreams in one call; at most {MAX_SERVED_BATCH} fit, so use several")
            })?;
        }
        let recalled = self.recalled.iter().map(|unserved| unserved.name.as_str());
        let mut all = self.names.iter().copied().chain(recalled).chain(self.forgotten).chain([self.prefix]);
        all.try_for_each(|name| {
            let bytes = name.len();
            ensure(is_name(name), || format!("a name of {bytes} bytes; use 1 to {LONGEST_NAME}"))
        })
    }
}

/// Whether this can be the name of a downstream.
pub(super) fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_no_store_answers() {
        let good = Served { prefix: "paced", names: &["a"; MAX_SERVED_BATCH], ..Served::default() };
        assert!(good.check().is_ok());
        let long = "x".repeat(65);
        let recalled = [Unserved { name: String::new(), served_at: Micros(0) }];
        for (call, expected) in [
            (Served { names: &["a"; MAX_SERVED_BATCH + 1], ..good }, "1001 downstreams in one call"),
            (Served { names: &["a", &long], ..good }, "a name of 65 bytes"),
            (Served { recalled: &recalled, ..good }, "a name of 0 bytes"),
            (Served { forgotten: Some(""), ..good }, "a name of 0 bytes"),
            (Served { prefix: "", ..good }, "a name of 0 bytes"),
        ] {
            let error = call.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
