use std::collections::BTreeMap;

use super::known::SWEEP;
use super::*;
use crate::limit::LimitSet;
use crate::pace::JobSettings;
use crate::pace::tests::{self, Caller};

mod busiest;
mod costly;
mod pausing;
mod place;
mod random;
mod waits;

const MS: Duration = Duration::from_millis(1);

fn leaky(name: &str, rate: &str, burst: u32) -> Limit {
    Limit::leaky_bucket(name, rate.parse().unwrap(), burst).unwrap()
}

/// The settings of lanes by tenant and endpoint, with these limits. The tenant's limits are named `lane.t...`.
fn settings(limits: &[Limit]) -> Settings {
    let base = tests::settings("1000/s");
    let all = LimitSet::new(base.limits.iter().chain(limits).cloned().collect()).unwrap();
    let of_tenant = limits.iter().filter(|limit| limit.name().starts_with("lane.t"));
    let rules = LaneRules {
        parts: vec!["tenant".to_owned(), "endpoint".to_owned()],
        per: of_tenant.map(|limit| (limit.name().to_owned(), vec![0])).collect(),
        pause_per: vec![0],
        ..LaneRules::default()
    };
    let plans = vec![crate::pace::PlanLimits { name: "lanes.limits".to_owned(), limits: all }];
    Settings { plans, of_jobs: JobSettings { prefetch: None, lanes: Some(Arc::new(rules)) }, ..base }
}

/// Lanes with a backlog, and what a driver does with them.
struct Scene {
    /// The settings of calls.
    settings: Settings,
    lanes: Lanes,
    backlog: Backlog<Caller>,
    /// The values of lanes that jobs have.
    values: BTreeMap<LaneId, Arc<[String]>>,
    now: Instant,
    seq: u64,
}

impl Scene {
    fn new(limits: &[Limit]) -> Self {
        let settings = settings(limits);
        let lanes = Lanes::new(&settings).unwrap();
        let backlog = Backlog::new(1).with_rows_for_lanes();
        Self { settings, lanes, backlog, values: BTreeMap::new(), now: Instant::now(), seq: 0 }
    }

    /// Has the lanes, and the calls from now on, follow other limits.
    fn follow(&mut self, limits: &[Limit]) {
        self.settings = settings(limits);
        self.lanes.follow(&self.settings);
    }

    /// Tenants have 20/s, and each lane 5/s.
    fn usual() -> Self {
        Self::new(&[leaky("lane.t", "20/s", 1), leaky("lane.l", "5/s", 1)])
    }

    fn lane(&mut self, tenant: &str, endpoint: &str) -> LaneId {
        let mut values: Arc<[String]> = [tenant, endpoint].map(str::to_owned).into();
        let lane = self.lanes.lane(LaneId::at(1), &mut values, true);
        self.values.insert(lane, values);
        lane
    }

    fn push(&mut self, tenant: &str, endpoint: &str) -> LaneId {
        self.push_as(tenant, endpoint, |caller| caller)
    }

    fn push_as(&mut self, tenant: &str, endpoint: &str, with: impl Fn(Caller) -> Caller) -> LaneId {
        let lane = self.lane(tenant, endpoint);
        self.backlog.push(with(Caller::new(self.seq).lane(lane)));
        self.seq += 1;
        lane
    }

    /// Offers all jobs that may be offered now.
    fn offer(&mut self) -> Vec<Caller> {
        self.lanes.refresh(&mut self.backlog, self.now, self.now);
        self.lanes.begin(self.now);
        let mut offered = vec![];
        while let Some((lane, turn)) = self.lanes.next(&self.backlog) {
            let caller = self.backlog.pop(lane).unwrap();
            self.lanes.offer(&turn, caller.request.cost.default_cost(), &self.backlog);
            offered.push(caller);
        }
        offered
    }

    /// The positions of the jobs that may be offered now, none of which is granted.
    fn offered(&mut self) -> Vec<u64> {
        let offered = self.offer();
        let seqs = offered.iter().map(Waiter::seq).collect();
        self.settle(offered, |_| Answer::Refused);
        seqs
    }

