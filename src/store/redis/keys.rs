//! The keys of a downstream. All keys are built here.
//!
//! ```text
//! paced:{billing}:record            the downstream's record (string, no TTL)
//! paced:{billing}:terms             the terms in force (string, no TTL)
//! paced:{billing}:note              who paused and why, with the version of the pause (string)
//! paced:{billing}:cool-down         the cool-down, until a minute after it (string)
//! paced:{billing}:replicas          the replicas that live (sorted set, by when their leases end)
//! paced:{billing}:cancelled         the ids of cancelled jobs (sorted set, by the version of their latest change)
//! paced:{billing}:cancelled-until   the same ids (sorted set, by when their tombstones end)
//! paced:{billing}:parked            the number of parked jobs (string)
//! paced:{billing}:parked-groups     the same by the hour until which they wait, and what for (string)
//! paced:{billing}:history           the last changes by operators (string)
//! paced:{billing}:l:LIMIT           the state of a limit of the whole downstream
//! paced:{billing}:k:LIMIT:KEY       the state of a limit that each key has for itself
//! paced:{~fleet}:seen               the replicas (sorted set, by when their summaries end)
//! paced:{~fleet}:summary:REPLICA    the summary that a replica left for the others (string)
//! paced:{~fleet}:served:PREFIX      the downstreams, by when they were served last (sorted set); PREFIX is that of their queues
//! ```
//!
//! No configured downstream can be called `~fleet`, and none has keys of these names.
//!
//! Changes of records are published on the channel `paced:changes`, with the downstream's name as the message.
//!
//! The part in braces is the hash tag: all keys of one downstream lie in one slot of a cluster, so that one script may
//! touch them. The prefix and the downstream's name therefore have no braces. A colon in a limit's name is escaped, so
//! that `a` with key `b:c` is not `a:b` with key `c`.

use std::borrow::Cow;

use crate::limit::{Limit, LimitSet};
use crate::store::Scope;

/// The hash tag of what is the whole fleet's.
pub(super) const FLEET: &str = "~fleet";

/// The key of the replicas by when their summaries end.
pub(super) fn seen(prefix: &str) -> String {
    join(prefix, Scope { downstream: FLEET, key: "" }, &["seen"])
}

/// The key of the summary of a replica.
pub(super) fn summary(prefix: &str, replica: &str) -> String {
    join(prefix, Scope { downstream: FLEET, key: "" }, &["summary:", replica])
}

/// The key of the downstreams by when they were served last.
pub(super) fn served(prefix: &str, queues: &str) -> String {
    join(prefix, Scope { downstream: FLEET, key: "" }, &["served:", queues])
}

/// The keys of every script: that of the record, then those of the states of `limits`.
pub(super) fn all(prefix: &str, scope: Scope<'_>, limits: &LimitSet) -> Vec<String> {
    let mut keys = Vec::with_capacity(limits.len() + 2);
    keys.push(record(prefix, scope));
    keys.extend(limits.iter().map(|limit| state(prefix, scope, limit)));
    keys
}

/// The keys of the record, of the states of `limits`, of the terms, of the note on the pause, and of the cool-down.
pub(super) fn restarted(prefix: &str, scope: Scope<'_>, limits: &[Limit]) -> Vec<String> {
    let [record, beside @ ..] = whole_record(prefix, scope);
    let states = limits.iter().map(|limit| state(prefix, scope, limit));
    std::iter::once(record).chain(states).chain(beside).collect()
}

/// The keys of the states of keyed limits of one downstream.
pub(super) fn of<'a>(
    prefix: &str,
    scope: Scope<'_>,
    limits: impl IntoIterator<Item = (&'a Limit, &'a str)>,
) -> Vec<String> {
    let downstream = scope.downstream;
    limits.into_iter().map(|(limit, key)| state(prefix, Scope { downstream, key }, limit)).collect()
}

pub(super) fn record(prefix: &str, scope: Scope<'_>) -> String {
    join(prefix, scope, &["record"])
}

/// The keys of the record, of the terms, of the note on the pause, and of the cool-down.
pub(super) fn whole_record(prefix: &str, scope: Scope<'_>) -> [String; 4] {
    ["record", "terms", "note", "cool-down"].map(|name| join(prefix, scope, &[name]))
}

/// The keys of the record and of the tombstones.
pub(super) fn record_and_tombstones(prefix: &str, scope: Scope<'_>) -> [String; 3] {
    let [by_version, by_end] = ["cancelled", "cancelled-until"].map(|name| join(prefix, scope, &[name]));
    [record(prefix, scope), by_version, by_end]
}

/// The channel on which changes are published.
pub(super) fn channel(prefix: &str) -> String {
    format!("{prefix}:changes")
}

/// The key of the leases.
pub(super) fn replicas(prefix: &str, scope: Scope<'_>) -> String {
    join(prefix, scope, &["replicas"])
}

/// The key of the number of parked jobs.
pub(super) fn parked(prefix: &str, scope: Scope<'_>) -> String {
    join(prefix, scope, &["parked"])
}

/// The key of the groups of parked jobs.
pub(super) fn parked_groups(prefix: &str, scope: Scope<'_>) -> String {
    join(prefix, scope, &["parked-groups"])
}

/// The key of the last changes by operators.
pub(super) fn history(prefix: &str, scope: Scope<'_>) -> String {
    join(prefix, scope, &["history"])
}

pub(super) fn state(prefix: &str, scope: Scope<'_>, limit: &Limit) -> String {
    let mut name = Cow::Borrowed(limit.name());
    if name.contains(['%', ':']) {
        name = name.replace('%', "%25").replace(':', "%3a").into();
    }
    match scope.key {
        "" => join(prefix, scope, &["l:", &name]),
        key => join(prefix, scope, &["k:", &name, ":", key]),
    }
}

/// Joins the parts of a key in one allocation, since keys are built with every call.
fn join(prefix: &str, scope: Scope<'_>, parts: &[&str]) -> String {
    let size = prefix.len() + scope.downstream.len() + 4 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut key = String::with_capacity(size);
    key.extend([prefix, ":{", scope.downstream, "}:"]);
    key.extend(parts.iter().copied());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_tagged_and_unambiguous() {
        let limit = |name: &str| Limit::leaky_bucket(name, "1/s".parse().unwrap(), 1).unwrap();
        let scope = |key| Scope { downstream: "billing", key };
        assert_eq!(record("paced", scope("x")), "paced:{billing}:record");
        assert_eq!(replicas("paced", scope("x")), "paced:{billing}:replicas");
        assert_eq!(
            whole_record("paced", scope("x")),
            ["record", "terms", "note", "cool-down"].map(|name| format!("paced:{{billing}}:{name}"))
        );
        assert_eq!(seen("paced"), "paced:{~fleet}:seen");
        assert_eq!(summary("paced", "host-1"), "paced:{~fleet}:summary:host-1");
        assert_eq!(served("paced", "mine"), "paced:{~fleet}:served:mine");
        assert_eq!(state("paced", scope(""), &limit("rate")), "paced:{billing}:l:rate");
        assert_eq!(state("paced", scope("b:c"), &limit("a")), "paced:{billing}:k:a:b:c");
        assert_eq!(state("paced", scope("c"), &limit("a:b")), "paced:{billing}:k:a%3ab:c");
    }
}
