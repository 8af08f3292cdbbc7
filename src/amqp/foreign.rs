//! The traits of queues that others have declared: the kind of a queue, and what it does with jobs that come back.
//!
//! AMQP cannot query the arguments of a queue. But a declaration that differs is refused (406) with the name and the
//! value of the first argument that differs, which the next declaration then matches. Every such declaration has an
//! argument that is valid for no queue, so that nothing is ever created, should the queue be gone by then.

use std::collections::BTreeMap;

use lapin::Connection;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};

use super::admission::GiveBack;
use super::connection::{ask, channel, close};
use super::error::Error;
use super::topology::short;

/// The argument that is compared after all that matter here, and a value that no queue has.
const IMPOSSIBLE: (&str, &str) = ("x-queue-leader-locator", "paced-check");

/// A bound on declarations: more than the number of arguments that are compared before the last one.
const MOST: usize = 24;

/// The kinds of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// The broker does not permit to find out.
    #[default]
    Unknown,
    Classic,
    Quorum,
    /// A log: what was delivered and settled stays there.
    Stream,
}

/// The traits of a queue, as far as the user may find them out. They do not include the settings of policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Traits {
    pub(super) kind: Kind,
    /// Whether the queue is deleted when it loses its last consumer.
    pub(super) is_auto_delete: bool,
    /// Whether it has a dead-letter exchange.
    pub(super) has_dead_letter_exchange: bool,
    /// `x-delivery-limit`, if the queue was declared with it.
    pub(super) delivery_limit: Option<String>,
    /// Whether a full queue drops its oldest job instead of refusing new ones.
    pub(super) drops_oldest: bool,
}

/// The fate of a job that comes back to its queue again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Returns {
    /// The job is kept, or dead-lettered.
    Harmless,
    /// The job is dropped above this limit, as the queue is a quorum queue without a dead-letter exchange. `None`
    /// stands for the broker's default.
    Dropped(Option<String>),
    /// The broker does not permit to find out.
    Unknown,
}

/// The jobs of a queue with a delivery limit up to this are not given back for lack of room, since each restart of
/// paced gives them back too.
const FEW_DELIVERIES: i64 = 3;

impl Traits {
    /// Which jobs may be given back for lack of room.
    pub(super) fn gives_back(&self) -> GiveBack {
        if self.drops_oldest {
            // The job that comes back is the oldest one.
            return GiveBack::None;
        }
        let limit = self.delivery_limit.as_ref().and_then(|limit| limit.parse::<i64>().ok());
        match (self.kind, limit) {
            // Below 0 there is no limit, from RabbitMQ 4.0 on; older brokers refuse that.
            (Kind::Classic, _) | (_, Some(..0)) => GiveBack::All,
            (_, Some(0..=FEW_DELIVERIES)) => GiveBack::None,
            _ => GiveBack::New,
        }
    }

    /// What these traits mean for jobs that come back.
    pub(super) fn returns(self) -> Returns {
        match (self.kind, self.delivery_limit) {
            _ if self.has_dead_letter_exchange => Returns::Harmless,
            (Kind::Classic | Kind::Stream, _) => Returns::Harmless,
            (Kind::Unknown, None) => Returns::Unknown,
            (Kind::Unknown | Kind::Quorum, limit) => Returns::Dropped(limit),
        }
    }
}

/// Determines the traits by declarations that cannot succeed; they need the `configure` permission on the queue.
///
/// Cancel safe.
pub(super) async fn traits(connection: &Connection, queue: &str) -> Traits {
    let mut traits = Traits::default();
    let [mut is_limited, mut refuses] = [false; 2];
    let mut options = QueueDeclareOptions::durable();
    let mut arguments = BTreeMap::from([
        ("x-queue-type".to_owned(), text("quorum")),
        (IMPOSSIBLE.0.to_owned(), text(IMPOSSIBLE.1)),
    ]);
    for _ in 0..MOST {
        let Some(refusal) = declare(connection, queue, options, &arguments).await else { break };
        let Some(Difference { argument, current }) = difference(&refusal) else { break };
        match (argument, current) {
            ("durable", _) => options.durable = false,
            ("auto_delete", _) => (options.auto_delete, traits.is_auto_delete) = (true, true),
            ("x-queue-type", current) => {
                traits.kind = match current {
                    Some(("stream", _)) => Kind::Stream,
                    None if !refusal.ends_with("current is none") => Kind::Unknown,
                    _ => Kind::Classic,
                };
                break;
            }
            (name, _) if name == IMPOSSIBLE.0 => {
                traits.kind = Kind::Quorum;
                break;
            }
            (name, Some((value, kind))) => {
                match name {
                    "x-dead-letter-exchange" => traits.has_dead_letter_exchange = true,
                    "x-delivery-limit" => traits.delivery_limit = Some(value.to_owned()),
                    "x-max-length" | "x-max-length-bytes" => is_limited = true,
                    "x-overflow" => refuses = value.starts_with("reject-publish"),
                    _ => {}
                }
                let Some(value) = typed(value, kind) else { break };
                if arguments.insert(name.to_owned(), value).is_some() {
                    break;
                }
            }
            (_, None) => break,
        }
    }
    traits.drops_oldest = is_limited && !refuses;
    traits
}