    fn settle(&mut self, offered: Vec<Caller>, answer: impl Fn(usize) -> Answer) {
        let answer_to = |(index, caller): (usize, &Caller)| {
            (caller.request.lane, caller.request.cost.default_cost(), answer(index))
        };
        let answers: Vec<_> = offered.iter().enumerate().map(answer_to).collect();
        self.lanes.settle(&self.settings, &answers, true);
        for (caller, (.., answer)) in offered.into_iter().zip(answers) {
            if !matches!(answer, Answer::Granted(_)) {
                self.backlog.push(caller);
            }
        }
    }

    /// What does not hold of the lanes, their places and their states.
    fn broken(&mut self) -> Option<String> {
        let Self { lanes, backlog, now, .. } = self;
        // Jobs that arrived since are added first.
        lanes.refresh(backlog, *now, *now);
        let (mut ready, mut waiting) = (vec![], BTreeMap::new());
        for (index, lane) in lanes.all.iter().enumerate() {
            if lane.offered > 0 {
                return Some(format!("{lane:?} is in a call"));
            }
            let has_jobs = backlog.first(lanes.id(index)).is_some();
            match lane.phase {
                Phase::Ready { .. } => ready.push(lane.states.clone()),
                Phase::Waiting { state, .. } => *waiting.entry(state).or_default() += 1,
                Phase::Idle | Phase::Gone if has_jobs => return Some(format!("{lane:?} has jobs")),
                Phase::Idle | Phase::Gone => continue,
            }
            if !has_jobs {
                return Some(format!("{lane:?} has no jobs"));
            }
        }
        if lanes.classes.waiting().count() != ready.len() {
            return Some("lanes of classes are not those that are ready".to_owned());
        }
        lanes.states.broken(&ready, &waiting)
    }
}

#[tokio::test(start_paused = true)]
async fn lanes_of_a_state_that_allows_nothing_sleep_as_one_and_wake_in_turn() {
    let mut scene = Scene::usual();
    for endpoint in 0..100 {
        scene.push("a", &endpoint.to_string());
    }
    scene.push("b", "x");
    let first = scene.offer();
    // Within a horizon the limit of the tenant allows two.
    assert_eq!(first.iter().map(Waiter::seq).collect::<Vec<_>>(), [0, 100, 1]);
    let until = scene.now + 500 * MS;
    scene.settle(first, |_| Answer::Limited(0, until));
    assert_eq!(scene.offered(), [0; 0], "all sleep for the limits of the tenants");
    let wake = scene.lanes.wake_at(&scene.backlog, scene.now).unwrap();
    assert!((until - 20 * MS..=until - 10 * MS).contains(&wake), "{:?}", wake - scene.now);
    scene.now = until;
    assert_eq!(scene.offered(), [0, 100, 1], "as many as each can allow, and none has lost its turn");
}

