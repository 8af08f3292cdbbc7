//! An API that fails, and then asks for a pause.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::LONG;
use crate::rig::{Chaos, JOBS, REPLICA, Rig, rest};
use crate::support::api::Answer;
use crate::support::servers::Redis;
use crate::watch::nanos;

/// How long the API fails, and then refuses.
const FAILING: Duration = Duration::from_secs(2);
const REFUSING: Duration = Duration::from_millis(500);
/// The pause that it asks for then.
const RETRY_AFTER: Duration = Duration::from_secs(3);
/// The time until every replica knows of the pause.
const HEARD: Duration = Duration::from_millis(200);
/// The time until releases resume after it.
const RESUMED: Duration = Duration::from_millis(500);

/// The answers of the API, and the instants of the requests.
#[derive(Debug, Default)]
struct Answered {
    served: Vec<String>,
    failed: usize,
    refused: Vec<u64>,
}

#[tokio::test]
async fn the_api_fails_and_then_asks_for_a_pause() {
    let mut chaos = Chaos::begin("retry-after");
    let moment = chaos.moments(1)[0];
    let redis = Redis::dedicated().await;
    let rig = Rig::on(chaos, &redis).await;
    let answered = Arc::<Mutex<Answered>>::default();
    let (sender, mut served) = watch::channel(0);
    let (log, mut seen, mut began) = (Arc::clone(&answered), 0, None);
    let rule = Mutex::new(move |id: &str, at: u64| {
        let mut log = log.lock().unwrap();
        seen += 1;
        if seen > moment {
            began.get_or_insert(at);
        }
        let since = began.map(|began| Duration::from_nanos(at.saturating_sub(began)));
        match since {
            Some(since) if since < FAILING => {
                log.failed += 1;
                Answer::status(500)
            }
            Some(since) if since < FAILING + REFUSING => {
                log.refused.push(at);
                Answer::status(429).header("retry-after", RETRY_AFTER.as_secs())
            }
            _ => {
                log.served.push(id.to_owned());
                sender.send_replace(log.served.len());
                Answer::ok()
            }
        }
    });
    rig.site.api.rule(move |arrival| rule.lock().unwrap()(arrival.id(), arrival.at));
    rig.publish().await;
    let all = timeout(LONG, served.wait_for(|count| *count >= JOBS)).await;
    assert!(all.is_ok(), "{} of {JOBS} are delivered\n{}", answered.lock().unwrap().served.len(), rig.log());
    let mut run = rig.end(JOBS).await;

    let answered = std::mem::take(&mut *answered.lock().unwrap());
    run.count_served(&answered.served);
    run.assert_once();
    run.assert_paced();
    let (first, last) = (answered.refused[0], *answered.refused.last().unwrap());
    let (paused, resumed) = (first + nanos(HEARD), last + nanos(RETRY_AFTER));
    eprintln!(
        "{}: {} failed, {} refused within {:?}; the first request {:?} after the pause",
        run.name,
        answered.failed,
        answered.refused.len(),
        Duration::from_nanos(last - first),
        run.resumed_after(resumed),
    );
    assert_eq!(run.count(paused..resumed), 0, "sent in the pause; {run}");
    assert!(run.resumed_after(resumed) <= RESUMED, "{:?}; {run}", run.resumed_after(resumed));
    assert!(answered.failed >= 300, "it failed for 2 s: {}", answered.failed);
    // Jobs that were refused or failed are tried again at times of their own, and are paced.
    run.assert_no_gap_over(RETRY_AFTER + HEARD + RESUMED);
}

/// The API answers 429 and names no time, and the replica that probes is killed while its probe is under way.
#[tokio::test]
async fn the_api_throttles_and_names_no_time() {
    const CLOSED: Duration = Duration::from_secs(20);
    let mut chaos = Chaos::begin("bare-429");
    let moment = chaos.moments(1)[0];
    let redis = Redis::dedicated().await;
    let mut rig = Rig::on(chaos, &redis).await;
    let refused = Arc::<Mutex<Vec<(u64, usize)>>>::default();
    let (log, mut seen, mut began) = (Arc::clone(&refused), 0, None);
    let (sender, mut probed) = watch::channel(0);
    let rule = Mutex::new(move |replica: usize, at: u64| {
        seen += 1;
        if seen > moment {
            began.get_or_insert(at);
        }
        match began.map(|began| Duration::from_nanos(at.saturating_sub(began))) {
            Some(since) if since < CLOSED => {
                let mut log = log.lock().unwrap();
                log.push((at, replica));
                if since > HEARD {
                    sender.send_modify(|count| *count += 1);
                }
                // Long enough to be killed meanwhile.
                Answer::status(429).after(if since > HEARD {
                    Duration::from_millis(300)
                } else {
                    Duration::ZERO
                })
            }
            _ => Answer::ok(),
        }
    });
    rig.site.api.rule(move |arrival| {
        let replica = arrival.header(REPLICA).unwrap().parse().unwrap();
        rule.lock().unwrap()(replica, arrival.at)
    });
    rig.publish().await;
    timeout(LONG, probed.wait_for(|count| *count >= 2)).await.unwrap().unwrap();
    let prober = refused.lock().unwrap().last().unwrap().1;
    rig.kill(prober).await;
    let refusals = || refused.lock().unwrap().len();
    let before = rig.site.api.count() - refusals();
    assert!(before < JOBS);
    timeout(LONG, async {
        while rig.site.api.count() - refusals() < JOBS {
            rest(HEARD).await;
        }
    })
    .await
    .unwrap();
    let run = rig.end(JOBS).await;
    let refused = std::mem::take(&mut *refused.lock().unwrap());
    let closed = nanos(HEARD) + refused[0].0;
    let probes: Vec<u64> = refused.iter().map(|(at, _)| *at).filter(|at| *at > closed).collect();
    let least =
        probes.windows(2).map(|pair| Duration::from_nanos(pair[1] - pair[0])).min().unwrap_or_default();
    eprintln!(
        "{}: {} refused, {} of them probes in {CLOSED:?}, the least {least:?} apart",
        run.name,
        refused.len(),
        probes.len()
    );
    assert!(probes.len() <= 20 && least >= Duration::from_millis(900), "{least:?}; {run}");
    run.assert_paced();
}
