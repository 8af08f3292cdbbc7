//! Finds the replicas that have stopped reporting themselves without announcing their end, and decides when the log
//! names them. It has no I/O but the log.

use std::collections::BTreeMap;
use std::time::Duration;

use paced::api::Millis;
use paced::api::state::Silent;
use paced::failpoint;
use tokio::time::Instant;

use super::summary::{Identity, Summary};
use super::words;

/// How long a replica has not reported itself before it is named. A replica reports itself every two seconds.
const LASTING: Duration = Duration::from_secs(20);

/// How long it is named: one that was killed does not come back under its id.
const NAMED_FOR: Duration = Duration::from_secs(15 * 60);

/// The other replicas, by their ids.
#[derive(Debug, Default)]
pub(super) struct Silence(BTreeMap<String, Peer>);

/// A replica that has reported itself.
#[derive(Debug)]
struct Peer {
    replica: Identity,
    /// When it reported itself last, by its own clock.
    reported_at: Millis,
    /// Whether it says goodbye when it ends in order.
    says_goodbye: bool,
    /// When this replica first read that report; after a time without the store, when the store came back.
    read_at: Instant,
    /// Since when the log has named it.
    named_at: Option<Instant>,
}

/// The lines that are due, each about these replicas.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// They have not reported themselves for [`LASTING`].
    begun: Vec<String>,
    /// They report themselves again, have ended in order, or were replaced.
    ended: Vec<String>,
}

impl Silence {
    /// Reads the reports of the other replicas: those that run, and the goodbyes of those that have ended.
    pub(super) fn sample(&mut self, now: Instant, others: &[Summary]) -> News {
        let mut news = News::default();
        for summary @ Summary { replica, at, has_ended, .. } in others {
            let known = self.0.get(&replica.id);
            if known.is_some_and(|known| known.reported_at == *at && !has_ended) {
                continue;
            }
            if known.is_none() && !has_ended {
                news.ended.extend(self.replaced_by(summary, others));
            }
            let new = Peer {
                replica: replica.clone(),
                reported_at: *at,
                says_goodbye: summary.says_goodbye,
                read_at: now,
                named_at: None,
            };
            let before =
                if *has_ended { self.0.remove(&replica.id) } else { self.0.insert(replica.id.clone(), new) };
            if before.is_some_and(|before| before.named_at.is_some()) {
                news.ended.push(text(replica));
            }
        }
        let is_quiet =
            |peer: &Peer| now.saturating_duration_since(peer.read_at) >= failpoint::interval(LASTING);
        // Nobody knows how replicas that do not announce their end have ended.
        self.0.retain(|_, peer| peer.says_goodbye || !is_quiet(peer));
        for peer in self.0.values_mut().filter(|peer| peer.named_at.is_none()) {
            if is_quiet(peer) {
                peer.named_at = Some(now);
                news.begun.push(text(&peer.replica));
            }
        }
        self.forget_old(now);
        news
    }

    fn forget_old(&mut self, now: Instant) {
        let is_over = |at: Instant| now.saturating_duration_since(at) >= NAMED_FOR;
        self.0.retain(|_, peer| !peer.named_at.is_some_and(is_over));
    }

    /// Forgets one replica that this new one has replaced, as a service manager does: it does not report any more, and the new
    /// one has begun on the same machine since. Returns its name if it was named.
    fn replaced_by(&mut self, Summary { replica: new, .. }: &Summary, others: &[Summary]) -> Option<String> {
        let reports = |id: &String| others.iter().any(|other| other.replica.id == *id);
        let mut replaced = self.0.iter().filter(|(id, peer)| {
            peer.replica.host == new.host && peer.reported_at < new.started_at && !reports(id)
        });
        let id = replaced.next()?.0.clone();
        let old = self.0.remove(&id)?;
        old.named_at.map(|_| text(&old.replica))
    }

    /// Records that the store has not answered. Other replicas may not have reached it either, so the time begins
    /// again.
    pub(super) fn interrupted(&mut self, now: Instant) {
        self.0.values_mut().filter(|peer| peer.named_at.is_none()).for_each(|peer| peer.read_at = now);
        self.forget_old(now);
    }

