//! The rounds of calls to the store that read what readers of the state need. Beside them this replica leaves its
//! summary in the store.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::Future;
use std::sync::Arc;

use futures_util::StreamExt as _;
use paced::dispatch::{ParkedChange, Snapshot};
use paced::lock::lock;
use paced::store::{MAX_SERVED_BATCH, ParkedGroups, Served, ServedReply, Unserved};
use paced::time::wall_now;
use paced::{Store, failpoint, metric};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::dispatchers::Handle;
use super::fleet;
use super::known::{COUNT_AGE, Known, MAX_RECORD_AGE, Record};
use super::noted::Noted;
use super::orphans::{Orphans, UNSERVED};
use super::parked::{Counted, first_hour};
use super::peek::{countable, peek};
use super::reporting::{INTERVAL, KEPT, report, report_until, within_timeout};
use super::shared::{OwnTerms, Shared};
use super::silence::Silence;
use super::stray_log::{Line, StrayLog};
use super::summary::{Identity, Summary};

/// The number of rounds after which the summaries of the other replicas are read while there is no reader, for the
/// history and to count the replicas.
const ROUNDS: u64 = 2;
/// The same for the report of which downstreams this replica serves.
const SERVED_ROUNDS: u64 = 4;

/// The calls about single downstreams in one round, and how many at a time.
const MAX_CALLS: usize = 64;
const AT_A_TIME: usize = 8;

/// The calls to the store.
pub(super) struct Exchange {
    shared: Arc<Shared>,
    /// The terms of this replica's file, which a reload changes.
    terms: watch::Receiver<OwnTerms>,
    rounds: u64,
    strays: StrayLog,
    silence: Silence,
    /// The number of replicas that have each downstream.
    counts: BTreeMap<String, Count>,
    orphans: Orphans,
    noted: Noted,
    /// Ends the rounds.
    stop: CancellationToken,
}

/// A number of replicas, and since when fewer have reported themselves.
#[derive(Debug, Default)]
struct Count(u32, Option<Instant>);

impl Count {
    /// Returns the number that counts, given that `replicas` report themselves now. It decreases late: after a store
    /// has lost the reports, or was away for long, the replicas report one after the other.
    fn last_high(&mut self, replicas: u32, now: Instant) -> u32 {
        let low_since = *self.1.get_or_insert(now);
        if replicas >= self.0 || now.saturating_duration_since(low_since) > KEPT {
            *self = Self(replicas, None);
        }
        self.0
    }
}

impl Exchange {
    pub(super) fn new(shared: Arc<Shared>, stop: CancellationToken) -> Self {
        let mut terms = shared.parts.terms.clone();
        terms.mark_changed();
        let gauges = [metric::ORPHANS, metric::SILENT_REPLICAS, metric::STRAY_REPLICAS];
        gauges.iter().for_each(|gauge| metrics::gauge!(gauge.name).set(0.0));
        Self {
            shared,
            terms,
            rounds: 0,
            strays: StrayLog::default(),
            silence: Silence::default(),
            counts: BTreeMap::new(),
            orphans: Orphans::default(),
            noted: Noted::Never,
            stop,
        }
    }

    /// Reports this replica until it is stopped, and reads what is wanted in rounds.
    pub(super) async fn run(mut self) {
        let (shared, stop) = (Arc::clone(&self.shared), self.stop.clone());
        self.hash_files();
        // So it is known before the first round whether the store answers.
        report(&shared).await;
        tokio::join!(report_until(&shared, &stop), self.rounds());
    }

    /// Makes a round every two seconds until it is stopped. At the end it passes on the number of jobs that were
    /// parked here.
    async fn rounds(&mut self) {
        while !self.stop.is_cancelled() {
            // Each call in it has a time-out; a count that was taken must not be lost.
            self.round().await;
            let wait = async {
                tokio::select! {
                    () = tokio::time::sleep(failpoint::interval(INTERVAL)) => {}
                    () = self.shared.looked.notified() => {}
                }
            };
            self.stop.run_until_cancelled(wait).await;
        }
        if lock(&self.shared.known).store_error.is_none() {
            self.note_parked(false).await;
        }
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.shared.parts.store
    }