/// How the queue's arguments differ from these, in the broker's words; `None` where they do not, or it does not say.
/// Needs the `configure` permission on the queue.
///
/// Cancel safe.
pub(super) async fn differs(connection: &Connection, queue: &str, arguments: &FieldTable) -> Option<String> {
    let arguments = arguments.inner().iter().map(|(name, value)| (name.to_string(), value.clone()));
    let impossible = (IMPOSSIBLE.0.to_owned(), text(IMPOSSIBLE.1));
    let arguments = arguments.chain([impossible]).collect();
    let refusal = declare(connection, queue, QueueDeclareOptions::durable(), &arguments).await?;
    let is_other = difference(&refusal).is_some_and(|difference| difference.argument != IMPOSSIBLE.0);
    is_other.then_some(refusal)
}

/// The reason why the broker refuses the declaration; `None` if it is not an argument.
async fn declare(
    connection: &Connection,
    queue: &str,
    options: QueueDeclareOptions,
    arguments: &BTreeMap<String, AMQPValue>,
) -> Option<String> {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert(short(name).ok()?, value.clone());
    }
    // The broker closes the channel when it refuses a declaration.
    let channel = channel(connection).await.ok()?;
    let declared = channel.queue_declare(short(queue).ok()?, options, table);
    let declared = ask(&format!("queue {queue}"), declared).await;
    close(&channel).await;
    match declared {
        Err(Error::Inequivalent { detail, .. }) => Some(detail),
        _ => None,
    }
}

/// An argument in which the declaration differs from the queue.
#[derive(Debug, PartialEq, Eq)]
struct Difference<'a> {
    argument: &'a str,
    /// The queue's value and its type, as far as the broker names them.
    current: Option<(&'a str, &'a str)>,
}

/// Parses "inequivalent arg 'NAME' for queue ...: received ... but current is the value 'VALUE' of type 'TYPE'", which
/// ends in "but current is none", or in "but current is 'VALUE'" where the declaration had another value.
fn difference(refusal: &str) -> Option<Difference<'_>> {
    let (_, rest) = refusal.split_once("inequivalent arg '")?;
    let (argument, rest) = rest.split_once('\'')?;
    let current = rest.rsplit_once(" but current is ").map(|(_, current)| current);
    let current = current.and_then(|current| {
        match current.strip_prefix("the value '").and_then(|rest| rest.split_once("' of type '")) {
            Some((value, kind)) => Some((value, kind.strip_suffix('\'')?)),
            None => Some((current.strip_prefix('\'')?.strip_suffix('\'')?, "")),
        }
    });
    Some(Difference { argument, current })
}

/// The value with its AMQP type.
fn typed(value: &str, kind: &str) -> Option<AMQPValue> {
    Some(match kind {
        "longstr" => text(value),
        "bool" => AMQPValue::Boolean(value.parse().ok()?),
        "byte" | "short" | "signedint" | "long" | "unsignedbyte" | "unsignedshort" | "unsignedint" => {
            AMQPValue::LongLongInt(value.parse().ok()?)
        }
        _ => return None,
    })
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_argument_and_its_value() {
        let refusal = |name: &str, rest: &str| {
            format!("PRECONDITION_FAILED - inequivalent arg '{name}' for queue 'q' in vhost '/': {rest}")
        };
        for (name, rest, current) in [
            ("durable", "received 'true' but current is 'false'", Some(("false", ""))),
            ("x-queue-type", "received 'quorum' but current is 'classic'", Some(("classic", ""))),
            (
                "x-dead-letter-exchange",
                "received none but current is the value 'dlx' of type 'longstr'",
                Some(("dlx", "longstr")),
            ),
            (
                "x-message-ttl",
                "received none but current is the value '100000' of type 'signedint'",
                Some(("100000", "signedint")),
            ),
            ("x-max-length", "received the value '-1' of type 'signedint' but current is none", None),
            // Long names of queues push the rest of the text beyond AMQP's 255 bytes.
            ("x-expires", "received none but curr", None),
        ] {
            assert_eq!(
                difference(&refusal(name, rest)),
                Some(Difference { argument: name, current }),
                "{rest}"
            );
        }
        for other in ["", "PRECONDITION_FAILED - invalid arg 'x-queue-leader-locator' for queue 'q'"] {
            assert_eq!(difference(other), None);
        }
    }

    #[test]
    fn jobs_are_given_back_where_that_costs_none() {
        let classic = Traits { kind: Kind::Classic, ..Traits::default() };
        let quorum = |limit: &str| Traits {
            kind: Kind::Quorum,
            delivery_limit: Some(limit.to_owned()),
            ..Traits::default()
        };
        let unknown = Traits::default();
        for (traits, gives_back) in [
            (Traits { drops_oldest: true, ..classic.clone() }, GiveBack::None),
            (classic, GiveBack::All),
            (quorum("-1"), GiveBack::All),
            (quorum("0"), GiveBack::None),
            (quorum("3"), GiveBack::None),
            (quorum("20"), GiveBack::New),
            (Traits { drops_oldest: true, ..quorum("20") }, GiveBack::None),
            (Traits { kind: Kind::Quorum, ..Traits::default() }, GiveBack::New),
            (unknown, GiveBack::New),
        ] {
            assert_eq!(traits.gives_back(), gives_back, "{traits:?}");
        }
    }

    #[test]
    fn values_get_their_type_back() {
        assert_eq!(typed("reject-publish", "longstr"), Some(text("reject-publish")));
        assert_eq!(typed("7", "signedint"), Some(AMQPValue::LongLongInt(7)));
        assert_eq!(typed("true", "bool"), Some(AMQPValue::Boolean(true)));
        assert_eq!((typed("x", "signedint"), typed("x", "array")), (None, None));
    }
}
