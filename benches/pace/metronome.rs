//! A bare precise thread: it shows what the machine's timers allow, for comparison.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::support::real_now;

/// Wakes at a fixed rate, and records how late.
pub struct Metronome {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<f64>>,
}

impl Metronome {
    /// Starts one.
    pub fn start(interval: Duration) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            // If this fails the figures are some 50 µs worse, which they show.
            let slack = rustix::thread::set_current_timer_slack(NonZero::new(1));
            slack.map(|()| beat(interval, &stopped)).unwrap_or_default()
        };
        let thread = thread::Builder::new().name("metronome".to_owned()).spawn(work);
        Ok(Self { stop, thread: thread.map_err(|error| format!("no thread: {error}"))? })
    }

    /// Ends it, and returns how late each wake-up was, in seconds.
    pub fn end(self) -> Vec<f64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_default()
    }
}

/// Uses absolute deadlines and no spinning: after a stall it catches up, and each deadline in the stall counts as late.
fn beat(interval: Duration, stop: &AtomicBool) -> Vec<f64> {
    let mut samples = Vec::with_capacity(1 << 16);
    let mut due = real_now();
    while !stop.load(Ordering::Relaxed) {
        due += interval;
        loop {
            let left = due.saturating_duration_since(real_now());
            if left.is_zero() || stop.load(Ordering::Relaxed) {
                break;
            }
            thread::park_timeout(left);
        }
        samples.push(real_now().saturating_duration_since(due).as_secs_f64());
    }
    // The last wait may have been cut short.
    samples.pop();
    samples
}
