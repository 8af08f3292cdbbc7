//! The release clock, which wakes the holders of jobs at their slots.

mod alarm;
mod handover;
mod queue;
mod spin;
mod thread;
mod timer;

pub use alarm::{Alarm, ReleaseClock, ring};
pub use thread::ThreadClock;
pub use timer::TokioClock;

/// The punctuality of a process, and its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// A thread that sleeps precisely. It costs the thread, and at most a thirtieth of a core for spinning, by the thread
    /// and by the tasks that it wakes.
    #[default]
    Fine,
    /// Tokio's timer. It costs nothing, but is 1 to 2 ms late.
    Coarse,
}
