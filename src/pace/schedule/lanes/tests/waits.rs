//! Which jobs wait so long for limits of their lanes that they are to wait elsewhere.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

impl Scene {
    /// Pushes a job of tenant `a` for each of these endpoints.
    pub(super) fn push_all(&mut self, endpoints: std::ops::Range<usize>) {
        for endpoint in endpoints {
            self.push("a", &endpoint.to_string());
        }
    }

    /// When the last job goes, in seconds from now.
    pub(super) fn last(&mut self) -> Option<u64> {
        self.lanes.refresh(&mut self.backlog, self.now, self.now);
        self.lanes.last_goes(&self.backlog, self.now).map(|last| (last - self.now).as_secs())
    }

    /// Takes out jobs that go after this number of seconds: the position of each, and the seconds after which it goes.
    pub(super) fn beyond(&mut self, seconds: u32, most: usize) -> Vec<(u64, u64)> {
        self.lanes.refresh(&mut self.backlog, self.now, self.now);
        let by = self.now + seconds * SECOND;
        let taken = self.lanes.take_beyond(&mut self.backlog, (self.now, by), most);
        taken.iter().map(|(goes, caller)| (caller.seq(), (*goes - self.now).as_secs())).collect()
    }
}

/// A tenant has 1/s over all its endpoints.
fn tenant() -> Scene {
    Scene::new(&[leaky("lane.t", "1/s", 1)])
}

#[tokio::test(start_paused = true)]
async fn the_jobs_of_many_lanes_wait_for_each_other_at_the_state_that_they_share() {
    let mut scene = tenant();
    scene.push_all(0..100);
    for tenant in 0..50 {
        scene.push(&format!("other-{tenant}"), "x");
    }
    assert_eq!(scene.last(), Some(99), "each lane has one job");
    let expected: Vec<(u64, u64)> = (61..100).map(|index| (index, index)).collect();
    assert_eq!(scene.beyond(60, usize::MAX), expected, "as many stay as go in a minute, and all of others");
    assert_eq!(scene.backlog.all_ready(), 61 + 50);
    assert_eq!((scene.last(), scene.beyond(60, usize::MAX)), (Some(60), vec![]));
    assert_eq!(scene.broken(), None);
}

/// Otherwise all that are taken out would come back at once, and be taken out again.
#[tokio::test(start_paused = true)]
async fn those_that_are_taken_out_go_behind_those_that_were_before() {
    let mut scene = tenant();
    scene.push_all(0..100);
    assert_eq!(scene.beyond(60, usize::MAX).len(), 39);
    scene.push_all(100..110);
    let expected: Vec<(u64, u64)> = (100..110).map(|index| (index, index)).collect();
    assert_eq!(scene.beyond(60, usize::MAX), expected);
    // After 30 s half of those that stayed have gone. Of those that were taken out, 30 have their slots.
    scene.now += 30 * SECOND;
    scene.backlog.take(|caller| caller.seq() < 30);
    scene.push_all(110..150);
    let next = scene.beyond(60, usize::MAX);
    assert_eq!((next.len(), next[0], next[9]), (10, (140, 61 + 19), (149, 61 + 19 + 9)));
    // Other limits release others.
    scene.follow(&[leaky("lane.t", "2/s", 1)]);
    scene.push_all(150..250);
    assert_eq!(scene.beyond(60, usize::MAX)[0], (210, 60));
}

#[tokio::test(start_paused = true)]
async fn the_lanes_of_a_state_take_turns_in_what_stays() {
    let mut scene = tenant();
    for endpoint in ["busy"; 200].into_iter().chain(["quiet"; 10]) {
        scene.push("a", endpoint);
    }
    let taken = scene.beyond(60, usize::MAX);
    assert_eq!(taken.len(), 210 - 61);
    assert!(taken.iter().all(|(seq, _)| (51..200).contains(seq)), "all of the quiet lane stay: {taken:?}");
    let mut scene = tenant();
    scene.push_all(0..100);
    for endpoint in 100..150 {
        scene.push_as("a", &endpoint.to_string(), |caller| caller.priority(9));
    }
    let taken: Vec<u64> = scene.beyond(60, usize::MAX).into_iter().map(|(seq, _)| seq).collect();
    assert_eq!(taken, (11..100).collect::<Vec<u64>>(), "those of a higher priority go first");
}

#[tokio::test(start_paused = true)]
async fn no_more_are_taken_out_than_asked_for_and_those_that_go_last_first() {
    let mut scene = tenant();
    scene.push_all(0..100);
    assert_eq!(scene.beyond(10, 5), [(95, 95), (96, 96), (97, 97), (98, 98), (99, 99)]);
    assert!(scene.beyond(10, 0).is_empty());
    assert!(scene.beyond(94, usize::MAX).is_empty(), "the others are released before");
}

#[tokio::test(start_paused = true)]
async fn the_slowest_of_the_limits_of_a_lane_counts() {
    let mut scene = Scene::new(&[leaky("lane.t", "1/s", 1), leaky("lane.l", "6/m", 1)]);
    for endpoint in ["x"; 5] {
        scene.push("a", endpoint);
    }
    scene.push_all(0..10);
    // The lane has a job each ten seconds, and the tenant one a second for both.
    assert_eq!(scene.beyond(9, usize::MAX), [(1, 10), (14, 11), (2, 20), (3, 30), (4, 40)]);
    // Where nothing is allowed for a day, all wait for that.
    let day = Duration::from_secs(86_400);
    let until = scene.now + day;
    let offered = scene.offer();
    scene.settle(offered, |_| Answer::Limited(0, until));
    let all = scene.beyond(60, usize::MAX);
    assert_eq!((all.len(), all[0].1), (10, day.as_secs()));
}

/// One that gives up before its slot is in nobody's way.
#[tokio::test(start_paused = true)]
async fn nobody_goes_behind_one_that_gives_up() {
    let mut scene = tenant();
    let end = scene.now + 30 * SECOND;
    for endpoint in 0..10 {
        scene.push_as("a", &endpoint.to_string(), |caller| match endpoint {
            5 => caller.end(end - 28 * SECOND, true),
            _ => caller.end(end, true),
        });
    }
    let expected = [(3, 3), (4, 4), (5, 5), (6, 5), (7, 6), (8, 7), (9, 8)];
    assert_eq!(scene.beyond(2, usize::MAX), expected);
}

#[tokio::test(start_paused = true)]
async fn jobs_of_lanes_that_sleep_are_counted() {
    let mut scene = tenant();
    scene.push_all(0..10);
    scene.push("b", "x");
    scene.push("c", "x");
    scene.pause("b", 3 * SECOND);
    let by = scene.now + 2 * SECOND;
    assert_eq!(scene.lanes.asleep(&scene.backlog, by), 1);
    scene.pause("a", 10 * SECOND);
    assert_eq!(scene.lanes.asleep(&scene.backlog, by), 11);
    assert_eq!(scene.lanes.asleep(&scene.backlog, by + SECOND), 10);
}
