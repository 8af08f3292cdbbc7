//! Jobs of many lanes in one call.

use proptest::prelude::*;

use super::*;
use crate::limit::tests::any_limit;
use crate::store::{Change, Lane, Lanes, Outcome};

const SCOPE: Scope<'static> = Scope { downstream: "d", key: "" };
const LEAD: Duration = Duration::from_millis(20);

fn leaky(name: &str, rate: &str) -> Limit {
    Limit::leaky_bucket(name, rate.parse().unwrap(), 1).unwrap()
}

fn set(limits: impl IntoIterator<Item = Limit>) -> LimitSet {
    LimitSet::new(limits.into_iter().collect()).unwrap()
}

/// A call for jobs of cost 1 of these lanes, up to 100 ms ahead.
fn call<'a>(limits: &'a LimitSet, all: &'a [Lane<'a>], of: &'a [Option<u16>]) -> Reserve<'a> {
    const COSTS: [u32; 1024] = [1; 1024];
    let lanes = Some(Lanes { all, of, lead: LEAD, most: u32::MAX });
    let costs = Costs::Each(&COSTS[..of.len()]);
    Reserve { lanes, ..Reserve::new(SCOPE, limits, costs, Duration::from_millis(100)) }
}

fn store() -> (MemoryStore, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Micros(START)));
    (MemoryStore::with_clock(clock.clone()), clock)
}

/// The outcome of each job: its slot in ms after START, or the limit that it waits for and until when.
async fn outcomes(store: &MemoryStore, call: &Reserve<'_>) -> Vec<Result<i64, (i64, usize)>> {
    let reserved = store.reserve(*call).await.unwrap();
    let since = |at: Micros| (at.0 - START) / MS;
    let shown = |outcome| match outcome {
        Outcome::Granted(slot) => Ok(since(slot)),
        Outcome::NotYet { retry_at, limit } => Err((since(retry_at), limit)),
        other => panic!("{other:?}"),
    };
    reserved.outcomes(call).into_iter().map(shown).collect()
}

#[tokio::test]
async fn the_first_whose_lane_is_ready_has_the_next_slot() {
    let (store, clock) = store();
    let (own, lane) = (set([leaky("own", "50/s")]), set([leaky("lane", "20/s")]));
    let lanes = ["a", "b", "c"].map(|key| [key]);
    let lanes: Vec<Lane<'_>> = lanes.iter().map(|keys| Lane { limits: &lane, keys }).collect();
    let of = [0, 0, 0, 1, 1, 2].map(Some);
    let expected = [
        Ok(0),
        // The slot of 60 is granted at 50, when the downstream's slots come within the lead.
        Ok(60),
        Err((110, 1)),
        Ok(20),
        Ok(80),
        Ok(40),
    ];
    assert_eq!(outcomes(&store, &call(&own, &lanes, &of)).await, expected);
    clock.set(Micros(START + 100 * MS));
    let expected = [Ok(100), Ok(160), Err((210, 1)), Ok(140), Err((190, 1)), Ok(120)];
    let again = Lanes { all: &lanes, of: &of, lead: LEAD, most: u32::MAX };
    let jobs = [2, 2, 2, 1, 1, 0].map(Some);
    let call = Reserve { lanes: Some(Lanes { of: &jobs, ..again }), ..call(&own, &lanes, &of) };
    assert_eq!(
        outcomes(&store, &call).await,
        expected,
        "the slot at 180 is nobody's yet, since no lane is ready by then"
    );
}

#[tokio::test]
async fn lanes_of_one_tenant_share_its_limit_and_jobs_without_a_lane_go_between() {
    let (store, _) = store();
    let own = set([leaky("own", "1000/s")]);
    let both = set([leaky("tenant", "100/s"), leaky("lane", "1000/s")]);
    let lanes = [["acme", "a"], ["acme", "b"], ["zoo", "c"]];
    let lanes: Vec<Lane<'_>> = lanes.iter().map(|keys| Lane { limits: &both, keys }).collect();
    let of = [Some(0), Some(1), Some(2), None, Some(0)];
    let expected = [Ok(0), Ok(10), Ok(1), Ok(2), Err((20, 1))];
    let short = Lanes { all: &lanes, of: &of, lead: LEAD / 2, most: u32::MAX };
    let call = Reserve { lanes: Some(short), ..call(&own, &lanes, &of) };
    assert_eq!(outcomes(&store, &call).await, expected);
}

