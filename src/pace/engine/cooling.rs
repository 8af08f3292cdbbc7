//! The cool-down of a downstream that throttles and names no time: slots are requested only for one probe at a time,
//! over all replicas.

use std::time::Duration;

use tokio::time::Instant;

use super::{Admission, Engine};
use crate::pace::Waiter;
use crate::pace::meters::Abandoned;
use crate::pace::terms::{CoolingChange, KnownCooling, ProbeEnd};
use crate::store::{Change, CoolDown};

/// A probe that could be sent within this time is not given back.
const SOON: Duration = Duration::from_secs(1);

impl<W: Waiter> Engine<W> {
    /// Follows cool-downs from now on, whose waits grow up to `longest`. The driver reports the end of each send.
    pub(crate) fn follow_cool_downs(&mut self, longest: Duration) {
        self.terms.cooling_mut().enable(longest);
    }

    /// Begins or continues a cool-down: the downstream throttled a waiter that was sent at `sent`, and named no time.
    pub(crate) fn cool_down(&mut self, sent: Instant) {
        let change = self.terms.cooling_mut().refused(sent, Instant::now());
        self.apply_cooling(change);
    }

    /// Records the end of a send that began at `sent`.
    pub(crate) fn attempt_ended(&mut self, sent: Instant, end: ProbeEnd) {
        let change = self.terms.cooling_mut().ended(sent, end, Instant::now());
        self.apply_cooling(change);
    }

    /// When a pause ends of the lanes of a waiter with this key alone, or the next probe may be sent in a cool-down.
    pub(crate) fn pause_ends(&self, key: &[String]) -> Option<Instant> {
        let alone = self.schedule.keyed().and_then(|lanes| lanes.paused_until(key));
        self.terms.cooling().probe_at().max(alone)
    }

    /// Follows the cool-down that the store has.
    pub(super) fn follow_cool_down(&mut self, known: Option<CoolDown>, received: Instant) {
        let slots = self.pacing.slots();
        let here = |at| slots.hold(at).map_or(received, |at| at.instant());
        let replica = self.pacing.replica();
        let known = known.map(|CoolDown { level, at, holder, until }| {
            // A holder whose lease has ended does not have it any more.
            let until = here(until);
            let is_mine = holder.as_deref() == Some(&**replica) && until > received;
            let until = holder.filter(|_| !is_mine).map(|_| until);
            KnownCooling { level, from: here(at), is_mine, until }
        });
        let change = self.terms.cooling_mut().follow(known, received);
        self.apply_cooling(change);
    }

    fn apply_cooling(&mut self, change: Option<CoolingChange>) {
        let downstream = &self.settings.downstream;
        match change {
            Some(CoolingChange::Begins) => {
                tracing::warn!(
                    downstream,
                    "the downstream throttles, and does not say for how long: one job at a time is tried until one succeeds"
                );
                if !self.driver.is_suspended {
                    self.hold_back(Abandoned::CoolingDown);
                }
            }
            Some(CoolingChange::Ends) => {
                tracing::info!(downstream, "the cool-down is over");
                if !self.driver.is_suspended {
                    self.go_on();
                }
            }
            None => {}
        }
    }

    /// When a probe could be sent, as far as is known; `None` if none could.
    pub(super) fn probe_from(&self) -> Option<Instant> {
        if self.driver.is_suspended || self.driver.ends_at.is_some() || self.pacing.is_calling() {
            return None;
        }
        self.schedule.wake_at(&self.backlog, self.trial_from()?)
    }

    /// Sends the next waiter as a probe, if this replica holds it.
    pub(super) fn tick_cooling(&mut self, now: Instant, admission: &impl Admission<W>) {
        if !self.terms.cooling().is_on() || self.driver.is_suspended {
            return;
        }
        if self.pacing.state().is_away() {
            let from = self.probe_from();
            self.terms.cooling_mut().follow_alone(now, from);
        }
        let is_under_way = self.pacing.is_calling() || self.pacing.has_trial() || !self.is_quiet();
        if !self.terms.cooling().is_probing() || is_under_way {
            return;
        }
        if self.probe_from().is_none_or(|from| from > now + SOON) {
            return self.terms.cooling_mut().give_back(now);
        }
        self.schedule.refresh(&mut self.backlog, now);
        let next = self.schedule.next(&self.backlog, now);
        if let Some(waiter) = next.and_then(|next| self.pick(next, 1, admission).pop_front()) {
            self.try_one(waiter);
        }
    }

    /// Whether no send is in progress that will show whether others may be sent. In a cool-down that is the probe
    /// alone.
    pub(super) fn is_quiet(&self) -> bool {
        if self.driver.is_suspended {
            return self.release.is_quiet();
        }
        self.release.held() == 0 && !self.terms.cooling().is_sent()
    }

    /// Reports to the store what it must know about a cool-down before this replica ends. Cancel safe.
    pub(super) async fn end_cooling(&mut self) {
        let cooling = self.terms.cooling();
        if let Some(report) = cooling.final_report() {
            let change = Change::CoolDown(report.call(cooling.replica(), cooling.longest()));
            // Without that report, the lease ends by itself.
            let _ = self.store.update_record(&self.settings.downstream, change).await;
        }
    }
}
