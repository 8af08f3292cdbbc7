//! Which lanes have the most jobs, and what these wait for.

use super::*;
use crate::pace::{BusyLane, LaneWait};

impl Scene {
    fn busiest(&mut self, most: usize) -> Vec<BusyLane> {
        self.lanes.refresh(&mut self.backlog, self.now, self.now);
        self.lanes.view(&self.backlog, self.now, most).busiest
    }
}

#[tokio::test(start_paused = true)]
async fn the_lanes_with_the_most_jobs_come_first() {
    let mut scene = Scene::new(&[]);
    for (tenant, jobs) in [("a", 3), ("b", 9), ("c", 1), ("d", 9), ("e", 2)] {
        (0..jobs).for_each(|_| _ = scene.push(tenant, "x"));
    }
    scene.lane("idle", "x");
    let names = |lanes: Vec<BusyLane>| {
        lanes.into_iter().map(|lane| (lane.name, lane.waiting, lane.oldest)).collect::<Vec<_>>()
    };
    let of = |tenant: &str, waiting: usize, oldest: u64| {
        (format!("tenant={tenant}&endpoint=x"), waiting, Some(oldest))
    };
    let three = [of("b", 9, 3), of("d", 9, 13), of("a", 3, 0)];
    assert_eq!(names(scene.busiest(3)), three);
    assert_eq!(names(scene.busiest(10))[3..], [of("e", 2, 22), of("c", 1, 12)]);
    assert!(scene.busiest(0).is_empty());
    scene.backlog.drain();
    assert!(scene.busiest(10).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_oldest_job_of_a_lane_may_have_the_lower_priority() {
    let mut scene = Scene::new(&[]);
    scene.push("a", "x");
    scene.push_as("a", "x", |caller| caller.priority(9));
    assert_eq!(scene.busiest(1)[0].oldest, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_lane_waits_for_its_turn_for_a_limit_or_for_a_pause() {
    let mut scene = Scene::usual();
    let wait = |scene: &mut Scene, tenant: &str| {
        let lanes = scene.busiest(10).into_iter();
        let mut own = lanes.filter(|lane| lane.name.starts_with(&format!("tenant={tenant}")));
        own.next().unwrap().wait
    };
    (0..2).for_each(|_| _ = scene.push("a", "x"));
    assert_eq!(wait(&mut scene, "a"), LaneWait::Turn);
    let first = scene.offer();
    let slot = scene.now;
    scene.settle(first, |_| Answer::Granted(slot));
    let until = scene.now + 200 * MS;
    assert_eq!(wait(&mut scene, "a"), LaneWait::Limit("lane.l".to_owned(), Some(until)));
    scene.push("b", "x");
    scene.pause("b", 10 * Duration::from_secs(1));
    assert_eq!(wait(&mut scene, "b"), LaneWait::Pause(scene.now + Duration::from_secs(10)));
    scene.now += Duration::from_secs(10);
    assert_eq!(wait(&mut scene, "a"), LaneWait::Turn);
    assert_eq!(wait(&mut scene, "b"), LaneWait::Turn);
}

/// The limit of their tenant allows two of them in one call.
#[tokio::test(start_paused = true)]
async fn a_lane_behind_others_of_its_tenant_waits_for_their_limit() {
    let mut scene = Scene::usual();
    (0..3).for_each(|endpoint: u8| _ = scene.push("a", &endpoint.to_string()));
    assert_eq!(scene.offer().len(), 2);
    let view = scene.lanes.view(&scene.backlog, scene.now, 10);
    let waits: Vec<LaneWait> = view.busiest.into_iter().map(|lane| lane.wait).collect();
    assert_eq!(waits, [LaneWait::Limit("lane.t".to_owned(), None)]);
}

/// Its waiters are not in the backlog meanwhile.
#[tokio::test(start_paused = true)]
async fn a_lane_is_offered_until_the_call_ends() {
    let mut scene = Scene::new(&[]);
    let lane = scene.push("a", "x");
    assert!(!scene.lanes.is_offered(lane));
    let offered = scene.offer();
    assert!(scene.lanes.is_offered(lane));
    scene.settle(offered, |_| Answer::Refused);
    assert!(!scene.lanes.is_offered(lane));
}

#[tokio::test(start_paused = true)]
async fn jobs_without_the_part_by_which_lanes_share_are_counted() {
    let mut scene = Scene::new(&[]);
    for (tenant, endpoint) in [("a", "x"), ("", "x"), ("", ""), ("", ""), ("b", "")] {
        scene.push(tenant, endpoint);
    }
    let view = scene.lanes.view(&scene.backlog, scene.now, 1);
    assert_eq!((view.waiting, view.unnamed, view.busiest.len()), (5, 3, 1));
}
