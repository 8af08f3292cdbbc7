//! `paced unpark`: jobs that are parked for a limit come back before their time.

use serde_json::json;

use super::exit::Exit;
use super::{Global, Output, out, parts};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The downstream, as in the configuration
    downstream: String,
}

pub(super) async fn run(global: &Global, Args { downstream }: Args) -> Result<(), Exit> {
    let settings = parts::load(global)?.settings;
    parts::downstream(&settings, &downstream)?;
    let options = parts::amqp(&settings)?;
    let jobs = paced::amqp::unpark(&options, &downstream).await.map_err(out::failed)?;
    match global.output {
        Output::Json => out::json(&json!({ "downstream": downstream, "unparked": jobs })),
        Output::Human => out::line(format_args!("{downstream}: {jobs} job(s) came back")),
    }
}
