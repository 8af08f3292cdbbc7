//! What a job waits for, and when it goes.

use super::*;
use crate::dispatch::{FoundJob, JobPlace, Question, Turn};

const SECOND: Duration = Duration::from_secs(1);

async fn ask(bench: &Bench, question: Question) -> Option<FoundJob> {
    let control = bench.control();
    let asked = tokio::time::timeout(Duration::from_secs(60), control.find(question));
    asked.await.expect("a turn of the loop").jobs.pop()
}

/// The place of a job that waits for a slot.
async fn turn(bench: &Bench, id: &str) -> Option<Turn> {
    ask(bench, Question::Id(id.to_owned())).await?.turn
}

/// Asks for each of these jobs after two seconds when it goes. Of those that wait for a slot then, the share is returned that
/// goes then, within 5 % of its wait and this tolerance.
async fn right(bench: &Bench, ids: &[String], tolerance: Duration) -> f64 {
    right_of_all(&[bench], ids, tolerance).await
}

/// The same of the jobs that these replicas have.
async fn right_of_all(benches: &[&Bench], ids: &[String], tolerance: Duration) -> f64 {
    tokio::time::sleep(2 * SECOND).await;
    let asked_at = Instant::now();
    let mut expected = BTreeMap::new();
    for (id, bench) in ids.iter().flat_map(|id| benches.iter().map(move |bench| (id, bench))) {
        let Some(turn) = turn(bench, id).await else { continue };
        let busy = benches.len() as u64;
        let shared = turn.next + bench.view().snapshot().delay(turn.before * busy);
        expected.insert(id.clone(), turn.own.max(shared));
    }
    assert!(asked_at.elapsed() < SECOND / 10, "the answers are of one time");
    assert!(expected.len() > ids.len() / 2, "most of them wait: {}", expected.len());
    let mut went = BTreeMap::new();
    for bench in benches {
        bench.sink.accepted(ids.len() / benches.len()).await;
        let sent = bench.sink.sent.lock().unwrap();
        went.extend(sent.iter().map(|sent| (sent.id.clone(), sent.at)));
    }
    let is_right = |(id, expected): &(&String, &Instant)| {
        let went = went[*id];
        let apart = went.max(**expected) - went.min(**expected);
        apart <= (went - asked_at) / 20 + tolerance
    };
    let right = expected.iter().filter(is_right).count();
    #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
    let share = right as f64 / expected.len() as f64;
    share
}

fn ids(tenants: &[&str], endpoints: &[&str], jobs: usize) -> Vec<String> {
    let lanes = tenants.iter().flat_map(|tenant| endpoints.iter().map(move |endpoint| (tenant, endpoint)));
    lanes
        .flat_map(|(tenant, endpoint)| (0..jobs).map(move |job| format!("{tenant}/{endpoint}/{job}")))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn jobs_go_when_it_is_said_where_values_share_by_weight() {
    let mut bench = bench("100/s", &[]);
    weights(&mut bench, &[("a", 3)]);
    for tenant in ["a", "b", "c"] {
        for endpoint in ["x", "y"] {
            publish(&bench, tenant, endpoint, 150);
        }
    }
    let _running = bench.start();
    let share = right(&bench, &ids(&["a", "b", "c"], &["x", "y"], 150), SECOND / 20).await;
    assert!(share >= 0.95, "{share}");
}

#[tokio::test(start_paused = true)]
async fn jobs_go_when_it_is_said_where_their_tenants_have_limits() {
    let mut bench = bench("200/s", &[(leaky("lane.t", "20/s", 1), &[0])]);
    for tenant in ["a", "b", "c", "d", "e"] {
        for endpoint in ["x", "y", "z"] {
            publish(&bench, tenant, endpoint, 40);
        }
    }
    let _running = bench.start();
    let ids = ids(&["a", "b", "c", "d", "e"], &["x", "y", "z"], 40);
    let share = right(&bench, &ids, SECOND / 10).await;
    assert!(share >= 0.95, "{share}");
}

/// Both have the same jobs, so that both have jobs for as long.
#[tokio::test(start_paused = true)]
async fn jobs_go_when_it_is_said_where_two_replicas_have_some() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [bench("100/s", &[]), bench("100/s", &[])];
    for (bench, tenants) in benches.iter_mut().zip([["a", "b"], ["c", "d"]]) {
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::ZERO));
        tenants.iter().for_each(|tenant| publish(bench, tenant, "x", 200));
    }
    let _running = benches.each_mut().map(Bench::start);
    let ids = ids(&["a", "b", "c", "d"], &["x"], 200);
    let share = right_of_all(&benches.each_ref(), &ids, SECOND / 5).await;
    assert!(share >= 0.95, "{share}");
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_a_lane_is_named_and_the_place_in_it() {
    let mut bench = bench("100/s", &[]);
    plan(&mut bench, "slow", leaky("plan.slow.l", "1/m", 1));
    (0..20).for_each(|number| bench.publish(on("slow", job("slow", "e", number))));
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(1).await;
    tokio::time::sleep(SECOND).await;
    let fourth = turn(&bench, "slow/e/4").await.unwrap();
    assert_eq!((fourth.ahead, fourth.waiting, fourth.before), (3, 19, 3), "one was sent");
    assert_eq!(fourth.lane.as_deref(), Some("tenant=slow&endpoint=e"));
    let in_minutes = (fourth.own - start).as_secs_f64() / 60.0;
    assert!((in_minutes - 4.0).abs() < 0.05, "{in_minutes}");
    assert_eq!(fourth.binding.unwrap().limit(), Some("plan.slow.l"));
    let next = ask(&bench, Question::Lane("tenant=slow&endpoint=e".to_owned())).await.unwrap();
    assert_eq!((next.id.as_str(), next.place, next.attempts), ("slow/e/1", JobPlace::Waiting, Some(0)));
    for lane in ["tenant=slow", "tenant=other&endpoint=e", "nothing", ""] {
        assert_eq!(ask(&bench, Question::Lane(lane.to_owned())).await, None, "{lane}");
    }
    assert_eq!(ask(&bench, Question::Id("slow/e/0".to_owned())).await, None, "it is delivered");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_for_no_slot_is_explained_too() {
    let mut bench = bench("1/s", &[]);
    bench.options.horizon = 2 * SECOND;
    let at = Value::Integer((crate::time::wall_now().0 / 1000 + 60_000).into());
    let later = job("a", "e", 7);
    bench.publish(Message {
        headers: later.headers.iter().cloned().chain([("paced-not-before".to_owned(), at)]).collect(),
        ..later
    });
    publish(&bench, "a", "e", 3);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(1).await;
    tokio::time::sleep(SECOND / 2).await;
    let place = async |id: &str| ask(&bench, Question::Id(id.to_owned())).await.unwrap().place;
    let JobPlace::Delayed(due) = place("a/e/7").await else { panic!("it has a time of its own") };
    assert!(due > start + 59 * SECOND && due < start + 61 * SECOND);
    let JobPlace::Slot(slot) = place("a/e/1").await else { panic!("it has a slot") };
    assert_eq!((slot - start).as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_lanes_those_before_a_job_are_counted() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.publish_many(0..50);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(5).await;
    tokio::time::sleep(SECOND / 2).await;
    let forty = turn(&bench, "40").await.unwrap();
    let goes = forty.next + bench.view().snapshot().delay(forty.before);
    let after = (goes - start).as_secs_f64();
    assert!((after - 4.0).abs() < 0.15, "{after}: {forty:?}");
    assert_eq!((forty.lane, forty.binding), (None, None));
}
