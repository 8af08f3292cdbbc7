//! Runs a timeline on both stores at once, and compares every answer and every state.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use paced::limit::{Algorithm, Combine, Costs, Decision, Edges, Limit, LimitSet};
use paced::store::{
    Asker, Cancel, Change, Check, Checked, Granted, Lane, Lanes, Lease, MemoryStore, NextTurn, RecordState,
    RedisStore, Reserve, Reserved, Scope, SharedHorizon, Sharing, Stamp, Store, Turn,
};
use paced::time::{ManualClock, Micros};
use tokio::sync::RwLock;

use super::super::patient;
use super::TODAY;
use super::timeline::{Asks, Jobs, KEYS, LANES, Op, REPLICAS, SECOND, Span, Step, Timeline};
use crate::support::servers::Redis;

/// The number of operations between comparisons of the stored states; answers are compared after each.
const COMPARE_EVERY: usize = 5;

/// The reference and Redis, on clocks that show the same.
pub struct Pair<'a> {
    memory: MemoryStore,
    shared: RedisStore,
    clock: Arc<ManualClock>,
    redis: &'a Redis,
    /// Every call holds it shared, a script flush exclusively. Otherwise a second flush could fall between the loading
    /// of a script and its call, which is an error then, as it should be.
    scripts: &'a RwLock<()>,
    pub tally: &'a Tally,
}

