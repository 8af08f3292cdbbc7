//! The calls by which replicas report to each other: themselves, the downstreams that they serve, parked jobs,
//! and changes by operators.

use std::collections::BTreeMap;
use std::time::Duration;

use super::packed::all;
use super::{RedisStore, keys};
use crate::lock::lock;
use crate::store::fleet::{List, MAX_LISTED_BYTES, MAX_PARKED, check_history, check_summary};
use crate::store::served::is_name;
use crate::store::{
    HistoryEntry, ParkedGroup, ParkedGroups, Scope, Served, ServedReply, StoreError, Unserved,
};
use crate::time::Micros;

impl RedisStore {
    /// Leaves the summary of a replica, or withdraws it.
    pub(super) async fn leave(&self, replica: &str, summary: &str, ttl: Duration) -> Result<(), StoreError> {
        check_summary(replica, summary, ttl)?;
        let keys = [keys::seen(&self.prefix), keys::summary(&self.prefix, replica)];
        let call = |_| self.scripts.leave_summary(&keys, (replica, summary), ttl, self.now());
        let _: i64 = self.servers.invoke(keys::FLEET, call).await?;
        Ok(())
    }

    /// The summaries that have not ended. They are read in several calls, so that none has a long answer, for which
    /// the calls of downstreams would wait. But mostly the replicas are those of the time before, and one call is enough.
    pub(super) async fn list_summaries(&self) -> Result<Vec<String>, StoreError> {
        let (mut wanted, mut read) = (lock(&self.replicas).clone(), BTreeMap::new());
        loop {
            let (live, page) = self.read_summaries(&wanted).await?;
            let is_whole = page.len() == wanted.len();
            if page.len() > wanted.len() || (page.is_empty() && !is_whole) {
                let detail = format!("{} summaries of {} replicas", page.len(), wanted.len());
                return Err(self.servers.unexpected(detail));
            }
            read.extend(wanted.drain(..page.len()).zip(page));
            wanted = live.iter().filter(|name| !read.contains_key(*name)).cloned().collect();
            // What is read is bounded as what is listed.
            let bytes: usize = read.values().map(Vec::len).sum();
            if wanted.is_empty() || bytes > MAX_LISTED_BYTES {
                let mut list = List::default();
                let summaries = live.iter().filter_map(|name| String::from_utf8(read.remove(name)?).ok());
                let mut summaries = summaries.filter(|summary| !summary.is_empty());
                let _ = summaries.all(|summary| list.push(summary));
                drop(summaries);
                *lock(&self.replicas) = live;
                return Ok(list.into_inner());
            }
        }
    }

    /// The replicas whose summaries have not ended, in the order of their names, and the summaries of the first of those that are
    /// wanted, empty where there is none.
    async fn read_summaries(&self, wanted: &[String]) -> Result<(Vec<String>, Vec<Vec<u8>>), StoreError> {
        let keys = wanted.iter().map(|replica| keys::summary(&self.prefix, replica));
        let keys: Vec<String> = std::iter::once(keys::seen(&self.prefix)).chain(keys).collect();
        let call = |_| self.scripts.summaries(&keys, self.now());
        let (live, page): (Vec<Vec<u8>>, Vec<Vec<u8>>) = self.servers.invoke(keys::FLEET, call).await?;
        // A name that is no text was not left by paced.
        let mut live: Vec<String> =
            live.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect();
        live.sort_unstable();
        Ok((live, page))
    }

    /// Notes which downstreams are served, and returns those that nobody serves.
    pub(super) async fn note_served(&self, served: Served<'_>) -> Result<ServedReply, StoreError> {
        served.check()?;
        let keys = [keys::served(&self.prefix, served.prefix)];
        let call = |_| self.scripts.served(&keys, &served, self.now());
        let (new, names, instants): (usize, Vec<Vec<u8>>, Vec<i64>) =
            self.servers.invoke(keys::FLEET, call).await?;
        // Any other name was not left by paced.
        let unserved = names.into_iter().zip(instants).filter_map(|(name, at)| {
            let name = String::from_utf8(name).ok().filter(|name| is_name(name))?;
            Some(Unserved { name, served_at: Micros(at) })
        });
        Ok(ServedReply { new, unserved: unserved.collect() })
    }

    /// Adds to the number of parked jobs.
    pub(super) async fn add_parked(&self, downstream: &str, jobs: i64) -> Result<i64, StoreError> {
        let scope = Scope { downstream, key: "" };
        scope.check()?;
        let keys = [keys::parked(&self.prefix, scope)];
        let jobs = jobs.clamp(-MAX_PARKED, MAX_PARKED);
        self.servers.invoke(downstream, |_| self.scripts.parked(&keys, jobs)).await
    }

    /// Adds to the groups of parked jobs.
    pub(super) async fn add_parked_groups(
        &self,
        downstream: &str,
        call: ParkedGroups<'_>,
    ) -> Result<Vec<ParkedGroup>, StoreError> {
        let scope = Scope { downstream, key: "" };
        scope.check()?;
        call.check()?;
        let keys = [keys::parked_groups(&self.prefix, scope)];
        let packed: Vec<u8> =
            self.servers.invoke(downstream, |_| self.scripts.parked_groups(&keys, &call)).await?;
        let numbers = all(&packed);
        let group = |group: &[i64]| match *group {
            [hour, kind, jobs] => Some(ParkedGroup { hour, kind: u8::try_from(kind).ok()?, jobs }),
            _ => None,
        };
        let mut groups: Vec<ParkedGroup> = numbers.chunks(3).filter_map(group).collect();
        groups.sort_unstable();
        Ok(groups)
    }

    /// Adds to the history of a downstream, or only reads it.
    pub(super) async fn add_to_history(
        &self,
        downstream: &str,
        text: Option<&str>,
    ) -> Result<Vec<HistoryEntry>, StoreError> {
        let scope = Scope { downstream, key: "" };
        scope.check()?;
        check_history(text)?;
        let keys = [keys::history(&self.prefix, scope)];
        let call = |_| self.scripts.history(&keys, text.unwrap_or_default(), self.now());
        let lines: Vec<Vec<u8>> = self.servers.invoke(downstream, call).await?;
        let entries = lines.into_iter().filter_map(|line| {
            let line = String::from_utf8(line).ok()?;
            let (at, text) = line.split_once(':')?;
            Some(HistoryEntry {
                at: Micros(at.parse::<i64>().ok()?.saturating_mul(1000)),
                text: text.to_owned(),
            })
        });
        Ok(entries.collect())
    }
}
