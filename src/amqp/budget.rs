//! The bytes of messages that are held in memory, by each downstream and by the process.
//!
//! Half of the process's bytes is divided evenly: no downstream whose jobs cannot be released takes that part from
//! another. The other half is for the downstreams that need it first. A message is taken in while its downstream holds less
//! than it may, however long the message is. So the sum never exceeds the process's bytes, but for one message of every
//! downstream.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::watch;

use crate::lock::lock;

/// The pool is divided into this many parts. When a part becomes free, all downstreams are told.
const POOL_STEPS: u64 = 256;

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
    budget: Arc<Budget>,
    /// Changes when bytes have become free.
    freed: watch::Sender<()>,
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
            budget: Arc::clone(&budget),
            freed: watch::Sender::default(),
        })
    };
    let accounts: Vec<_> = most.iter().copied().map(account).collect();
    *lock(&budget.accounts) = accounts.iter().map(Arc::downgrade).collect();
    accounts
}

impl Account {
    /// Counts a message as held, even if that exceeds the bounds. [`Account::add`] has `counted` a part of its bytes before.
    pub(super) fn charge(self: &Arc<Self>, bytes: u64, counted: u64) -> Charge {
        self.add(bytes.saturating_sub(counted));
        Charge { account: Arc::clone(self), bytes: bytes.max(counted) }
    }

    /// Counts bytes as held.
    pub(super) fn add(&self, bytes: u64) {
        let before = self.held.fetch_add(bytes, Ordering::SeqCst);
        let borrowed = self.beyond(before + bytes) - self.beyond(before);
        self.budget.borrowed.fetch_add(borrowed, Ordering::SeqCst);
    }

    /// Counts bytes as held no more, and tells nobody. Returns how many bytes of the pool were in use before, and how many
    /// of these were removed.
    pub(super) fn remove(&self, bytes: u64) -> (u64, u64) {
        let before = self.held.fetch_sub(bytes, Ordering::SeqCst);
        let returned = self.beyond(before) - self.beyond(before - bytes);
        (self.budget.borrowed.fetch_sub(returned, Ordering::SeqCst), returned)
    }

    /// Counts bytes as held no more, and tells those who wait for them.
    pub(super) fn free(&self, bytes: u64) {
        let (borrowed, returned) = self.remove(bytes);
        let budget = &self.budget;
        self.freed.send_replace(());
        // Others wait for the pool only while little of it is left: less than what is in transit to them. There may be a
        // thousand of them, and many short messages.
        let step = (budget.pool / POOL_STEPS).max(1);
        let has_stepped = borrowed / step != borrowed.saturating_sub(returned) / step;
        if has_stepped && borrowed >= budget.pool / 2 {
            let accounts = lock(&budget.accounts);
            accounts.iter().filter_map(Weak::upgrade).for_each(|account| account.freed.send_replace(()));
        }
    }

    /// A receiver that changes when bytes have become free.
    pub(super) fn freed(&self) -> watch::Receiver<()> {
        self.freed.subscribe()
    }

    /// The bytes that this downstream may hold at present, at least 1: fewer than its most while others use the shared
    /// pool.
    pub(super) fn allowance(&self) -> u64 {
        let own = self.beyond(self.held.load(Ordering::SeqCst));
        // Bytes may be removed by one thread before another one has counted them here: then the sum is below 0 for a moment.
        let borrowed = i64::try_from(self.budget.borrowed.load(Ordering::SeqCst)).unwrap_or(0).unsigned_abs();
        let others = borrowed.saturating_sub(own);
        let free = self.budget.pool.saturating_sub(others);
        self.most.min(self.fair.saturating_add(free)).max(1)
    }

    /// The bytes that are left of the allowance. While there are any, a message is taken in, however long it is.
    pub(super) fn left(&self) -> u64 {
        self.allowance().saturating_sub(self.held.load(Ordering::SeqCst))
    }