#[tokio::test]
async fn a_dear_job_waits_for_the_window_of_the_downstream_and_others_have_what_is_left() {
    let (store, _) = store();
    let own = set([Limit::first_hit_window("own", 10, Duration::from_secs(60)).unwrap()]);
    let lane = set([leaky("lane", "1000000/s")]);
    let lanes = [["a"], ["b"]];
    let lanes: Vec<Lane<'_>> = lanes.iter().map(|keys| Lane { limits: &lane, keys }).collect();
    let (of, costs) = ([0, 0, 0, 1, 1, 1].map(Some), [7, 5, 1, 1, 2, 1]);
    let call = Reserve { costs: Costs::Each(&costs), ..call(&own, &lanes, &of) };
    let minute = Err((60_000, 0));
    assert_eq!(
        outcomes(&store, &call).await,
        [Ok(0), minute, minute, Ok(0), Ok(0), minute],
        "in order within a lane"
    );
}

#[tokio::test]
async fn a_call_is_granted_no_more_slots_than_it_asks_for() {
    let (store, _) = store();
    let (own, lane) =
        (set([Limit::gcra("own", "50/s".parse().unwrap(), 100).unwrap()]), set([leaky("lane", "5/s")]));
    let lanes = ["a", "b", "c", "d"].map(|key| [key]);
    let lanes: Vec<Lane<'_>> = lanes.iter().map(|keys| Lane { limits: &lane, keys }).collect();
    let of = [0, 0, 1, 2, 3].map(Some);
    let two = Lanes { all: &lanes, of: &of, lead: LEAD, most: 2 };
    let call = Reserve { lanes: Some(two), ..call(&own, &lanes, &of) };
    // The second job of the first lane waits for that lane, and the last two lanes only for the next call.
    assert_eq!(outcomes(&store, &call).await, [Ok(0), Err((200, 1)), Ok(0), Err((0, 0)), Err((0, 0))]);
    let none = Reserve { lanes: Some(Lanes { most: 0, ..two }), ..call };
    assert!(outcomes(&store, &none).await.iter().all(Result::is_err), "none is taken");
    let reserved = store.reserve(none).await.unwrap();
    assert_eq!((reserved.refused, reserved.next), (None, reserved.stamp.now), "the burst is still open");
}

#[tokio::test]
async fn a_slot_is_given_back_to_both_levels() {
    let (store, clock) = store();
    let own = set([leaky("own", "50/s")]);
    let lane =
        set([leaky("lane", "100/s"), Limit::fixed_window("quota", 3, Duration::from_secs(3600)).unwrap()]);
    let keys = ["x", "y"];
    let lanes = [Lane { limits: &lane, keys: &keys }];
    let call = call(&own, &lanes, &[Some(0), Some(0)]);
    let reserved = store.reserve(call).await.unwrap();
    let dump = || [store.dump(SCOPE, &own), store.dump(Scope { key: "x", ..SCOPE }, &lane)];
    let granted = reserved.granted_in_lanes(&call);
    let cancel = async |index: usize| {
        let granted = &granted[index];
        let (charged, before, after) = (&granted.charged, &granted.before, &granted.after);
        let cancel = Cancel {
            scope: SCOPE,
            limits: &own,
            lane: Some(lanes[0]),
            slot: granted.slot,
            charged,
            before,
            after,
            is_unused: false,
        };
        store.cancel(cancel).await.unwrap()
    };
    assert!(!cancel(0).await, "not the tail");
    let taken = dump();
    assert!(cancel(1).await && dump() != taken);
    assert_eq!(store.reserve(call).await.unwrap().slots, [reserved.slots[1], reserved.slots[1].plus(LEAD)]);
    clock.set(reserved.slots[1]);
    assert!(!cancel(1).await, "not once it is due");
}

#[tokio::test]
async fn each_job_learns_why_it_has_no_slot() {
    let (store, clock) = store();
    let (own, lane) = (set([leaky("own", "1/m")]), set([leaky("lane", "1/s")]));
    let lanes = [Lane { limits: &lane, keys: &["a"] }];
    let of = [Some(0), None];
    let call = Reserve { max_wait: Some(Duration::from_secs(10)), ..call(&own, &lanes, &of) };
    let outcomes = async |call: &Reserve<'_>| store.reserve(*call).await.unwrap().outcomes(call);
    let full = Outcome::QueueFull { retry_after: Duration::from_secs(50), limit: 0 };
    assert_eq!(outcomes(&call).await, [Outcome::Granted(Micros(START)), full]);
    clock.set(Micros(START + 55_000 * MS));
    let minute = Micros(START + 60_000 * MS);
    assert_eq!(outcomes(&call).await, [Outcome::NotYet { retry_at: minute, limit: 0 }; 2]);
    let outdated = Reserve { generation: 7, ..call };
    assert_eq!(outcomes(&outdated).await, [Outcome::Outdated; 2]);
    store.update_record("d", Change::Penalize(Duration::from_secs(30))).await.unwrap();
    let until = Some(Micros(START + 85_000 * MS));
    assert_eq!(outcomes(&call).await, [Outcome::Paused { until }; 2]);
    store.update_record("d", Change::Pause { span: None, note: "" }).await.unwrap();
    assert_eq!(outcomes(&call).await, [Outcome::Paused { until: None }; 2]);
}

