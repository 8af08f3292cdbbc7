//! Jobs that cost more than others, where lanes share a limit with a burst.

use super::*;

/// A job of cost 5.
fn costly(number: usize) -> Message {
    let mut costly = job("a", "costly", number);
    costly.headers.push(("paced-cost".to_owned(), Value::Integer(5)));
    costly
}

/// The jobs of nine other endpoints cost 1, and use up what the tenant's limit allows as soon as it allows anything.
#[tokio::test(start_paused = true)]
async fn a_job_that_costs_more_goes_in_its_turn() {
    let (per_second, period) = ("1/s".parse().unwrap(), Duration::from_secs(10));
    let limits = [
        Limit::gcra("lane.t", per_second, 10),
        Limit::token_bucket("lane.t", per_second, 10),
        Limit::sliding_log("lane.t", 10, period),
    ];
    for limit in limits {
        let limit = limit.unwrap();
        let what = format!("{limit:?}");
        let mut bench = bench("100/s", &[(limit, &[0])]);
        bench.store = Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), Duration::from_millis(1)));
        for endpoint in 0..9 {
            publish(&bench, "a", &endpoint.to_string(), 40);
        }
        (0..5).for_each(|number| bench.publish(costly(number)));
        let start = Instant::now();
        let _running = bench.start();
        tokio::time::sleep(Duration::from_secs(60)).await;
        // A round of all ten endpoints costs 14 units.
        let went = sent(&bench, "a/costly", start);
        assert!(went.len() >= 3, "{what}: {went:?}");
        let is_late = |(round, at): (u128, &u128)| *at > 2 * 14_000_000 * (round + 1);
        assert!(!(0..).zip(&went).any(is_late), "{what}: {went:?}");
        // Nor does it take more than its turn.
        let least = (0..9).map(|endpoint| sent(&bench, &format!("a/{endpoint}/"), start).len()).min();
        assert!(least.is_some_and(|least| least + 2 >= went.len()), "{what}: {least:?} of the others");
    }
}
