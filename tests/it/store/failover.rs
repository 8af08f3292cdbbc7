//! Workers that keep asking for slots while servers fail, and the guarantees for the slots that they are granted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{RedisStore, Reserve, Scope, Store};
use paced::time::Micros;
use tokio::sync::Mutex;

use super::patient;
use crate::support::{LONG, real_now, until};

const HORIZON: Duration = Duration::from_millis(100);
/// The emission interval of 200/s.
const INTERVAL: Duration = Duration::from_millis(5);
/// The number of workers that ask for slots of each downstream.
const WORKERS: usize = 3;

/// The slots that the workers were granted of one downstream, and other observations.
#[derive(Debug, Default)]
pub struct Grants {
    /// The slots, on the store's clock: all servers of a test share the machine's.
    slots: Vec<Micros>,
    /// When each answer with slots arrived, and the record's epoch in it.
    answers: Vec<(Instant, Micros)>,
    pub failures: usize,
}

impl Grants {
    /// Asserts that no two slots are closer than the interval, also if different servers granted them.
    #[track_caller]
    fn assert_paced(&self) {
        let mut slots = self.slots.clone();
        slots.sort_unstable();
        for pair in slots.windows(2) {
            assert!(pair[1] >= pair[0].plus(INTERVAL), "{pair:?} of {} slots", slots.len());
        }
    }

    fn epochs(&self) -> BTreeSet<Micros> {
        self.answers.iter().map(|(_, epoch)| *epoch).collect()
    }

    /// Asserts that the state moved to another process once, which fenced it.
    #[track_caller]
    pub fn assert_fenced_once(&self) {
        self.assert_paced();
        assert_eq!(self.epochs().len(), 2);
    }

    /// Asserts the same, after a time without a server.
    #[track_caller]
    pub fn assert_failed_over(&self) {
        self.assert_fenced_once();
        assert!(self.failures > 0, "calls failed meanwhile");
        let gaps = self.answers.windows(2).map(|pair| pair[1].0 - pair[0].0);
        println!("no slots for {:?}, {} calls failed", gaps.max(), self.failures);
    }

    /// Asserts that the failure of other servers had no effect.
    #[track_caller]
    pub fn assert_undisturbed(&self) {
        self.assert_paced();
        assert_eq!((self.epochs().len(), self.failures), (1, 0));
    }
}

/// Waits until calls of the workers have failed.
pub async fn fail(grants: &Mutex<Grants>) {
    until("calls fail", LONG, async || grants.lock().await.failures > 0).await;
}

/// Workers ask for slots of these downstreams before, during and after `event`, which sees those of the first one, until
/// each has as many after it as before, those of the first downstream under a new epoch.
pub async fn keep_asking<const N: usize>(
    url: &str,
    downstreams: [&str; N],
    event: impl AsyncFnOnce(&Mutex<Grants>),
) -> [Grants; N] {
    let rate = "200/s".parse().unwrap();
    let limits = LimitSet::new(vec![Limit::leaky_bucket("rate", rate, 1).unwrap()]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let grants: [_; N] = std::array::from_fn(|_| Arc::new(Mutex::new(Grants::default())));
    let mut workers = vec![];
    for _ in 0..WORKERS {
        let store = Arc::new(RedisStore::open(url, patient()).unwrap());
        for (downstream, grants) in downstreams.iter().zip(&grants) {
            let work =
                worker(store.clone(), (*downstream).to_owned(), limits.clone(), grants.clone(), stop.clone());
            workers.push(tokio::spawn(work));
        }
    }
    let more = async |than: &[usize]| {
        for (grants, than) in grants.iter().zip(than) {
            if grants.lock().await.slots.len() < than + 200 {
                return false;
            }
        }
        true
    };
    until("slots of all", LONG, async || more(&[0; N]).await).await;
    event(&grants[0]).await;
    until("a new epoch", LONG, async || grants[0].lock().await.epochs().len() > 1).await;
    let mut reached = vec![];
    for grants in &grants {
        reached.push(grants.lock().await.slots.len());
    }
    until("slots of all again", LONG, async || more(&reached).await).await;
    stop.store(true, Ordering::Release);
    for worker in workers {
        worker.await.unwrap();
    }
    grants.map(|grants| std::mem::take(&mut *grants.try_lock().expect("the workers have ended")))
}

async fn worker(
    store: Arc<RedisStore>,
    downstream: String,
    limits: LimitSet,
    grants: Arc<Mutex<Grants>>,
    stop: Arc<AtomicBool>,
) {
    let scope = Scope { downstream: &downstream, key: "" };
    let costs = Costs::Each(&[1; 4]);
    let call = Reserve::new(scope, &limits, costs, HORIZON);
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    while !stop.load(Ordering::Acquire) {
        ticks.tick().await;
        let answer = store.reserve(call).await;
        let mut grants = grants.lock().await;
        match answer {
            Ok(reserved) if reserved.slots.is_empty() => {}
            Ok(reserved) => {
                grants.slots.extend(reserved.slots);
                grants.answers.push((real_now(), reserved.stamp.epoch));
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                grants.failures += 1;
            }
        }
    }
}
