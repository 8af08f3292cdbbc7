//! The engine's metrics, through the `metrics` facade. Handles are created once per downstream, and with them every
//! series, at 0: a rate over a series that appears with its first event misses that event.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tokio::time::Instant;

use super::{OnLimit, SlotRequest};
use crate::metric;
use crate::rate::Rate;

/// The reason why a slot was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Abandoned {
    /// It was missed by more than the tolerance.
    Late,
    /// The connection that its job came through was lost.
    Stale,
    /// It was granted before the store's clock stepped.
    Stepped,
    /// It lies in a pause.
    Paused,
    /// It was granted by this replica's local pace, and the store is available again.
    StoreBack,
    /// There was no connection to the downstream.
    Unreachable,
    /// The downstream refuses the credentials.
    Unauthorized,
    /// The downstream throttles, and names no time.
    CoolingDown,
    /// Its job's deadline passed before it.
    Expired,
    /// The process stops before it.
    Stopped,
    /// Its job was cancelled.
    Cancelled,
}

impl Abandoned {
    /// Every reason, in the order of declaration.
    pub(crate) const ALL: [Self; 11] = [
        Self::Late,
        Self::Stale,
        Self::Stepped,
        Self::Paused,
        Self::StoreBack,
        Self::Unreachable,
        Self::Unauthorized,
        Self::CoolingDown,
        Self::Expired,
        Self::Stopped,
        Self::Cancelled,
    ];

    /// Returns the value of the label `reason`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Stale => "connection-lost",
            Self::Stepped => "clock-stepped",
            Self::Paused => "paused",
            Self::StoreBack => "store-back",
            Self::Unreachable => "unreachable",
            Self::Unauthorized => "unauthorized",
            Self::CoolingDown => "cooling-down",
            Self::Expired => "expired",
            Self::Stopped => "stopped",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The engine's series of one downstream.
#[derive(Clone)]
pub(crate) struct Meters {
    downstream: String,
    slots: Counter,
    abandoned: [Counter; Abandoned::ALL.len()],
    calls: CallMeters,
    connected: Gauge,
    paused: Gauge,
    queue_wait: Histogram,
    quiet_wait: Histogram,
    shaping_delay: Histogram,
}

/// The metrics of calls to the store.
#[derive(Clone)]
struct CallMeters {
    errors: Counter,
    record_errors: Counter,
    round_trip: Histogram,
    record_round_trip: Histogram,
    batch: Histogram,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").field("downstream", &self.downstream).finish_non_exhaustive()
    }
}

impl Meters {
    /// Creates the series of this downstream, all at 0.
    pub(crate) fn new(downstream: &str, on_limit: OnLimit) -> Self {
        let op = match on_limit {
            OnLimit::Wait => "reserve",
            OnLimit::Reject => "check",
        };
        let name = || downstream.to_owned();
        let started = |counter: Counter| {
            counter.increment(0);
            counter
        };
        let shown = |gauge: Gauge| {
            gauge.increment(0.0);
            gauge
        };
        let errors = |op: &'static str| {
            started(counter!(metric::STORE_ERRORS.name, "downstream" => name(), "op" => op))
        };
        let round_trip =
            |op: &'static str| histogram!(metric::STORE_ROUNDTRIP.name, "downstream" => name(), "op" => op);
        let abandoned = |reason: Abandoned| {
            let reason = reason.as_str();
            started(counter!(metric::SLOTS_ABANDONED.name, "downstream" => name(), "reason" => reason))
        };
        Self {
            downstream: name(),
            slots: started(counter!(metric::SLOTS_RESERVED.name, "downstream" => name())),
            abandoned: Abandoned::ALL.map(abandoned),
            calls: CallMeters {
                errors: errors(op),
                record_errors: errors("tend"),
                round_trip: round_trip(op),
                record_round_trip: round_trip("tend"),
                batch: histogram!(metric::RESERVATION_BATCH.name, "downstream" => name()),
            },
            connected: shown(gauge!(metric::STORE_CONNECTED.name, "downstream" => name())),
            paused: shown(gauge!(metric::PAUSED.name, "downstream" => name())),
            queue_wait: histogram!(metric::QUEUE_WAIT.name, "downstream" => name()),
            quiet_wait: histogram!(metric::QUIET_WAIT.name, "downstream" => name()),
            shaping_delay: histogram!(metric::SHAPING_DELAY.name, "downstream" => name()),
        }
    }

    /// Counts slots that are not used.
    pub(crate) fn abandoned(&self, slots: usize, reason: Abandoned) {
        self.abandoned[reason as usize].increment(slots as u64);
    }

    /// Records that the store answered a reserve call, and granted this number of slots.
    pub(crate) fn reserved(&self, round_trip: Duration, granted: usize) {
        self.calls.round_trip.record(round_trip.as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "a histogram of at most 1024")]
        self.calls.batch.record(granted as f64);
        self.slots.increment(granted as u64);
    }

    /// Records that the store answered a call about the record.
    pub(crate) fn record_answered(&self, round_trip: Duration) {
        self.calls.record_round_trip.record(round_trip.as_secs_f64());
    }

    /// Counts a failed reserve call.
    pub(crate) fn reserve_failed(&self) {
        self.calls.errors.increment(1);
    }

    /// Counts a failed call about the record.
    pub(crate) fn record_failed(&self) {
        self.calls.record_errors.increment(1);
    }

    /// Sets whether the store is available.
    pub(crate) fn connected(&self, is_there: bool) {
        self.connected.set(f64::from(u8::from(is_there)));
    }

    /// Sets whether the downstream is paused.
    pub(crate) fn paused(&self, is_paused: bool) {
        self.paused.set(f64::from(u8::from(is_paused)));
    }

    /// Sets how many values of lanes are paused.
    pub(crate) fn paused_values(&self, values: usize) {
        let paused = gauge!(metric::PAUSED_VALUES.name, "downstream" => self.downstream.clone());
        paused.set(f64::from(u32::try_from(values).unwrap_or(u32::MAX)));
    }

    /// Records that a waiter with this request was granted a slot by a call at `at`, and the time until the slot comes.
    pub(crate) fn granted(&self, request: &SlotRequest, at: Instant, ahead: Duration) {
        let waited = at.saturating_duration_since(request.since).as_secs_f64();
        self.queue_wait.record(waited);
        if request.is_quiet {
            self.quiet_wait.record(waited);
        }
        self.shaping_delay.record(ahead.as_secs_f64());
    }

    /// Sets the pace in force, and whether it is a rate that an operator set. The series of the other source is 0,
    /// and both are 0 where no limit spaces jobs out.
    pub(crate) fn pace_in_force(&self, pace: Option<Rate>, is_override: bool) {
        let jobs_per_second = pace.map_or(0.0, Rate::per_second);
        for (source, counts) in [("config", !is_override), ("override", is_override)] {
            let rate = if counts { jobs_per_second } else { 0.0 };
            let downstream = self.downstream.clone();
            gauge!(metric::RATE_LIMIT.name, "downstream" => downstream, "source" => source).set(rate);
        }
        let overridden = gauge!(metric::RATE_OVERRIDDEN.name, "downstream" => self.downstream.clone());
        overridden.set(f64::from(u8::from(is_override)));
    }
}
