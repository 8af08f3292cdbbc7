//! `paced top`: what every downstream is doing, live on the whole terminal.
//!
//! A [`View`] is what the user chose and what was seen so far; keys and answers change it. Drawing is a function of the view
//! and the last state alone. This file has all that is not pure: the terminal, the clock, the signals and the daemon.

mod draw;
mod pane;
mod screen;
mod spark;
mod style;
mod table;
#[cfg(test)]
mod tests;
mod view;

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use futures_util::future::OptionFuture;
use paced::api::order::{Pause, Resume};
use paced::api::state::State;
use paced::api::{PAUSE, RESUME};
use paced::time::wall_now;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::ask::{Daemon, Failure};
use super::exit::Exit;
use super::{Global, Output, out, pause};
use crate::daemon::{Hangups, Signals};
use screen::{Input, Screen};
use view::{Change, Order, View, Wish};

/// How long after an answer the daemon is asked again.
const POLL: Duration = Duration::from_secs(1);
/// How often the screen is drawn where nothing happens, for the spans on it.
const TICK: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only downstreams whose names contain this
    #[arg(default_value_t, hide_default_value = true)]
    filter: String,
}

pub(super) async fn run(global: &Global, args: &Args) -> Result<(), Exit> {
    if global.output == Output::Json || !stdout().is_terminal() {
        let problem = "top draws on a terminal, and stdout is to be something else; `paced status --watch` writes \
                       lines, and `paced status -o json` JSON";
        return Err(out::fail(Exit::Usage, problem));
    }
    let daemon = Daemon::of(global)?;
    daemon.warn_early().await;
    let signals = (Signals::new().map_err(out::failed)?, Hangups::new().map_err(out::failed)?);
    let view = View::new(args.filter.clone(), global.color.on_stream(true), wall_now().0 / 1000);
    let (mut screen, input) = Screen::open().map_err(|error| trouble(&error))?;
    let ended = watch(&mut screen, input, &daemon, signals, view).await;
    // Messages are printed where the user will see them.
    drop(screen);
    match ended {
        Ok(None) => Ok(()),
        Ok(Some(Ok(text))) => out::line(text),
        Ok(Some(Err(text))) => Err(out::fail(Exit::Failed, text)),
        Err(End::Terminal(error)) => Err(trouble(&error)),
        Err(End::Refused(failure)) => Err(failure.say()),
    }
}

/// Why it ends, if the user did not end it.
enum End {
    Terminal(std::io::Error),
    /// The daemon refuses this user, which will not change by itself.
    Refused(Failure),
}

impl From<std::io::Error> for End {
    fn from(error: std::io::Error) -> Self {
        Self::Terminal(error)
    }
}

/// Shows the state until the user leaves. Returns the result of a change that was under way then.
async fn watch(
    screen: &mut Screen,
    mut input: Input,
    daemon: &Daemon,
    (mut signals, mut hangups): (Signals, Hangups),
    mut view: View,
) -> Result<Option<Result<String, String>>, End> {
    let mut state: Option<State> = None;
    let mut answer = Box::pin(ask(daemon, Duration::ZERO));
    let mut change = OptionFuture::default();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        view.now = wall_now().0 / 1000;
        let height = screen.draw(&view, state.as_ref())?;
        tokio::select! {
            key = input.next() => {
                // An event without a key is a new size of the terminal, which the next drawing sees.
                match key?.map(|key| view.on_key(key, state.as_ref(), height)) {
                    Some(Wish::Leave) => break,
                    Some(Wish::Change(ordered)) => change = Some(Box::pin(carry_out(daemon, ordered))).into(),
                    Some(Wish::Stay) | None => {}
                }
            }
            Some(outcome) = &mut change => {
                change = None.into();
                view.on_changed(outcome);
                answer = Box::pin(ask(daemon, Duration::ZERO));
            }
            answered = &mut answer => {
                answer = Box::pin(ask(daemon, POLL));
                match answered {
                    Ok(answered) => {
                        view.on_answer(&answered, wall_now().0 / 1000);
                        state = Some(answered);
                    }
                    // Wrong tokens are counted: more requests would block this address for everybody on it.
                    Err(failure) if failure.exit == Exit::Unauthorized => return Err(End::Refused(failure)),
                    Err(failure) => view.on_failure(failure.text),
                }
            }
            _ = signals.next() => break,
            () = hangups.next() => break,
            _ = ticks.tick() => {}
        }
    }
    // The user must learn the result of the change. The wait has a time-out.
    Ok(change.await)
}

/// The daemon's state after a while.
async fn ask(daemon: &Daemon, after: Duration) -> Result<State, Failure> {
    sleep(after).await;
    daemon.try_state().await
}

/// Has the daemon carry out a change. Returns what is so now, or why it was not done, for people.
///
/// Not cancel safe: after a dropped future it is unknown whether it was carried out.
async fn carry_out(daemon: &Daemon, Change { order, downstream }: Change) -> Result<String, String> {
    let changed = match order {
        Order::Pause => daemon.try_ask(&PAUSE, &downstream, &Pause::default()).await,
        Order::Resume => daemon.try_ask(&RESUME, &downstream, &Resume::default()).await,
    };
    match changed {
        Ok(changed) => Ok(pause::outcome(&downstream, &changed)),
        // It may have been done nevertheless.
        Err(failure) if failure.exit == Exit::Unavailable => {
            Err(format!("it is not known whether {downstream} was changed: {}", failure.text))
        }
        Err(failure) => Err(format!("{downstream}: {}", failure.text)),
    }
}

fn trouble(error: &std::io::Error) -> Exit {
    let why = format_args!("the terminal cannot be used: {error}; `paced status --watch` needs less of it");
    out::fail(Exit::Failed, why)
}
