//! The bytes of messages that are held in memory, by each downstream and by the process.
//!
//! Half of the process's bytes is divided evenly, so that a downstream whose jobs cannot be released takes nothing of
//! another one's part. The other half is for the downstreams that need it first. A message is accepted while its
//! downstream holds less than its allowance, however long the message is. So the sum exceeds the process's bytes by
//! one message of every downstream at most.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::watch;

use crate::lock::lock;

/// The pool is divided into this many parts. When a part becomes free, all downstreams are notified.
const POOL_STEPS: u64 = 256;

/// The budget that the downstreams of one process share. It is divided anew whenever one of them comes or goes.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// The bytes of the process.
    window: u64,
    /// The bytes that are not divided among the downstreams.
    pool: AtomicU64,
    /// The bytes that downstreams hold beyond their fair shares.
    borrowed: AtomicU64,
    accounts: Mutex<Vec<Weak<Account>>>,
}

/// The bytes that one downstream holds.
#[derive(Debug)]
pub(super) struct Account {
    /// The most bytes that it may hold.
    most: u64,
    own: Mutex<Own>,
    budget: Arc<Budget>,
    /// Changes when bytes have become free.
    freed: watch::Sender<()>,
}

/// What an account holds, and what it may. Both are under one lock: a share that changes between the two would leave a wrong
/// sum of what is borrowed.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    held: u64,
    /// The bytes that it may hold regardless of the others; at most [`Account::most`].
    fair: u64,
}

impl Own {
    /// The bytes that are held beyond the fair share.
    const fn beyond(self) -> u64 {
        self.held.saturating_sub(self.fair)
    }
}

/// The bytes of one message that is held. When dropped, they are free again.
#[derive(Debug)]
pub(super) struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Budget {
    /// A budget of this many bytes.
    pub(super) fn new(window: u64) -> Arc<Self> {
        Arc::new(Self { window, pool: AtomicU64::new(window), ..Self::default() })
    }

    /// Opens an account for each of these downstreams, given the most that each may hold.
    pub(super) fn open(self: &Arc<Self>, most: &[u64]) -> Vec<Arc<Account>> {
        let account = |most: &u64| {
            Arc::new(Account {
                most: *most,
                own: Mutex::default(),
                budget: Arc::clone(self),
                freed: watch::Sender::default(),
            })
        };
        let opened: Vec<_> = most.iter().map(account).collect();
        let mut accounts = lock(&self.accounts);
        accounts.extend(opened.iter().map(Arc::downgrade));
        self.divide(&mut accounts);
        opened
    }

    /// Gives the share of this account to the others. What it still holds counts as borrowed until it is free.
    pub(super) fn close(&self, account: &Arc<Account>) {
        let mut accounts = lock(&self.accounts);
        accounts.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(account)));
        account.set_fair(0);
        self.divide(&mut accounts);
    }

    /// Divides half of the bytes evenly, and notifies the accounts that may now hold more.
    fn divide(&self, accounts: &mut Vec<Weak<Account>>) {
        accounts.retain(|account| account.strong_count() > 0);
        let all: Vec<Arc<Account>> = accounts.iter().filter_map(Weak::upgrade).collect();
        let even = self.window / 2 / (all.len() as u64).max(1);
        let mut given = 0;
        for account in &all {
            let fair = even.min(account.most);
            account.set_fair(fair);
            given += fair;
        }
        self.pool.store(self.window.saturating_sub(given), Ordering::SeqCst);
        all.iter().for_each(|account| account.freed.send_replace(()));
    }
}

impl Account {
    /// Counts a message as held, even if that exceeds the bounds. `counted` of its bytes were counted before, by
    /// [`Account::add`].
    pub(super) fn charge(self: &Arc<Self>, bytes: u64, counted: u64) -> Charge {
        self.add(bytes.saturating_sub(counted));
        Charge { account: Arc::clone(self), bytes: bytes.max(counted) }
    }

    /// Counts bytes as held.
    pub(super) fn add(&self, bytes: u64) {
        let mut own = lock(&self.own);
        let before = own.beyond();
        own.held += bytes;
        self.budget.borrowed.fetch_add(own.beyond() - before, Ordering::SeqCst);
    }

    /// Subtracts bytes from those that are held, and notifies nobody. Returns how many bytes of the pool were in use
    /// before, and how many of these were removed.
    pub(super) fn remove(&self, bytes: u64) -> (u64, u64) {
        let mut own = lock(&self.own);
        let before = own.beyond();
        own.held -= bytes;
        let returned = before - own.beyond();
        (self.budget.borrowed.fetch_sub(returned, Ordering::SeqCst), returned)
    }