    /// The replicas that are named.
    pub(super) fn list(&self) -> Vec<Silent> {
        self.of(|peer| peer.named_at.is_some())
    }

    /// All other replicas, since the store reports none.
    pub(super) fn all(&self) -> Vec<Silent> {
        self.of(|_| true)
    }

    fn of(&self, is_meant: impl Fn(&Peer) -> bool) -> Vec<Silent> {
        let meant = self.0.values().filter(|peer| is_meant(peer));
        let silent = |Peer { replica, reported_at, .. }: &Peer| Silent {
            id: replica.id.clone(),
            host: replica.host.clone(),
            pid: replica.pid,
            seen_at: *reported_at,
        };
        meant.map(silent).collect()
    }
}

fn text(Identity { id, host, pid, .. }: &Identity) -> String {
    format!("{id} ({host}, process {pid})")
}

impl News {
    /// Writes the lines.
    pub(super) fn log(&self) {
        if !self.begun.is_empty() {
            tracing::warn!(
                replicas = words::some_of(&self.begun),
                "replicas have been silent for {}: they hang, were killed, or do not reach the store",
                words::span(failpoint::interval(LASTING))
            );
        }
        if !self.ended.is_empty() {
            let replicas = words::some_of(&self.ended);
            tracing::info!(replicas, "these replicas report again, have ended in order, or were replaced");
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
        // The store keeps a report for ten seconds.
        assert_eq!(lines(&silence.sample(after(8), &all(9_000))), QUIET);
        let goodbye = Summary::goodbye(summary("ends", 0).replica, 10_000);
        assert_eq!(lines(&silence.sample(after(12), &[summary("runs", 13_000), goodbye])), QUIET);
        assert_eq!(lines(&silence.sample(after(19), &[summary("runs", 20_000)])), QUIET);
        let news = silence.sample(after(20), &[summary("runs", 21_000)]);
        assert_eq!((&*news.begun, news.ended.len()), (&["hangs (h, process 7)".to_owned()][..], 0));
        assert_eq!(silence.list()[0].seen_at, 1_000);
        assert_eq!(lines(&silence.sample(after(24), &[summary("runs", 25_000)])), QUIET, "it is named once");
        // It continues.
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
    fn one_of_before_that_says_no_goodbye_only_disappears() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let of_before = summary("old", 1_000).text().replace(r#""g":true,"#, "");
        let of_before = Summary::read(&of_before).unwrap();
        assert_eq!(lines(&silence.sample(start, &[of_before])), QUIET);
        assert_eq!(silence.all().len(), 1);
        for second in [4, 16, 20, 24, 60] {
            assert_eq!(lines(&silence.sample(start + Duration::from_secs(second), &[])), QUIET);
        }
        assert!(silence.list().is_empty() && silence.all().is_empty());
    }

    #[test]
    fn one_that_is_replaced_on_its_machine_is_not_missed() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let after = |second| start + Duration::from_secs(second);
        let begun = |id: &str, started_at, host: &str| {
            let mut summary = summary(id, started_at + 1_000);
            (summary.replica.started_at, summary.replica.host) = (started_at, host.to_owned());
            summary
        };
        let (killed, hangs) = (begun("killed", 0, "h"), begun("hangs", 0, "other"));
        silence.sample(start, &[killed, hangs]);
        assert_eq!(lines(&silence.sample(after(20), &[])), (2, 0));
        let news = silence.sample(after(24), &[begun("new", 23_000, "h")]);
        assert_eq!(news.ended, ["killed (h, process 7)"]);
        assert_eq!(named(&silence), ["hangs"]);
        // A second one beside it replaces nobody, nor does one that began before the last report of the other.
        silence.sample(after(28), &[begun("new", 23_000, "h"), begun("second", 27_000, "h")]);
        silence.sample(after(29), &[begun("before", 500, "other")]);
        assert_eq!(silence.all().len(), 4, "hangs, new, second, before");
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
        let over = after(920) + NAMED_FOR;
        silence.interrupted(over);
        assert!(silence.list().is_empty(), "also one that is named is forgotten while the store is away");
    }
}
