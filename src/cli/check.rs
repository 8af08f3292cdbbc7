//! `paced check`: is the configuration right, and with `--online`, are the servers there?

use super::exit::Exit;
use super::{Global, out, parts};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Connects to the broker and the store too; changes nothing there
    #[arg(long)]
    online: bool,
}

pub(super) async fn run(global: &Global, args: &Args) -> Exit {
    match check(global, args).await {
        Ok(()) => Exit::Ok,
        Err(exit) => exit,
    }
}

async fn check(global: &Global, args: &Args) -> Result<(), Exit> {
    let settings = parts::load(global)?.settings;
    let names: Vec<&str> = settings.downstreams.keys().map(String::as_str).collect();
    out::line(format_args!("configuration ok: {} downstream(s): {}", names.len(), names.join(", ")))?;
    if !args.online {
        return Ok(());
    }
    let options = parts::amqp(&settings)?;
    let mut wrong = Vec::new();
    match paced::amqp::check_online(&options).await {
        Ok(()) => out::line(format_args!("broker ok: {}", settings.amqp.url))?,
        Err(errors) => {
            errors.iter().for_each(|error| out::say(format_args!("paced: {error}")));
            wrong.extend(errors.iter().map(Exit::from));
        }
    }
    let store = match parts::store(&settings) {
        Ok(store) => store.ping().await,
        Err(error) => Err(error),
    };
    match store {
        Ok(_) => out::line(format_args!("store ok: {}", settings.store.url))?,
        Err(error) => {
            out::say(format_args!("paced: {error}"));
            wrong.push(Exit::Unavailable);
        }
    }
    Exit::worst(wrong).map_or(Ok(()), Err)
}
