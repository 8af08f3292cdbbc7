//! Pauses and cool-downs of the lanes of one tenant.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

impl Scene {
    fn values(tenant: &str) -> [String; 2] {
        [tenant.to_owned(), String::new()]
    }

    pub(super) fn pause(&mut self, tenant: &str, lasts: Duration) {
        self.lanes.pause(&Self::values(tenant), (self.now, self.now + lasts));
    }

    /// A job that was sent now is throttled, and waits grow up to 4 s.
    pub(super) fn cool_down(&mut self, tenant: &str) {
        self.lanes.cool_down(&Self::values(tenant), (self.now, self.now), 4 * SECOND);
    }

    pub(super) fn answered(&mut self, tenant: &str) {
        self.lanes.answered(&Self::values(tenant), self.now);
    }

    /// Has an operator pause these tenants, and no others.
    fn stop(&mut self, tenants: &[&str]) {
        let rules = self.settings.of_jobs.lanes.as_deref().unwrap();
        let paused = tenants.iter().map(|tenant| (*tenant).to_owned()).collect();
        let rules = LaneRules { paused, ..rules.clone() };
        self.settings.of_jobs.lanes = Some(Arc::new(rules));
        self.lanes.follow(&self.settings);
    }

    /// Pushes this number of jobs of one lane.
    fn push_many(&mut self, jobs: usize) {
        for _ in 0..jobs {
            self.push("a", "x");
        }
    }

    /// Whether a cool-down begins that is to be reported.
    fn cool_down_begins(&mut self, tenant: &str) -> bool {
        let times = (self.now, self.now);
        let begun = self.lanes.cool_down(&Self::values(tenant), times, 4 * SECOND);
        begun.inspect(|lanes| assert_eq!(**lanes, *format!("tenant={tenant}"))).is_some()
    }

    /// Grants all that is offered. Returns the positions.
    fn grant(&mut self) -> Vec<u64> {
        let offered = self.offer();
        let (seqs, slot) = (offered.iter().map(Waiter::seq).collect(), self.now);
        self.settle(offered, |_| Answer::Granted(slot));
        seqs
    }
}

