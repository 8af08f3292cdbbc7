//! The waiters that hold a slot, until it comes.
//!
//! A slot is used when it comes, or given up if it was missed by more than the tolerance or lies in a pause. A waiter
//! whose slot is given up takes its old position in the backlog, and gets another slot. So late work never catches up
//! in a burst.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{LaneId, OnLimit, Settings, Waiter};
use crate::limit::{HAND_OVER, LimitSet};
use crate::time::Deadline;

pub(crate) mod clock;
mod concurrency;
mod held;
mod pause_gate;

use concurrency::Concurrency;
use held::HeldQueue;
pub(crate) use held::{Held, Unused};
pub(crate) use pause_gate::{Closed, PauseGate};

/// The time within which a store answers, or the call fails.
pub(crate) const LONGEST_CALL: Duration = Duration::from_secs(2);

/// The tolerance for late use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tolerance {
    /// The tolerance at the hand-over: a slot that was missed by more than this is given up.
    pub(crate) at_handover: Duration,
    /// The tolerance if a connection was opened: at least a whole emission interval, less [`HAND_OVER`]. A slow limit
    /// has few slots to give up, and its API may be far away.
    pub(crate) while_connecting: Duration,
}

/// The owner of the waiters that hold a slot, and of the concurrency.
#[derive(Debug)]
pub(crate) struct Release<W> {
    held: HeldQueue<W>,
    concurrency: Concurrency,
    gate: Arc<PauseGate>,
    tolerance: Tolerance,
}

/// A waiter whose slot has come.
#[derive(Debug)]
pub(crate) enum Due<W> {
    /// The waiter is to be sent now.
    Now(Held<W>),
    /// Its slot was missed by more than the tolerance.
    Missed(Held<W>),
}

impl Tolerance {
    /// Returns the tolerance of the strictest lane.
    pub(crate) fn of(settings: &Settings) -> Self {
        match settings.on_limit {
            OnLimit::Wait => {
                let interval = settings.sets().map(LimitSet::spacing).min().unwrap_or_default();
                let at_handover = settings.sets().map(LimitSet::tolerance).min().unwrap_or_default();
                Self { at_handover, while_connecting: interval.saturating_sub(HAND_OVER).max(at_handover) }
            }
            // An allowed waiter is sent as soon as possible, since another check would charge it twice.
            OnLimit::Reject => Self { at_handover: LONGEST_CALL, while_connecting: Duration::MAX },
        }
    }
}

