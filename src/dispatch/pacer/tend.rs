//! Calls about the downstream as a whole, beside those for slots: what holds now, and what is to hold.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pacer;
use crate::pace::LaneId;
use crate::store::{BoxFuture, Change, LONGEST_PAUSE, Recall, Store, StoreError, Tended};
use crate::time::Deadline;

/// While jobs wait or are held, the store is heard at least as often: what it told by [`Store::changes`]
/// may have been lost.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// Looks after changes are this far apart at least, however many changes there are.
const APART: Duration = Duration::from_millis(50);

/// Where several replicas hear of a change each looks within this time: not all at one instant.
const SPREAD: Duration = Duration::from_millis(10);

/// A call under way.
pub(super) struct Tending {
    pub(super) what: What,
    reply: BoxFuture<'static, Told>,
}

/// What such a call is for.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// What holds now?
    Look,
    /// The downstream asked for a pause until then.
    Penalize(Deadline),
    /// These terms, instead of those of a generation.
    Terms { of: u64, text: String },
    /// The store has forgotten what was learnt from it.
    Recall(Memory),
}

/// A worker's memory of a record, with spans as they are left now.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    pub(super) penalty: Duration,
    pub(super) left: Option<Duration>,
    pub(super) version: u64,
    /// Generation and text.
    pub(super) terms: Option<(u64, String)>,
}

pub(super) struct Told {
    pub(super) sent: Instant,
    pub(super) received: Instant,
    pub(super) answer: Result<Tended, StoreError>,
}

/// The answer of the call under way; never, when there is none. Cancel safe.
pub(super) async fn told(call: &mut Option<Tending>) -> Told {
    match call {
        Some(call) => call.reply.as_mut().await,
        None => std::future::pending().await,
    }
}

impl Pacer {
    /// Tells the store what it does not know yet, or asks what holds now, if there is reason to.
    pub(super) fn tend(&mut self, now: Instant, calling: bool) -> Option<Tending> {
        if self.is_away() {
            return None;
        }
        let may = now >= self.tend_at;
        let what = if may && self.accord.is_lost() {
            What::Recall(self.pauses.memory(self.accord.memory()))
        } else if let Some(end) = self.pauses.to_tell(now) {
            What::Penalize(end)
        } else if let Some(what) = self.accord.wants().filter(|_| may) {
            what
        } else if self.look_at(calling).is_some_and(|at| at <= now) {
            (self.look, self.looked_at) = (false, Some(now));
            What::Look
        } else {
            return None;
        };
        let (store, downstream) = (Arc::clone(&self.store), self.settings.downstream.clone());
        let reply = Box::pin(call(store, downstream, what.clone()));
        Some(Tending { what, reply })
    }

    /// When the next such call is due.
    pub(super) fn tend_due(&self, calling: bool) -> Option<Instant> {
        if self.is_away() {
            return None;
        }
        let terms = (self.accord.is_lost() || self.accord.wants().is_some()).then_some(self.tend_at);
        [terms, self.pauses.tell_due(), self.look_at(calling)].into_iter().flatten().min()
    }

    /// When to look what holds now, if nothing else tells by then.
    fn look_at(&self, calling: bool) -> Option<Instant> {
        if self.look {
            return Some(self.tend_at);
        }
        // While calls for slots fail, these tell when the store is there again.
        let asks = !self.backlog.is_empty() && self.free() > 0 && self.may_ask() && !self.is_paused();
        let quiet = calling || (self.failures > 0 && asks);
        (!quiet && self.has_jobs()).then(|| (self.heard_at + LOOK).max(self.tend_at))
    }

    fn has_jobs(&self) -> bool {
        !self.backlog.is_empty() || self.held.len() > 0
    }

    /// Somebody changed what holds for the downstream.
    pub(super) fn changed(&mut self) {
        if std::mem::replace(&mut self.look, true) || self.failures > 0 {
            return;
        }
        let spread = if self.schedule.batching(LaneId::DOWNSTREAM).replicas() > 1 {
            SPREAD.mul_f64(fastrand::f64())
        } else {
            Duration::ZERO
        };
        let now = Instant::now() + spread;
        self.tend_at = self.looked_at.map_or(now, |at| now.max(at + APART));
    }

    /// Learns from such a call.
    pub(super) fn tended(&mut self, what: &What, told: Told) {
        let Told { sent, received, answer } = told;
        let meters = &self.gear.meters;
        match answer {
            Ok(Tended { now, epoch, status, terms }) => {
                meters.tending.record((received - sent).as_secs_f64());
                self.answers(received);
                let observed = self.observe(sent, now, epoch, received);
                if let What::Penalize(end) = what {
                    self.pauses.told(*end);
                }
                if let What::Recall(_) = what {
                    self.accord.recalled();
                }
                if self.learn(status, now, epoch, observed) {
                    self.agree(status, terms, now);
                }
            }
            Err(error) => {
                meters.tend_errors.increment(1);
                if matches!(what, What::Look) {
                    self.look = true;
                }
                self.failed(&error);
                self.tend_at = self.ask_at;
                self.pauses.not_told(self.tend_at);
            }
        }
    }
}

async fn call(store: Arc<dyn Store>, downstream: String, what: What) -> Told {
    let sent = Instant::now();
    let change = match &what {
        What::Look => Change::Look,
        What::Penalize(end) => Change::Penalize(end.left().clamp(Duration::from_micros(1), LONGEST_PAUSE)),
        What::Terms { of, text } => Change::Terms { of: *of, text },
        What::Recall(Memory { penalty, left, version, terms }) => Change::Recall(Recall {
            penalty: (*penalty).min(LONGEST_PAUSE),
            pause: *left,
            version: *version,
            generation: terms.as_ref().map_or(0, |(generation, _)| *generation),
            terms: terms.as_ref().map(|(_, text)| text.as_str()),
        }),
    };
    let answer = store.tend(&downstream, change).await;
    Told { sent, received: Instant::now(), answer }
}
