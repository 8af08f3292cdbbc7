//! Helpers for the tests of several modules.

use std::time::Duration;

use super::{OnLimit, OnUnavailable, Settings};
use crate::limit::{Limit, LimitSet};

/// Returns settings with one shaping leaky bucket of this rate.
pub(crate) fn settings(rate: &str) -> Settings {
    let limit = Limit::leaky_bucket("rate", rate.parse().unwrap(), 1).unwrap();
    Settings {
        downstream: "billing".to_owned(),
        limits: LimitSet::new(vec![limit]).unwrap(),
        plans: vec![],
        on_limit: OnLimit::Wait,
        on_unavailable: OnUnavailable::Hold,
        horizon: Duration::from_millis(100),
        concurrency: 64,
        prefetch: Some(1000),
        revision: None,
    }
}
