//! `paced check`: is the configuration right, and with `--online`, are the servers there?

use paced::amqp::{Findings, Server};
use paced::config::Settings;

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
    for (name, downstream) in &settings.downstreams {
        out::line(format_args!("{name}: max_cost {}", downstream.max_cost()))?;
        for plan in downstream.plan_rules() {
            out::line(format_args!("{name}: max_cost {} (plan {})", plan.max_cost, plan.name))?;
        }
    }
    if !args.online {
        return Ok(());
    }
    let options = parts::amqp(&settings)?;
    let Findings { server, errors, warnings, .. } = paced::amqp::check_online(&options).await;
    let mut wrong: Vec<Exit> = errors.iter().map(Exit::from).collect();
    errors.iter().for_each(|error| out::say(format_args!("paced: {error}")));
    warnings.iter().for_each(|warning| out::say(format_args!("paced: warning: {warning}")));
    if let Some(server) = &server {
        warn_of_bodies(server, &settings);
    }
    if errors.is_empty() {
        let server = server.map_or_else(String::new, |server| format!(" ({server})"));
        out::line(format_args!("broker ok: {}{server}", settings.amqp.url))?;
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

/// Warns of bodies that a downstream allows and the broker does not.
fn warn_of_bodies(server: &Server, settings: &Settings) {
    let Some(bound) = server.max_message_size() else { return };
    for (name, downstream) in &settings.downstreams {
        let max_body = downstream.http.max_body;
        if max_body > bound {
            out::say(format_args!(
                "paced: warning: downstreams.{name}.http.max_body is {max_body} bytes, and {server} takes messages of \
                 {bound} bytes at most unless its max_message_size says otherwise; raise that, or lower max_body"
            ));
        }
    }
}