    /// Sets the bytes that it may hold regardless of the others.
    fn set_fair(&self, fair: u64) {
        let mut own = lock(&self.own);
        let before = own.beyond();
        own.fair = fair;
        let (after, borrowed) = (own.beyond(), &self.budget.borrowed);
        if after > before {
            borrowed.fetch_add(after - before, Ordering::SeqCst);
        } else {
            borrowed.fetch_sub(before - after, Ordering::SeqCst);
        }
    }

    /// Subtracts bytes from those that are held, and notifies the accounts that wait for them.
    pub(super) fn free(&self, bytes: u64) {
        let (borrowed, returned) = self.remove(bytes);
        let budget = &self.budget;
        self.freed.send_replace(());
        // Others wait for the pool only while little of it is left: less than what is in transit to them. A
        // notification for each message would be costly: there may be a thousand downstreams, and many short messages.
        let pool = budget.pool.load(Ordering::SeqCst);
        let step = (pool / POOL_STEPS).max(1);
        let has_stepped = borrowed / step != borrowed.saturating_sub(returned) / step;
        if has_stepped && borrowed >= pool / 2 {
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
        self.use_now().0
    }

    /// The bytes that are left of the allowance. While there are any, a message is accepted, however long it is.
    pub(super) fn left(&self) -> u64 {
        let (allowance, held) = self.use_now();
        allowance.saturating_sub(held)
    }

    /// The most messages that can be held at present, at least 1. It is estimated twice, by the average of the
    /// `messages` that are held and by the `size` of those that arrive; the lower estimate counts.
    pub(super) fn most(&self, messages: u64, size: u64) -> u64 {
        let (allowance, held) = self.use_now();
        let alike = messages.saturating_mul(allowance).div_ceil(held.max(1));
        allowance.div_ceil(size.max(1)).min(alike).max(1)
    }

    /// True where this downstream holds twice its allowance.
    pub(super) fn is_far_beyond(&self) -> bool {
        let (allowance, held) = self.use_now();
        held / 2 >= allowance
    }

    /// True where this downstream holds all of its allowance.
    pub(super) fn is_full(&self) -> bool {
        self.left() == 0
    }

    /// The allowance, and the bytes held.
    fn use_now(&self) -> (u64, u64) {
        let own = lock(&self.own);
        let budget = &self.budget;
        // Under the lock its own part of the sum does not change.
        let others = budget.borrowed.load(Ordering::SeqCst).saturating_sub(own.beyond());
        let free = budget.pool.load(Ordering::SeqCst).saturating_sub(others);
        (self.most.min(own.fair.saturating_add(free)).max(1), own.held)
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
pub(super) mod tests {
    use super::*;

    /// The accounts of downstreams of which each may hold this much, out of `window` bytes in all.
    pub(in crate::amqp) fn accounts(window: u64, most: &[u64]) -> Vec<Arc<Account>> {
        Budget::new(window).open(most)
    }

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

    #[test]
    fn who_comes_has_a_share_and_who_goes_leaves_it() {
        let budget = Budget::new(100);
        let [one, two] = <[_; 2]>::try_from(budget.open(&[64, 64])).unwrap();
        // Each has 25 bytes, and 50 are in the pool.
        let held = one.charge(60, 0);
        let mut freed = two.freed();
        freed.mark_unchanged();
        let three = budget.open(&[64]).remove(0);
        assert!(freed.has_changed().unwrap(), "the shares are others");
        // Each has 16 of them, and 52 are in the pool, of which the first one has 44.
        assert_eq!((one.allowance(), two.allowance(), three.allowance()), (64, 24, 24));
        budget.close(&one);
        // Each of the two has 25 again. The one that went holds 60 bytes of the pool.
        assert_eq!((two.allowance(), three.allowance()), (25, 25));
        drop(held);
        assert_eq!((two.allowance(), three.allowance()), (64, 64));
        assert_eq!(budget.borrowed.load(Ordering::SeqCst), 0);
        budget.close(&two);
        budget.close(&three);
        assert!(lock(&budget.accounts).is_empty());
        assert_eq!(budget.pool.load(Ordering::SeqCst), 100);
    }

    /// However often shares change while messages come and go, nothing of the pool is lost.
    #[test]
    fn shares_that_change_meanwhile_lose_no_byte() {
        let budget = Budget::new(1 << 20);
        let account = budget.open(&[1 << 20]).remove(0);
        std::thread::scope(|scope| {
            for n in 1..=4_u64 {
                let account = &account;
                scope.spawn(move || (0..2_000_u64).for_each(|i| drop(account.charge(n * 1_000 + i, 0))));
            }
            for _ in 0..2_000 {
                let other = budget.open(&[1 << 20]).remove(0);
                budget.close(&other);
            }
        });
        assert_eq!(budget.borrowed.load(Ordering::SeqCst), 0);
        assert_eq!(account.left(), 1 << 20);
    }
}