#[tokio::test]
async fn calls_that_make_no_sense_are_refused() {
    let (store, _) = store();
    let (own, lane) = (set([leaky("own", "1/s")]), set([leaky("lane", "1/s")]));
    let other = set([leaky("lane", "2/s")]);
    let any = LimitSet::any(vec![leaky("lane", "1/s"), leaky("b", "1/s")]).unwrap();
    let small = set([Limit::fixed_window("w", 2, LEAD).unwrap()]);
    let a = |limits| Lane { limits, keys: &["a"] };
    let one = Some(0_u16);
    type Case<'a> = (&'a [Lane<'a>], &'a [Option<u16>], &'a [u32]);
    let cases: [Case<'_>; 7] = [
        (&[a(&lane)], &[one, Some(1)], &[1, 1]),
        (&[a(&lane)], &[one], &[1, 1]),
        (&[Lane { limits: &lane, keys: &[] }], &[one], &[1]),
        (&[Lane { limits: &lane, keys: &[""] }], &[one], &[1]),
        (&[a(&lane), a(&other)], &[one], &[1]),
        (&[Lane { limits: &any, keys: &["a", "b"] }], &[one], &[1]),
        (&[a(&small)], &[one], &[3]),
    ];
    for (all, of, costs) in cases {
        let call = Reserve { costs: Costs::Each(costs), ..call(&own, all, of) };
        let answer = store.reserve(call).await;
        assert!(matches!(answer, Err(StoreError::Invalid(_))), "{all:?} {of:?}: {answer:?}");
    }
    let (lanes, of) = ([a(&lane)], [one]);
    let keyed = Reserve { scope: Scope { key: "k", ..SCOPE }, ..call(&own, &lanes, &of) };
    assert!(matches!(store.reserve(keyed).await, Err(StoreError::Invalid(_))));
    let per_limit = Reserve { costs: Costs::PerLimit(&[1]), ..call(&own, &lanes, &of) };
    assert!(matches!(store.reserve(per_limit).await, Err(StoreError::Invalid(_))));
    assert_eq!(store.key_count("d"), 0, "nothing was taken");
}

/// The lanes could use one and a half times the downstream's rate: none of its slots is idle, and no lane gets more
/// than its own limits allow, not even the one that is first in each call.
#[tokio::test]
async fn no_slot_is_idle_while_lanes_could_use_it() {
    let (store, clock) = store();
    let (own, lane) = (set([leaky("own", "1000/s")]), set([leaky("lane", "5/s")]));
    let keys: Vec<[String; 1]> = (0..300).map(|lane| [lane.to_string()]).collect();
    let keys: Vec<[&str; 1]> = keys.iter().map(|[key]| [key.as_str()]).collect();
    let lanes: Vec<Lane<'_>> = keys.iter().map(|keys| Lane { limits: &lane, keys }).collect();
    let mut slots = vec![vec![]; 300];
    let mut calls = 0;
    // A caller asks every 50 ms for all lanes, with those served last at the end.
    let mut order: Vec<u16> = (0..300).collect();
    for millis in (0..5000).step_by(50) {
        clock.set(Micros(START + millis * MS));
        let of: Vec<Option<u16>> = order.iter().copied().map(Some).collect();
        let reserved = store.reserve(call(&own, &lanes, &of)).await.unwrap();
        for (job, slot) in reserved.jobs().zip(&reserved.slots) {
            slots[usize::from(order[job])].push(slot.0);
        }
        let served: Vec<u16> = reserved.jobs().map(|job| order[job]).collect();
        order.retain(|lane| !served.contains(lane));
        order.extend(served);
        calls += 1;
    }
    let mut all: Vec<i64> = slots.concat();
    all.sort_unstable();
    assert_eq!(all.len(), 5051, "1000 a second up to 100 ms after the last of {calls} calls");
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] == MS), "at even distances");
    for mine in &slots {
        assert!(mine.windows(2).all(|pair| pair[1] - pair[0] >= 200 * MS), "{mine:?}");
    }
    let counts: Vec<usize> = slots.iter().map(Vec::len).collect();
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(most - least <= 1, "{least} to {most}");
}

