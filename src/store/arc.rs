//! A store behind an [`Arc`] is that store.

use std::sync::Arc;
use std::time::Duration;

use super::fleet::HistoryEntry;
use super::{
    Answer, Cancel, Change, Changes, Check, Checked, ParkedGroup, ParkedGroups, RecordState, Reserve,
    Reserved, Scope, Served, ServedReply, Store, StoreError, TombstoneCall, TombstoneReply, sealed,
};
use crate::limit::LimitSet;
use crate::time::Micros;

impl<S: Store + ?Sized> sealed::Sealed for Arc<S> {}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> Answer<'a, Reserved> {
        (**self).reserve(call)
    }

    fn check<'a>(&'a self, call: Check<'a>) -> Answer<'a, Checked> {
        (**self).check(call)
    }

    fn try_check(&self, call: Check<'_>) -> Option<Result<Checked, StoreError>> {
        (**self).try_check(call)
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> Answer<'a, bool> {
        (**self).cancel(call)
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> Answer<'a, ()> {
        (**self).reset(scope, limits)
    }

    fn read_record<'a>(&'a self, downstream: &'a str) -> Answer<'a, RecordState> {
        (**self).read_record(downstream)
    }

    fn update_record<'a>(&'a self, downstream: &'a str, change: Change<'a>) -> Answer<'a, RecordState> {
        (**self).update_record(downstream, change)
    }

    fn tombstones<'a>(&'a self, downstream: &'a str, call: TombstoneCall<'a>) -> Answer<'a, TombstoneReply> {
        (**self).tombstones(downstream, call)
    }

    fn leave_summary<'a>(&'a self, replica: &'a str, summary: &'a str, ttl: Duration) -> Answer<'a, ()> {
        (**self).leave_summary(replica, summary, ttl)
    }

    fn summaries(&self) -> Answer<'_, Vec<String>> {
        (**self).summaries()
    }

    fn served<'a>(&'a self, call: Served<'a>) -> Answer<'a, ServedReply> {
        (**self).served(call)
    }

    fn note_parked<'a>(&'a self, downstream: &'a str, jobs: i64) -> Answer<'a, i64> {
        (**self).note_parked(downstream, jobs)
    }

    fn parked_groups<'a>(
        &'a self,
        downstream: &'a str,
        call: ParkedGroups<'a>,
    ) -> Answer<'a, Vec<ParkedGroup>> {
        (**self).parked_groups(downstream, call)
    }

    fn history<'a>(&'a self, downstream: &'a str, text: Option<&'a str>) -> Answer<'a, Vec<HistoryEntry>> {
        (**self).history(downstream, text)
    }

    fn set_horizon(&self, downstream: &str, horizon: Duration) {
        (**self).set_horizon(downstream, horizon);
    }

    fn changes(&self, downstream: &str) -> Changes {
        (**self).changes(downstream)
    }

    fn address(&self) -> Option<&str> {
        (**self).address()
    }

    fn ping(&self) -> Answer<'_, Micros> {
        (**self).ping()
    }

    fn finish(&self) -> Answer<'_, ()> {
        (**self).finish()
    }
}
