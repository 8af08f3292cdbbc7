//! `paced check`: is the configuration right, and with `--online`, are the servers there?

use super::exit::Exit;
use super::{Global, parts};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Connects to the broker and the store too; changes nothing there
    #[arg(long)]
    online: bool,
}

pub(super) async fn run(global: &Global, args: &Args) -> Exit {
    let loaded = match parts::load(global) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    let settings = &loaded.settings;
    let names: Vec<&str> = settings.downstreams.keys().map(String::as_str).collect();
    println!("configuration ok: {} downstream(s): {}", names.len(), names.join(", "));
    if !args.online {
        return Exit::Ok;
    }
    let options = match parts::amqp(settings) {
        Ok(options) => options,
        Err(exit) => return exit,
    };
    let broker = paced::amqp::check_online(&options).await;
    match &broker {
        Ok(()) => println!("broker ok: {}", settings.amqp.url),
        Err(errors) => errors.iter().for_each(|error| eprintln!("paced: {error}")),
    }
    let store = match parts::store(settings) {
        Ok(store) => store.ping().await,
        Err(error) => Err(error),
    };
    match &store {
        Ok(_) => println!("store ok: {}", settings.store.url),
        Err(error) => eprintln!("paced: {error}"),
    }
    match broker {
        Err(errors) => errors.first().map_or(Exit::Failed, Exit::from),
        Ok(()) if store.is_err() => Exit::Unavailable,
        Ok(()) => Exit::Ok,
    }
}
