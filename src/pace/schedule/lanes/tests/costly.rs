//! Jobs that cost more than others, at a limit with a burst.

use super::*;

/// Otherwise those behind it would use up what it waits for, each time.
#[tokio::test(start_paused = true)]
async fn nothing_is_offered_behind_a_costly_job_where_one_was_passed() {
    let mut scene = Scene::new(&[Limit::gcra("lane.t", "10/s".parse().unwrap(), 10).unwrap()]);
    scene.push_as("a", "costly", |caller| caller.cost(5));
    let cheap = |scene: &mut Scene| {
        for endpoint in 0..3 {
            scene.push("a", &endpoint.to_string());
        }
    };
    cheap(&mut scene);
    let offered = scene.offer();
    assert_eq!(offered.len(), 4);
    let (slot, until) = (scene.now, scene.now + 400 * MS);
    scene.settle(offered, |index| if index == 0 { Answer::Limited(0, until) } else { Answer::Granted(slot) });
    cheap(&mut scene);
    assert_eq!(scene.offered(), [0; 0], "the limit is asked for when it allows the first one");
    scene.now = until;
    let alone = scene.offer();
    assert_eq!(alone.iter().map(Waiter::seq).collect::<Vec<_>>(), [0]);
    scene.settle(alone, |_| Answer::Granted(until));
    assert_eq!(scene.broken(), None);
    assert_eq!(scene.offered(), [4, 5, 6], "the others are next");
}

/// The others are offered together again. Otherwise each call would have one of them, however much the limit allows.
#[tokio::test(start_paused = true)]
async fn only_the_costly_job_that_was_passed_is_the_last_one_of_its_call() {
    let mut scene = Scene::new(&[Limit::gcra("lane.t", "10/s".parse().unwrap(), 10).unwrap()]);
    let push = |scene: &mut Scene, endpoint: u32| {
        scene.push_as("a", &endpoint.to_string(), |caller| caller.cost(2));
    };
    (0..3).for_each(|endpoint| push(&mut scene, endpoint));
    let offered = scene.offer();
    assert_eq!(offered.len(), 3);
    let (slot, until) = (scene.now, scene.now + 200 * MS);
    scene.settle(offered, |index| if index == 0 { Answer::Limited(0, until) } else { Answer::Granted(slot) });
    (1..4).for_each(|endpoint| push(&mut scene, endpoint));
    scene.now = until;
    for granted in [false, true] {
        let alone = scene.offer();
        assert_eq!(alone.iter().map(Waiter::seq).collect::<Vec<_>>(), [0], "until it is granted");
        scene.settle(alone, |_| if granted { Answer::Granted(until) } else { Answer::Refused });
    }
    // The next job of its lane is one as all others, until it is passed too.
    [0, 4].into_iter().for_each(|endpoint| push(&mut scene, endpoint));
    assert_eq!(scene.offered(), [3, 4, 5, 6, 7]);
    assert_eq!(scene.broken(), None);
}
