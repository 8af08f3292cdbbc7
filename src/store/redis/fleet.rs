//! The calls by which replicas report to each other: themselves, the downstreams that they serve, parked jobs,
//! and changes by operators.

use std::time::Duration;

use super::packed::all;
use super::{RedisStore, keys};
use crate::store::fleet::{List, MAX_PARKED, check_history, check_summary};
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
    /// the calls of downstreams would wait.
    pub(super) async fn list_summaries(&self) -> Result<Vec<String>, StoreError> {
        let seen = keys::seen(&self.prefix);
        let call = |_| self.scripts.summaries("list", std::slice::from_ref(&seen), self.now());
        let replicas: Vec<Vec<u8>> = self.servers.invoke(keys::FLEET, call).await?;
        // A name that is no text was not left by paced.
        let mut replicas: Vec<String> =
            replicas.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect();
        replicas.sort_unstable();
        let keys = replicas.iter().map(|replica| keys::summary(&self.prefix, replica));
        let mut keys: Vec<String> = std::iter::once(seen).chain(keys).collect();
        let mut list = List::default();
        while keys.len() > 1 {
            let call = |_| self.scripts.summaries("read", &keys, self.now());
            let page: Vec<Vec<u8>> = self.servers.invoke(keys::FLEET, call).await?;
            if page.is_empty() || page.len() >= keys.len() {
                let detail = format!("{} summaries of {} replicas", page.len(), keys.len() - 1);
                return Err(self.servers.unexpected(detail));
            }
            keys.drain(1..=page.len());
            let mut summaries = page.into_iter().filter_map(|summary| String::from_utf8(summary).ok());
            if !summaries.all(|summary| summary.is_empty() || list.push(summary)) {
                break;
            }
        }
        Ok(list.into_inner())
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
