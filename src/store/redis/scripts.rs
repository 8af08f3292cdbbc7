//! The Lua scripts and their calls. Each script is composed of only the parts that its limits need, since Redis runs
//! the whole script with every call.

use std::sync::OnceLock;
use std::time::Duration;

use redis::{Cmd, Script};

use super::packed::Packed;
use super::request::{FastScript, KnownRecord, Now, Request, encode_change, encode_costs, encode_limits};
use crate::limit::{Algorithm, Limit, LimitSet};
use crate::store::fleet::{HISTORY_KEPT, MAX_HISTORY, MAX_PARKED, PARKED_KEPT};
use crate::store::served::SERVED_KEPT;
use crate::store::{Cancel, Change, MAX_PARKED_GROUPS, ParkedGroup, ParkedGroups, Served, TombstoneCall};
use crate::time::Micros;

const LIB: &str = include_str!("lua/lib.lua");
const TAT: &str = include_str!("lua/tat.lua");
const COUNTS: &str = include_str!("lua/counts.lua");
const FAST: &str = include_str!("lua/fast.lua");
const TURNS: &str = include_str!("lua/turns.lua");
const MIXED: &str = include_str!("lua/mixed.lua");

/// The algorithms that count, in the order of the bits of [`Kinds`] from the second on.
const COUNTING: [&str; 3] =
    [include_str!("lua/windows.lua"), include_str!("lua/buckets.lua"), include_str!("lua/log.lua")];

/// The families of algorithms that a set uses, a bit for each: GCRA, windows, buckets, log.
type Kinds = usize;

/// One script for each combination of families, made when it is first needed.
#[derive(Debug)]
struct ByKinds {
    main: &'static str,
    adapt: Adapt,
    scripts: [OnceLock<Script>; 16],
}

/// What is changed in the source of each script: nothing, but for tests.
type Adapt = fn(String) -> String;

/// All scripts.
#[derive(Debug)]
pub(super) struct Scripts {
    /// The fast scripts, which serve most calls: those for the GCRA family and windows, without a lease. There is one for
    /// each [`FastScript`], in their order, without turns and with them.
    fast: [[Script; 3]; 2],
    reserve: ByKinds,
    lanes: ByKinds,
    cancel: ByKinds,
    reset: ByKinds,
    restart: ByKinds,
    plain: Plain,
}

/// The scripts without limits.
#[derive(Debug)]
struct Plain {
    record: Script,
    tombstones: Script,
    summaries: Script,
    served: Script,
    parked: Script,
    parked_groups: Script,
    history: Script,
}

/// A script with its keys and arguments.
pub(super) struct Call<'a> {
    pub(super) script: &'a Script,
    pub(super) command: Cmd,
}

impl<'a> Call<'a> {
    /// The call of `script`; `texts` is the number of text arguments that follow the numbers.
    fn new(script: &'a Script, keys: &[String], numbers: &Packed, texts: usize) -> Self {
        let size = keys.iter().map(String::len).sum::<usize>() + 64 + numbers.bytes().len() + 64 * texts;
        let mut command = Cmd::with_capacity(4 + keys.len() + texts, size);
        command.arg("EVALSHA").arg(script.get_hash()).arg(keys.len()).arg(keys).arg(numbers.bytes());
        Self { script, command }
    }
}

impl ByKinds {
    fn new(main: &'static str, adapt: Adapt) -> Self {
        Self { main, adapt, scripts: Default::default() }
    }

    fn of<'l>(&self, limits: impl IntoIterator<Item = &'l Limit>) -> &Script {
        let kinds = limits.into_iter().fold(0, |kinds, limit| kinds | kind(limit));
        self.scripts[kinds].get_or_init(|| Script::new(&(self.adapt)(compose(kinds, self.main))))
    }
}

fn kind(limit: &Limit) -> Kinds {
    match limit.algorithm() {
        Algorithm::LeakyBucket(_) | Algorithm::Gcra(_) | Algorithm::TokenBucket(_) => 1,
        Algorithm::FixedWindow(_) | Algorithm::Quota(_) => 2,
        Algorithm::SlidingWindow(_) => 4,
        Algorithm::SlidingLog(_) => 8,
    }
}

