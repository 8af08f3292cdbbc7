//! Reads `[downstreams.NAME]`, with its queue and its lanes.

use super::all;
use super::http::http;
use super::lanes::{self, Plans, ReadLanes};
use super::oauth2;
use super::process::POLICIES;
use crate::config::key::keys;
use crate::config::reader::{Reader, Table};
use crate::config::retry::retry;
use crate::config::settings::{Downstream, Plan, Queue};
use crate::config::tls::tls;
use crate::config::{limits, value, warnings};
use crate::dispatch::{OnLimit, OnUnavailable};
use crate::job::PlanRules;
use crate::limit::{LimitSet, MOST_OWN};

keys! {
    /// An API that is called no faster than its limits allow.
    DOWNSTREAM = "NAME".default("{}");
    /// What happens to a job that the limits do not allow at once. wait: it waits for its slot. reject: it is
    /// dead-lettered as `rejected`, with the time at which it would be allowed; so is a retry that finds no room. With
    /// reject a leaky bucket refuses jobs that would overflow it: give it a burst.
    ON_LIMIT = "on_limit".default("wait");
    /// The highest cost of one job (paced-cost). By default the units that the slowest limit releases in a minute, at least
    /// its burst; never more than a limit holds. A limit with its own `cost` has its own `max_cost`. A job that costs
    /// more is dead-lettered as `cost-too-large`.
    MAX_COST = "max_cost".integers(1, u32::MAX as u64).example("3000").reload();
    /// How far ahead of now a slot is taken.
    HORIZON = "horizon".default("100ms").within("1ms", "10s").reload();
    /// How long a job may wait for its first attempt: since its timestamp (which has whole seconds), or else since a
    /// replica first took it, but not before its paced-not-before. A job that waits for longer, or would have to because
    /// too many wait before it, is dead-lettered as `queue-full`, with the time to try again. The producer gets a reply if
    /// there is a reply_to. A change counts for jobs that come afterwards. Unset: no bound.
    MAX_WAIT = "max_wait".within("1s", "365d").example("10m").reload();
    /// How long a replica holds a job that cannot go yet. A job that must wait for longer is parked in the broker, where it
    /// blocks no other job, and comes back in time. If the window is full, a job that waits for longer than 2 s is parked too
    /// (docs/parking.md). A replica holds no more jobs than the limits release in this time.
    HOLD_MAX = "hold_max".default("60s").within("1s", "10m").reload();
    /// The most requests in flight, in each replica. It needs at least the jobs that the rate releases during one answer:
    /// 50/s and answers of 100 ms need 5. `paced check` warns of fewer.
    CONCURRENCY = "concurrency".default("64").integers(1, 65_535).reload();
    /// The same as in [store], for this downstream.
    ON_UNAVAILABLE = "on_unavailable".otherwise("that of `store`").example("hold").reload();
    /// If the limits in force have a higher revision, those of this file do not replace them. So a replica that starts
    /// late with an old file changes nothing. Raise it with each change.
    REVISION = "revision".integers(0, (1 << 53) - 1).example("1").reload();
}

keys! {
    /// The queue of the jobs.
    QUEUE = "queue".default("{}");
    /// An existing queue instead of PREFIX.jobs.NAME: used as it is.
    QUEUE_NAME = "name".up_to(255, r"^[^\x00-\x1f\x7f-\x9f]+$").example("invoices");
    /// The most messages that wait in PREFIX.jobs.NAME: beyond it the broker refuses to take more, and informs the
    /// publisher (a nack). Unset: no bound. A queue that exists keeps its bound: paced warns, and `paced check
    /// --online` says how to change it.
    MAX_LENGTH = "max_length".integers(1, i64::MAX.unsigned_abs()).example("1000000");
    /// Jobs held unacked at once; in effect at most the jobs that the limits release in `hold_max` after a rest. If one is
    /// unacked for the broker's consumer_timeout (30 minutes unless set), the broker takes all of them back, and those just being
    /// sent are sent again. paced parks jobs before that. If it cannot park, raise the consumer_timeout.
    PREFETCH = "prefetch".default("1000").integers(1, 65_535);
    /// The bytes of unsettled messages in memory, and one more message of any length. If `prefetch` jobs of
    /// the sizes seen until now would exceed this, the replica asks for fewer. It gives back jobs beyond this bound
    /// unread, and they come again when there is room.
    PREFETCH_BYTES = "prefetch_bytes".default("64MiB").within("1MiB", "1024GiB");
}

/// Settings of the process that apply to each downstream.
pub(super) struct Defaults<'p, 'v> {
    pub plans: &'p Plans<'v>,
    pub on_unavailable: OnUnavailable,
    /// Whether queues are declared.
    pub declare: bool,
}

/// The limits of a downstream.
struct OwnLimits<'v> {
    named: Vec<limits::NamedLimit<'v>>,
    on_limit: Option<OnLimit>,
    set: Option<LimitSet>,
}

