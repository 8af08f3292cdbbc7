//! Whether the broker would let us work, without changing anything there.

use lapin::Connection;

use super::Options;
use super::connection::{channel, close, connect};
use super::error::Error;
use super::topology::{find_exchange, find_queue};

/// Connects and looks for every exchange and queue, passively. One that `run` would declare may be
/// missing.
///
/// Cancel safe: a dropped future closes what it opened.
///
/// # Errors
/// All that is wrong; only the first where the broker cannot be reached.
pub async fn check_online(options: &Options) -> Result<(), Vec<Error>> {
    let connection = connect(&options.address, "check").await.map_err(|error| vec![error])?;
    let mut errors = Vec::new();
    for thing in things(options) {
        match look(&connection, &thing).await {
            Ok(()) => {}
            Err(Error::NotFound { .. }) if thing.declared => {}
            Err(error) => {
                let over = error.is_unreachable();
                errors.push(error);
                if over {
                    break;
                }
            }
        }
    }
    // The answer is known: a close that fails changes nothing about it.
    let _ = super::connection::ask("closing the connection", connection.close(200, "OK".into())).await;
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

struct Thing {
    name: String,
    is_exchange: bool,
    /// `run` creates it.
    declared: bool,
}

fn things(options: &Options) -> Vec<Thing> {
    let names = options.names();
    let declared = options.declare;
    let mut things = Vec::new();
    if declared || options.downstreams.iter().any(|downstream| downstream.queue.is_none()) {
        things.push(Thing { name: names.jobs(), is_exchange: true, declared });
        things.push(Thing { name: names.unroutable(), is_exchange: true, declared });
        things.push(Thing { name: names.unroutable(), is_exchange: false, declared });
    }
    for downstream in &options.downstreams {
        let own = downstream.queue.is_none();
        things.push(Thing { name: names.queue(downstream), is_exchange: false, declared: declared && own });
        things.push(Thing { name: names.dead(&downstream.name), is_exchange: false, declared });
    }
    things
}

/// On a channel of its own, since the broker closes it over what is missing.
async fn look(connection: &Connection, thing: &Thing) -> Result<(), Error> {
    let channel = channel(connection).await?;
    if thing.is_exchange {
        find_exchange(&channel, &thing.name).await?;
    } else {
        find_queue(&channel, &thing.name).await?;
    }
    close(&channel).await;
    Ok(())
}
