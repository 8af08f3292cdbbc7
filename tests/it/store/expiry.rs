//! Every state is stored for as long as it counts, and none for ever.

use std::time::Duration;

use paced::limit::{Limit, LimitSet};
use paced::store::{Lease, Reserve, Scope, Store};
use paced::time::Micros;

use super::losses::{SCOPE, answered, call, limits, store};
use crate::support::servers::Redis;

/// The TTL of a key in ms; -1 if it has none.
async fn ttl(redis: &Redis, key: &str) -> i64 {
    let answer = redis.command(&["PTTL", key]).await.unwrap();
    answer.trim().trim_start_matches(':').parse().unwrap()
}

#[tokio::test]
async fn a_state_that_is_used_again_and_again_is_kept_long_enough_each_time() {
    let redis = Redis::dedicated().await;
    let store = store(&redis).await;
    let limits =
        LimitSet::new(vec![Limit::leaky_bucket("rate", "4/s".parse().unwrap(), 1).unwrap()]).unwrap();
    // The slots lie up to 15 s ahead, so some calls set the TTL and others do not. Two calls with a lease use another
    // script, which always sets it; between them slots are taken for 7 s.
    let lease = Lease { replica: "one", ttl: Duration::from_secs(2) };
    for turn in 0..60 {
        let asked = call(&limits, &[1], Duration::from_secs(15));
        let lease = (turn % 30 == 5).then_some(lease);
        let reserved = answered(&store, Reserve { lease, ..asked }).await;
        let whole = reserved.slots[0].plus(Duration::from_millis(250));
        let expires = redis.command(&["PEXPIRETIME", "paced:{billing}:l:rate"]).await.unwrap();
        let expires = Micros(1000 * expires.trim().trim_start_matches(':').parse::<i64>().unwrap());
        let least = whole.plus(Duration::from_millis(59_999));
        assert!(expires >= least, "it is whole at {whole:?} and expires at {expires:?}");
        assert!(expires <= whole.plus(Duration::from_secs(66)), "it expires at {expires:?}");
    }
}

#[tokio::test]
async fn every_key_but_the_record_expires() {
    let redis = Redis::dedicated().await;
    let (store, limits) = (store(&redis).await, limits(1));
    let keyed = Scope { key: "tenant-42", ..SCOPE };
    let lease = Some(Lease { replica: "one", ttl: Duration::from_secs(2) });
    let call = Reserve { scope: keyed, lease, ..call(&limits, &[1; 20], Duration::from_secs(2)) };
    store.reserve(call).await.unwrap();
    // The state equals absence after 1 s, and expires a little more than a minute later.
    let state = ttl(&redis, "paced:{billing}:k:rate:tenant-42").await;
    assert!((64_500..=65_000).contains(&state), "{state}");
    assert_eq!(ttl(&redis, "paced:{billing}:record").await, -1);
    let leases = ttl(&redis, "paced:{billing}:replicas").await;
    assert!((659_000..=660_000).contains(&leases), "{leases}");
    assert!(redis.command(&["DBSIZE"]).await.unwrap().starts_with(":3"));
}