pub(super) fn downstream<'v>(
    reader: &mut Reader<'v>,
    all: &Table<'v>,
    name: &str,
    defaults: &Defaults<'_, 'v>,
) -> Option<Downstream> {
    let table = reader.section(all, &DOWNSTREAM.under(name));
    let is_name = value::name("downstream", name);
    if let Err(problem) = &is_name {
        reader.wrong_name(&table, problem);
    }
    let limits = own_limits(reader, &table);
    let max_cost = reader.integer(&table, &MAX_COST);
    let horizon = reader.duration(&table, &HORIZON);
    let max_wait = reader.duration(&table, &MAX_WAIT);
    let hold_max = reader.duration(&table, &HOLD_MAX);
    let concurrency = reader.integer(&table, &CONCURRENCY);
    let on_unavailable = reader.choice(&table, &ON_UNAVAILABLE, "nothing to do", &POLICIES);
    let revision = reader.integer(&table, &REVISION);
    let queue = queue(reader, &table);
    let mut http = http(reader, &table);
    let retry = retry(reader, &table);
    let lanes = lanes::lanes(reader, &table, defaults.plans, limits.on_limit);
    let costs = costs(reader, &limits.named, defaults.plans);
    let plans = plan_sets(reader, &limits, lanes.as_ref(), defaults.plans, name);
    let base_url = http.as_ref().map(|http| &http.base_url);
    let tls = tls(reader, &table, base_url, "https://");
    if let Some(client) = http.as_mut().and_then(|http| http.oauth2.as_mut()) {
        oauth2::inherit(client, tls.as_ref());
    }
    is_name.ok()?;
    let retry = retry?;
    let settings = Downstream {
        limits: limits.set?,
        plans: plans?,
        on_limit: limits.on_limit?,
        on_unavailable: on_unavailable.unwrap_or(defaults.on_unavailable),
        revision,
        horizon: horizon?,
        max_wait,
        hold_max: hold_max?,
        max_cost,
        costs,
        concurrency: concurrency?,
        queue: queue?,
        http: http?,
        retry,
        lanes: lanes?.lanes,
        tls,
    };
    let named: Vec<_> = limits.named.iter().collect();
    warnings::downstream(reader, &table, &named, &settings);
    warnings::unacked(reader, &table, &named, &settings.http, defaults.declare);
    Some(settings)
}

fn own_limits<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> OwnLimits<'v> {
    let named = limits::of_downstream(reader, table);
    let words = [("wait", OnLimit::Wait), ("reject", OnLimit::Reject)];
    let on_limit = reader.choice(table, &ON_LIMIT, "nothing to do", &words);
    let police = on_limit == Some(OnLimit::Reject);
    let own: Option<Vec<_>> = named.as_ref().map(|named| named.iter().collect());
    let set = own.as_ref().and_then(|own| limits::set(reader, own, police, ""));
    OwnLimits { named: named.unwrap_or_default(), on_limit, set }
}

/// What jobs cost the limits of a downstream and of all plans. No job has more costs of its own than are counted.
fn costs<'v>(
    reader: &mut Reader<'v>,
    own: &[limits::NamedLimit<'v>],
    plans: &Plans<'v>,
) -> Vec<limits::LimitCost> {
    let of = |limits: &[limits::NamedLimit<'v>]| limits.iter().filter(|limit| limit.cost.is_some()).count();
    for plan in plans.values().map(|plan| plan.as_deref().unwrap_or_default()).chain([&[][..]]) {
        if of(own) + of(plan) > MOST_OWN
            && let Some(last) = own.iter().chain(plan).rfind(|limit| limit.cost.is_some())
        {
            let problem =
                format!("over {MOST_OWN} limits of one job have their own costs; use at most {MOST_OWN}");
            reader.wrong(&last.at, problem);
            break;
        }
    }
    let all = own.iter().chain(plans.values().flatten().flatten());
    let mut costs: Vec<limits::LimitCost> = Vec::new();
    for cost in all.filter_map(|limit| limit.cost.as_ref()) {
        // A limit that is given twice has one cost.
        if costs.iter().all(|known| known.limit != cost.limit) {
            costs.push(cost.clone());
        }
    }
    costs
}

/// The limits that the downstream's jobs obey under each plan: the downstream's own, then those of lanes, and then the plan's.
/// Where there are lanes, the last one is for jobs without a plan.
fn plan_sets<'v>(
    reader: &mut Reader<'v>,
    own: &OwnLimits<'v>,
    lanes: Option<&ReadLanes<'v>>,
    plans: &Plans<'v>,
    downstream: &str,
) -> Option<Vec<Plan>> {
    // A mistake in the downstream's own limits is reported once, not again for each plan.
    own.set.as_ref()?;
    let police = own.on_limit == Some(OnLimit::Reject);
    let whose = format!(" together with those of downstream `{downstream}`");
    let has_lanes = lanes.is_some_and(|lanes| lanes.lanes.rules.is_some());
    let of_lanes = lanes.map_or(&[][..], |lanes| &lanes.limits);
    let mut set = |name: &str, limits: &[limits::NamedLimit<'v>]| {
        let limits: Vec<_> = own.named.iter().chain(of_lanes).chain(limits).collect();
        if has_lanes && !lanes::may_join(reader, &limits, downstream) {
            return None;
        }
        let limits = limits::set(reader, &limits, police, &whose)?;
        Some(Plan { name: name.to_owned(), limits })
    };
    // Neither are mistakes in the limits of lanes.
    let without = if has_lanes { Some(set(PlanRules::LANES, &[])?) } else { None };
    // Mistakes of the plan itself have been reported.
    let plans = plans.iter().filter_map(|(name, limits)| Some((name, limits.as_ref()?)));
    let plans: Option<Vec<Plan>> = all(plans.map(|(name, limits)| set(name, limits)));
    Some(plans?.into_iter().chain(without).collect())
}

fn queue<'v>(reader: &mut Reader<'v>, downstream: &Table<'v>) -> Option<Queue> {
    let table = reader.section(downstream, &QUEUE);
    let name = reader.parsed(&table, &QUEUE_NAME, value::queue_name);
    let max_length = reader.integer(&table, &MAX_LENGTH);
    let prefetch = reader.integer(&table, &PREFETCH);
    let prefetch_bytes = reader.size(&table, &PREFETCH_BYTES);
    Some(Queue { name, max_length, prefetch: prefetch?, prefetch_bytes: prefetch_bytes? })
}
