//! `paced forecast`: when jobs would be through, by the limits on a virtual clock.

use std::path::PathBuf;

use paced::job::{Message, Value, decode};
use paced::pipe::{self, Records};
use paced::time::{Micros, wall_now};
use serde_json::{Value as Json, json};

use super::bounded::Bounded;
use super::exit::Exit;
use super::template::{HeaderArg, TableArgs, add_headers, check_headers, header, say_taken};
use super::{Global, Output, input, out, parts};
use crate::daemon;
use simulation::{Ended, Simulation, Span};

mod simulation;

/// Says when jobs would be released at the limits of a downstream, which limit binds when, and which jobs would become
/// dead letters. It asks no server. It assumes that the limits are whole, all jobs are there at once, and the API answers
/// at once.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The downstream, as in the configuration
    #[arg(short = 'D', long, value_name = "NAME")]
    downstream: String,
    /// Jobs, one JSON object per line, or with --csv one row; `-` is stdin
    #[arg(required_unless_present = "count")]
    file: Option<PathBuf>,
    /// The number of equal jobs
    #[arg(long, conflicts_with = "file", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Cost of each equal job
    #[arg(long, requires = "count", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cost: Option<u32>,
    /// Plan of each equal job
    #[arg(long, requires = "count", value_name = "PLAN")]
    plan: Option<String>,
    /// When the jobs are there, in RFC 3339 [default: now]
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    at: Option<Micros>,
    #[command(flatten)]
    table: TableArgs,
    /// Header of every job that has no header of this name, which http.allow_headers must allow; repeat the option for several
    /// headers. With --csv the value may have cells in it: 'x-tenant:{tenant}'
    #[arg(long, value_name = "NAME:VALUE", value_parser = header)]
    header: Vec<HeaderArg>,
}

fn instant(text: &str) -> Result<Micros, String> {
    let at = text.parse::<jiff::Timestamp>().map_err(|_| "write such as 2030-01-31T08:00:00Z".to_owned())?;
    u64::try_from(at.as_microsecond()).map_err(|_| "write an instant after 1970".to_owned())?;
    Ok(Micros(at.as_microsecond()).min(Micros::MAX))
}

pub(super) async fn run(global: &Global, args: &Args) -> Result<(), Exit> {
    let settings = parts::load(global)?.settings;
    let downstream = parts::downstream(&settings, &args.downstream)?;
    if downstream.lanes.rules.is_some() {
        let problem =
            "the downstream has lanes, whose limits a forecast does not follow; leave lanes.by out for one";
        return Err(out::fail(Exit::Usage, problem));
    }
    let rules = daemon::rules(&settings, downstream);
    check_headers(&args.header, |_| false, |name| rules.allows_header(name))?;
    let plain = args.table.format(&args.header).1;
    let start = args.at.unwrap_or_else(wall_now);
    let mut simulation = Simulation::new(downstream, start);
    let mut take = |line: u64, mut message: Message, times: u64| {
        add_headers(&mut message, &plain);
        match decode(&message, &rules) {
            Ok(job) => simulation.add(&job, line, times),
            Err(rejection) => simulation.refuse(rejection.reason, &rejection.detail, line, times),
        }
    };
    let mut bad_lines = Bounded::new("bad lines", global.verbose > 0);
    if let Some(count) = args.count {
        take(1, equal(args), count);
    } else {
        let (mut records, path) = open(args).await?;
        while let Some((line, job)) = records.job().await.map_err(|error| usage(&path, &error))? {
            match job {
                Ok(message) => take(line, message, 1),
                Err(error) => {
                    if let Some(line) = bad_lines.next(format_args!("line {line}: {error}")) {
                        out::say(format_args!("paced: {line}"));
                    }
                }
            }
        }
    }
    let (ended, bad_lines) = (simulation.run(), bad_lines.count());
    match global.output {
        Output::Json => out::json(&as_json(&ended, bad_lines)),
        Output::Human => lines(&ended).iter().try_for_each(out::line),
    }?;
    if bad_lines == 0 { Ok(()) } else { Err(Exit::Failed) }
}

fn equal(args: &Args) -> Message {
    let mut message = Message::default();
    if let Some(cost) = args.cost {
        message.headers.push(("paced-cost".to_owned(), Value::Integer(cost.into())));
    }
    if let Some(plan) = &args.plan {
        message.headers.push(("paced-plan".to_owned(), Value::Text(plan.clone().into())));
    }
    message
}

type Input = Box<dyn tokio::io::AsyncBufRead + Send + Unpin>;

async fn open(args: &Args) -> Result<(Records<Input>, String), Exit> {
    let path = args.file.as_ref().map_or_else(|| "stdin".to_owned(), |path| path.display().to_string());
    let (format, _) = args.table.format(&args.header);
    let reader = input::open(args.file.as_deref()).await?;
    let whole = pipe::recognise(reader, &format).await.map_err(|error| usage(&path, &error))?;
    let reader: Input = Box::new(whole.map_err(|wrong| usage(&path, &wrong))?);
    let records = Records::open(reader, &format).await.map_err(|error| usage(&path, &error))?;
    say_taken(&path, &records);
    Ok((records, path))
}

fn usage(path: &str, error: &dyn std::error::Error) -> Exit {
    out::fail(Exit::Usage, format_args!("{path}: {error}"))
}

fn at(instant: Micros) -> String {
    format!("{} UTC", out::instant(instant.0 / 1000))
}

/// The forecast, for people.
fn lines(ended: &Ended) -> Vec<String> {
    let Ended { start, first, last, released, spans, dead } = ended;
    let mut lines = Vec::new();
    match (first, last) {
        (Some(first), Some(last)) => {
            let span = parts::for_people((last.0 - start.0) / 1000);
            lines.push(format!(
                "{released} job(s): the first at {}, through at {}, in {span}",
                at(*first),
                at(*last)
            ));
        }
        _ => lines.push("no job would be sent".to_owned()),
    }
    for Span { what, from, until, jobs } in spans {
        lines.push(format!("  {} to {}: {what} binds {jobs} job(s)", at(*from), at(*until)));
    }
    for (reason, dead) in dead {
        let first = dead.line;
        lines.push(format!(
            "  dead, {reason}: {} job(s), the first at line {first}: {}",
            dead.jobs, dead.detail
        ));
    }
    lines
}

fn as_json(ended: &Ended, bad_lines: u64) -> Json {
    let instant = |at: &Micros| at.0 / 1000;
    let span = |span: &Span| json!({ "binds": span.what, "from": instant(&span.from), "until": instant(&span.until), "jobs": span.jobs });
    let dead = ended.dead.iter().map(|(reason, dead)| {
        json!({ "reason": reason, "jobs": dead.jobs, "line": dead.line, "detail": dead.detail })
    });
    json!({
        "start": instant(&ended.start), "first": ended.first.as_ref().map(instant),
        "through_at": ended.last.as_ref().map(instant), "jobs": ended.released,
        "binds": ended.spans.iter().map(span).collect::<Vec<_>>(), "dead": dead.collect::<Vec<_>>(), "bad_lines": bad_lines,
    })
}
