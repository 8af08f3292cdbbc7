//! Random events for the jobs of lanes, in any order.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// What a driver may do.
#[derive(Clone, Debug)]
enum Op {
    /// A job of a tenant and endpoint comes, of this priority and cost.
    Push {
        tenant: u8,
        endpoint: u8,
        priority: u8,
        cost: u32,
    },
    /// A job leaves: it is cancelled, parked or ends.
    Leave(usize),
    /// A call is made for at most `most` jobs; every (`skips` + 1)th of them is skipped. The first `granted` are
    /// granted; each of the others gets the answer of its lane.
    Call {
        most: usize,
        skips: usize,
        granted: usize,
        limited: u8,
    },
    /// A trial is granted or refused.
    Trial {
        is_granted: bool,
        limited: u8,
    },
    /// A call fails.
    Failure,
    Wait(u64),
    /// Other limits or estimates.
    Follow(bool),
    Forget,
    /// A slot of a lane went back to the store.
    Return(usize),
    /// The downstream throttles a job of a tenant, for this number of ms or for an unknown time, or answers one.
    Pause {
        tenant: u8,
        millis: u64,
    },
    CoolDown(u8),
    Answered(u8),
    /// Lanes whose jobs have left are looked for.
    Sweep,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0_u8..3, 0_u8..6, prop_oneof![4 => Just(0_u8), 1 => 0_u8..10], prop_oneof![4 => Just(1_u32), 1 => 1_u32..9])
            .prop_map(|(tenant, endpoint, priority, cost)| Op::Push { tenant, endpoint, priority, cost }),
        2 => (0_usize..50).prop_map(Op::Leave),
        6 => (1_usize..20, 1_usize..8, 0_usize..20, 0_u8..4)
            .prop_map(|(most, skips, granted, limited)| Op::Call { most, skips, granted, limited }),
        1 => (any::<bool>(), 0_u8..4).prop_map(|(is_granted, limited)| Op::Trial { is_granted, limited }),
        1 => Just(Op::Failure),
        4 => (0_u64..400).prop_map(Op::Wait),
        1 => any::<bool>().prop_map(Op::Follow),
        1 => Just(Op::Forget),
        1 => (0_usize..18).prop_map(Op::Return),
        1 => (0_u8..3, 0_u64..500).prop_map(|(tenant, millis)| Op::Pause { tenant, millis }),
        1 => (0_u8..3).prop_map(Op::CoolDown),
        1 => (0_u8..3).prop_map(Op::Answered),
        1 => Just(Op::Sweep),
    ]
}

/// The limits that are followed in turn.
fn limits(other: bool) -> [Limit; 2] {
    match other {
        false => [leaky("lane.t", "20/s", 1), leaky("lane.l", "5/s", 1)],
        true => [leaky("lane.t", "7/s", 3), leaky("lane.l", "2/s", 2)],
    }
}

/// The answer to a job that is granted nothing.
fn refusal(now: Instant, limited: u8) -> Answer {
    let until = now + Duration::from_millis(40 * u64::from(limited));
    if limited > 1 { Answer::Limited(usize::from(limited % 2), until) } else { Answer::Refused }
}