    async fn round(&mut self) {
        self.rounds += 1;
        self.hash_files();
        let is_watched = self.shared.is_watched();
        let is_there = lock(&self.shared.known).store_error.is_none();
        if !is_there {
            self.interrupted();
        }
        lock(&self.shared.known).drop_old_others(|| self.silence.all());
        if is_there {
            if self.rounds % SERVED_ROUNDS == 1 || !self.noted.has(&self.shared.parts.dispatchers.all()) {
                self.note_served().await;
            }
            let reads = is_watched || self.rounds % ROUNDS == 1;
            if reads && !self.stop.is_cancelled() && self.read_others().await {
                self.log_strays();
            }
            self.note_parked(is_watched).await;
            self.peek().await;
            if is_watched {
                self.read_records().await;
            }
        }
        lock(&self.shared.known).left.clear_older(MAX_RECORD_AGE);
        if is_watched {
            self.shared.publish();
        }
    }

    /// Hashes the limits of the file, at first and whenever it was loaded again.
    fn hash_files(&mut self) {
        // Once the sender is gone, no file is loaded any more.
        if !self.terms.has_changed().unwrap_or(false) {
            return;
        }
        let terms = self.terms.borrow_and_update();
        let files: BTreeMap<String, u64> =
            terms.iter().map(|(name, terms)| (name.clone(), terms.fingerprint())).collect();
        lock(&self.shared.known).files = Arc::new(files);
    }

    /// Reads the reports of the other replicas. Returns false if the store does not answer.
    async fn read_others(&mut self) -> bool {
        let Ok(texts) = within_timeout(self.store(), self.store().summaries()).await else {
            self.interrupted();
            return false;
        };
        let id = &self.shared.parts.identity.id;
        let others =
            texts.iter().filter_map(|text| Summary::read(text)).filter(|other| other.replica.id != *id);
        let mut others: Vec<Summary> = others.collect();
        self.log_silent(&others);
        others.retain(|other| !other.has_ended);
        let dispatchers = self.shared.parts.dispatchers.all();
        self.counts.retain(|name, _| dispatchers.contains_key(name));
        for (name, Handle { peers, .. }) in &*dispatchers {
            let others = others.iter().filter(|other| other.downstreams.contains_key(name)).count();
            let replicas = u32::try_from(others + 1).unwrap_or(u32::MAX);
            peers.set(self.counts.entry(name.clone()).or_default().last_high(replicas, Instant::now()));
        }
        if self.shared.parts.asks.answer(&others).await {
            report(&self.shared).await;
        }
        lock(&self.shared.known).on_others(others, self.silence.list());
        true
    }

    /// Logs and counts the replicas that have stopped reporting themselves.
    fn log_silent(&mut self, others: &[Summary]) {
        self.silence.sample(Instant::now(), others).log();
        self.count_silent();
    }

    /// Records that the store has not answered: that makes no replica silent. Once it answers, all is reported at once.
    fn interrupted(&mut self) {
        self.rounds = 0;
        self.silence.interrupted(Instant::now());
        self.count_silent();
    }

    fn count_silent(&self) {
        let silent = u32::try_from(self.silence.list().len()).unwrap_or(u32::MAX);
        metrics::gauge!(metric::SILENT_REPLICAS.name).set(f64::from(silent));
    }

    /// Logs the replicas whose files have other limits than those in force, this one too.
    fn log_strays(&mut self) {
        let (own, known) = (lock(&self.shared.own), lock(&self.shared.known));
        let replicas: Vec<&Summary> = known.others.summaries.iter().chain([&*own]).collect();
        let dispatchers = self.shared.parts.dispatchers.all();
        let strays: BTreeMap<&str, HashSet<String>> = dispatchers
            .iter()
            .filter_map(|(name, Handle { view, .. })| {
                let in_force = view.snapshot().terms.fingerprint?;
                Some((name.as_str(), fleet::strays(name, in_force, &replicas).into_iter().collect()))
            })
            .collect();
        let identities: Vec<&Identity> = replicas.iter().map(|summary| &summary.replica).collect();
        let lines = self.strays.sample(Instant::now(), &identities, &strays);
        let named = u32::try_from(self.strays.named()).unwrap_or(u32::MAX);
        metrics::gauge!(metric::STRAY_REPLICAS.name).set(f64::from(named));
        // Writing may take long, and others wait for the locks.
        drop((own, known));
        lines.iter().for_each(Line::log);
    }

