//! Checks whether the broker would let paced work, without changing anything there.

use lapin::Connection;
use lapin::types::{AMQPValue, FieldTable};

use super::Options;
use super::connection::{channel, close, connect};
use super::error::Error;
use super::foreign::{self, Kind, Returns, Traits};
use super::greeting::{Server, greeting};
use super::ladder::Rung;
use super::rights;
use super::topology::{Delay, find_exchange, find_queue, home_arguments, jobs_arguments, letters_arguments};

/// The results of a check of the broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Findings {
    /// The broker's product and version; `None` where it could not be reached or does not say.
    pub server: Option<Server>,
    /// The problems that keep `run` from working.
    pub errors: Vec<Error>,
    /// The problems that may lose jobs or fail later.
    pub warnings: Vec<Warning>,
}

/// A problem that does not prevent work, but may lose jobs or fail later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// The queue is not paced's own, and drops jobs that come back often.
    #[error(
        "queue {queue} of downstream {downstream} has no dead-letter exchange, and the broker drops a job that comes \
         back to it more than {limit} times; have it declared with x-dead-letter-exchange, or set one by a policy, \
         which cannot be seen from here"
    )]
    NoDeadLetterExchange {
        /// The downstream that consumes it.
        downstream: String,
        /// `queue.name`.
        queue: String,
        /// How often a job may come back.
        limit: String,
    },
    /// The queue is not paced's own, and may drop jobs that come back often.
    #[error(
        "if queue {queue} of downstream {downstream} is a quorum queue without a dead-letter exchange, {server} drops a \
         job that comes back to it more than {DEFAULT_LIMIT} times; have it declared with x-dead-letter-exchange, or \
         set one by a policy (with the permission to configure the queue, this check reads the argument itself)"
    )]
    PerhapsNoDeadLetterExchange {
        /// The downstream that consumes it.
        downstream: String,
        /// `queue.name`.
        queue: String,
        /// The broker, which has such a limit by default.
        server: Server,
    },
    /// The queue is not paced's own, and is deleted when it loses its last consumer.
    #[error(
        "queue {queue} of downstream {downstream} is deleted with its jobs when paced ends or loses its connection, as it \
         is declared with auto-delete; declare it durable and without auto-delete"
    )]
    AutoDelete {
        /// The downstream that consumes it.
        downstream: String,
        /// `queue.name`.
        queue: String,
    },
    /// The queue exists with other arguments than it would be declared with, and is used as it is.
    #[error(
        "queue {queue} exists with other arguments, and is used as it is: {detail}; {way}, or delete the queue once it \
         is empty (`rabbitmqctl delete_queue --if-empty {queue}`), and paced declares it anew"
    )]
    OtherArguments {
        /// The queue.
        queue: String,
        /// The broker's text, which names the first argument that differs.
        detail: String,
        /// How a policy sets the same bounds.
        way: String,
    },
    /// The user may not inspect an exchange or queue that paced could work without.
    #[error(
        "not allowed to inspect {name}: {detail}; paced works without this right, but a problem with {name} shows only \
         when paced uses it; grant the user the rights that docs/rabbitmq.md lists"
    )]
    MayNotLook {
        /// The exchange or queue.
        name: String,
        /// The broker's text.
        detail: String,
    },
    /// The user may not write to the default exchange.
    #[error(
        "not allowed to publish dead letters and replies: {detail}; until the user may write to amq.default, jobs that \
         fail for good stay unacked, and replies are given up"
    )]
    MayNotPublish {
        /// The broker's text.
        detail: String,
    },
    /// Jobs cannot be parked, since exchanges or queues for that are missing, and `run` does not declare them.
    #[error(
        "jobs that must wait for long cannot be parked, so paced holds them, and they may block other jobs: there is no \
         {}, or the user may not inspect it; create what docs/parking.md lists, or let paced declare it with \
         amqp.declare = true",
        missing.join(", ")
    )]
    NoParking {
        /// The exchanges and queues that are missing.
        missing: Vec<String>,
    },
    /// Some of the queues are missing in which jobs of a downstream wait for a limit, and that `run` does not declare.
    #[error(
        "jobs of downstream {downstream} that wait for a limit do not come back sooner when it changes: there is no {}, or \
         the user may not inspect it; create what docs/parking.md lists, or delete all paced.wait queues of the downstream",
        missing.join(", ")
    )]
    SomeWaitsMissing {
        /// The downstream.
        downstream: String,
        /// The names of exchanges and queues that are missing.
        missing: Vec<String>,
    },
    /// The broker requires a permission for passive declarations, as only RabbitMQ 4.3.0 does.
    #[error(
        "{server} needs the permission to configure even to check a name; grant it on {}, or update RabbitMQ",
        names.join(", ")
    )]
    PassiveNeedsConfigure {
        /// The broker, whose version requires it.
        server: Server,
        /// The exchanges and queues that are inspected.
        names: Vec<String>,
    },
}

