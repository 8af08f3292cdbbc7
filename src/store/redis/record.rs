//! The calls about a downstream's record, apart from those for slots, and about its tombstones.

use super::{RedisStore, keys, reply};
use crate::failpoint;
use crate::store::tombstones::too_many;
use crate::store::{Change, RecordState, Scope, Stamp, StoreError, TombstoneCall, TombstoneReply};

impl RedisStore {
    /// Returns the record of a downstream, after the change if one is given.
    pub(super) async fn record(
        &self,
        downstream: &str,
        change: Option<Change<'_>>,
    ) -> Result<RecordState, StoreError> {
        let scope = Scope { downstream, key: "" };
        scope.check()?;
        change.map_or(Ok(()), |change| change.check())?;
        let keys = match change {
            Some(Change::Reset { limits }) => keys::restarted(&self.prefix, scope, limits),
            _ => keys::whole_record(&self.prefix, scope).to_vec(),
        };
        let channel = keys::channel(&self.prefix);
        let call = |run| {
            let known_record = self.known_record(downstream, run);
            self.scripts.record(&keys, (&channel, downstream), change.as_ref(), self.now(), known_record)
        };
        let state = reply::record(self.servers.invoke(downstream, call).await?)
            .map_err(|detail| self.servers.unexpected(detail))?;
        if change.is_some() {
            self.keep_answer()?;
        }
        self.with_history(downstream, |history| {
            let (now, epoch, status) = (state.now, state.epoch, state.status);
            history.record_answer(Stamp { now, epoch, status })
        });
        Ok(state)
    }

    /// Changes or reads the tombstones of a downstream.
    pub(super) async fn call_tombstones(
        &self,
        downstream: &str,
        call: TombstoneCall<'_>,
    ) -> Result<TombstoneReply, StoreError> {
        let scope = Scope { downstream, key: "" };
        scope.check()?;
        call.check()?;
        let (keys, channel) = (keys::record_and_tombstones(&self.prefix, scope), keys::channel(&self.prefix));
        let script = |run| {
            let known_record = self.known_record(downstream, run);
            self.scripts.tombstones(&keys, (&channel, downstream), call, self.now(), known_record)
        };
        let reply = reply::tombstones(self.servers.invoke(downstream, script).await?)
            .map_err(|detail| self.servers.unexpected(detail))?
            .ok_or_else(|| too_many(downstream))?;
        if matches!(call, TombstoneCall::Cancel { .. }) {
            failpoint::reached("cancel:kept");
        }
        if !matches!(call, TombstoneCall::Read { .. }) {
            self.keep_answer()?;
        }
        self.with_history(downstream, |history| {
            let (now, epoch, status) = (reply.now, reply.epoch, reply.status);
            history.record_answer(Stamp { now, epoch, status })
        });
        Ok(reply)
    }

    /// Fails where a test loses the answers to changes.
    fn keep_answer(&self) -> Result<(), StoreError> {
        if failpoint::loses_answers() {
            let (address, detail) = (self.servers.address().to_owned(), "the answer was lost".to_owned());
            return Err(StoreError::Unreachable { address, detail });
        }
        Ok(())
    }
}
