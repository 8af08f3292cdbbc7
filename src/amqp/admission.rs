//! Decides which bodies of deliveries are accepted: those of downstreams that hold less than their allowance. The
//! guard cuts the others as they arrive, and their messages are given back unread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::budget::{Account, Charge};
use super::guard::Admit;
use super::weight::least;
use crate::lock::lock;

/// Which messages of a queue may be given back because there is no room for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GiveBack {
    /// All of them: no limit of the queue counts returns.
    All,
    /// Messages that were never given back before; others only where the downstream holds twice its allowance. The
    /// queue may count how often a message comes back, and drop or dead-letter it.
    New,
    /// None: the queue drops or dead-letters a message that comes back once, or would deliver it again at once.
    None,
}

/// The consuming channels of one connection.
#[derive(Debug, Default)]
pub(super) struct Admissions {
    channels: Mutex<BTreeMap<u16, Channel>>,
    /// The number of frames of bodies that were cut.
    cut: AtomicU64,
}

/// What a channel delivers.
#[derive(Debug)]
enum Channel {
    /// Jobs, while their consumers exist.
    Jobs(Weak<Admission>),
    /// Messages of which only the properties are read.
    Heads,
}

/// The decision on the bodies that come over one channel. Its consumers hold it. Once they have dropped it, nobody
/// takes what the broker still delivers there.
#[derive(Debug)]
pub(super) struct Admission {
    account: Arc<Account>,
    gives_back: GiveBack,
    /// The bytes that were counted for messages that have not been handed on yet.
    arriving: AtomicU64,
    /// The bytes that are counted for messages which were requested again, so that no other downstream takes that
    /// room.
    reserved: AtomicU64,
}

impl Admissions {
    /// Starts to decide on the bodies that come over a channel. It must be called before anything is consumed there.
    pub(super) fn open(&self, channel: u16, account: &Arc<Account>, gives_back: GiveBack) -> Arc<Admission> {
        let (account, [arriving, reserved]) = (Arc::clone(account), [const { AtomicU64::new(0) }; 2]);
        let admission = Arc::new(Admission { account, gives_back, arriving, reserved });
        lock(&self.channels).insert(channel, Channel::Jobs(Arc::downgrade(&admission)));
        admission
    }

    /// Cuts all bodies that come over a channel, and keeps the properties. It must be called before anything is consumed
    /// there.
    pub(super) fn heads_only(&self, channel: u16) {
        lock(&self.channels).insert(channel, Channel::Heads);
    }

    /// A number that grows while bodies are cut. An answer of the broker may wait behind these bodies.
    pub(super) fn progress(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }
}

impl Admit for Admissions {
    fn admit(&self, channel: u16, body: u64, redelivered: bool) -> bool {
        // Nothing is consumed on a channel that is not known.
        let admission = match lock(&self.channels).get(&channel) {
            None => return true,
            Some(Channel::Heads) => None,
            Some(Channel::Jobs(admission)) => admission.upgrade(),
        };
        admission.is_some_and(|admission| admission.admit(body, redelivered))
    }

    fn cut(&self) {
        self.cut.fetch_add(1, Ordering::Relaxed);
    }

    fn keeps_properties(&self, channel: u16) -> bool {
        matches!(lock(&self.channels).get(&channel), Some(Channel::Heads))
    }
}

impl Admission {
    fn admit(&self, body: u64, redelivered: bool) -> bool {
        let less = |reserved: u64| Some(reserved.saturating_sub(least(body)));
        let reserved = self.reserved.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        self.account.remove(reserved.map_or(0, |reserved| reserved.min(least(body))));
        let is_cut = match self.gives_back {
            // Beyond that, the process could run out of memory. Then all its messages would be given back.
            GiveBack::New if redelivered => self.account.is_far_beyond(),
            GiveBack::All | GiveBack::New => self.account.is_full(),
            GiveBack::None => false,
        };
        if !is_cut {
            self.account.add(least(body));
            self.arriving.fetch_add(least(body), Ordering::SeqCst);
        }
        !is_cut
    }

    /// Reserves this number of bytes, and frees those that were reserved before.
    pub(super) fn reserve(&self, bytes: u64) {
        self.account.add(bytes);
        match self.reserved.swap(bytes, Ordering::SeqCst) {
            0 => {}
            before => self.account.free(before),
        }
    }