/// How often a message may come back to a quorum queue of RabbitMQ 4.0 or later that names no limit.
const DEFAULT_LIMIT: u32 = 20;

/// Connects and inspects every exchange and queue passively. One that `run` would declare may be missing. The user's
/// permissions, and the settings of queues that are not paced's own, are determined by calls that cannot succeed:
/// nothing is declared, no queue takes what is published, and no message is taken out of one.
///
/// Cancel safe: a dropped future closes what it opened.
pub async fn check_online(options: &Options) -> Findings {
    let connection = match connect(&options.address, "check", None).await {
        Ok(connection) => connection,
        Err(error) => return Findings { errors: vec![error], ..Findings::default() },
    };
    let server = greeting(&options.address).await;
    let (mut errors, mut warnings) = (Vec::new(), Vec::new());
    let (things, mut missing) = (things(options), Vec::new());
    for thing in &things {
        match inspect(&connection, thing).await {
            Ok(()) => {
                // A queue that others declare has no arguments here.
                let differs = warn_of_arguments(&connection, thing).await;
                let own = thing.own.as_ref().filter(|_| differs.is_some());
                if let Some(downstream) = thing.foreign.as_ref().or(own) {
                    let traits = foreign::traits(&connection, &thing.name).await;
                    if traits.kind == Kind::Stream {
                        errors.push(Error::Stream { queue: thing.name.clone() });
                    }
                    warnings.extend(warn_of_traits(downstream, &thing.name, traits, server.as_ref()));
                }
                warnings.extend(differs);
            }
            Err(Error::NotFound { .. }) if thing.declared => {}
            Err(Error::NotFound { .. } | Error::Refused { .. }) if thing.for_parking => {
                missing.push(thing.name.clone());
            }
            Err(Error::Refused { detail, .. }) if !thing.consumed => {
                warnings.push(Warning::MayNotLook { name: thing.name.clone(), detail });
            }
            Err(error) => {
                let over = error.is_unreachable();
                errors.push(error);
                if over {
                    break;
                }
            }
        }
    }
    if !missing.is_empty() {
        missing.dedup();
        warnings.push(Warning::NoParking { missing });
    }
    if !errors.iter().any(Error::is_unreachable) {
        for downstream in options.downstreams.iter().filter(|_| !options.declare) {
            warnings.extend(warn_of_waits(&connection, options, &downstream.name).await);
        }
        let detail = rights::refused_publish(&connection).await;
        warnings.extend(detail.map(|detail| Warning::MayNotPublish { detail }));
    }
    warnings.extend(server.as_ref().and_then(|server| warn_of_passive(server, &things)));
    // The findings are complete: a close that fails does not change them.
    let _ = super::connection::ask("closing the connection", connection.close(200, "OK".into())).await;
    Findings { server, errors, warnings }
}

struct Thing {
    name: String,
    is_exchange: bool,
    /// Whether `run` declares it.
    declared: bool,
    /// Whether it is the queue of a downstream's jobs.
    consumed: bool,
    /// Whether only jobs that are parked need it.
    for_parking: bool,
    /// The downstream that consumes this queue, where the queue is not paced's own.
    foreign: Option<String>,
    /// The downstream that consumes this queue, where `run` declares it.
    own: Option<String>,
    /// The arguments that `run` declares the queue with.
    arguments: Option<FieldTable>,
}