impl Scene {
    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Push { tenant, endpoint, priority, cost } => {
                let with = |caller: Caller| caller.priority(priority).cost(cost);
                self.push_as(&tenant.to_string(), &endpoint.to_string(), with);
            }
            Op::Leave(index) => {
                let seq = index as u64 % self.seq.max(1);
                self.backlog.take(|caller| caller.seq() == seq);
            }
            Op::Call { most, skips, granted, limited } => self.call(most, skips, granted, limited),
            Op::Trial { is_granted, limited } => self.trial(is_granted, limited),
            Op::Failure => {
                let offered = self.offer();
                self.lanes.end();
                offered.into_iter().for_each(|caller| self.backlog.push(caller));
            }
            Op::Wait(millis) => self.now += Duration::from_millis(millis),
            Op::Follow(other) => self.follow(&limits(other)),
            Op::Forget => self.lanes.forget(),
            Op::Return(index) => {
                let lane = self.values.keys().nth(index % self.values.len().max(1)).copied();
                lane.into_iter().for_each(|lane| self.lanes.forget_limits_of(lane));
            }
            Op::Pause { tenant, millis } => self.pause(&tenant.to_string(), Duration::from_millis(millis)),
            Op::CoolDown(tenant) => self.cool_down(&tenant.to_string()),
            Op::Answered(tenant) => self.answered(&tenant.to_string()),
            Op::Sweep => {
                let has_jobs = |lane: &LaneId| self.backlog.first(*lane).is_some();
                let kept: Vec<LaneId> = self.values.keys().filter(|lane| has_jobs(lane)).copied().collect();
                self.values.retain(|lane, _| kept.contains(lane));
                self.lanes.sweep();
            }
        }
    }

    fn trial(&mut self, is_granted: bool, limited: u8) {
        self.lanes.refresh(&mut self.backlog, self.now, self.now);
        self.lanes.begin(self.now);
        let Some((lane, turn)) = self.lanes.next(&self.backlog) else { return };
        let caller = self.backlog.pop(lane).unwrap();
        self.lanes.offer(&turn, caller.request.cost.default_cost(), &self.backlog);
        self.lanes.end();
        let now = self.now;
        self.settle(vec![caller], |_| match is_granted {
            true => Answer::Granted(now),
            false => refusal(now, limited),
        });
    }

    fn call(&mut self, most: usize, skips: usize, granted: usize, limited: u8) {
        self.lanes.refresh(&mut self.backlog, self.now, self.now);
        self.lanes.begin(self.now);
        let (mut offered, mut looked) = (vec![], 0);
        while offered.len() < most
            && let Some((lane, turn)) = self.lanes.next(&self.backlog)
        {
            let caller = self.backlog.pop(lane).unwrap();
            looked += 1;
            if looked % (skips + 1) == 0 {
                self.lanes.skip(&turn, &self.backlog);
            } else {
                self.lanes.offer(&turn, caller.request.cost.default_cost(), &self.backlog);
                offered.push(caller);
            }
        }
        let (now, mut refused) = (self.now, BTreeSet::new());
        let answers: Vec<Answer> = offered
            .iter()
            .enumerate()
            .map(|(index, caller)| {
                // The jobs of a lane behind one that is refused are too.
                if index < granted && !refused.contains(&caller.request.lane) && index % 3 < 2 {
                    return Answer::Granted(now + Duration::from_millis(index as u64));
                }
                refused.insert(caller.request.lane);
                refusal(now, limited)
            })
            .collect();
        // A scan for jobs that wait for long may come while the call is under way.
        self.lanes.refresh(&mut self.backlog, self.now, self.now);
        self.settle(offered, |index| answers[index]);
    }

    /// Grants all that is offered, and continues to where something wakes, until no job is left. Returns how often.
    fn drain(&mut self) -> usize {
        for round in 0.. {
            let offered = self.offer();
            if offered.is_empty() {
                let Some(wake) = self.lanes.wake_at(&self.backlog, self.now) else { return round };
                assert!(round < 100_000, "it wakes again and again for nothing");
                self.now = wake.max(self.now + Duration::from_micros(1));
            }
            let slot = self.now;
            self.settle(offered, |_| Answer::Granted(slot));
        }
        unreachable!()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// Every lane with jobs is woken, for any end of the jobs before it.
    #[test]
    fn every_lane_with_jobs_has_its_turn_or_is_woken(ops in prop::collection::vec(op(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build().unwrap();
        runtime.block_on(async {
            let mut scene = Scene::new(&limits(false));
            for (index, op) in ops.iter().enumerate() {
                scene.apply(op);
                let broken = scene.broken();
                prop_assert!(broken.is_none(), "after {index}, {op:?}: {}", broken.unwrap_or_default());
            }
            scene.drain();
            prop_assert!(scene.backlog.is_empty(), "{} jobs stand", scene.backlog.len());
            Ok(())
        })?;
    }

    /// Lanes of one tenant that always have jobs get the same, for any refusals meanwhile: they differ by one.
    #[test]
    fn lanes_of_a_tenant_differ_by_one(
        lanes in 2_usize..12,
        burst in 1_u32..12,
        calls in prop::collection::vec((1_usize..30, 0_usize..12), 10..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build().unwrap();
        runtime.block_on(async {
            let mut scene = Scene::new(&[leaky("lane.t", "40/s", burst)]);
            let mut got = vec![0_u32; lanes];
            let all: Vec<String> = (0..lanes).map(|lane| lane.to_string()).collect();
            for (most, granted) in calls {
                // There are always more than any call takes.
                for lane in &all {
                    let id = scene.lane("a", lane);
                    while scene.backlog.ready(id) < 40 {
                        scene.push("a", lane);
                    }
                }
                scene.lanes.refresh(&mut scene.backlog, scene.now, scene.now);
                scene.lanes.begin(scene.now);
                let mut offered = vec![];
                while offered.len() < most && let Some((lane, turn)) = scene.lanes.next(&scene.backlog) {
                    offered.push(scene.backlog.pop(lane).unwrap());
                    scene.lanes.offer(&turn, 1, &scene.backlog);
                }
                for caller in offered.iter().take(granted) {
                    got[scene.values[&caller.request.lane][1].parse::<usize>().unwrap()] += 1;
                    let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
                    prop_assert!(most - least <= 1, "{:?}", got);
                }
                let (slot, next) = (scene.now, scene.now + 25 * MS);
                scene.settle(offered, |index| if index < granted { Answer::Granted(slot) } else { Answer::Limited(0, next) });
                scene.now = next;
            }
            Ok(())
        })?;
    }
}
