use std::time::Duration;

use super::*;
use crate::limit::Costs;
use crate::store::{Lanes, Scope};

#[test]
fn an_answer_for_more_jobs_than_the_call_has_is_an_error() {
    let limit = Limit::leaky_bucket("l", "1/s".parse().unwrap(), 1).unwrap();
    let limits = LimitSet::new(vec![limit]).unwrap();
    let scope = Scope { downstream: "billing", key: "" };
    let lanes = Lanes { all: &[], of: &[None], lead: Duration::ZERO, most: 1 };
    let call = Reserve::new(scope, &limits, Costs::Each(&[1]), Duration::ZERO);
    let call = Reserve { lanes: Some(lanes), ..call };
    let plan = |outcomes: &[i64]| {
        let stamp = Stamp { now: Micros(0), epoch: Micros(0), status: Status::default() };
        let reply = Reply {
            stamp,
            from: stamp.now,
            replicas: 1,
            granted: outcomes.len() / 2,
            refused: None,
            next: None,
            booking: None,
            before: vec![],
            outcomes: outcomes.to_vec(),
        };
        reply.plan(&call).map(|plan| (plan.slots.len(), plan.passed.len()))
    };
    assert_eq!(plan(&[5, 0]), Ok((1, 0)));
    // A second job, granted or passed over.
    assert!(plan(&[5, 0, 6, 0]).is_err());
    assert!(plan(&[5, 0, 6, -1]).is_err());
}