    /// Reports to the store which downstreams this replica serves, and reads which ones nobody serves.
    async fn note_served(&mut self) {
        let unserved = loop {
            let names: BTreeSet<String> = self.shared.parts.dispatchers.all().keys().cloned().collect();
            let recalled = if self.noted == Noted::Lost { self.orphans.recalled() } else { Vec::new() };
            match self.report_served(&names, &recalled).await {
                Err(_) => return self.orphans.interrupted(Instant::now()),
                Ok(reply) if self.noted.is_lost(&names, reply.new) => self.noted = Noted::Lost,
                Ok(reply) => {
                    self.noted = Noted::Yes(names);
                    break reply.unserved;
                }
            }
        };
        let news = self.orphans.sample(Instant::now(), unserved);
        let orphans = self.orphans.list();
        let count = u32::try_from(orphans.len()).unwrap_or(u32::MAX);
        metrics::gauge!(metric::ORPHANS.name).set(f64::from(count));
        lock(&self.shared.known).orphans = orphans;
        news.log();
    }

    async fn report_served(
        &self,
        names: &BTreeSet<String>,
        recalled: &[Unserved],
    ) -> Result<ServedReply, String> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut batches: Vec<&[&str]> = names.chunks(MAX_SERVED_BATCH).collect();
        if batches.is_empty() {
            // A replica without downstreams reads which ones nobody serves too.
            batches.push(&[]);
        }
        let mut all = ServedReply::default();
        for names in batches {
            let prefix = &self.shared.parts.broker.prefix;
            let unserved_for = failpoint::interval(UNSERVED);
            let call = Served { prefix, names, recalled, unserved_for, ..Served::default() };
            let reply = within_timeout(self.store(), self.store().served(call)).await?;
            all = ServedReply { new: all.new + reply.new, unserved: reply.unserved };
        }
        Ok(all)
    }

    async fn read_records(&self) {
        let since = self.shared.watched_since();
        let read_at = |known: &Known, name: &str| known.records.get(name).map(|record| record.asked_at);
        let wanted = self.names(|known, name, snapshot| known.wants_record(name, since, snapshot), read_at);
        self.all(wanted.into_iter().map(|name| self.read_record(name))).await;
    }

    async fn read_record(&self, name: String) {
        let (changes, asked_at) = (lock(&self.shared.known).changes(&name), Instant::now());
        if let Ok(state) = within_timeout(self.store(), self.store().read_record(&name)).await {
            let record = Record::new(asked_at, state);
            lock(&self.shared.known).on_record(name, changes, record);
        }
    }

    async fn peek(&self) {
        let is_old = |known: &Known, name: &str, snapshot: &Snapshot| {
            known.left.of(name).is_none_or(|(at, _)| at.elapsed() > failpoint::interval(COUNT_AGE))
                && (countable(snapshot).is_some() || known.left.is_shown(name))
        };
        let wanted = self.names(is_old, |known, name| known.left.of(name).map(|(at, _)| at));
        self.all(wanted.into_iter().map(|name| self.peek_one(name))).await;
    }

    async fn peek_one(&self, name: String) {
        let snapshot =
            self.shared.parts.dispatchers.all().get(&name).map(|dispatcher| dispatcher.view.snapshot());
        let changes = lock(&self.shared.known).changes(&name);
        let Some(limits) = snapshot.and_then(|snapshot| countable(&snapshot)) else {
            return lock(&self.shared.known).on_left(name, changes, Vec::new());
        };
        if let Ok(left) = within_timeout(self.store(), peek(self.store(), &name, &limits)).await {
            lock(&self.shared.known).on_left(name, changes, left);
        }
    }

    /// Makes these calls, which only read, some at a time, until it is stopped.
    async fn all(&self, calls: impl Iterator<Item = impl Future<Output = ()>>) {
        self.stop.run_until_cancelled(some_at_a_time(calls)).await;
    }

    /// Passes on how many jobs were parked here, and with `asks` reads how many are parked in all.
    async fn note_parked(&self, asks: bool) {
        let wanted: Vec<(String, ParkedChange)> = {
            let known = lock(&self.shared.known);
            let is_old = |name: &str| {
                let counted = known.parked.get(name);
                counted.is_none_or(|counted| counted.at.elapsed() > failpoint::interval(COUNT_AGE))
            };
            let moved = self.shared.parts.dispatchers.take_parked();
            let served = self.shared.parts.dispatchers.all();
            let is_asked = |name: &&String| asks && !moved.contains_key(*name) && is_old(name);
            let asked: Vec<String> = served.keys().filter(is_asked).take(MAX_CALLS).cloned().collect();
            let asked = asked.into_iter().map(|name| (name, ParkedChange::default()));
            moved.into_iter().chain(asked).collect()
        };
        // Once it is stopped, calls that only read are left out.
        let wanted = wanted.into_iter().filter(|(_, change)| !change.is_empty() || !self.stop.is_cancelled());
        some_at_a_time(wanted.map(|(name, change)| self.note_parked_of(name, change))).await;
    }

    /// Passes a change on, the number first. The part that could not be passed on is put back.
    async fn note_parked_of(&self, name: String, mut change: ParkedChange) {
        let store = self.store();
        if let Ok(jobs) = within_timeout(store, store.note_parked(&name, change.jobs)).await {
            change.jobs = 0;
            let call = ParkedGroups { first_hour: first_hour(wall_now()), changes: &change.groups };
            let groups = within_timeout(store, store.parked_groups(&name, call)).await;
            let groups = groups.inspect(|_| change.groups.clear());
            let mut known = lock(&self.shared.known);
            let counted = Counted::after(known.parked.remove(&name), jobs, groups.ok());
            known.parked.insert(name.clone(), counted);
        }
        if change.is_empty() {
            return;
        }
        if let Some(totals) = self.shared.parts.dispatchers.totals_of(&name) {
            totals.put_back_parked(&change);
        }
    }

    /// The downstreams to read, as many as fit into a round: first those that were never read, then those that were
    /// read longest ago. So downstreams that need a read in each round, such as paused ones without jobs, keep no
    /// other one out.
    fn names(
        &self,
        is_wanted: impl Fn(&Known, &str, &Snapshot) -> bool,
        read_at: impl Fn(&Known, &str) -> Option<Instant>,
    ) -> Vec<String> {
        let known = lock(&self.shared.known);
        let dispatchers = self.shared.parts.dispatchers.all();
        let mut wanted: Vec<&String> = dispatchers
            .iter()
            .filter(|(name, dispatcher)| is_wanted(&known, name, &dispatcher.view.snapshot()))
            .map(|(name, _)| name)
            .collect();
        wanted.sort_by_key(|name| read_at(&known, name));
        wanted.into_iter().take(MAX_CALLS).cloned().collect()
    }
}

/// Makes these calls, some at a time.
async fn some_at_a_time(calls: impl Iterator<Item = impl Future<Output = ()>>) {
    futures_util::stream::iter(calls).buffer_unordered(AT_A_TIME).collect::<()>().await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_number_of_replicas_falls_late() {
        let (mut count, start) = (Count::default(), Instant::now());
        let mut count_at = |replicas, after| count.last_high(replicas, start + Duration::from_secs(after));
        // The store is away from 4 s on, or has lost all.
        assert_eq!(
            [count_at(3, 0), count_at(4, 4), count_at(1, 8), count_at(2, 12), count_at(4, 14)],
            [3, 4, 4, 4, 4]
        );
        // One has ended.
        assert_eq!([count_at(3, 20), count_at(3, 30), count_at(3, 31), count_at(3, 34)], [4, 4, 3, 3]);
        // It is away for long.
        assert_eq!([count_at(1, 100), count_at(2, 104), count_at(3, 108), count_at(2, 112)], [3, 3, 3, 3]);
    }
}