/// Each slot of one lane delays all the others, and still a call must end in time.
#[tokio::test]
async fn a_call_for_many_lanes_of_one_tenant_leaves_some_to_the_next() {
    let (store, _) = store();
    let (own, both) =
        (set([leaky("own", "1000000/s")]), set([leaky("tenant", "100000/s"), leaky("lane", "1000000/s")]));
    let keys: Vec<[String; 2]> = (0..1024).map(|lane| ["acme".to_owned(), lane.to_string()]).collect();
    let keys: Vec<[&str; 2]> = keys.iter().map(|keys| keys.each_ref().map(String::as_str)).collect();
    let lanes: Vec<Lane<'_>> = keys.iter().map(|keys| Lane { limits: &both, keys }).collect();
    let of: Vec<Option<u16>> = (0..1024).map(Some).collect();
    let first = store.reserve(call(&own, &lanes, &of)).await.unwrap();
    assert!((1..100).contains(&first.slots.len()), "{} slots", first.slots.len());
    assert_eq!((first.refused, first.passed.len()), (None, 1024 - first.slots.len()), "each has an outcome");
    let again = store.reserve(call(&own, &lanes, &of[first.slots.len()..])).await.unwrap();
    assert_eq!(
        again.slots[0].since(*first.slots.last().unwrap()),
        Duration::from_micros(10),
        "it continues there"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// For any limits, both those of the downstream and those of its lane allow each job at its slot.
    #[test]
    fn both_levels_hold_at_every_slot(
        own in prop::collection::vec(any_limit(), 1..3),
        lane in prop::collection::vec(any_limit(), 1..3),
        jobs in prop::collection::vec((prop::option::weighted(0.9, 0_u16..3), 1_u32..4), 1..60),
        ahead in 0_u64..500_000_000,
        most in prop_oneof![Just(u32::MAX), 0_u32..20],
    ) {
        let named = |limits: Vec<Limit>, prefix: &str| {
            let name = |(index, limit): (usize, Limit)| limit.named(format!("{prefix}{index}"));
            set(limits.into_iter().enumerate().map(name))
        };
        let (own, lane) = (named(own, "own"), named(lane, "lane"));
        let dearest = own.max_cost().min(lane.max_cost());
        let costs: Vec<u32> = jobs.iter().map(|(_, cost)| *cost.min(&dearest)).collect();
        let of: Vec<Option<u16>> = jobs.iter().map(|(lane, _)| *lane).collect();
        let keys = [vec!["a"; lane.len()], vec!["b"; lane.len()], vec!["c"; lane.len()]];
        let lanes: Vec<Lane<'_>> = keys.iter().map(|keys| Lane { limits: &lane, keys }).collect();
        let (store, _) = store();
        let call = Reserve {
            costs: Costs::Each(&costs),
            ahead: Duration::from_micros(ahead),
            lanes: Some(Lanes { all: &lanes, of: &of, lead: Duration::from_micros(ahead / 2), most }),
            ..call(&own, &lanes, &of)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let reserved = runtime.block_on(store.reserve(call)).unwrap();
        let mut taken: Vec<(Micros, usize)> = reserved.slots.iter().copied().zip(reserved.jobs()).collect();
        // Jobs with one slot were committed in some order. If they fit in any order, they fit with the costliest one
        // last, since it may be charged behind its slot.
        taken.sort_unstable_by_key(|(slot, job)| (*slot, costs[*job]));
        let mut whole = own.fresh();
        let mut each = vec![lane.fresh(); 3];
        for (slot, job) in taken {
            prop_assert_eq!(own.earliest(&whole, slot, costs[job]), slot, "the downstream's at {}", job);
            own.commit(&mut whole, slot, costs[job]);
            if let Some(index) = of[job].map(usize::from) {
                prop_assert_eq!(lane.earliest(&each[index], slot, costs[job]), slot, "the lane's at {}", job);
                lane.commit(&mut each[index], slot, costs[job]);
            }
        }
        prop_assert_eq!(reserved.slots.len() + reserved.passed.len(), jobs.len(), "each has an outcome");
        prop_assert!(reserved.slots.len() as u64 <= u64::from(most), "{} of {}", reserved.slots.len(), most);
    }
}
