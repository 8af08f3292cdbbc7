//! Every state is stored for as long as it counts, and none for ever.

use std::time::Duration;

use paced::limit::{Limit, LimitSet};
use paced::store::{Lease, Reserve, Scope, Sharing, Store};
use paced::time::Micros;

use super::losses::{SCOPE, answered, call, limits, store};
use crate::support::servers::Redis;

/// When a key expires.
async fn expires(redis: &Redis, key: &str) -> Micros {
    let answer = redis.command(&["PEXPIRETIME", key]).await.unwrap();
    Micros(1000 * answer.trim().trim_start_matches(':').parse::<i64>().unwrap())
}

/// Takes 60 slots at 4/s under these limits, some with a lease, and asserts that each state outlives its end by a minute.
///
/// The slots lie up to 15 s ahead, so some calls set the TTL and others do not. A call with a lease uses another script.
async fn use_again_and_again(limits: Vec<Limit>, has_lease: impl Fn(usize) -> bool) {
    let redis = Redis::dedicated().await;
    let store = store(&redis).await;
    let limits = LimitSet::new(limits).unwrap();
    let (window, mut begun) = (Duration::from_secs(2), Micros(0));
    for turn in 0..60 {
        let asked = call(&limits, &[1], Duration::from_secs(15));
        let lease = Sharing::Lease(Lease { replica: "one", ttl: Duration::from_secs(2) });
        let sharing = if has_lease(turn) { lease } else { Sharing::None };
        let slot = answered(&store, Reserve { sharing, ..asked }).await.slots[0];
        if slot >= begun.plus(window) {
            begun = slot;
        }
        for limit in limits.iter() {
            let whole = match limit.name() {
                "rate" => slot.plus(Duration::from_millis(250)),
                _ => begun.plus(window),
            };
            let key = format!("paced:{{billing}}:l:{}", limit.name());
            let expires = expires(&redis, &key).await;
            let least = whole.plus(Duration::from_millis(59_999));
            assert!(expires >= least, "{key} is whole at {whole:?} and expires at {expires:?}");
            assert!(expires <= whole.plus(Duration::from_secs(66)), "{key} expires at {expires:?}");
        }
    }
}

fn rate() -> Limit {
    Limit::leaky_bucket("rate", "4/s".parse().unwrap(), 1).unwrap()
}

/// A window of 2 s, which is used up by the slots of 2 s.
fn window() -> Limit {
    Limit::first_hit_window("window", 8, Duration::from_secs(2)).unwrap()
}

#[tokio::test]
async fn a_state_that_is_used_again_and_again_is_kept_long_enough_each_time() {
    use_again_and_again(vec![rate()], |turn| turn % 30 == 5).await;
    use_again_and_again(vec![rate()], |_| true).await;
}

#[tokio::test]
async fn a_window_that_is_used_again_and_again_is_kept_long_enough_each_time() {
    use_again_and_again(vec![rate(), window()], |turn| turn % 30 == 5).await;
    use_again_and_again(vec![rate(), window()], |_| true).await;
}

#[tokio::test]
async fn every_key_but_the_record_expires() {
    let redis = Redis::dedicated().await;
    let (store, limits) = (store(&redis).await, limits(1));
    let keyed = Scope { key: "tenant-42", ..SCOPE };
    let sharing = Sharing::Lease(Lease { replica: "one", ttl: Duration::from_secs(2) });
    let call = Reserve { scope: keyed, sharing, ..call(&limits, &[1; 20], Duration::from_secs(2)) };
    let now = store.reserve(call).await.unwrap().stamp.now;
    let left = async |key: &str| (expires(&redis, key).await.0 - now.0) / 1000;
    // The state equals absence after 1 s, and expires a little more than a minute later.
    let state = left("paced:{billing}:k:rate:tenant-42").await;
    assert!((64_990..=65_010).contains(&state), "{state}");
    assert_eq!(redis.command(&["PTTL", "paced:{billing}:record"]).await.unwrap().trim(), ":-1");
    let leases = left("paced:{billing}:replicas").await;
    assert!((659_990..=660_010).contains(&leases), "{leases}");
    assert!(redis.command(&["DBSIZE"]).await.unwrap().starts_with(":3"));
}
