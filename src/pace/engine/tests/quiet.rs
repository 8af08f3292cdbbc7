//! Which waiters are of a quiet lane.

use super::*;
use crate::pace::LaneRules;

/// An engine whose waiters are of one lane.
fn in_lanes() -> Driven {
    let mut settings = tests::settings("10/s");
    let rules = LaneRules { parts: vec!["tenant".to_owned()], ..LaneRules::default() };
    settings.of_jobs.lanes = Some(Arc::new(rules));
    Driven::new(settings)
}

/// Whether those that wait are of a quiet lane, in their order.
fn quiet(driven: &mut Driven) -> Vec<bool> {
    driven.engine.take_waiting().iter().map(|caller| caller.request.is_quiet).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_quiet_for_the_first_one_that_waits_in_it() {
    let mut driven = in_lanes();
    driven.offer(0..3);
    assert_eq!(quiet(&mut driven), [true, false, false]);
    driven.offer(3..5);
    assert_eq!(quiet(&mut driven), [true, false], "the others have left");
}

#[tokio::test(start_paused = true)]
async fn without_lanes_none_is() {
    let mut driven = Driven::new(tests::settings("10/s"));
    driven.offer(0..2);
    assert_eq!(quiet(&mut driven), [false, false]);
}