    /// The most messages that can be held at present, if so many are, by what these take on average, and by the `size` of
    /// those that come. At least 1.
    pub(super) fn most(&self, messages: u64, size: u64) -> u64 {
        let (allowance, held) = (self.allowance(), self.held.load(Ordering::SeqCst));
        let alike = messages.saturating_mul(allowance).div_ceil(held.max(1));
        allowance.div_ceil(size.max(1)).min(alike).max(1)
    }

    /// True where this downstream holds twice as much as it may.
    pub(super) fn is_far_beyond(&self) -> bool {
        self.held.load(Ordering::SeqCst) / 2 >= self.allowance()
    }

    /// True where this downstream holds as much as it may.
    pub(super) fn is_full(&self) -> bool {
        self.left() == 0
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
        self.account.free(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_downstream_holds_its_own_most_and_one_message_more() {
        let accounts = accounts(256, &[64]);
        let [account] = accounts.as_slice() else { panic!() };
        assert_eq!((account.allowance(), account.left()), (64, 64));
        let first = account.charge(63, 0);
        assert_eq!((account.left(), account.is_full()), (1, false));
        let second = account.charge(100, 0);
        assert!(account.is_full());
        drop(first);
        assert!(account.is_full());
        drop(second);
        assert_eq!(account.left(), 64);
    }

    #[test]
    fn what_is_counted_before_is_counted_once() {
        let account = accounts(256, &[64]).remove(0);
        account.add(20);
        let whole = account.charge(25, 20);
        assert_eq!((whole.bytes(), account.left()), (25, 39));
        drop(whole);
        assert_eq!(account.left(), 64);
        account.add(7);
        account.free(7);
        assert_eq!(account.left(), 64);
    }

    #[test]
    fn the_bytes_held_and_the_size_of_what_comes_bound_the_messages() {
        let account = accounts(2048, &[640]).remove(0);
        assert_eq!((account.most(0, 0), account.most(100, 0)), (1, 640));
        let held = account.charge(320, 0);
        for (messages, size, most) in [(10, 0, 20), (10, 32, 20), (10, 64, 10), (1, 0, 2), (0, 0, 1)] {
            assert_eq!(account.most(messages, size), most, "{messages} of {size}");
        }
        let rest = account.charge(320, 0);
        assert_eq!((account.most(20, 1), account.most(1, 1)), (20, 1), "it is full");
        assert!(!account.is_far_beyond());
        let more = account.charge(640, 0);
        assert_eq!((account.most(20, 1), account.is_far_beyond()), (10, true));
        drop((held, rest, more));
    }

    #[test]
    fn those_that_are_full_leave_the_others_their_shares() {
        // Each of the five has 10 of 100 bytes, and 50 are for those that need them.
        let accounts = accounts(100, &[64, 64, 64, 64, 64]);
        assert!(accounts.iter().all(|account| account.allowance() == 60));
        let stuck = accounts[0].charge(60, 0);
        assert!(accounts[0].is_full());
        assert_eq!(accounts[1].allowance(), 10, "nothing is left but its share");
        let own: Vec<_> = accounts[1..].iter().map(|account| account.charge(10, 0)).collect();
        assert!(accounts.iter().all(|account| account.is_full()));
        let held: u64 = own.iter().map(Charge::bytes).sum();
        assert_eq!(held + stuck.bytes(), 100);
    }

    #[test]
    fn what_is_freed_wakes_its_own_and_those_that_wait_for_the_pool() {
        let accounts = accounts(100, &[64, 64]);
        let mut freed = [accounts[0].freed(), accounts[1].freed()];
        let mut woken = || {
            freed.each_mut().map(|freed| {
                let has_changed = freed.has_changed().unwrap();
                freed.mark_unchanged();
                has_changed
            })
        };
        // Each has 25 bytes, and 50 are in the pool.
        let (large, small, rest) =
            (accounts[0].charge(25, 0), accounts[0].charge(40, 0), accounts[1].charge(36, 0));
        assert_eq!(woken(), [false, false]);
        drop(small);
        assert_eq!(woken(), [true, true], "the pool was used up");
        drop(large);
        assert_eq!(woken(), [true, false], "the other one never waited for that");
        drop(rest);
        assert_eq!(accounts[0].budget.borrowed.load(Ordering::SeqCst), 0);
    }
}