fn compose(kinds: Kinds, main: &str) -> String {
    let mut source = LIB.to_owned();
    if kinds & 1 > 0 {
        source += TAT;
    }
    if kinds > 1 {
        source += COUNTS;
    }
    for (place, part) in COUNTING.iter().enumerate() {
        if kinds & 2 << place > 0 {
            source += part;
        }
    }
    source + main
}

const RESERVE: &str = concat!(
    include_str!("lua/turns.lua"),
    include_str!("lua/reserve.lua"),
    include_str!("lua/jobs.lua"),
    include_str!("lua/finish.lua")
);
const LANES: &str = concat!(
    include_str!("lua/turns.lua"),
    include_str!("lua/reserve.lua"),
    include_str!("lua/lanes.lua"),
    include_str!("lua/finish.lua")
);
const RECORD: &str = concat!(include_str!("lua/cool_down.lua"), include_str!("lua/record.lua"));
const RESTART: &str = concat!(include_str!("lua/cool_down.lua"), include_str!("lua/restart.lua"));

/// The scripts that nearly every replica needs, which are loaded when a connection is opened. The others are loaded
/// when they are first called.
pub(super) fn preloaded() -> [String; 6] {
    let (one, many) = (include_str!("lua/one.lua"), include_str!("lua/many.lua"));
    [
        format!("{FAST}{one}"),
        format!("{FAST}{many}"),
        format!("{TURNS}{FAST}{one}"),
        format!("{TURNS}{FAST}{many}"),
        compose(1, RESERVE),
        compose(0, RECORD),
    ]
}

/// The line of the scripts that sets the tolerance for steps of the clock.
const STEP: &str = "local STEP = 100000";

impl Scripts {
    pub(super) fn new() -> Self {
        Self::with(|source| source)
    }

    /// The scripts for instants that are taken as they are.
    pub(super) fn without_steps() -> Self {
        Self::with(|source| source.replace(STEP, "local STEP = math.huge"))
    }

    /// The scripts with a call of ECHO in each round of a loop.
    #[cfg(feature = "failpoints")]
    pub(super) fn counting_rounds() -> Self {
        const COUNT: &str = " redis.call('ECHO', '')\n";
        Self::with(|source| {
            source.replace(" do\n", &format!(" do{COUNT}")).replace(" repeat\n", &format!(" repeat{COUNT}"))
        })
    }

    fn with(adapt: Adapt) -> Self {
        let script = |source| Script::new(&adapt(source));
        let [one, many, one_turns, many_turns, _, record] = preloaded().map(script);
        let mixed = [format!("{FAST}{MIXED}"), format!("{TURNS}{FAST}{MIXED}")];
        let [mixed, mixed_turns] = mixed.map(script);
        Self {
            fast: [[one, many, mixed], [one_turns, many_turns, mixed_turns]],
            reserve: ByKinds::new(RESERVE, adapt),
            lanes: ByKinds::new(LANES, adapt),
            cancel: ByKinds::new(include_str!("lua/cancel.lua"), adapt),
            reset: ByKinds::new(include_str!("lua/reset.lua"), adapt),
            restart: ByKinds::new(RESTART, adapt),
            plain: Plain {
                record,
                tombstones: script(compose(0, include_str!("lua/tombstones.lua"))),
                summaries: script(compose(0, include_str!("lua/summaries.lua"))),
                served: script(compose(0, include_str!("lua/served.lua"))),
                parked: script(compose(0, include_str!("lua/parked.lua"))),
                parked_groups: script(compose(0, include_str!("lua/parked_groups.lua"))),
                history: script(compose(0, include_str!("lua/history.lua"))),
            },
        }
    }

