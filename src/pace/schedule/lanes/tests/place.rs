//! The place of one job among those that wait.

use super::*;
use crate::pace::{LaneWait, WaiterPlace};

impl Scene {
    /// The place of the job with this position in the order of arrival, where the downstream has a slot every 10 ms.
    fn place(&mut self, seq: u64) -> WaiterPlace {
        self.lanes.refresh(&mut self.backlog, self.now, self.now);
        let (_, waiter) = self.backlog.all().find(|(_, caller)| caller.seq() == seq).unwrap();
        let pace = |jobs: u64| u32::try_from(jobs).unwrap() * 10 * MS;
        self.lanes.place_of(&self.backlog, waiter, (self.now, self.now), pace).unwrap()
    }

    fn push_each(&mut self, lanes: &[(&str, &str, usize)]) {
        for (tenant, endpoint, jobs) in lanes {
            (0..*jobs).for_each(|_| _ = self.push(tenant, endpoint));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn values_share_evenly_until_one_has_no_more() {
    let mut scene = Scene::new(&[]);
    scene.push_each(&[("a", "x", 10), ("b", "x", 4)]);
    let place = scene.place(9);
    assert_eq!((place.waiting, place.ahead, place.before), (10, 9, 13), "all others");
    assert_eq!(place.lane.as_deref(), Some("tenant=a&endpoint=x"));
    assert_eq!((place.own, place.wait), (scene.now, LaneWait::Turn));
    assert_eq!(scene.place(13).before, 6, "three of each");
    assert_eq!(scene.place(0).before, 0);
}

#[tokio::test(start_paused = true)]
async fn lanes_of_one_value_take_turns() {
    let mut scene = Scene::new(&[]);
    scene.push_each(&[("a", "x", 5), ("a", "y", 5), ("b", "x", 5)]);
    assert_eq!(scene.place(4).before, 4 + 4 + 5, "the other lane of the tenant is behind it");
    assert_eq!(scene.place(9).before, 4 + 5 + 5, "and goes first in each round");
    assert_eq!(scene.place(10).before, 0);
    assert_eq!(scene.place(12).before, 2 + 2, "its tenant has one lane, and the other one two");
}

#[tokio::test(start_paused = true)]
async fn higher_priorities_go_first() {
    let mut scene = Scene::new(&[]);
    scene.push_each(&[("a", "x", 2)]);
    for tenant in ["a", "b", "b"] {
        scene.push_as(tenant, "x", |caller| caller.priority(9));
    }
    let place = scene.place(1);
    assert_eq!((place.ahead, place.before), (2, 4));
    let first = scene.place(3);
    assert_eq!((first.ahead, first.before), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn lanes_that_go_later_by_their_own_limits_are_not_before_others() {
    let mut scene = Scene::new(&[]);
    scene.push_each(&[("a", "x", 3), ("b", "x", 3)]);
    let (second, until) = (Duration::from_secs(1), scene.now + Duration::from_secs(100));
    scene.pause("a", 100 * second);
    assert_eq!(scene.place(5).before, 2, "of the other tenant none goes before the pause ends");
    let paused = scene.place(0);
    assert_eq!((paused.own, paused.wait), (until, LaneWait::Pause(until)));
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_a_tenant_counts_the_jobs_of_all_its_lanes() {
    let mut scene = Scene::new(&[leaky("lane.t", "10/s", 1)]);
    scene.push_each(&[("a", "x", 3), ("a", "y", 3), ("b", "x", 1)]);
    let place = scene.place(5);
    assert_eq!(place.own, scene.now + 500 * MS, "five others of its tenant go before it");
    assert_eq!(place.wait, LaneWait::Limit("lane.t".to_owned(), Some(scene.now + 500 * MS)));
    assert_eq!(scene.place(0).wait, LaneWait::Turn);
}