    /// The bytes that are reserved.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::SeqCst)
    }

    /// Which messages are given back where there is no room for them.
    pub(super) const fn gives_back(&self) -> GiveBack {
        self.gives_back
    }

    /// Charges for a message that has arrived: most of it was counted when it was taken in.
    pub(super) fn arrived(&self, body: u64, weight: u64) -> Charge {
        let counted = least(body);
        let less = |arriving: u64| Some(arriving.saturating_sub(counted));
        let arriving = self.arriving.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        self.account.charge(weight, arriving.map_or(0, |arriving| arriving.min(counted)))
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.account.free(*self.arriving.get_mut() + *self.reserved.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::tests::accounts;
    use super::*;

    const KIB: u64 = 1024;

    fn account() -> Arc<Account> {
        accounts(1000 * KIB, &[100 * KIB]).remove(0)
    }

    #[test]
    fn bodies_are_taken_in_until_the_downstream_is_full() {
        let account = account();
        let admissions = Admissions::default();
        let admission = admissions.open(1, &account, GiveBack::All);
        assert!(admissions.admit(1, 58 * KIB, false) && admissions.admit(1, 58 * KIB, true));
        assert!(!admissions.admit(1, 58 * KIB, false) && !admissions.admit(1, 0, true), "it is full");
        let first = admission.arrived(58 * KIB, 70 * KIB);
        let second = admission.arrived(58 * KIB, 60 * KIB);
        assert_eq!((first.bytes(), second.bytes(), account.is_full()), (70 * KIB, 60 * KIB, true));
        drop(second);
        assert_eq!(account.left(), 30 * KIB);
        // One message is accepted at any length, so that long ones are not stuck for ever.
        assert!(admissions.admit(1, 5000 * KIB, false));
        drop(first);
        drop(admission.arrived(5000 * KIB, 5002 * KIB));
        assert_eq!(account.left(), 100 * KIB);
    }

    #[test]
    fn short_bodies_count_with_what_a_job_takes() {
        let account = account();
        let admissions = Admissions::default();
        let _admission = admissions.open(1, &account, GiveBack::All);
        let taken = (0..1000).take_while(|_| admissions.admit(1, 0, false)).count();
        assert_eq!(taken, 50, "they are 2 KiB each before they are handed on, too");
    }

    #[test]
    fn the_room_for_what_was_asked_for_is_nobody_elses() {
        let all = accounts(400 * KIB, &[400 * KIB, 400 * KIB]);
        let [first, second] = [&all[0], &all[1]].map(|account| {
            let admissions = Admissions::default();
            let admission = admissions.open(1, account, GiveBack::All);
            (admissions, admission)
        });
        assert_eq!((all[0].left(), all[1].left()), (300 * KIB, 300 * KIB), "a fair part and the pool");
        first.1.reserve(300 * KIB);
        assert_eq!((all[0].left(), all[1].left()), (0, 100 * KIB));
        // What comes is taken in, and its room is not reserved any more.
        assert!(first.0.admit(1, 98 * KIB, true));
        assert_eq!((first.1.reserved(), all[0].left()), (200 * KIB, 0));
        assert!(first.0.admit(1, 300 * KIB, true), "it had room when it was asked for");
        assert_eq!(first.1.reserved(), 0);
        assert!(!first.0.admit(1, 1, true));
        assert!(second.0.admit(1, 98 * KIB, false) && !second.0.admit(1, 1, false));
        drop(first);
        second.1.reserve(50 * KIB);
        second.1.reserve(0);
        drop(second);
        assert_eq!((all[0].left(), all[1].left()), (300 * KIB, 300 * KIB), "nothing stays counted");
    }

    #[test]
    fn what_comes_for_nobody_is_cut_and_counts_no_more() {
        let account = account();
        let admissions = Admissions::default();
        let admission = admissions.open(1, &account, GiveBack::All);
        assert!(admissions.admit(1, 60 * KIB, false));
        drop(admission);
        assert_eq!(account.left(), 100 * KIB);
        assert!(!admissions.admit(1, 1, false));
        assert!(!admissions.keeps_properties(1), "it has the mark of a job that is given back");
        assert!(admissions.admit(2, 1000 * KIB, false), "not consumed");
        let again = admissions.open(1, &account, GiveBack::All);
        assert!(admissions.admit(1, 1, false));
        drop(again);
    }

    #[test]
    fn the_heads_of_messages_are_all_that_is_kept_where_nothing_else_is_wanted() {
        let account = account();
        let admissions = Admissions::default();
        let admission = admissions.open(1, &account, GiveBack::All);
        admissions.heads_only(2);
        assert!(!admissions.admit(2, 1, false) && admissions.keeps_properties(2));
        assert!(admissions.admit(1, 1, false) && !admissions.keeps_properties(1));
        drop(admission);
        // A number of a channel is used again.
        let again = admissions.open(2, &account, GiveBack::All);
        assert!(admissions.admit(2, 1, false) && !admissions.keeps_properties(2));
        drop(again);
        admissions.heads_only(2);
        assert!(!admissions.admit(2, 1, false) && admissions.keeps_properties(2));
    }

    #[test]
    fn a_queue_that_may_count_gets_back_what_is_new_and_others_only_far_beyond_the_bytes() {
        let account = account();
        let admissions = Admissions::default();
        let _admission = admissions.open(1, &account, GiveBack::New);
        assert!(admissions.admit(1, 98 * KIB, false));
        assert!(!admissions.admit(1, 1, false));
        assert!(admissions.admit(1, 98 * KIB, true), "it would be given back once more");
        assert!(!admissions.admit(1, 1, true), "twice of what may be held");
        let _stand_in = admissions.open(2, &account, GiveBack::None);
        assert!(admissions.admit(2, 1, false) && admissions.admit(2, 1, true));
    }
}
