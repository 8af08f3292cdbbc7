//! Limify, the article about token buckets, the GCRA in Python, and five algorithms behind one service.

use super::*;

/// Limify, "token bucket with capacity and refill from `10/minute`": allowed, delayed or rejected; the remaining
/// tokens are reported; keys of their own for each identity. Not its clock of whole seconds.
#[tokio::test]
async fn limify_token_bucket() {
    let both = Both::new().await;
    let limits = one(Limit::token_bucket("resource", rate("10/minute"), 10).unwrap());
    let decisions = both.checks(&limits, "free:ann", Costs::Each(&[1; 11])).await;
    let remaining: Vec<u64> = decisions.iter().map(|decision| decision.remaining).collect();
    assert_eq!(remaining, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]);
    assert_eq!(decisions[10].retry_after, ms(6000), "rejected");
    assert!(both.checks(&limits, "free:bob", Costs::Each(&[10])).await[0].allowed, "another identity");
    let denied = both.at(5999).checks(&limits, "free:ann", Costs::Each(&[1])).await.remove(0);
    assert_eq!((denied.allowed, denied.retry_after), (false, ms(1)), "no whole seconds");
    // Delayed: the same limit shapes.
    assert!(both.at(6000).check(&limits, 10).await.allowed);
    let delayed = both.reserve(&limits, &[1, 1], ms(10_000)).await;
    assert_eq!((slots(&delayed), delayed.refused.map(|refused| refused.limit)), (vec![12_000], Some(0)));
}

/// Limify, "one atomic script": callers side by side take exactly what there is.
/// GCRA in Python, "atomic without locks".
#[tokio::test]
async fn callers_side_by_side_take_exactly_what_there_is() {
    let both = Both::new().await;
    let limits = one(Limit::gcra("l", rate("1/d"), 20).unwrap());
    let check = async |store: &dyn Store| {
        let call =
            Check { scope: both.scope("side"), limits: &limits, costs: Costs::Each(&[1]), generation: 0 };
        let checked = store.check(call).await.unwrap();
        usize::from(checked.verdicts[0].earliest <= checked.stamp.now)
    };
    for store in [&both.memory as &dyn Store, &both.shared] {
        let allowed = futures_util::future::join_all((0..64).map(|_| check(store))).await;
        assert_eq!(allowed.iter().sum::<usize>(), 20);
    }
}

/// The token bucket article: lazy refill, a cost per operation, negative elapsed time, and a key that expires when
/// the bucket would be full.
#[tokio::test]
async fn article_token_bucket() {
    let both = Both::new().await;
    let limits = one(Limit::token_bucket("bucket", rate("2/s"), 10).unwrap());
    let decision = both.check(&limits, 7).await;
    assert_eq!((decision.limit, decision.remaining), (10, 3), "X-RateLimit-Limit and -Remaining");
    assert_eq!(decision.reset_after, ms(3500), "X-RateLimit-Reset");
    let ttl = both.ttl("bucket").await;
    // A little more than a minute of grace, for clocks that step.
    assert!(ttl > ms(3500) && ttl <= ms(67_500), "{ttl:?}");
    let denied = both.at(400).check(&limits, 4).await;
    assert_eq!((denied.allowed, denied.retry_after), (false, ms(100)), "Retry-After");
    assert_eq!(both.at(340).check(&limits, 0).await.remaining, 3, "time that runs back refills nothing");
    assert_eq!(both.at(1400).check(&limits, 0).await.remaining, 5, "nobody refilled it meanwhile");
    assert!(both.check(&limits, 5).await.allowed);
}

/// The token bucket article: separate buckets per operation, and several asked in one round trip.
#[tokio::test]
async fn article_buckets_per_operation() {
    let both = Both::new().await;
    let reads = one(Limit::token_bucket("read", rate("100/s"), 100).unwrap());
    let writes = one(Limit::token_bucket("write", rate("5/s"), 5).unwrap());
    assert_eq!(both.allowed(&writes, 10).await, 5);
    assert_eq!(both.allowed(&reads, 200).await, 100, "a batch of 200 in one call");
    assert_eq!(both.at(200).allowed(&writes, 10).await, 1);
}

