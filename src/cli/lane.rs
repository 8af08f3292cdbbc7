//! `paced lane`: weights and pauses of one value of the part by which lanes share, such as a tenant, everywhere and at once.

use paced::api::order::Span;
use paced::api::values::{PauseValue, ResumeValue, SetValue, SetWeight, UnsetWeight};
use paced::api::{DOWNSTREAM, Downstream, PAUSE_VALUE, RESUME_VALUE, SET_WEIGHT, UNSET_WEIGHT};
use serde_json::json;

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, out};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Shows the weights and pauses that operators set
    List(ListArgs),
    /// Shows the weight and the pause that operators set for one value
    Get(GetArgs),
    /// Sets the weight of a value in place of the configuration's, for a while or until it is unset
    Set(SetArgs),
    /// Ends a set weight: that of the configuration counts again
    Unset(ChangeArgs),
    /// Stops the releases of the jobs with a value, in every replica
    Pause(PauseArgs),
    /// Ends the pause of a value
    Resume(ChangeArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// The downstream, as in the daemon's configuration
    downstream: String,
}

/// One value of a downstream.
#[derive(Debug, clap::Args)]
struct Which {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// The value of the part in `lanes.fair_by`, such as a tenant; "" is that of jobs that do not have the part
    value: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct GetArgs {
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
pub(super) struct SetArgs {
    #[command(flatten)]
    which: Which,
    /// How many times as much as others it gets while all have jobs
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    weight: u32,
    /// How long the weight lasts, such as 2h [default: until it is unset]
    #[arg(long = "for", value_name = "DURATION")]
    span: Option<Span>,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct PauseArgs {
    #[command(flatten)]
    which: Which,
    /// How long the pause lasts, such as 10m [default: until it is resumed]
    #[arg(long = "for", value_name = "DURATION")]
    span: Option<Span>,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct ChangeArgs {
    #[command(flatten)]
    which: Which,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(super) async fn run(global: &Global, command: Command) -> Result<(), Exit> {
    let daemon = Daemon::of(global)?;
    match command {
        Command::List(ListArgs { downstream }) => {
            show(global, &daemon.ask(&DOWNSTREAM, &downstream, &()).await?, None)
        }
        Command::Get(GetArgs { which: Which { downstream, value } }) => {
            show(global, &daemon.ask(&DOWNSTREAM, &downstream, &()).await?, Some(&value))
        }
        Command::Set(SetArgs { which: Which { downstream, value }, weight, span, reason }) => {
            let order = SetWeight { value, weight, span, reason };
            show(global, &daemon.ask(&SET_WEIGHT, &downstream, &order).await?, Some(&order.value))
        }
        Command::Unset(ChangeArgs { which: Which { downstream, value }, reason }) => {
            let order = UnsetWeight { value, reason };
            show(global, &daemon.ask(&UNSET_WEIGHT, &downstream, &order).await?, Some(&order.value))
        }
        Command::Pause(PauseArgs { which: Which { downstream, value }, span, reason }) => {
            let order = PauseValue { value, span, reason };
            show(global, &daemon.ask(&PAUSE_VALUE, &downstream, &order).await?, Some(&order.value))
        }
        Command::Resume(ChangeArgs { which: Which { downstream, value }, reason }) => {
            let order = ResumeValue { value, reason };
            show(global, &daemon.ask(&RESUME_VALUE, &downstream, &order).await?, Some(&order.value))
        }
    }
}

/// Shows what is set for all values, or for one.
fn show(global: &Global, downstream: &Downstream, value: Option<&str>) -> Result<(), Exit> {
    let is_meant = |set: &&SetValue| value.is_none_or(|value| set.value == value);
    let meant: Vec<&SetValue> = downstream.values.iter().filter(is_meant).collect();
    match (global.output, value) {
        (Output::Json, _) => out::json(&json!({ "values": meant })),
        (Output::Human, None) if meant.is_empty() => out::line("no operator has set anything for a value"),
        (Output::Human, Some(value)) if meant.is_empty() => {
            out::line(format_args!("{}: as in the configuration", out::printable(value)))
        }
        (Output::Human, _) => meant.into_iter().try_for_each(|set| out::line(line(set))),
    }
}

/// A weight or a pause, with who set it, for people.
fn line(SetValue { value, weight, until, reason, by, set_at }: &SetValue) -> String {
    let (what, end) = match weight {
        Some(weight) => (format!("weight {weight}"), "until it is unset"),
        None => ("paused".to_owned(), "until it is resumed"),
    };
    let end = until.map_or_else(|| end.to_owned(), |until| format!("until {}", out::rfc3339(until)));
    let by = by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let why = reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    out::printable(&format!("{value}: {what} {end}, set{by} at {}{why}", out::rfc3339(*set_at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_set_until_when_by_whom_and_why() {
        let mut set = SetValue {
            value: "acme\u{1b}[2J".to_owned(),
            weight: Some(5),
            until: Some(60_000),
            reason: Some("a sale".to_owned()),
            by: Some("ops".to_owned()),
            set_at: 0,
        };
        assert_eq!(
            line(&set),
            "acme\\u{1b}[2J: weight 5 until 1970-01-01T00:01:00Z, set by ops at 1970-01-01T00:00:00Z (a sale)"
        );
        set = SetValue { weight: None, until: None, reason: None, by: None, ..set };
        assert_eq!(line(&set), "acme\\u{1b}[2J: paused until it is resumed, set at 1970-01-01T00:00:00Z");
    }
}