#[tokio::test(start_paused = true)]
async fn the_lanes_of_a_paused_tenant_sleep_and_others_go_on() {
    let mut scene = Scene::new(&[]);
    for tenant in ["a", "b"] {
        for endpoint in ["x", "y"] {
            scene.push(tenant, endpoint);
        }
    }
    scene.pause("a", 10 * SECOND);
    assert_eq!(scene.grant(), [2, 3]);
    assert_eq!(scene.lanes.wake_at(&scene.backlog, scene.now), Some(scene.now + 10 * SECOND));
    assert_eq!(scene.lanes.first_limit(), Some((None, scene.now + 10 * SECOND)));
    scene.pause("a", SECOND);
    scene.lanes.forget();
    let lane = scene.lane("a", "x");
    scene.lanes.forget_limits_of(lane);
    scene.follow(&[leaky("lane.l", "1000/s", 1)]);
    scene.now += 10 * SECOND - MS;
    assert_eq!(scene.offered(), [0; 0], "neither a shorter one nor other limits end it");
    assert_eq!(scene.broken(), None);
    scene.now += MS;
    assert_eq!(scene.grant(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn in_a_cool_down_one_job_goes_at_a_time_until_one_is_answered() {
    let mut scene = Scene::new(&[]);
    scene.push_all(0..9);
    scene.cool_down("a");
    let mut went = vec![];
    for wait in [1, 2, 4, 4] {
        // What was sent before the wait says nothing new.
        scene.cool_down("a");
        assert_eq!(scene.grant(), [0; 0]);
        scene.now += wait * SECOND - MS;
        assert_eq!(scene.grant(), [0; 0], "after {wait} s");
        scene.now += MS;
        went.extend(scene.grant());
        assert_eq!(scene.grant(), [0; 0], "one at a time");
        scene.cool_down("a");
    }
    assert_eq!(went, [0, 1, 2, 3]);
    scene.answered("a");
    assert_eq!(scene.grant(), [0; 0], "that one was sent before the wait");
    scene.now += 4 * SECOND;
    assert_eq!(scene.grant(), [4]);
    scene.answered("a");
    assert_eq!(scene.grant(), [5, 6, 7, 8]);
    assert_eq!(scene.broken(), None);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_gets_no_answer_is_followed_by_another() {
    let mut scene = Scene::new(&[]);
    scene.push_all(0..3);
    scene.cool_down("a");
    for seq in 0..3 {
        scene.now += SECOND;
        assert_eq!(scene.grant(), [seq]);
    }
}

/// Their jobs may be parked until then.
#[tokio::test(start_paused = true)]
async fn a_paused_lane_without_jobs_is_not_forgotten() {
    let mut scene = Scene::new(&[]);
    scene.push("a", "x");
    assert_eq!(scene.grant(), [0]);
    scene.pause("a", 10 * SECOND);
    scene.values.clear();
    scene.lanes.sweep();
    scene.push("a", "x");
    assert_eq!(scene.offered(), [0; 0]);
    scene.backlog.drain();
    scene.values.clear();
    scene.now += 10 * SECOND;
    scene.offer();
    scene.lanes.end();
    scene.lanes.sweep();
    assert_eq!(scene.lanes.known.len(), 0, "once it is over it is");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_pause_or_its_probes_waits_elsewhere() {
    let mut scene = Scene::new(&[]);
    scene.push_many(100);
    scene.push("b", "x");
    scene.pause("a", 100 * SECOND);
    let (now, by) = (scene.now, scene.now + 60 * SECOND);
    let take = |scene: &mut Scene| {
        scene.lanes.refresh(&mut scene.backlog, scene.now, scene.now);
        scene.lanes.take_beyond(&mut scene.backlog, (now, by), usize::MAX)
    };
    let all = take(&mut scene);
    assert_eq!((all.len(), all[99].0), (100, now + 100 * SECOND));
    let mut scene = Scene::new(&[]);
    scene.push_many(200);
    scene.cool_down("a");
    let all = take(&mut scene);
    assert_eq!(all.len(), 140, "a second apart from the first one on, sixty go in time");
    assert_eq!(all[0].0, now + 61 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn pauses_are_told_of_when_they_begin() {
    let mut scene = Scene::new(&[]);
    scene.push("a", "x");
    let mut pause = |now: Instant, millis: u32| {
        let begun = scene.lanes.pause(&Scene::values("a"), (now, now + millis * MS));
        begun.map(|lanes| lanes.to_string())
    };
    let (start, name) = (Instant::now(), Some("tenant=a".to_owned()));
    assert_eq!((pause(start, 100), pause(start + 50 * MS, 100)), (name.clone(), None));
    assert_eq!(pause(start + 200 * MS, 100), name);
    scene.now += SECOND;
    assert_eq!([(); 3].map(|()| scene.cool_down_begins("a")), [true, false, false]);
    scene.now += SECOND;
    assert!(!scene.cool_down_begins("a"), "it continues");
    scene.now += 2 * SECOND;
    scene.answered("a");
    assert!(scene.cool_down_begins("a"), "another one");
    assert!(!scene.cool_down_begins("b"), "it has no lanes here");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_an_operator_pauses_sleeps_until_it_is_resumed() {
    let mut scene = Scene::new(&[]);
    for tenant in ["a", "b"] {
        for endpoint in ["x", "y"] {
            scene.push(tenant, endpoint);
        }
    }
    scene.stop(&["a"]);
    assert_eq!(scene.grant(), [2, 3]);
    scene.push("a", "a new lane");
    assert_eq!(scene.grant(), [0; 0]);
    scene.now += 100 * 86_400 * SECOND;
    assert_eq!(scene.grant(), [0; 0], "however long it takes");
    assert_eq!(scene.broken(), None);
    assert!(scene.lanes.are_stopped());
    assert_eq!(scene.lanes.first_limit(), None, "neither a limit nor the downstream holds them up");
    // Another pause does not end it.
    scene.stop(&["a", "c"]);
    assert_eq!(scene.grant(), [0; 0]);
    scene.stop(&["c"]);
    assert_eq!(scene.grant(), [0, 1, 4]);
    assert_eq!(scene.broken(), None);
}

#[tokio::test(start_paused = true)]
async fn lanes_of_a_tenant_that_an_operator_pauses_are_forgotten_without_jobs() {
    let mut scene = Scene::new(&[]);
    scene.stop(&["a"]);
    let lane = scene.push("a", "x");
    assert_eq!(scene.offered(), [0; 0]);
    assert!(scene.lanes.is_paused(lane, scene.now + 300 * 86_400 * SECOND));
    scene.backlog.drain();
    scene.values.clear();
    scene.offer();
    scene.lanes.end();
    scene.lanes.sweep();
    assert_eq!(scene.lanes.known.len(), 0, "the rules remember the pause");
    scene.push("a", "x");
    assert_eq!(scene.offered(), [0; 0]);
    assert_eq!(scene.broken(), None);
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_tenant_that_an_operator_pauses_wait_elsewhere_for_a_while() {
    let mut scene = Scene::new(&[]);
    scene.push_many(3);
    scene.push("b", "x");
    scene.stop(&["a"]);
    let (now, by) = (scene.now, scene.now + 60 * SECOND);
    scene.lanes.refresh(&mut scene.backlog, scene.now, scene.now);
    let taken = scene.lanes.take_beyond(&mut scene.backlog, (now, by), usize::MAX);
    let dues: Vec<Duration> = taken.iter().map(|(due, _)| *due - now).collect();
    assert_eq!(dues, [3600 * SECOND; 3], "then it is seen whether it still lasts");
}

/// Otherwise each order would have all limits be asked again, and rebuild a hundred thousand lanes.
#[tokio::test(start_paused = true)]
async fn an_operators_pause_of_one_tenant_changes_nothing_for_the_others() {
    let mut scene = Scene::usual();
    for tenant in ["a", "b", "c"] {
        for endpoint in ["x", "x", "y"] {
            scene.push(tenant, endpoint);
        }
    }
    // All wait for the limits of their tenants.
    let until = scene.now + 10 * SECOND;
    let offered = scene.offer();
    scene.settle(offered, |_| Answer::Limited(0, until));
    assert_eq!(scene.offered(), [0; 0]);
    let all = [&["a"][..], &["a", "b"], &["b"], &[], &["c", "d"]];
    for paused in all {
        scene.stop(paused);
        assert_eq!(scene.offered(), [0; 0], "no limit is asked again after {paused:?}");
        assert_eq!(scene.broken(), None, "{paused:?}");
    }
    scene.push("d", "x");
    scene.now += 10 * SECOND;
    let mut went = vec![];
    while let [_, ..] = &scene.grant()[..] {
        went.push(scene.now);
        scene.now += SECOND;
    }
    assert!(!went.is_empty(), "those of `a` and `b`");
    let mut left: Vec<u64> = scene.backlog.drain().iter().map(Waiter::seq).collect();
    left.sort_unstable();
    assert_eq!(left, [6, 7, 8, 9], "those of `c` and `d` wait for the operator");
    assert_eq!(scene.broken(), None);
}

/// Most APIs name a second, again and again. Then as many of its jobs stay as it lets go in time.
#[tokio::test(start_paused = true)]
async fn jobs_of_a_tenant_that_is_paused_again_and_again_wait_as_long_as_its_pace_says() {
    let mut scene = Scene::new(&[]);
    scene.push_many(300);
    scene.push("b", "x");
    scene.pause("a", SECOND);
    assert_eq!(scene.last(), Some(1), "after the first one nothing is known");
    scene.now += SECOND;
    (0..3).for_each(|_| scene.answered("a"));
    scene.now += SECOND / 2;
    scene.pause("a", SECOND);
    assert_eq!(scene.last(), Some(1 + 149), "three in one and a half seconds");
    let taken = scene.beyond(60, usize::MAX);
    assert_eq!((taken.len(), taken[0].1, scene.backlog.all_ready()), (181, 60, 119 + 1));
    scene.push_many(10);
    assert_eq!(scene.beyond(60, usize::MAX)[0].1, 151, "behind those that wait elsewhere");
    assert_eq!(scene.broken(), None);
    scene.now += 2 * SECOND;
    scene.answered("a");
    assert_eq!(scene.last(), None, "it is not paused any more");
    assert_eq!(scene.broken(), None);
    scene.pause("a", SECOND);
    assert_eq!(scene.last(), Some(1), "that was long ago");
}