/// How often the operations had each result.
#[derive(Debug, Default)]
pub struct Tally(RefCell<BTreeMap<&'static str, usize>>);

impl Tally {
    fn count(&self, what: &'static str, times: usize) {
        *self.0.borrow_mut().entry(what).or_default() += times;
    }

    pub fn get(&self, what: &str) -> usize {
        self.0.borrow().get(what).copied().unwrap_or_default()
    }
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Reserved(Reserved),
    Checked(Checked, Vec<Decision>),
    Cancelled(bool),
    Record(RecordState),
    /// No store decides on the call.
    Invalid(String),
    Nothing,
}

/// A reservation that may be cancelled: the key, the limits and the lane that it was made with.
#[derive(Clone, Debug)]
struct Held {
    key: &'static str,
    limits: LimitSet,
    lane: Option<u16>,
    grant: Granted,
}

/// The call of a step, with all of its arguments.
enum Call<'a> {
    Reserve(Box<Reserve<'a>>),
    Check { costs: Costs<'a> },
    Cancel(&'a Held, Option<Lane<'a>>, bool),
    Reset,
    Record(Option<Change<'a>>),
}

impl<'a> Pair<'a> {
    pub fn new(redis: &'a Redis, scripts: &'a RwLock<()>, tally: &'a Tally) -> Self {
        let clock = Arc::<ManualClock>::default();
        let memory = MemoryStore::with_clock(clock.clone());
        let shared = RedisStore::open(&redis.url(), patient()).unwrap().with_test_clock(clock.clone());
        Self { memory, shared, clock, redis, scripts, tally }
    }

    /// # Errors
    /// A text that says how the stores differ.
    pub async fn replay(&self, name: &str, timeline: &Timeline) -> Result<(), String> {
        let (mut now, mut granted, mut turn, mut set) = (TODAY, Vec::<Held>::new(), None, 0);
        for (index, step) in timeline.steps.iter().enumerate() {
            let limits = &timeline.sets[set];
            now = (now + micros(step.moved, limits)).max(TODAY / 2);
            self.clock.set(Micros(now));
            let scope = Scope { downstream: name, key: KEYS[step.key] };
            match &step.op {
                Op::Swap => set = 1 - set,
                Op::Flush => {
                    let _alone = self.scripts.write().await;
                    self.redis.command(&["SCRIPT", "FLUSH"]).await.unwrap();
                    self.tally.count("flushed", 1);
                }
                _ => {
                    let compared =
                        self.step(scope, (limits, &timeline.lanes), step, (&mut granted, &mut turn)).await;
                    compared.map_err(|difference| format!("step {index}, at {now}: {difference}"))?;
                }
            }
            let is_last = index + 1 == timeline.steps.len();
            if index % COMPARE_EVERY == COMPARE_EVERY - 1 || is_last {
                // At once, which takes one packet each way.
                let looks = compared_limits(timeline, set, is_last)
                    .into_iter()
                    .map(|(key, limits)| self.compare_states(Scope { downstream: name, key }, limits));
                let looked = try_join_all(looks).await;
                looked.map_err(|difference| format!("step {index}, at {now}: {difference}"))?;
            }
        }
        Ok(())
    }

    /// Compares the states of both stores under a key.
    async fn compare_states(&self, scope: Scope<'_>, limits: &LimitSet) -> Result<(), String> {
        let expected = self.memory.dump(scope, limits);
        let found = self.shared.dump(scope, limits).await.unwrap();
        if found != expected {
            let key = scope.key;
            return Err(format!("under `{key}` the stores keep\n memory {expected:?}\n redis  {found:?}"));
        }
        self.tally.count("states", expected.iter().skip(1).filter(|state| *state != "none").count());
        Ok(())
    }

    async fn step(
        &self,
        scope: Scope<'_>,
        (limits, lane_limits): (&LimitSet, &[LimitSet; 2]),
        Step { op, generation, .. }: &Step,
        (granted, turn): (&mut Vec<Held>, &mut Option<Turn>),
    ) -> Result<(), String> {
        let policing = matches!(op, Op::Reserve { policing: true, .. } | Op::Check { policing: true, .. });
        let limits = if policing { &limits.clone().policing() } else { limits };
        let costs = costs(op, limits, lane_limits);
        let keys = LANES.map(|(set, [first, others])| {
            let all = lane_limits[set].iter().enumerate();
            all.map(|(place, _)| if place == 0 { first } else { others }).collect::<Vec<_>>()
        });
        let lanes: Vec<Lane<'_>> = LANES
            .iter()
            .zip(&keys)
            .map(|((set, _), keys)| Lane { limits: &lane_limits[*set], keys })
            .collect();
        // Limits of lanes can join only sets in which all limits must allow a job.
        let is_in_lanes = matches!(op, Op::Lanes { .. }) && limits.combine() == Combine::All;
        let of = if is_in_lanes { of(op) } else { vec![] };
        let cancelled = match op {
            Op::Cancel { back, .. } => granted.iter().cloned().enumerate().rev().nth(*back),
            _ => None,
        };
        let is_meant = |place: usize| matches!(op, Op::Restart { limits } if limits >> place & 1 == 1);
        let restarted: Vec<Limit> = limits
            .iter()
            .enumerate()
            .filter(|(place, _)| is_meant(*place))
            .map(|(_, limit)| limit.clone())
            .collect();
        let call = match op {
            Op::Reserve { ahead, lease, asker, .. } | Op::Lanes { ahead, lease, asker, .. } => {
                let shared = if let Op::Reserve { shared, .. } = op { *shared } else { None };
                let (lead, most) = match op {
                    Op::Lanes { lead, most, .. } => (span(*lead, limits), *most),
                    _ => (Duration::ZERO, u32::MAX),
                };
                Call::Reserve(Box::new(Reserve {
                    generation: *generation,
                    asker: asker.map(|asks| asker_of(asks, limits, turn.filter(|_| asks.at_turn))),
                    sharing: match (*lease, shared) {
                        (Some((replica, ttl)), _) => Sharing::Lease(Lease {
                            replica: REPLICAS[replica],
                            ttl: Duration::from_millis(ttl),
                        }),
                        (None, Some((replica, horizon, waits_here))) => Sharing::Horizon(SharedHorizon {
                            replica: REPLICAS[replica],
                            horizon: Duration::from_millis(horizon),
                            waits_here,
                        }),
                        (None, None) => Sharing::None,
                    },
                    lanes: is_in_lanes.then_some(Lanes { all: &lanes, of: &of, lead, most }),
                    ..Reserve::new(
                        Scope { key: if is_in_lanes { "" } else { scope.key }, ..scope },
                        limits,
                        costs.costs(),
                        span(*ahead, limits),
                    )
                }))
            }
            Op::Check { .. } => Call::Check { costs: costs.costs() },
            Op::Cancel { .. } => match cancelled.as_ref() {
                Some((_, held)) => {
                    let is_unused = matches!(op, Op::Cancel { is_unused: true, .. });
                    Call::Cancel(held, held.lane.map(|lane| lanes[usize::from(lane)]), is_unused)
                }
                None => return Ok(()),
            },
            Op::Record(change) => Call::Record(*change),
            Op::Restart { .. } => Call::Record(Some(Change::Reset { limits: &restarted })),
            _ => Call::Reset,
        };
        let expected = answer(&self.memory, scope, limits, *generation, &call).await;
        let guard = self.scripts.read().await;
        let found = answer(&self.shared, scope, limits, *generation, &call).await;
        drop(guard);
        if found != expected {
            return Err(format!("{op:?} is answered by\n memory {expected:?}\n redis  {found:?}"));
        }
        self.count_answer(&expected);
        if let (Answer::Cancelled(true), Some((place, _))) = (&expected, &cancelled) {
            granted.remove(*place);
        }
        if let (Answer::Reserved(reserved), Call::Reserve(call)) = (&expected, &call) {
            if call.lanes.is_none() {
                self.tally.count("passed over", reserved.passed.len());
            } else {
                let in_lanes = reserved.jobs().filter(|job| of[*job].is_some());
                self.tally.count("granted in lanes", in_lanes.count());
                let waits = reserved.passed.iter().filter(|passed| passed.refusal.limit >= limits.len());
                self.tally.count("lanes that wait", waits.count());
            }
            let held = call.asker.and_then(|asker| asker.turn);
            let next = reserved.booking.map(|booking| booking.next);
            if let Some(NextTurn::At(next)) = next {
                let end = |turn: Turn| turn.begins.plus(turn.length());
                self.tally.count("kept turns", usize::from(held.is_some_and(|held| end(held) == end(next))));
                *turn = Some(next);
            }
            let is_over = held.is_some() && next == Some(NextTurn::None);
            self.tally.count("turns over or given back", usize::from(is_over));
            self.tally.count("yields", usize::from(call.sharing.horizon().is_some() && next.is_some()));
            let key = KEYS[usize::from(!call.scope.key.is_empty())];
            let lanes = reserved.jobs().map(|job| of.get(job).copied().flatten());
            let held = |(lane, grant)| Held { key, limits: limits.clone(), lane, grant };
            granted.extend(lanes.zip(reserved.granted_in_lanes(call)).map(held));
        }
        Ok(())
    }

    fn count_answer(&self, answer: &Answer) {
        match answer {
            Answer::Reserved(Reserved {
                slots,
                refused,
                stamp: Stamp { now, status, .. },
                outdated,
                booking,
                ..
            }) => {
                let is_booked = booking.is_some_and(|booking| matches!(booking.next, NextTurn::At(_)));
                self.tally.count("booked", usize::from(is_booked));
                self.tally.count("outdated", usize::from(*outdated));
                self.tally.count("paused", usize::from(status.paused_until() > *now));
                self.tally.count("granted", slots.len());
                self.tally.count("granted ahead", slots.iter().filter(|slot| *slot > now).count());
                self.tally.count("refused", usize::from(refused.is_some()));
            }
            Answer::Checked(_, decisions) => {
                let allowed = decisions.iter().filter(|decision| decision.allowed).count();
                self.tally.count("allowed", allowed);
                self.tally.count("denied", decisions.len() - allowed);
            }
            Answer::Cancelled(given) => {
                self.tally.count(if *given { "given back" } else { "not given back" }, 1);
            }
            Answer::Invalid(_) => self.tally.count("invalid", 1),
            Answer::Record(RecordState { terms, cool_down, .. }) => {
                self.tally.count("with terms", usize::from(terms.is_some()));
                self.tally.count("cools down", usize::from(cool_down.is_some()));
                let is_held = cool_down.as_ref().is_some_and(|cool_down| cool_down.holder.is_some());
                self.tally.count("probes", usize::from(is_held));
            }
            Answer::Nothing => {}
        }
    }
}

async fn answer(
    store: &dyn Store,
    scope: Scope<'_>,
    limits: &LimitSet,
    generation: u64,
    call: &Call<'_>,
) -> Answer {
    let answered = match call {
        Call::Reserve(call) => store.reserve(**call).await.map(Answer::Reserved),
        Call::Check { costs } => {
            let checked = store.check(Check { scope, limits, costs: *costs, generation }).await;
            checked.map(|checked| {
                let decide = |verdict| limits.decision(checked.stamp.now, verdict);
                let decisions = checked.verdicts.iter().cloned().map(decide).collect();
                Answer::Checked(checked, decisions)
            })
        }
        Call::Cancel(held, lane, is_unused) => {
            let Held { key, limits, grant: Granted { slot, charged, before, after }, .. } = held;
            let (scope, is_unused) = (Scope { key, ..scope }, *is_unused);
            let call = Cancel { scope, limits, lane: *lane, slot: *slot, charged, before, after, is_unused };
            store.cancel(call).await.map(Answer::Cancelled)
        }
        Call::Record(Some(change)) => {
            store.update_record(scope.downstream, *change).await.map(Answer::Record)
        }
        Call::Record(None) => store.read_record(scope.downstream).await.map(Answer::Record),
        Call::Reset => store.reset(scope, limits).await.map(|()| Answer::Nothing),
    };
    answered.unwrap_or_else(|error| Answer::Invalid(error.to_string()))
}

/// The limits whose states are compared, and their keys; at the end those of lanes too.
fn compared_limits(timeline: &Timeline, set: usize, is_last: bool) -> Vec<(&'static str, &LimitSet)> {
    let mut looked: Vec<_> = KEYS.iter().map(|&key| (key, &timeline.sets[set])).collect();
    if is_last {
        let mut lanes: Vec<_> = LANES.iter().flat_map(|(set, keys)| keys.map(|key| (*set, key))).collect();
        lanes.sort_unstable();
        lanes.dedup();
        looked.extend(lanes.into_iter().map(|(set, key)| (key, &timeline.lanes[set])));
    }
    looked
}

fn asker_of(asks: Asks, limits: &LimitSet, turn: Option<Turn>) -> Asker {
    let interval = limits.iter().map(|limit| limit.rate().interval()).max().unwrap();
    // The edges of a calendar are sent for a short time ahead.
    let has_quota = limits.iter().any(|limit| matches!(limit.algorithm(), Algorithm::Quota(_)));
    Asker {
        turn,
        reach: Duration::from_millis(asks.reach),
        waiting: asks.waiting,
        own: asks.own.min(limits.len()),
        interval,
        goes_on: asks.goes_on,
        farthest: if has_quota { 300 * Duration::from_secs(1) } else { interval * 1000 },
    }
}

/// The lane of each job.
fn of(op: &Op) -> Vec<Option<u16>> {
    match op {
        Op::Lanes { jobs, .. } => jobs.iter().map(|(lane, _)| *lane).collect(),
        _ => vec![],
    }
}

fn span(span: Span, limits: &LimitSet) -> Duration {
    Duration::from_micros(micros(span, limits).unsigned_abs())
}

/// The costs of a call's jobs.
enum Costing {
    Each(Vec<u32>),
    PerLimit(Vec<u32>),
}

impl Costing {
    fn costs(&self) -> Costs<'_> {
        match self {
            Self::Each(each) => Costs::Each(each),
            Self::PerLimit(all) => Costs::PerLimit(all),
        }
    }
}

/// The costs of an operation. A cost that is the same for each limit is at most the highest that fits; separate costs
/// may be too high.
fn costs(op: &Op, limits: &LimitSet, lanes: &[LimitSet; 2]) -> Costing {
    match op {
        Op::Lanes { jobs, .. } => {
            let most = |lane: Option<u16>| {
                lane.map_or(u32::MAX, |lane| lanes[LANES[usize::from(lane)].0].max_cost())
                    .min(limits.max_cost())
            };
            Costing::Each(jobs.iter().map(|(lane, cost)| *cost.min(&most(*lane))).collect())
        }
        Op::Reserve { jobs: Jobs::PerLimit(rows), .. } | Op::Check { jobs: Jobs::PerLimit(rows), .. } => {
            Costing::PerLimit(rows.iter().flat_map(|row| row[..limits.given()].to_vec()).collect())
        }
        Op::Reserve { jobs: Jobs::Each(each), .. } | Op::Check { jobs: Jobs::Each(each), .. } => {
            Costing::Each(each.iter().map(|cost| *cost.min(&limits.max_cost())).collect())
        }
        _ => Costing::Each(vec![]),
    }
}

fn micros(span: Span, limits: &LimitSet) -> i64 {
    match span {
        Span::Micros(micros) => micros,
        Span::Periods(hundredths) => {
            let period = limits.iter().map(period).max().unwrap_or(SECOND);
            hundredths * period / 100
        }
    }
}

/// How long it takes from full to whole, in µs.
fn period(limit: &Limit) -> i64 {
    match limit.algorithm() {
        Algorithm::FixedWindow(counting) | Algorithm::Quota(counting) => match counting.edges() {
            Edges::Calendar(calendar) => calendar.longest(),
            edges => edges.longest(),
        },
        Algorithm::SlidingWindow(window) => window.width() * i64::from(window.buckets()),
        Algorithm::SlidingLog(log) => log.period(),
        _ => i64::try_from(limit.rate().interval().as_micros() * u128::from(limit.burst())).unwrap(),
    }
}