impl Thing {
    /// A queue that `run` declares or not.
    const fn queue(name: String, declared: bool) -> Self {
        let (is_exchange, consumed, for_parking) = (false, false, false);
        Self { name, is_exchange, declared, consumed, for_parking, foreign: None, own: None, arguments: None }
    }

    /// The queue with the arguments that `run` declares it with, if it does.
    fn with(self, arguments: Result<FieldTable, Error>) -> Self {
        let arguments = arguments.ok().filter(|_| self.declared);
        Self { arguments, ..self }
    }

    fn exchange(name: String, declared: bool) -> Self {
        Self { is_exchange: true, ..Self::queue(name, declared) }
    }

    fn for_parking(self) -> Self {
        Self { for_parking: true, ..self }
    }
}

fn things(options: &Options) -> Vec<Thing> {
    let (names, declared) = (options.names(), options.declare);
    let mut things = Vec::new();
    if declared || options.downstreams.iter().any(|downstream| downstream.queue.is_none()) {
        things.push(Thing::exchange(names.jobs(), declared));
        things.push(Thing::exchange(names.unroutable(), declared));
        things.push(Thing::queue(names.unroutable(), declared).with(letters_arguments()));
    }
    for downstream in &options.downstreams {
        let foreign = downstream.queue.as_ref().map(|_| downstream.name.clone());
        let own = foreign.is_none().then(|| downstream.name.clone());
        let queue = Thing::queue(names.queue(downstream), declared && foreign.is_none());
        things.push(Thing { consumed: true, foreign, own, ..queue }.with(jobs_arguments(&names, downstream)));
        things.push(Thing::queue(names.dead(&downstream.name), declared).with(letters_arguments()));
    }
    things.push(Thing::exchange(names.home(), declared).for_parking());
    for downstream in &options.downstreams {
        let home = Thing::queue(names.home_queue(&downstream.name), declared).for_parking();
        things.push(home.with(home_arguments(&names, &downstream.name)));
    }
    // Where paced declares them, it does so on first use.
    for rung in Rung::all().filter(|_| !declared) {
        things.push(Thing::exchange(names.park(rung).name, false).for_parking());
        things.push(Thing::queue(names.park(rung).name, false).for_parking());
    }
    things
}

/// Uses a channel of its own, since the broker closes it if the thing is missing.
async fn inspect(connection: &Connection, thing: &Thing) -> Result<(), Error> {
    let channel = channel(connection).await?;
    if thing.is_exchange {
        find_exchange(&channel, &thing.name).await?;
    } else {
        find_queue(&channel, &thing.name).await?;
    }
    close(&channel).await;
    if thing.consumed { rights::check_consume(connection, &thing.name).await } else { Ok(()) }
}

/// Warns if some of the exchanges and queues exist in which jobs of a downstream wait for a limit, and others do not.
async fn warn_of_waits(connection: &Connection, options: &Options, downstream: &str) -> Option<Warning> {
    let mut missing = Vec::new();
    for (n, Delay { name, .. }) in options.names().waits(downstream).enumerate() {
        for thing in [Thing::exchange(name.clone(), false), Thing::queue(name.clone(), false)] {
            match inspect(connection, &thing).await {
                Ok(()) => {}
                // If the first one is missing, none of them is used.
                Err(Error::NotFound { .. }) if n == 0 && thing.is_exchange => return None,
                Err(Error::NotFound { .. } | Error::Refused { .. }) => missing.push(thing.name),
                Err(_) => return None,
            }
        }
    }
    missing.dedup();
    let downstream = downstream.to_owned();
    (!missing.is_empty()).then_some(Warning::SomeWaitsMissing { downstream, missing })
}

