//! Finds the replicas that have ceased to tell of themselves without a goodbye, and decides when the log names them. It has
//! no I/O but the log.

use std::collections::BTreeMap;
use std::time::Duration;

use paced::api::Millis;
use paced::api::state::Silent;
use paced::failpoint;
use tokio::time::Instant;

use super::summary::{Identity, Summary};
use super::words;

/// How long nothing was heard of a replica before it is named. It tells of itself every two seconds.
const LASTING: Duration = Duration::from_secs(20);

/// How long it is named: one that was killed does not come back under its id.
const NAMED_FOR: Duration = Duration::from_secs(15 * 60);

/// The other replicas, by their ids.
#[derive(Debug, Default)]
pub(super) struct Silence(BTreeMap<String, Heard>);

/// A replica that was heard of.
#[derive(Debug)]
struct Heard {
    replica: Identity,
    /// When it told of itself last, by its own clock.
    told_at: Millis,
    /// When that was first read here; after an absence of the store, when that was over.
    heard_at: Instant,
    /// Since when the log has named it.
    named_at: Option<Instant>,
}

/// The lines that are due, each about these replicas.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Nothing was heard of them for [`LASTING`].
    begun: Vec<String>,
    /// They are heard again, or have ended in order.
    ended: Vec<String>,
}

impl Silence {
    /// Takes in what the other replicas tell: those that run, and the goodbyes of those that have ended.
    pub(super) fn sample(&mut self, now: Instant, others: &[Summary]) -> News {
        let mut news = News::default();
        for Summary { replica, at, has_ended, .. } in others {
            let known = self.0.get(&replica.id);
            if known.is_some_and(|known| known.told_at == *at && !has_ended) {
                continue;
            }
            let new = Heard { replica: replica.clone(), told_at: *at, heard_at: now, named_at: None };
            let before =
                if *has_ended { self.0.remove(&replica.id) } else { self.0.insert(replica.id.clone(), new) };
            if before.is_some_and(|before| before.named_at.is_some()) {
                news.ended.push(text(replica));
            }
        }
        for heard in self.0.values_mut().filter(|heard| heard.named_at.is_none()) {
            if now.saturating_duration_since(heard.heard_at) >= failpoint::interval(LASTING) {
                heard.named_at = Some(now);
                news.begun.push(text(&heard.replica));
            }
        }
        let is_over = |at: Instant| now.saturating_duration_since(at) >= NAMED_FOR;
        self.0.retain(|_, heard| !heard.named_at.is_some_and(is_over));
        news
    }

    /// The store has not answered. Others may not have reached it either, so that the time begins anew.
    pub(super) fn interrupted(&mut self, now: Instant) {
        self.0.values_mut().filter(|heard| heard.named_at.is_none()).for_each(|heard| heard.heard_at = now);
    }

    /// The replicas that are named.
    pub(super) fn list(&self) -> Vec<Silent> {
        self.of(|heard| heard.named_at.is_some())
    }

    /// All other replicas, since the store tells of none.
    pub(super) fn all(&self) -> Vec<Silent> {
        self.of(|_| true)
    }

    fn of(&self, is_meant: impl Fn(&Heard) -> bool) -> Vec<Silent> {
        let meant = self.0.values().filter(|heard| is_meant(heard));
        let silent = |Heard { replica, told_at, .. }: &Heard| Silent {
            id: replica.id.clone(),
            host: replica.host.clone(),
            pid: replica.pid,
            seen_at: *told_at,
        };
        meant.map(silent).collect()
    }
}

fn text(Identity { id, host, pid, .. }: &Identity) -> String {
    format!("{id} ({host}, process {pid})")
}

impl News {
    /// Writes the lines.
    pub(super) fn tell(&self) {
        if !self.begun.is_empty() {
            tracing::warn!(
                replicas = words::some_of(&self.begun),
                "replicas have not been heard from for {}: they hang, were killed, or do not reach the store",
                words::span(failpoint::interval(LASTING))
            );
        }
        if !self.ended.is_empty() {
            let replicas = words::some_of(&self.ended);
            tracing::info!(replicas, "these replicas are heard from again, or have ended in order");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(id: &str, at: Millis) -> Summary {
        let replica = Identity { id: id.to_owned(), host: "h".to_owned(), pid: 7, ..Identity::default() };
        Summary::new(replica, at)
    }

    fn named(silence: &Silence) -> Vec<String> {
        silence.list().into_iter().map(|silent| silent.id).collect()
    }

    const QUIET: (usize, usize) = (0, 0);

    fn lines(news: &News) -> (usize, usize) {
        (news.begun.len(), news.ended.len())
    }

    #[test]
    fn a_replica_that_hangs_is_named_and_one_that_says_goodbye_is_not() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let after = |second| start + Duration::from_secs(second);
        let all = |at| [summary("runs", at), summary("hangs", 1_000), summary("ends", at)];
        assert_eq!(lines(&silence.sample(start, &all(1_000))), QUIET);
        // The store keeps what one has told for ten seconds.
        assert_eq!(lines(&silence.sample(after(8), &all(9_000))), QUIET);
        let goodbye = Summary::goodbye(summary("ends", 0).replica, 10_000);
        assert_eq!(lines(&silence.sample(after(12), &[summary("runs", 13_000), goodbye])), QUIET);
        assert_eq!(lines(&silence.sample(after(19), &[summary("runs", 20_000)])), QUIET);
        let news = silence.sample(after(20), &[summary("runs", 21_000)]);
        assert_eq!((&*news.begun, news.ended.len()), (&["hangs (h, process 7)".to_owned()][..], 0));
        assert_eq!(silence.list()[0].seen_at, 1_000);
        assert_eq!(lines(&silence.sample(after(24), &[summary("runs", 25_000)])), QUIET, "it is named once");
        // It goes on.
        let news = silence.sample(after(28), &[summary("runs", 29_000), summary("hangs", 28_000)]);
        assert_eq!((lines(&news), named(&silence)), ((0, 1), vec![]));
    }

    #[test]
    fn one_that_was_killed_is_forgotten_in_the_end() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        silence.sample(start, &[summary("killed", 1_000)]);
        silence.sample(start + LASTING, &[]);
        silence.sample(start + LASTING + NAMED_FOR - Duration::from_secs(1), &[]);
        assert_eq!(named(&silence), ["killed"]);
        assert_eq!(lines(&silence.sample(start + LASTING + NAMED_FOR, &[])), QUIET);
        assert!(silence.all().is_empty());
    }

    #[test]
    fn an_absence_of_the_store_is_no_silence() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let after = |second| start + Duration::from_secs(second);
        silence.sample(start, &[summary("other", 1_000)]);
        silence.interrupted(after(600));
        assert_eq!(silence.all().len(), 1, "nothing is known of it meanwhile");
        assert_eq!(lines(&silence.sample(after(604), &[])), QUIET, "it may not be back yet");
        assert_eq!(lines(&silence.sample(after(606), &[summary("other", 606_000)])), QUIET);
        silence.interrupted(after(900));
        assert_eq!(lines(&silence.sample(after(919), &[])), QUIET);
        assert_eq!(lines(&silence.sample(after(920), &[])), (1, 0), "it did not come back");
    }
}