/// GCRA in Python: "first-hit time bucket", "leaky bucket", and "GCRA with `limit` per `period`", whose interval is
/// no number of whole seconds; a denial leaves the state untouched.
#[tokio::test]
async fn python_three_algorithms() {
    let both = Both::new().await;
    let bucket = one(Limit::first_hit_window("bucket", 3, ms(1500)).unwrap());
    assert_eq!(both.at(700).allowed(&bucket, 5).await, 3);
    assert_eq!(both.at(2199).allowed(&bucket, 5).await, 0);
    assert_eq!(both.at(2200).allowed(&bucket, 5).await, 3);

    // 1000 in 1 s: rounded to whole seconds T would be 0, and nothing limited.
    let gcra = one(Limit::gcra("gcra", Rate::new(1000, ms(1000)).unwrap(), 1).unwrap());
    assert_eq!(both.allowed(&gcra, 50).await, 1);
    let kept = both.states(&gcra);
    assert_eq!(both.allowed(&gcra, 50).await, 0);
    assert_eq!(both.states(&gcra), kept);
    assert_eq!(both.at(2201).allowed(&gcra, 50).await, 1, "1 ms later");

    let leaky = one(Limit::leaky_bucket("leaky", Rate::new(3, ms(1000)).unwrap(), 1).unwrap());
    let reserved = both.reserve(&leaky, &[1; 4], ms(1000)).await;
    let micros: Vec<i64> = reserved.slots.iter().map(|slot| slot.0 - START - 2_201_000).collect();
    assert_eq!(micros, [0, 333_334, 666_667, 1_000_000], "no drift");
}

/// Five algorithms behind one service: one API for all, with allowed, remaining, reset at and retry after; a
/// variable cost; TTLs; and a denial that consumes nothing.
#[tokio::test]
async fn five_algorithms_one_answer() {
    let second = ms(1000);
    let five = [
        Limit::fixed_window("fixed_window", 6, second).unwrap(),
        Limit::sliding_log("sliding_window_log", 6, second).unwrap(),
        Limit::sliding_window("sliding_window_counter", 6, second, 10).unwrap(),
        Limit::token_bucket("token_bucket", rate("6/s"), 6).unwrap(),
        Limit::leaky_bucket("leaky_bucket", rate("6/s"), 6).unwrap(),
    ];
    let both = Both::new().await;
    for limit in five {
        let name = limit.name().to_owned();
        let limits = one(limit).policing();
        let taken = both.at(0).check(&limits, 4).await;
        assert_eq!((taken.allowed, taken.limit, taken.remaining), (true, 6, 2), "{name}");
        assert!(taken.reset_after > Duration::ZERO && taken.retry_after == Duration::ZERO, "{name}");
        let kept = both.states(&limits);
        for _ in 0..3 {
            let denied = both.at(10).check(&limits, 3).await;
            assert_eq!((denied.allowed, denied.remaining), (false, 2), "{name}");
            assert!(denied.retry_after > Duration::ZERO && denied.retry_after <= ms(1100), "{name}");
        }
        assert_eq!(both.states(&limits), kept, "{name}: denials consume nothing");
        let again = both.check(&limits, 3).await.retry_after;
        let soon = i64::try_from(again.as_micros()).unwrap();
        both.clock.set(Micros(START + 10_000 + soon - 1));
        assert!(!both.check(&limits, 3).await.allowed, "{name}: not 1 µs before");
        both.clock.set(Micros(START + 10_000 + soon));
        assert!(both.check(&limits, 3).await.allowed, "{name}: at the announced instant");
        let ttl = both.ttl(&name).await;
        assert!(ttl > ms(1) && ttl <= ms(67_000), "{name}: {ttl:?}");
    }
}

/// Five algorithms behind one service: the leaky bucket as a meter, which rejects without delaying, beside the
/// shaper, on one state.
#[tokio::test]
async fn five_algorithms_leaky_bucket_meter() {
    let both = Both::new().await;
    let shaper = one(Limit::leaky_bucket("l", rate("10/s"), 2).unwrap());
    let meter = shaper.clone().policing();
    assert_eq!(both.allowed(&meter, 5).await, 2, "what overflows is rejected");
    assert_eq!(slots(&both.reserve(&shaper, &[1], ms(1000)).await), [100], "or waits");
    assert_eq!(both.at(150).allowed(&meter, 5).await, 0, "which the meter counts");
    assert_eq!(both.at(200).allowed(&meter, 5).await, 1);
}

/// Five algorithms behind one service: a burst cap per second inside a limit per minute.
#[tokio::test]
async fn five_algorithms_cap_per_second_inside_a_limit_per_minute() {
    let both = Both::new().await;
    let limits = LimitSet::new(vec![
        Limit::fixed_window("second", 5, ms(1000)).unwrap(),
        Limit::sliding_log("minute", 12, ms(60_000)).unwrap(),
    ])
    .unwrap();
    let mut allowed = vec![];
    for second in 0..4 {
        allowed.push(both.at(second * 1000).allowed(&limits, 20).await);
    }
    assert_eq!(allowed, [5, 5, 2, 0]);
    let denied = both.at(59_000).check(&limits, 1).await;
    assert_eq!((denied.binding, denied.retry_after), (1, ms(1000)), "the minute is binding");
    assert_eq!(both.at(60_000).allowed(&limits, 20).await, 5);
}