impl<W: Waiter> Release<W> {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            held: HeldQueue::default(),
            concurrency: Concurrency::new(settings.concurrency),
            gate: Arc::default(),
            tolerance: Tolerance::of(settings),
        }
    }

    /// Applies other settings. Waiters that hold a slot keep it.
    pub(crate) fn follow(&mut self, settings: &Settings) {
        self.concurrency.resize(settings.concurrency);
        self.tolerance = Tolerance::of(settings);
    }

    pub(crate) const fn tolerance(&self) -> Tolerance {
        self.tolerance
    }

    /// Returns the gate that shows, just before a send, whether its slot lies in a pause.
    pub(crate) const fn gate(&self) -> &Arc<PauseGate> {
        &self.gate
    }

    /// Replaces the gate. It is called before any waiter holds a slot.
    pub(crate) fn set_gate(&mut self, gate: Arc<PauseGate>) {
        self.gate = gate;
    }

    /// Takes out the waiter with this position in the order of arrival, with the slot that is left over: the waiters
    /// behind it that can use its slot move up.
    pub(crate) fn remove(&mut self, seq: u64) -> Option<Held<W>> {
        self.held.remove(seq)
    }

    /// Holds a waiter until its slot. Returns it if the slot lies in a pause that began during the reserve call.
    pub(crate) fn hold(&mut self, held: Held<W>) -> Result<(), W> {
        if self.gate.refuses(held.slot, held.deadline) {
            return Err(held.waiter);
        }
        self.hold_at_once(held);
        Ok(())
    }

    /// Holds a waiter whose slot is this instant, while no pause is known.
    pub(crate) fn hold_at_once(&mut self, held: Held<W>) {
        self.held.push(held);
    }

    /// Takes the next waiter whose slot has come by `now`, if there is room for another send. A waiter without room
    /// stays until there is room or its slot is missed.
    pub(crate) fn pop_due(&mut self, now: Deadline) -> Option<Due<W>> {
        if !self.concurrency.has_room() {
            return None;
        }
        let held = self.held.pop_due(now)?;
        Some(if now.since(held.deadline) > self.tolerance.at_handover {
            Due::Missed(held)
        } else {
            self.concurrency.begin();
            Due::Now(held)
        })
    }

    /// Records that a send which [`Release::pop_due`] began has ended, with any outcome, and how long the downstream
    /// took to answer, if it did.
    pub(crate) fn sent(&mut self, took: Option<Duration>) {
        self.concurrency.end(took);
    }

    /// Returns the instant at which the next waiter is to be taken.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.held.next_due().filter(|_| self.concurrency.has_room()).map(Deadline::instant)
    }

    /// Returns the lane of the first waiter that holds a slot, and when its slot comes.
    pub(crate) fn first(&self) -> Option<(LaneId, Deadline)> {
        self.held.first().map(|held| (held.waiter.lane(), held.deadline))
    }

    /// Returns the number of waiters that hold a slot.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns the waiters that hold a slot, each with the instant of the slot, in the order of the slots.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (Instant, &W)> {
        self.held.iter().map(|held| (held.deadline.instant(), &held.waiter))
    }

    /// Returns the number of sends in progress.
    pub(crate) const fn sending(&self) -> usize {
        self.concurrency.sending()
    }

    /// Whether no waiter holds a slot or is being sent.
    pub(crate) fn is_quiet(&self) -> bool {
        self.held.len() == 0 && self.concurrency.sending() == 0
    }

    /// Returns how many more waiters would find room at their slots.
    pub(crate) fn free(&self) -> usize {
        self.concurrency.free(&self.held)
    }

    /// Returns how many more waiters would find room at this spacing of slots; `usize::MAX` if sends end so soon that
    /// there is always room.
    pub(crate) fn room(&self, spacing: Duration) -> usize {
        self.concurrency.room(&self.held, spacing)
    }

    /// Returns how many waiters find room in a turn that begins while nothing is being sent.
    pub(crate) fn room_in_turn(&self, spacing: Duration) -> usize {
        self.concurrency.room_in_turn(spacing)
    }

    /// Returns how many connections beyond those in use the waiters that hold a slot, and `more` waiters, will need at
    /// one time, at this spacing of slots. Each may need one of its own until the duration of a send is known. There
    /// are never more connections than concurrent sends.
    pub(crate) fn connections(&self, more: usize, spacing: Duration) -> usize {
        self.concurrency.connections(self.held.len() + more, spacing)
    }

    /// Returns the instant of the first slot that is held.
    pub(crate) fn first_due(&self) -> Option<Deadline> {
        self.held.next_due()
    }

    /// Returns how many waiters hold a slot once `more` waiters do, as far as they may be sent in addition to those
    /// in progress.
    pub(crate) fn slots(&self, more: usize) -> usize {
        (self.held.len() + more).min(self.concurrency.most().saturating_sub(self.concurrency.sending()))
    }

    /// Moves the waiters behind an unused slot up, and returns the last of their slots.
    pub(crate) fn close_up(&mut self, unused: Unused) -> Unused {
        self.held.close_up(unused)
    }

    /// Returns the slots of all waiters that hold one, in their order.
    pub(crate) fn unused(&self) -> Vec<Unused> {
        self.held.unused()
    }

    /// Gives up the slots that `is_given_up` selects. Returns the waiters in the order of their slots.
    pub(crate) fn give_up(&mut self, is_given_up: impl Fn(&Held<W>) -> bool) -> Vec<W> {
        self.held.take(is_given_up)
    }

    /// Gives up the slots that lie in a pause.
    pub(crate) fn give_up_paused(&mut self) -> Vec<W> {
        let gate = &self.gate;
        self.held.take(|held| gate.refuses(held.slot, held.deadline))
    }

    /// Gives up all slots.
    pub(crate) fn give_up_all(&mut self) -> Vec<W> {
        self.held.drain().collect()
    }

    /// Returns the positions in the order of arrival of the waiters that `is_meant` selects, in the order of their
    /// slots.
    pub(crate) fn positions(&self, is_meant: impl Fn(&W) -> bool) -> Vec<u64> {
        self.held.positions(is_meant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::{Caller, tests};
    use crate::time::Micros;

    const MS: Duration = Duration::from_millis(1);

    fn settings(rate: &str, on_limit: OnLimit) -> Settings {
        Settings { on_limit, concurrency: 2, ..tests::settings(rate) }
    }

    fn release(rate: &str) -> Release<Caller> {
        Release::new(&settings(rate, OnLimit::Wait))
    }

    fn held(seq: u64, deadline: Instant) -> Held<Caller> {
        let slot = Micros(i64::try_from(seq).unwrap() * 1000);
        Held { waiter: Caller::new(seq), slot, deadline: Deadline::at(deadline) }
    }

    fn seqs(callers: Vec<Caller>) -> Vec<u64> {
        callers.into_iter().map(|caller| caller.seq()).collect()
    }

    #[test]
    fn the_tolerance_follows_the_emission_interval() {
        for (rate, at_handover, while_connecting) in
            [("1000/s", 5, 5), ("200/s", 5, 5), ("100/s", 10, 10), ("10/s", 50, 100), ("1/m", 6000, 60_000)]
        {
            let tolerance = Tolerance::of(&settings(rate, OnLimit::Wait));
            let expected = Tolerance {
                at_handover: MS * at_handover - MS,
                while_connecting: MS * while_connecting - MS,
            };
            assert_eq!(tolerance, expected, "{rate}");
        }
        let polices = Tolerance::of(&settings("1/m", OnLimit::Reject));
        assert_eq!(polices, Tolerance { at_handover: LONGEST_CALL, while_connecting: Duration::MAX });
    }

    #[tokio::test(start_paused = true)]
    async fn each_goes_at_its_slot_as_far_as_there_is_room() {
        let (mut release, start) = (release("100/s"), Instant::now());
        (0..3).for_each(|seq| release.hold(held(seq, start + 10 * MS)).unwrap());
        assert_eq!(release.wake_at(), Some(start + 10 * MS));
        assert!(release.pop_due(Deadline::at(start + 9 * MS)).is_none());
        let now = Deadline::at(start + 10 * MS);
        for seq in 0..2 {
            let Some(Due::Now(due)) = release.pop_due(now) else { panic!("{seq}: {release:?}") };
            assert_eq!(due.waiter.seq(), seq);
        }
        assert!(release.pop_due(now).is_none(), "two are being sent");
        assert_eq!((release.wake_at(), release.sending(), release.held()), (None, 2, 1));
        release.sent(None);
        assert_eq!(release.wake_at(), Some(start + 10 * MS), "there is room again");
        let late = Deadline::at(start + 21 * MS);
        let Some(Due::Missed(missed)) = release.pop_due(late) else { panic!("{release:?}") };
        assert_eq!((missed.waiter.seq(), release.sending()), (2, 1), "it takes no room");
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_connections_as_will_be_used_at_one_time() {
        let settings = Settings { concurrency: 8, ..settings("100/s", OnLimit::Wait) };
        let (mut release, start) = (Release::new(&settings), Instant::now());
        assert_eq!(release.connections(1, 10 * MS), 1);
        (0..3).for_each(|seq| release.hold(held(seq, start)).unwrap());
        assert_eq!(release.connections(4, 10 * MS), 7, "each may need its own");
        assert_eq!(release.connections(40, 10 * MS), 8, "no more than may be sent at once");
        let Some(Due::Now(_)) = release.pop_due(Deadline::at(start)) else { panic!("{release:?}") };
        release.sent(Some(25 * MS));
        assert_eq!(release.connections(4, 10 * MS), 3, "25 ms are three slots");
        assert_eq!(release.connections(0, MS), 2, "no more than there are");
        assert_eq!(release.connections(4, Duration::ZERO), 6, "at one instant");
        assert_eq!(release.connections(4000, Duration::ZERO), 8, "however many slots are at one instant");
        (0..2).for_each(|_| assert!(matches!(release.pop_due(Deadline::at(start)), Some(Due::Now(_)))));
        assert_eq!(release.connections(4, 10 * MS), 1, "two of the three are in use");
        assert_eq!(release.connections(4000, Duration::ZERO), 6, "two of the eight are in use");
    }

    #[tokio::test(start_paused = true)]
    async fn slots_in_a_pause_are_given_up_and_not_taken() {
        let (mut release, start) = (release("100/s"), Instant::now());
        (0..4).for_each(|seq| release.hold(held(seq, start + MS)).unwrap());
        release.gate().set(Closed { own: None, until: Micros(2000) });
        assert_eq!(seqs(release.give_up_paused()), [0, 1]);
        let refused = release.hold(held(1, start + MS)).unwrap_err();
        assert_eq!(refused.seq(), 1);
        release.hold_at_once(held(1, start + MS));
        assert_eq!(seqs(release.give_up(|held| held.slot == Micros(3000))), [3]);
        assert_eq!(seqs(release.give_up_all()), [2, 1], "by their slots here");
        assert!(release.is_quiet());
    }
}