    /// The call of a fast script. Its answer is nil where the script does not apply.
    pub(super) fn fast(
        &self,
        script: FastScript,
        keys: &[String],
        takes_turns: bool,
        numbers: &Packed,
    ) -> Call<'_> {
        Call::new(&self.fast[usize::from(takes_turns)][script as usize], keys, numbers, 0)
    }

    pub(super) fn reserve(
        &self,
        keys: &[String],
        request: &Request<'_>,
        now: Now,
        known_record: KnownRecord,
    ) -> Call<'_> {
        let mut numbers = Packed::with_capacity(64);
        numbers.put([now.number()]);
        numbers.put(known_record.numbers());
        request.encode(&mut numbers);
        encode_limits(&mut numbers, request.all_limits(), Some(request));
        for &unit in &request.limits.unit()[..request.limits.len()] {
            numbers.put([unit.into()]);
        }
        let script = match &request.in_lanes {
            Some(in_lanes) => {
                in_lanes.encode(&mut numbers, request.limits.len(), request.costs);
                self.lanes.of(request.all_limits().map(|(limit, _)| limit))
            }
            None => {
                encode_costs(&mut numbers, request);
                self.reserve.of(request.limits.iter())
            }
        };
        let mut call = Call::new(script, keys, &numbers, 1);
        call.command.arg(request.replica().unwrap_or_default());
        call
    }

    pub(super) fn cancel(&self, keys: &[String], cancel: &Cancel<'_>, now: Now) -> Call<'_> {
        let mut numbers = Packed::with_capacity(64);
        numbers.put([now.number(), cancel.slot.0, cancel.is_unused.into()]);
        encode_limits(&mut numbers, cancel.states().map(|(limit, _)| (limit, None)), None);
        for ((before, after), cost) in cancel.before.iter().zip(cancel.after).zip(cancel.charged) {
            numbers.put([i64::from(*cost)]);
            numbers.put(before.numbers());
            numbers.put(after.numbers());
        }
        Call::new(self.cancel.of(cancel.states().map(|(limit, _)| limit)), keys, &numbers, 0)
    }

    pub(super) fn reset(&self, keys: &[String], limits: &LimitSet, now: Now) -> Call<'_> {
        let mut numbers = Packed::with_capacity(32);
        numbers.put([now.number()]);
        encode_limits(&mut numbers, limits.iter().map(|limit| (limit, None)), None);
        Call::new(self.reset.of(limits.iter()), keys, &numbers, 0)
    }

    pub(super) fn record(
        &self,
        keys: &[String],
        (channel, downstream): (&str, &str),
        change: Option<&Change<'_>>,
        now: Now,
        known_record: KnownRecord,
    ) -> Call<'_> {
        let mut numbers = Packed::with_capacity(16);
        numbers.put([now.number()]);
        numbers.put(known_record.numbers());
        if let Some(Change::Reset { limits }) = change {
            encode_limits(&mut numbers, limits.iter().map(|limit| (limit, None)), None);
            let mut call = Call::new(self.restart.of(*limits), keys, &numbers, 2);
            call.command.arg(channel).arg(downstream);
            return call;
        }
        let (word, text) = encode_change(&mut numbers, change);
        let mut call = Call::new(&self.plain.record, keys, &numbers, 4);
        call.command.arg(channel).arg(downstream).arg(word);
        text.iter().for_each(|text| {
            call.command.arg(text);
        });
        call
    }

    pub(super) fn tombstones(
        &self,
        keys: &[String],
        (channel, downstream): (&str, &str),
        call: TombstoneCall<'_>,
        now: Now,
        known_record: KnownRecord,
    ) -> Call<'_> {
        let mut numbers = Packed::with_capacity(16);
        numbers.put([now.number()]);
        numbers.put(known_record.numbers());
        let (word, ids): (_, Vec<&str>) = match call {
            TombstoneCall::Cancel { ids, span } => {
                numbers.put([Micros(0).plus(span).0]);
                ("cancel", ids.iter().map(|id| &**id).collect())
            }
            TombstoneCall::Undo { ids } => ("undo", ids.iter().map(|id| &**id).collect()),
            TombstoneCall::Recall { tombstones } => {
                for tombstone in tombstones {
                    let until = tombstone.until.0;
                    numbers.put([if tombstone.is_undone { -until } else { until }]);
                }
                ("recall", tombstones.iter().map(|tombstone| &*tombstone.id).collect())
            }
            TombstoneCall::Read { after } => {
                numbers.put_count(after);
                ("read", Vec::new())
            }
        };
        let mut call = Call::new(&self.plain.tombstones, keys, &numbers, 3 + ids.len());
        call.command.arg(channel).arg(downstream).arg(word).arg(ids);
        call
    }

    /// The call that leaves the summary of a replica, or withdraws it if `ttl` is zero.
    pub(super) fn leave_summary(
        &self,
        keys: &[String],
        (replica, summary): (&str, &str),
        ttl: Duration,
        now: Now,
    ) -> Call<'_> {
        let mut numbers = Packed::with_capacity(2);
        numbers.put([now.number(), Micros(0).plus(ttl).0]);
        let mut call = Call::new(&self.plain.summaries, keys, &numbers, 3);
        if ttl.is_zero() {
            call.command.arg("withdraw").arg(replica);
        } else {
            call.command.arg("leave").arg(replica).arg(summary);
        }
        call
    }

    /// The call that lists the replicas with a summary, and reads the summaries at the keys from the second on.
    pub(super) fn summaries(&self, keys: &[String], now: Now) -> Call<'_> {
        let mut numbers = Packed::with_capacity(1);
        numbers.put([now.number()]);
        let mut call = Call::new(&self.plain.summaries, keys, &numbers, 1);
        call.command.arg("read");
        call
    }

    /// The call that notes which downstreams are served, and returns those that nobody serves.
    pub(super) fn served(&self, keys: &[String], served: &Served<'_>, now: Now) -> Call<'_> {
        let Served { names, recalled, forgotten, unserved_for, .. } = *served;
        let mut numbers = Packed::with_capacity(3 + recalled.len());
        numbers.put([now.number(), Micros(0).plus(unserved_for).0]);
        numbers.put_count(u64::try_from(names.len()).unwrap_or(u64::MAX));
        recalled.iter().for_each(|unserved| numbers.put([unserved.served_at.0]));
        let mut call = Call::new(&self.plain.served, keys, &numbers, 2 + names.len() + recalled.len());
        call.command.arg(SERVED_KEPT.as_secs() * 1000).arg(forgotten.unwrap_or_default()).arg(names);
        recalled.iter().for_each(|unserved| {
            call.command.arg(&unserved.name);
        });
        call
    }

    /// The call that adds to the number of parked jobs, or sets it.
    pub(super) fn parked(&self, keys: &[String], jobs: i64) -> Call<'_> {
        let mut numbers = Packed::with_capacity(1);
        numbers.put([jobs]);
        let mut call = Call::new(&self.plain.parked, keys, &numbers, 1);
        call.command.arg(PARKED_KEPT.as_secs() * 1000);
        call
    }

    /// The call that adds to the groups of parked jobs.
    pub(super) fn parked_groups(&self, keys: &[String], call: &ParkedGroups<'_>) -> Call<'_> {
        let mut numbers = Packed::with_capacity(3 + 3 * call.changes.len());
        numbers.put([call.first_hour]);
        numbers.put_count(u64::try_from(MAX_PARKED_GROUPS).unwrap_or(u64::MAX));
        numbers.put_count(u64::try_from(call.changes.len()).unwrap_or(u64::MAX));
        for ParkedGroup { hour, kind, jobs } in call.changes {
            numbers.put([*hour, i64::from(*kind), (*jobs).clamp(-MAX_PARKED, MAX_PARKED)]);
        }
        let mut call = Call::new(&self.plain.parked_groups, keys, &numbers, 1);
        call.command.arg(PARKED_KEPT.as_secs() * 1000);
        call
    }

    /// The call that adds a text to the history of a downstream, or only reads that if the text is empty.
    pub(super) fn history(&self, keys: &[String], text: &str, now: Now) -> Call<'_> {
        let mut numbers = Packed::with_capacity(3);
        let kept = HISTORY_KEPT.as_secs() * 1000;
        numbers.put([now.number()]);
        numbers.put_count(u64::try_from(MAX_HISTORY).unwrap_or(u64::MAX));
        numbers.put_count(kept);
        let mut call = Call::new(&self.plain.history, keys, &numbers, 2);
        call.command.arg(kept).arg(text);
        call
    }
}
