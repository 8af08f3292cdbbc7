//! `paced explain`: what one job waits for.

use paced::api::explain::{Explanation, Place};
use paced::api::{EXPLAIN_JOB, EXPLAIN_LANE};

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, out, parts};

/// Says what a job waits for: its place, what binds, and about when it goes. It asks one daemon, which knows the jobs that it
/// holds. If several replicas run, ask each of them with --admin.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// The id of the job
    #[arg(required_unless_present = "lane", conflicts_with = "lane")]
    id: Option<String>,
    /// The lane whose next job is meant, with all of its parts, such as "endpoint=x&tenant=acme"
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
}

pub(super) async fn run(global: &Global, args: &Args) -> Result<(), Exit> {
    let daemon = Daemon::of(global)?;
    let name = &args.downstream;
    let explanation = match (&args.lane, &args.id) {
        (Some(lane), _) => daemon.ask_about(&EXPLAIN_LANE, name, lane).await?,
        (None, id) => daemon.ask_about(&EXPLAIN_JOB, name, id.as_deref().unwrap_or_default()).await?,
    };
    match global.output {
        Output::Json => out::json(&explanation),
        Output::Human => out::line(text(&explanation, paced::time::wall_now().0 / 1000)),
    }
}

/// What a job waits for, for people.
fn text(explanation: &Explanation, now: i64) -> String {
    let Explanation { name, id, replica, state, place, binding, goes_at } = explanation;
    let state = match state.as_str() {
        "waiting" => "waits for a slot",
        "requested" => "waits for the answer of the store, which is asked for a slot",
        "held" => "has a slot",
        "delayed" => "waits for its time",
        "retrying" => "waits for another attempt",
        state => state,
    };
    let mut lines = vec![format!("job {id} of {name} {state} in replica {replica}")];
    let mut line = |title: &str, text: String| lines.push(format!("  {title:<10} {text}"));
    if let Some(Place { lane, waiting, ahead, before }) = place {
        if let Some(lane) = lane {
            line("lane", format!("{lane}: {ahead} of its {waiting} jobs here go before it"));
        }
        line("before it", format!("{before} jobs of all lanes in this replica"));
    }
    binding.iter().for_each(|binding| line("binds", binding.text.clone()));
    let at = goes_at.map_or_else(
        || "not known".to_owned(),
        |at| match at - now {
            ..=0 => format!("{} UTC, now", out::instant(at)),
            left => format!("{} UTC, in {}", out::instant(at), parts::for_people(left)),
        },
    );
    let (title, note) = match place {
        Some(_) => ("goes at", ", about, if no other job comes"),
        None => ("goes at", ""),
    };
    line(title, format!("{at}{note}"));
    // Ids and lanes are foreign text.
    lines.iter().map(|line| out::printable(line)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use paced::api::explain::Bound;

    use super::*;

    #[test]
    fn a_job_that_waits_has_its_place_and_what_binds() {
        let mut explanation = Explanation {
            name: "billing".to_owned(),
            id: "7\u{1b}[2J".to_owned(),
            replica: "3f2a91bc".to_owned(),
            state: "waiting".to_owned(),
            place: Some(Place { lane: Some("tenant=acme".to_owned()), waiting: 500, ahead: 12, before: 130 }),
            binding: Some(Bound { text: "the limit lane.l of its lane".to_owned(), ..Bound::default() }),
            goes_at: Some(120_000),
        };
        assert_eq!(
            text(&explanation, 0),
            "job 7\\u{1b}[2J of billing waits for a slot in replica 3f2a91bc\n  \
               lane       tenant=acme: 12 of its 500 jobs here go before it\n  \
               before it  130 jobs of all lanes in this replica\n  \
               binds      the limit lane.l of its lane\n  \
               goes at    1970-01-01 00:02:00 UTC, in 2 min 0 s, about, if no other job comes"
        );
        explanation = Explanation { place: None, binding: None, state: "held".to_owned(), ..explanation };
        explanation.goes_at = Some(0);
        let held = text(&explanation, 1);
        assert!(held.contains(" has a slot in ") && held.ends_with("1970-01-01 00:00:00 UTC, now"), "{held}");
        explanation.goes_at = None;
        assert!(text(&explanation, 0).ends_with("  goes at    not known"));
    }
}
