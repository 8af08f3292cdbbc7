//! The lanes of one tenant take turns.

use super::*;

/// Sends jobs of some endpoints of each of some tenants. After each job, no endpoint of a tenant has got more than one
/// more than another.
async fn take_turns(mut bench: Bench, tenants: usize, endpoints: usize) {
    const ROUNDS: usize = 12;
    for number in 0..ROUNDS + 5 {
        for tenant in 0..tenants {
            (0..endpoints).for_each(|endpoint| {
                bench.publish(job(&tenant.to_string(), &endpoint.to_string(), number));
            });
        }
    }
    let done = bench.start();
    bench.sink.arrived(ROUNDS * tenants * endpoints).await;
    let mut got = vec![vec![0; endpoints]; tenants];
    for (place, id) in bench.sink.ids().iter().enumerate() {
        let parts: Vec<usize> = id.split('/').map(|part| part.parse().unwrap()).collect();
        let of_tenant = &mut got[parts[0]];
        of_tenant[parts[1]] += 1;
        let (least, most) = (of_tenant.iter().min().unwrap(), of_tenant.iter().max().unwrap());
        assert!(most - least <= 1, "{endpoints} endpoints, after {place} jobs: {of_tenant:?}");
    }
    bench.stop.cancel();
    done.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_endpoints_of_a_tenant_take_turns_at_its_limit() {
    // The numbers of endpoints are those by which the number of jobs that a call offers can be divided, and others.
    for endpoints in [2, 3, 10, 20] {
        let limit = leaky("lane.t", "600/min", 20);
        take_turns(bench("1000/s", &[(limit, &[0])]), 1, endpoints).await;
    }
    for endpoints in [2, 3, 4] {
        take_turns(bench("1000/s", &[(leaky("lane.t", "20/s", 1), &[0])]), 2, endpoints).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_endpoints_of_a_tenant_take_turns_at_the_limit_of_all() {
    take_turns(bench("200/s", &[]), 1, 21).await;
    take_turns(bench("200/s", &[]), 3, 7).await;
    take_turns(bench("100/s", &[(leaky("lane.t", "1000/s", 1), &[0])]), 2, 8).await;
}
