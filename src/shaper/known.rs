//! What callers read of the driver's state.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use super::ReserveError;
use crate::lock::lock;
use crate::pace::Settings;
use crate::pace::release::{PauseGate, Tolerance};
use crate::store::SlotClock;

/// The driver's state that callers read directly.
#[derive(Debug)]
pub(super) struct Known {
    /// The settings in force, and the tolerance under them.
    in_force: Mutex<(Arc<Settings>, Tolerance)>,
    /// Maps slots to this process's clock.
    pub(super) slots: Arc<SlotClock>,
    /// The gate that is closed for slots in a pause.
    pub(super) gate: Arc<PauseGate>,
    /// Notified when the store's clock stepped, or a pause began or ended.
    pub(super) recheck: Notify,
    /// The error of the last call, if the store has granted no slots since.
    trouble: Mutex<Option<ReserveError>>,
    /// This shaper's name at the store, once a driver has started.
    pub(super) replica: OnceLock<Arc<str>>,
}

impl Known {
    pub(super) fn new(settings: Settings) -> Self {
        let tolerance = Tolerance::of(&settings);
        Self {
            in_force: Mutex::new((Arc::new(settings), tolerance)),
            slots: Arc::default(),
            gate: Arc::default(),
            recheck: Notify::new(),
            trouble: Mutex::default(),
            replica: OnceLock::new(),
        }
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&lock(&self.in_force).0)
    }

    /// Sets the settings in force.
    pub(super) fn follow(&self, settings: Arc<Settings>) {
        let tolerance = Tolerance::of(&settings);
        *lock(&self.in_force) = (settings, tolerance);
    }

    /// Returns how late a slot may be used.
    pub(super) fn tolerance(&self) -> Duration {
        lock(&self.in_force).1.at_handover
    }

    pub(super) fn trouble(&self) -> Option<ReserveError> {
        lock(&self.trouble).clone()
    }

    pub(super) fn set_trouble(&self, error: Option<ReserveError>) {
        *lock(&self.trouble) = error;
    }
}
