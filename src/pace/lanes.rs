//! The rules by which a downstream has lanes, and by which their limits have states.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

/// The lanes of a downstream: a lane is one combination of the values that some named parts of jobs have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRules {
    /// The names of the parts, in the order of the values of a job's key; at least one.
    pub parts: Vec<String>,
    /// The part whose values share the downstream's slots, as an index into `parts`.
    pub fair_by: usize,
    /// The parts whose values have a state of their own, as indices into `parts`, for each limit of lanes by its
    /// name. A limit of a plan that is not named here has one state for each value of `fair_by`, and any other limit
    /// one for each lane.
    pub per: BTreeMap<String, Vec<usize>>,
    /// If the downstream throttles a job, only jobs with the same values of these parts wait; indices into `parts`.
    /// Without any part, all jobs of the downstream wait.
    pub pause_per: Vec<usize>,
    /// The weights of values of `fair_by`: how much more than others they get; 1 where they are not named.
    pub weights: BTreeMap<String, u32>,
    /// The values of `fair_by` that an operator has paused.
    pub paused: BTreeSet<String>,
    /// The share of turns for the lowest priority that waits, in millionths.
    pub starvation_guard: u32,
    /// The most lanes that this replica has at one time: the jobs of all others share one lane.
    pub max_lanes: usize,
}

impl Default for LaneRules {
    /// No parts, all of one weight, and no share for the lowest priority.
    fn default() -> Self {
        Self {
            parts: vec![],
            fair_by: 0,
            per: BTreeMap::new(),
            pause_per: vec![],
            weights: BTreeMap::new(),
            paused: BTreeSet::new(),
            starvation_guard: 0,
            max_lanes: 1_000_000,
        }
    }
}

impl LaneRules {
    /// The prefix of the names of limits of lanes.
    pub(crate) const OF_LANES: &'static str = "lane.";

    /// The prefix of the names of limits of plans.
    pub(crate) const OF_PLAN: &'static str = "plan.";

    /// Whether lanes have the same states under these rules as under the others.
    pub fn has_same_states(&self, other: &Self) -> bool {
        (&self.parts, self.fair_by, &self.per) == (&other.parts, other.fair_by, &other.per)
    }

    /// Returns the key of the state that this limit has for a lane with these values.
    pub(crate) fn key(&self, limit: &str, values: &[String]) -> String {
        match self.per.get(limit) {
            Some(parts) => self.key_of(parts.iter().copied(), values),
            None if limit.starts_with(Self::OF_PLAN) => self.key_of([self.fair_by], values),
            None => self.name(values),
        }
    }

    /// Returns the key of the pauses of a lane with these values; `None` if the downstream pauses as a whole.
    pub(crate) fn pause_key(&self, values: &[String]) -> Option<String> {
        let parts = &self.pause_per;
        (!parts.is_empty()).then(|| self.key_of(parts.iter().copied(), values))
    }

    /// Returns the name of a lane with these values, such as `endpoint=x&tenant=acme`.
    pub(crate) fn name(&self, values: &[String]) -> String {
        self.key_of(0..self.parts.len(), values)
    }

    /// Returns the values of the lane with this name, as [`LaneRules::name`] writes it; `None` if it names a part that there is
    /// not. Parts that it does not name have the empty value.
    pub(crate) fn values(&self, name: &str) -> Option<Arc<[String]>> {
        let mut values = vec![String::new(); self.parts.len()];
        for pair in name.split('&').filter(|pair| !pair.is_empty()) {
            let (part, value) = pair.split_once('=')?;
            let index = self.parts.iter().position(|other| other == part)?;
            values[index] = value.replace("%26", "&").replace("%25", "%");
        }
        Some(values.into())
    }

    fn key_of(&self, parts: impl IntoIterator<Item = usize>, values: &[String]) -> String {
        let mut key = String::new();
        for part in parts {
            let separator = if key.is_empty() { "" } else { "&" };
            let value = values.get(part).map_or("", String::as_str);
            let value = value.replace('%', "%25").replace('&', "%26");
            // Writing to a string cannot fail.
            let _ = write!(key, "{separator}{}={value}", self.parts[part]);
        }
        key
    }

    /// Returns the value by which a lane with these values shares slots.
    pub(crate) fn fair_value<'v>(&self, values: &'v [String]) -> &'v str {
        values.get(self.fair_by).map_or("", String::as_str)
    }

    /// Returns the weight of a value.
    pub(crate) fn weight(&self, value: &str) -> u32 {
        self.weights.get(value).copied().unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_one_state_for_each_lane_or_for_each_value_of_some_parts() {
        let texts = |texts: [&str; 2]| texts.map(str::to_owned).to_vec();
        let per = BTreeMap::from([("lane.t".to_owned(), vec![1])]);
        let rules =
            LaneRules { parts: texts(["endpoint", "tenant"]), fair_by: 1, per, ..LaneRules::default() };
        let key = |limit, values: [&str; 2]| rules.key(limit, &texts(values));
        assert_eq!(key("lane.t", ["a", "acme"]), "tenant=acme");
        assert_eq!(key("lane.l", ["a", "acme"]), "endpoint=a&tenant=acme");
        assert_eq!(key("plan.free.l", ["a", "acme"]), "tenant=acme");
        assert_eq!(key("lane.t", ["a", ""]), "tenant=", "a job without a value has a state too");
        assert_ne!(key("lane.l", ["a&tenant=b", "c"]), key("lane.l", ["a", "b&tenant=c"]));
        assert_ne!(key("lane.l", ["a%26", "c"]), key("lane.l", ["a&", "c"]));
        assert_eq!(rules.pause_key(&texts(["a", "acme"])), None);
        let rules = LaneRules { pause_per: vec![1], ..rules };
        assert_eq!(rules.pause_key(&texts(["a", "acme"])).as_deref(), Some("tenant=acme"));
    }

    #[test]
    fn a_name_of_a_lane_is_read_as_it_is_written() {
        let parts = ["endpoint", "tenant"].map(str::to_owned).to_vec();
        let rules = LaneRules { parts, fair_by: 1, ..LaneRules::default() };
        for values in [["x", "acme"], ["", ""], ["a&b=c", "%"], ["%26", "%25%"], ["=", "="]] {
            let values = values.map(str::to_owned);
            assert_eq!(rules.values(&rules.name(&values)).as_deref(), Some(&values[..]));
        }
        let acme: Option<&[String]> = Some(&[String::new(), "acme".to_owned()]);
        assert_eq!(rules.values("tenant=acme").as_deref(), acme, "without the other part");
        assert_eq!(rules.values("acme"), None);
        assert_eq!(rules.values("Tenant=acme"), None);
    }
}
