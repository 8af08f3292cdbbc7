//! `paced explain-answer`: what an answer of an API means, and why.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;

use paced::sink::http::{Answered, Decision, decide};
use paced::sink::{MAX_ANSWER, Meaning};

use super::exit::Exit;
use super::{Global, Output, out, parts};

/// Says what an answer of a downstream's API would mean, who waits and for how long, and which rule says so. Nothing is sent.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The downstream
    downstream: String,
    /// The status, such as 429
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,
    /// A header of the answer; repeat the option for several headers. Dates and resets count from its `Date`, or else from
    /// this machine's clock
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// A file with the body of the answer; - is stdin
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// Assumes that an earlier attempt of the job ended without an answer
    #[arg(long)]
    after_timeout: bool,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("no colon; write such as \"Retry-After: 2\"")?;
    let name = name.trim().parse().map_err(|_| "no name of a header")?;
    Ok((name, value.trim().parse().map_err(|_| "no value of a header")?))
}

pub(super) fn run(global: &Global, args: &Args) -> Result<(), Exit> {
    let config = parts::load(global)?.settings;
    let downstream = parts::downstream(&config, &args.downstream)?;
    let headers: HeaderMap = args.header.iter().cloned().collect();
    let body = args.body.as_deref().map(read).transpose()?;
    let status = StatusCode::from_u16(args.status).map_err(|_| Exit::Usage)?;
    let answer = Answered::new(status, &headers, body.as_deref()).repeating(args.after_timeout);
    let Decision { is, wait, by } = decide(&downstream.retry.answers, &answer);
    let wait = wait.map(|wait| wait.min(downstream.retry.max_pause));
    match global.output {
        Output::Human => {
            out::line(format_args!("{}: {}", is.word(), consequence(is, wait.is_some())))?;
            if let Some(wait) = wait {
                out::line(format_args!("wait: {wait:?}"))?;
            }
            out::line(format_args!("because: {by}"))
        }
        Output::Json => {
            let millis = wait.map(|wait| wait.as_millis());
            out::json(&json!({ "is": is.word(), "wait_ms": millis, "because": by.to_string() }))
        }
    }
}

fn read(path: &std::path::Path) -> Result<Vec<u8>, Exit> {
    // The daemon reads no more either.
    let read = |file: &mut dyn Read| {
        let mut all = Vec::new();
        file.take(MAX_ANSWER as u64).read_to_end(&mut all).map(|_| all)
    };
    let read = match path.to_str() {
        Some("-") => read(&mut std::io::stdin().lock()),
        _ => File::open(path).and_then(|mut file| read(&mut file)),
    };
    read.map_err(|error| {
        out::say(format_args!("cannot read {}: {error}", path.display()));
        Exit::Usage
    })
}

const fn consequence(is: Meaning, waits: bool) -> &'static str {
    match (is, waits) {
        (Meaning::Delivered, false) => "the job is done",
        (Meaning::Delivered, true) => "the job is done, and all others wait",
        (Meaning::Throttled, true) => "all jobs wait, then this one is tried again",
        (Meaning::Throttled, false) => {
            "all jobs wait; one at a time is tried after 1 s, 2 s, 4 s and so on up to retry.max_cooldown, until one succeeds"
        }
        (Meaning::Retry, true) => "this job is tried again, after a backoff or this wait if it is longer",
        (Meaning::Retry, false) => "this job is tried again after a backoff",
        (Meaning::Dead, false) => "the job is a dead letter",
        (Meaning::Dead, true) => "the job is a dead letter, and all others wait",
        (Meaning::Unauthorized, _) => "the credentials may be refused: the job waits until that is known",
    }
}
