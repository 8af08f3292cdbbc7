//! The cost of one decision: in memory compared with other crates, and in Redis compared with a bare script; and the
//! memory of a key there.

mod inside;
mod local;
mod remote;
mod space;

use paced::{Limit, LimitSet};

use crate::figures::{Figure, Section, Unit, median};
use crate::stage::Stage;

pub const NAME: &str = "limits";

/// The rate of every limit here. The burst is that of a thousand seconds, so that none refuses.
const RATE: u32 = 1_000_000;
const BURST: u32 = 1_000_000_000;

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "One decision",
        "In memory: the time of one call that grants, at 1 000 000/s with a burst that no run uses up, on \
         one thread; one limit, and 10 000 keys of 12 bytes in a random order. For governor this is \
         `check` or `check_key`, for leaky-bucket `try_acquire` (it has no keys), for paced the \
         reservation of a slot. Each reads its own clock, once per call: governor's is quanta, the time \
         stamp counter. In Redis: calls per second on one connection of the same client with as many in \
         flight, which runs on the callers' runtime. The bare script (benches/pace/loops/gcra.lua) is a \
         usual GCRA: one key, by the server's clock, with a TTL. It sets its TTL with every call. paced \
         sets it once in 4 s of slots, or with every call if slots lie farther apart. All take turns in \
         rounds of a fraction of a second. A figure is the median of the rounds, a ratio the median of the \
         rounds' ratios. Memory is what Redis counts (used_memory) for 100 000 keys of 12 bytes on its own \
         server, by key: name, state, TTL and all overhead. Every key except the downstream's record has a \
         TTL. The time in Redis of a call is from Redis (commandstats), with 8 in flight, before 2 000 of \
         the bare script. That of 1 024 jobs is of the slowest of five sets: each algorithm that counts \
         alone, and six limits together. That of lanes without room is of the slower of a full log and a \
         full sliding window, in which jobs of cost 5 000 find no room.",
    );
    for run in 1..=stage.runs {
        eprintln!("  limits, run {run}: in memory");
        local::measure(&mut section).await?;
        eprintln!("  limits, run {run}: in Redis");
        remote::measure(stage, &mut section).await?;
        inside::measure(stage, &mut section).await?;
        space::measure(&mut section).await?;
        section.runs = run;
    }
    Ok(section)
}

/// The median over the rounds of the value that `of` computes for each.
fn over<const N: usize>(rounds: &[[f64; N]], of: impl Fn(&[f64; N]) -> f64) -> Option<f64> {
    median(&rounds.iter().map(of).collect::<Vec<_>>())
}

const fn figure(name: &'static str, unit: Unit) -> Figure {
    Figure::median(name, unit)
}

fn limits() -> Result<LimitSet, String> {
    let rate = format!("{RATE}/s").parse().map_err(|error| format!("{RATE}/s: {error}"))?;
    let limit = Limit::leaky_bucket("rate", rate, BURST).map_err(|error| error.to_string())?;
    LimitSet::new(vec![limit]).map_err(|error| error.to_string())
}