#[tokio::test(start_paused = true)]
async fn the_lane_that_was_granted_something_longest_ago_goes_first() {
    // The limit of the tenant allows a whole round at once, and grants one.
    for lanes in [20, 10, 7] {
        let mut scene = Scene::new(&[leaky("lane.t", "10/s", 20)]);
        let mut got = vec![0; lanes];
        for _ in 0..5 {
            for lane in 0..lanes {
                scene.push("a", &lane.to_string());
            }
        }
        for round in 0..4 * lanes {
            let offered = scene.offer();
            let lane = scene.values[&offered[0].request.lane][1].parse::<usize>().unwrap();
            got[lane] += 1;
            let (next, slot) = (scene.now + 100 * MS, scene.now);
            scene.settle(
                offered,
                |index| if index == 0 { Answer::Granted(slot) } else { Answer::Limited(0, next) },
            );
            scene.now = next;
            let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
            assert!(most - least <= 1, "{lanes} lanes, after {round}: {got:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lanes_that_the_downstream_has_no_slot_for_go_first_in_the_next_call() {
    let mut scene = Scene::new(&[]);
    for lane in (0..5).flat_map(|_| 0..21) {
        scene.push("a", &lane.to_string());
    }
    let mut granted = vec![];
    for _ in 0..8 {
        let offered = scene.offer();
        granted.extend(offered[..8].iter().map(|caller| scene.values[&caller.request.lane][1].clone()));
        let slot = scene.now;
        scene.settle(offered, |index| if index < 8 { Answer::Granted(slot) } else { Answer::Refused });
    }
    let expected: Vec<String> = (0..64).map(|index| (index % 21).to_string()).collect();
    assert_eq!(granted, expected);
}

/// A lane that was released, and has no job that can be offered, does not keep those that wait behind it.
#[tokio::test(start_paused = true)]
async fn a_released_lane_without_a_job_lets_the_next_one_go() {
    for is_skipped in [true, false] {
        let mut scene = Scene::new(&[leaky("lane.t", "5/s", 1)]);
        for lane in 0..3 {
            scene.push("a", &lane.to_string());
        }
        let first = scene.offer();
        assert_eq!(first.len(), 1);
        let next = scene.now + 200 * MS;
        scene.settle(first, |_| Answer::Limited(0, next));
        assert_eq!(scene.offered(), [0; 0], "all three wait");
        scene.now = next;
        scene.lanes.refresh(&mut scene.backlog, next, next);
        scene.lanes.begin(next);
        if is_skipped {
            // As one that is stale, not admitted, or put aside until its window ends.
            let (lane, turn) = scene.lanes.next(&scene.backlog).unwrap();
            scene.backlog.pop(lane).unwrap();
            scene.lanes.skip(&turn, &scene.backlog);
        } else {
            scene.backlog.take(|caller| caller.seq() == 0);
        }
        let (lane, turn) = scene.lanes.next(&scene.backlog).expect("the second lane");
        assert_eq!(scene.backlog.pop(lane).unwrap().seq(), 1);
        scene.lanes.offer(&turn, 1, &scene.backlog);
        scene.lanes.end();
        assert_eq!(scene.broken(), None);
    }
}

/// The places of limits that it names may be those of others by now.
#[tokio::test(start_paused = true)]
async fn an_answer_under_limits_that_hold_no_more_says_nothing() {
    let mut scene = Scene::usual();
    scene.push("a", "x");
    let offered = scene.offer();
    let month = scene.now + Duration::from_secs(30 * 86_400);
    scene.lanes.follow(&settings(&[leaky("lane.t", "7/s", 1), leaky("lane.l", "2/s", 1)]));
    scene.settle(offered, |_| Answer::Limited(1, month));
    assert_eq!(scene.offered(), [0]);
    assert_eq!(scene.broken(), None);
}

/// Otherwise the trial would be for the same job again and again, while those of others wait.
#[tokio::test(start_paused = true)]
async fn the_answer_to_a_trial_counts_although_its_job_was_chosen_for_no_call() {
    let mut scene = Scene::new(&[leaky("lane.t", "1/h", 1)]);
    scene.push("a", "x");
    let trial = scene.offer();
    scene.lanes.end();
    scene.push("b", "x");
    let until = scene.now + Duration::from_secs(3600);
    scene.settle(trial, |_| Answer::Limited(0, until));
    assert_eq!(scene.lanes.asking.growth, 1, "no call was too small");
    assert_eq!(scene.offered(), [1], "the other tenant's job is next");
    assert_eq!(scene.broken(), None);
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_an_even_limit_tells_the_next_one() {
    let mut scene = Scene::usual();
    let lane = scene.push("a", "x");
    scene.push("a", "x");
    let first = scene.offer();
    assert_eq!(first.len(), 1, "5/s has one within a horizon");
    let slot = scene.now;
    scene.settle(first, |_| Answer::Granted(slot));
    assert_eq!(scene.offered(), [0; 0], "so that nothing is offered that is refused");
    assert_eq!(scene.lanes.sleeps_until(lane), Some(scene.now + 200 * MS));
    scene.lanes.forget();
    assert_eq!(scene.offered(), [1], "the estimate is void");
}

/// With very many lanes asleep, each slot that goes back would otherwise cost calls in which all of them are refused.
#[tokio::test(start_paused = true)]
async fn a_slot_that_goes_back_wakes_the_limits_of_its_lane_alone() {
    let mut scene = Scene::new(&[leaky("lane.t", "100/s", 20), leaky("lane.l", "1/h", 1)]);
    let mut lanes = vec![];
    for endpoint in (0..10).flat_map(|endpoint| [endpoint; 2]) {
        lanes.push(scene.push("a", &endpoint.to_string()));
    }
    let offered = scene.offer();
    assert_eq!(offered.len(), 10);
    let slot = scene.now;
    scene.settle(offered, |_| Answer::Granted(slot));
    assert_eq!(scene.offered(), [0; 0], "each has one an hour");
    scene.lanes.forget_limits_of(lanes[8]);
    assert_eq!(scene.broken(), None);
    assert_eq!(scene.offered(), [9], "the next job of the lane with the number 4");
}

#[tokio::test(start_paused = true)]
async fn lanes_that_no_job_has_are_forgotten_wherever_they_are() {
    let mut scene = Scene::new(&[leaky("lane.l", "1/h", 1)]);
    let mut kept = vec![];
    for number in 0..20 * SWEEP {
        let endpoint = number.to_string();
        let lane = scene.push("a", &endpoint);
        scene.push("a", &endpoint);
        let offered = scene.offer();
        let slot = scene.now;
        scene.settle(offered, |_| Answer::Granted(slot));
        // Its second job waits for an hour, and is parked or cancelled.
        assert!(scene.backlog.pop_last(lane).is_some());
        let values = scene.values.remove(&lane);
        kept.extend(values.filter(|_| number % 100 == 0));
    }
    assert!(scene.lanes.all.len() <= 2 * SWEEP + 2 * kept.len(), "{}", scene.lanes.all.len());
    assert_eq!(scene.lanes.classes.len(), 1);
    assert_eq!(scene.broken(), None);
    scene.push("a", "0");
    assert_eq!(scene.offered(), [0; 0], "one that a job has is kept, and sleeps");
}

#[tokio::test(start_paused = true)]
async fn nothing_wakes_for_lanes_without_jobs() {
    let mut scene = Scene::new(&[leaky("lane.l", "5/s", 1)]);
    for lane in 0..100 {
        scene.push("a", &lane.to_string());
    }
    let offered = scene.offer();
    let slot = scene.now;
    scene.settle(offered, |_| Answer::Granted(slot));
    assert_eq!(scene.lanes.wake_at(&scene.backlog, scene.now), None);
    assert_eq!(scene.lanes.first_limit(), None, "nobody waits for it");
    scene.push("a", "7");
    assert_eq!(scene.offered(), [0; 0]);
    assert!(scene.lanes.wake_at(&scene.backlog, scene.now) > Some(scene.now));
    scene.now += 200 * MS;
    scene.push("a", "8");
    assert_eq!(scene.offered(), [100, 101], "one that slept long enough needs no timer to wake");
}

#[tokio::test(start_paused = true)]
async fn a_higher_priority_passes_lanes_that_wait_for_a_state() {
    let mut scene = Scene::usual();
    let all: Vec<LaneId> = (0..4).map(|lane| scene.push("a", &lane.to_string())).collect();
    let offered = scene.offer();
    assert_eq!(offered.len(), 2);
    let slot = scene.now;
    scene.settle(offered, |_| Answer::Granted(slot));
    assert_eq!(scene.offered(), [0; 0], "the tenant's limit allows no more");
    scene.push_as("a", "3", |caller| caller.priority(9));
    assert_eq!(scene.offered(), [0; 0]);
    scene.now += 50 * MS;
    let woken = scene.offer();
    assert_eq!((woken[0].request.lane, woken[0].seq()), (all[3], 4));
}

/// Beyond their number, lanes are one: that of jobs without values.
#[tokio::test(start_paused = true)]
async fn there_are_no_more_lanes_than_the_rules_allow() {
    let mut scene = Scene::new(&[leaky("lane.t", "5/s", 1)]);
    let rules = LaneRules { max_lanes: 3, ..(*scene.lanes.rules).clone() };
    scene.lanes.rules = Arc::new(rules);
    let lanes: Vec<LaneId> = (0..10).map(|lane| scene.push(&lane.to_string(), "x")).collect();
    assert_eq!(lanes.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    assert!(lanes[3..].iter().all(|lane| *lane == lanes[3]), "{lanes:?}");
    assert_eq!(&*scene.values[&lanes[3]], ["", ""]);
    assert_eq!(scene.lane("0", "x"), lanes[0], "one that is there stays");
    // Once jobs have left them, others have their places.
    scene.values.clear();
    scene.backlog.drain();
    let again: Vec<LaneId> = (0..20).map(|lane| scene.push(&format!("new-{lane}"), "x")).collect();
    let different = again.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!((3..=4).contains(&different), "{again:?}");
}