/// Warns if a queue exists with other arguments than it would be declared with.
async fn warn_of_arguments(connection: &Connection, thing: &Thing) -> Option<Warning> {
    let arguments = thing.arguments.as_ref()?;
    let (queue, detail) = (thing.name.clone(), foreign::differs(connection, &thing.name, arguments).await?);
    let bounds = [("x-delivery-limit", "delivery-limit"), ("x-max-length", "max-length")];
    let bounds = bounds.into_iter().filter_map(|(argument, key)| {
        let AMQPValue::LongLongInt(value) = arguments.inner().get(argument)? else { return None };
        Some(format!("\"{key}\":{value}"))
    });
    let overflow = arguments.inner().contains_key("x-overflow");
    let overflow = overflow.then(|| r#""overflow":"reject-publish""#.to_owned());
    let bounds: Vec<String> = bounds.chain(overflow).collect();
    let pattern = queue.replace('.', "\\.");
    let way = format!(
        "set its bounds by a policy (`rabbitmqctl set_policy --apply-to queues {queue} '^{pattern}$' '{{{}}}'`)",
        bounds.join(",")
    );
    Some(Warning::OtherArguments { queue, detail, way })
}

/// Warns if a queue that is not paced's own is deleted with its jobs, or drops jobs that come back often.
fn warn_of_traits(downstream: &str, queue: &str, traits: Traits, server: Option<&Server>) -> Option<Warning> {
    let (downstream, queue) = (downstream.to_owned(), queue.to_owned());
    if traits.is_auto_delete {
        return Some(Warning::AutoDelete { downstream, queue });
    }
    let limited = server.filter(|server| server.release() >= Some((4, 0, 0)));
    match (traits.returns(), limited) {
        (Returns::Harmless, _) | (Returns::Dropped(None) | Returns::Unknown, None) => None,
        (Returns::Dropped(Some(limit)), _) => {
            Some(Warning::NoDeadLetterExchange { downstream, queue, limit })
        }
        (Returns::Dropped(None), Some(_)) => {
            Some(Warning::NoDeadLetterExchange { downstream, queue, limit: DEFAULT_LIMIT.to_string() })
        }
        (Returns::Unknown, Some(server)) => {
            Some(Warning::PerhapsNoDeadLetterExchange { downstream, queue, server: server.clone() })
        }
    }
}

/// Warns if the broker requires a permission for passive declarations that others do not require.
fn warn_of_passive(server: &Server, things: &[Thing]) -> Option<Warning> {
    let passive = things.iter().filter(|thing| !thing.declared && !thing.for_parking);
    let names: Vec<String> = passive.map(|thing| thing.name.clone()).collect();
    let wants = server.release() == Some((4, 3, 0)) && !names.is_empty();
    wants.then(|| Warning::PassiveNeedsConfigure { server: server.clone(), names })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp::Downstream;

    #[test]
    fn one_version_wants_a_permission_for_looking() {
        let address = "amqp://localhost".parse().unwrap();
        let own = Downstream {
            name: "own".to_owned(),
            queue: None,
            max_length: None,
            prefetch: 1,
            prefetch_bytes: 1,
        };
        let theirs = Downstream {
            name: "theirs".to_owned(),
            queue: Some("q".to_owned()),
            max_length: None,
            prefetch: 1,
            prefetch_bytes: 1,
        };
        let options = |declare, downstreams: &[&Downstream]| Options {
            address: Clone::clone(&address),
            prefix: "p".to_owned(),
            window_bytes: 1,
            rung_unit: crate::amqp::RUNG_UNIT,
            haste: 1,
            declare,
            downstreams: downstreams.iter().copied().cloned().collect(),
        };
        let warned = |version: &str, options: &Options| {
            let server = Server { product: "RabbitMQ".to_owned(), version: version.to_owned() };
            match warn_of_passive(&server, &things(options)) {
                Some(Warning::PassiveNeedsConfigure { names, .. }) => names.join(" "),
                Some(other) => panic!("{other}"),
                None => String::new(),
            }
        };
        let passive = options(false, &[&own]);
        assert_eq!(warned("4.3.0", &passive), "p.jobs p.unroutable p.unroutable p.jobs.own p.dead.own");
        assert_eq!(warned("4.3.0", &options(true, &[&own, &theirs])), "q");
        assert_eq!(warned("4.3.0", &options(true, &[&own])), "");
        for version in ["3.10.8", "4.2.9", "4.3.1", "4.3.6", "5.0.0"] {
            assert_eq!(warned(version, &passive), "", "{version}");
        }
    }
}
