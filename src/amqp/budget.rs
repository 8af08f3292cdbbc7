//! The bytes of messages that are held in memory, by each downstream and by the process.
//!
//! Half of the process's bytes is divided evenly: no downstream whose jobs cannot be released takes that part from
//! another. The other half is for the downstreams that need it first. So the sum never exceeds the process's bytes, but
//! for the one message that every downstream may hold however long it is.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;

use crate::lock::lock;

/// The budget that the downstreams of one process share.
#[derive(Debug, Default)]
struct Budget {
    /// The bytes that are not divided among the downstreams.
    pool: u64,
    /// The bytes that downstreams hold beyond their fair shares.
    borrowed: AtomicU64,
    accounts: Mutex<Vec<Weak<Account>>>,
}

/// The bytes that one downstream holds.
#[derive(Debug)]
pub(super) struct Account {
    /// The most bytes that it may hold.
    most: u64,
    /// The bytes that it may hold whatever the others do; at most `most`.
    fair: u64,
    held: AtomicU64,
    messages: AtomicUsize,
    budget: Arc<Budget>,
    /// The readers that wait until the account is not full any more: each of its queues may have a connection of its own.
    waiting: Mutex<Vec<Waker>>,
}

/// The bytes of one message that is held. When dropped, they are free again.
#[derive(Debug)]
pub(super) struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

/// Opens an account for each downstream, given the most that each may hold, out of `window` bytes in all.
pub(super) fn accounts(window: u64, most: &[u64]) -> Vec<Arc<Account>> {
    let even = window / 2 / (most.len() as u64).max(1);
    let fair = |most: u64| even.min(most);
    let given: u64 = most.iter().copied().map(fair).sum();
    let budget = Arc::new(Budget { pool: window.saturating_sub(given), ..Budget::default() });
    let account = |most: u64| {
        Arc::new(Account {
            most,
            fair: fair(most),
            held: AtomicU64::new(0),
            messages: AtomicUsize::new(0),
            budget: Arc::clone(&budget),
            waiting: Mutex::default(),
        })
    };
    let accounts: Vec<_> = most.iter().copied().map(account).collect();
    *lock(&budget.accounts) = accounts.iter().map(Arc::downgrade).collect();
    accounts
}

impl Account {
    /// Counts a message as held, even if that exceeds the bounds.
    pub(super) fn charge(self: &Arc<Self>, bytes: u64) -> Charge {
        let before = self.held.fetch_add(bytes, Ordering::SeqCst);
        self.messages.fetch_add(1, Ordering::SeqCst);
        let borrowed = self.beyond(before + bytes) - self.beyond(before);
        self.budget.borrowed.fetch_add(borrowed, Ordering::SeqCst);
        Charge { account: Arc::clone(self), bytes }
    }

    /// The most bytes that this downstream may hold.
    pub(super) const fn most(&self) -> u64 {
        self.most
    }

    /// The bytes that this downstream may hold at present: less than [`Account::most`] while others use the shared
    /// pool.
    pub(super) fn allowance(&self) -> u64 {
        let own = self.beyond(self.held.load(Ordering::SeqCst));
        let others = self.budget.borrowed.load(Ordering::SeqCst).saturating_sub(own);
        let free = self.budget.pool.saturating_sub(others);
        self.most.min(self.fair.saturating_add(free)).max(1)
    }

    /// True where this downstream, with `more` bytes that are on their way, holds as much as it may.
    pub(super) fn is_full(&self, more: u64) -> bool {
        self.held.load(Ordering::SeqCst).saturating_add(more) >= self.allowance()
    }

    /// True where `more` bytes would be far more than this downstream may hold: they exceed its most, or twice its
    /// present allowance. One message never does.
    pub(super) fn overruns(&self, more: u64) -> bool {
        let held = self.held.load(Ordering::SeqCst).saturating_add(more);
        self.holds_any() && held > self.most.min(self.allowance().saturating_mul(2))
    }

    /// True where at least one message is held, which will be settled at some time.
    pub(super) fn holds_any(&self) -> bool {
        self.messages.load(Ordering::SeqCst) > 0
    }

    /// Registers a waker for when [`Account::is_full`] may have changed.
    pub(super) fn register(&self, waker: &Waker) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }

    /// Wakes the registered waiters.
    pub(super) fn wake(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.into_iter().for_each(Waker::wake);
    }

    const fn beyond(&self, held: u64) -> u64 {
        held.saturating_sub(self.fair)
    }
}

impl Charge {
    /// The number of bytes charged.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Self { account, bytes } = self;
        let before = account.held.fetch_sub(*bytes, Ordering::SeqCst);
        account.messages.fetch_sub(1, Ordering::SeqCst);
        let budget = &account.budget;
        let returned = account.beyond(before) - account.beyond(before - *bytes);
        let borrowed = budget.borrowed.fetch_sub(returned, Ordering::SeqCst);
        account.wake();
        // Others wait for the pool only while little of it is left: less than what is in transit to them.
        if returned > 0 && borrowed >= budget.pool / 2 {
            let accounts = lock(&budget.accounts);
            accounts.iter().filter_map(Weak::upgrade).for_each(|account| account.wake());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn one_downstream_holds_its_own_most_and_no_more() {
        let accounts = accounts(256, &[64]);
        let [account] = accounts.as_slice() else { panic!() };
        assert_eq!(account.allowance(), 64);
        let first = account.charge(63);
        assert!(!account.is_full(0) && account.is_full(1) && account.holds_any());
        let second = account.charge(1);
        assert!(account.is_full(0));
        drop(second);
        assert!(!account.is_full(0));
        drop(first);
        assert!(!account.holds_any());
    }

    #[test]
    fn those_that_are_full_leave_the_others_their_shares() {
        // Each of the five has 10 of 100 bytes, and 50 are for those that need them.
        let accounts = accounts(100, &[64, 64, 64, 64, 64]);
        assert!(accounts.iter().all(|account| account.allowance() == 60));
        let stuck = accounts[0].charge(60);
        assert!(accounts[0].is_full(0));
        assert_eq!(accounts[1].allowance(), 10, "nothing is left but its share");
        let own: Vec<_> = accounts[1..].iter().map(|account| account.charge(10)).collect();
        assert!(accounts.iter().all(|account| account.is_full(0)));
        let held: u64 = own.iter().map(Charge::bytes).sum();
        assert_eq!(held + stuck.bytes(), 100);
    }

    #[test]
    fn what_is_freed_wakes_its_own_and_those_that_wait_for_the_pool() {
        let accounts = accounts(100, &[64, 64]);
        let woken = [Arc::<Woken>::default(), Arc::default()];
        let count = |n: usize| woken[n].0.swap(0, Ordering::SeqCst);
        let register = || {
            for (account, woken) in accounts.iter().zip(&woken) {
                account.register(&Arc::clone(woken).into());
            }
        };
        // Each has 25 bytes, and 50 are in the pool.
        let (large, small, rest) = (accounts[0].charge(25), accounts[0].charge(40), accounts[1].charge(36));
        register();
        drop(small);
        assert_eq!((count(0), count(1)), (1, 1), "the pool was used up");
        register();
        drop(large);
        assert_eq!((count(0), count(1)), (1, 0), "the other one never waited for that");
        drop(rest);
        assert_eq!(accounts[0].budget.borrowed.load(Ordering::SeqCst), 0);
    }
}
