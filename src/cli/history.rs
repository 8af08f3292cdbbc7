//! `paced history`: the last changes by operators, over all replicas.

use paced::api::CHANGES;
use paced::api::history::{Author, Change};
use serde_json::json;

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, out};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only the changes of this downstream
    downstream: Option<String>,
}

pub(super) async fn run(global: &Global, args: Args) -> Result<(), Exit> {
    let daemon = Daemon::of(global)?;
    let names = match args.downstream {
        Some(name) => vec![name],
        None => daemon.state().await?.downstreams.into_iter().map(|downstream| downstream.name).collect(),
    };
    let mut all: Vec<(String, Change)> = Vec::new();
    for name in names {
        let answer = daemon.ask(&CHANGES, &name, &()).await?;
        all.extend(answer.changes.into_iter().map(|change| (name.clone(), change)));
    }
    // Those of one instant stay in the order of the downstreams.
    all.sort_by_key(|(_, change)| change.at);
    match global.output {
        Output::Json => all.iter().try_for_each(|(name, change)| {
            let mut line = json!(change);
            line["downstream"] = json!(name);
            out::json(&line)
        }),
        Output::Human if all.is_empty() => out::line("no changes are known"),
        Output::Human => {
            let rows: Vec<_> = all.iter().map(|(name, change)| row(name, change)).collect();
            out::table(["AT", "BY", "DOWNSTREAM", "CHANGE", "FROM", "TO", "REASON"], &(0..0), &rows)
        }
    }
}

fn row(downstream: &str, change: &Change) -> [String; 7] {
    let Change { at, author, change, chosen, before, after, reason, is_unknown } = change;
    let Author { by, certificate, claimed } = author;
    // The name of the certificate stands alone where the token has none.
    let shown = Some(certificate).filter(|name| !name.is_empty() && *name != by);
    let by = match (shown, claimed.as_str()) {
        (None, "") => by.clone(),
        (None, claimed) => format!("{by} (as {claimed})"),
        (Some(shown), "") => format!("{by} (certificate {shown})"),
        (Some(shown), claimed) => format!("{by} (certificate {shown}, as {claimed})"),
    };
    let change = if chosen.is_empty() { change.clone() } else { format!("{change} {chosen}") };
    let change = if *is_unknown { format!("{change} (perhaps)") } else { change };
    let at = out::rfc3339(*at);
    let cells: [&str; 7] = [&at, &by, downstream, &change, before, after, reason];
    cells.map(out::printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_row() {
        let change = Change {
            at: 1_764_000_000_123,
            author: Author {
                by: "alice".to_owned(),
                certificate: "alice".to_owned(),
                claimed: "bob".to_owned(),
            },
            change: "pause".to_owned(),
            after: "paused for 10 minutes".to_owned(),
            reason: "\u{1b}[2J".to_owned(),
            is_unknown: true,
            ..Change::default()
        };
        let expected = [
            "2025-11-24T16:00:00Z",
            "alice (as bob)",
            "billing",
            "pause (perhaps)",
            "",
            "paused for 10 minutes",
            "\\u{1b}[2J",
        ];
        assert_eq!(row("billing", &change), expected);
        let by = |certificate: &str, claimed: &str| {
            let (by, certificate, claimed) = ("alice".to_owned(), certificate.to_owned(), claimed.to_owned());
            let author = Author { by, certificate, claimed };
            let [_, by, ..] = row("billing", &Change { author, ..change.clone() });
            by
        };
        assert_eq!(by("laptop-7", "bob"), "alice (certificate laptop-7, as bob)");
        assert_eq!(by("lap\u{1b}top", ""), "alice (certificate lap\\u{1b}top)");
        assert_eq!((by("alice", ""), by("", "")), ("alice".to_owned(), "alice".to_owned()));
    }
}
