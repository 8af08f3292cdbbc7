//! The queues of letters, and the destinations of a replay. It has no I/O.

use super::letter_view::Letter;
use crate::amqp::topology::short;
use crate::amqp::{Downstream, Options};

/// The queue that letters are read from.
#[derive(Clone, Debug)]
pub(super) enum LetterQueue {
    /// The dead letters of a downstream.
    Dead(Downstream),
    /// The messages that reached no downstream's queue.
    Unroutable,
    /// The jobs in this queue, which no replica serves.
    Jobs(String),
}

/// Where a letter is published to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    pub(super) exchange: String,
    pub(super) key: String,
    /// The queue that must exist, if it may be missing: without it the copy would be unroutable as well.
    pub(super) uncertain: Option<String>,
}

impl LetterQueue {
    /// The name of the queue.
    pub(super) fn queue(&self, options: &Options) -> String {
        match self {
            Self::Dead(downstream) => options.names().dead(&downstream.name),
            Self::Unroutable => options.names().unroutable(),
            Self::Jobs(queue) => queue.clone(),
        }
    }

    /// The destination of a letter that becomes a job again: the downstream `to` if there is one, or else the
    /// downstream that it was published for.
    pub(super) fn destination(
        &self,
        options: &Options,
        letter: &Letter,
        to: Option<&Downstream>,
    ) -> Destination {
        let exchange = options.jobs_exchange();
        let key = letter.routing_key.as_deref().unwrap_or_default();
        match (to, self) {
            (Some(Downstream { queue: Some(queue), .. }), _)
            | (None, Self::Dead(Downstream { queue: Some(queue), .. })) => {
                Destination { exchange: String::new(), key: queue.clone(), uncertain: None }
            }
            (Some(downstream), _) => {
                Destination { exchange, key: renamed(key, &downstream.name), uncertain: None }
            }
            (None, Self::Dead(downstream)) => {
                let key = if leads_to(key, &downstream.name) { key } else { downstream.name.as_str() };
                Destination { exchange, key: key.to_owned(), uncertain: None }
            }
            (None, Self::Unroutable | Self::Jobs(_)) => {
                let queue = options.names().jobs_queue(first_word(key));
                Destination { exchange, key: key.to_owned(), uncertain: Some(queue) }
            }
        }
    }
}

fn first_word(key: &str) -> &str {
    key.split('.').next().unwrap_or_default()
}

/// Whether a routing key leads to the queue of this downstream.
fn leads_to(key: &str, downstream: &str) -> bool {
    first_word(key) == downstream
}

/// The routing key with the downstream's name as its first word.
fn renamed(key: &str, downstream: &str) -> String {
    let renamed = match key.split_once('.') {
        Some((_, rest)) => format!("{downstream}.{rest}"),
        None => downstream.to_owned(),
    };
    // A name that is longer than the one it replaces could exceed what AMQP allows.
    if short(&renamed).is_ok() { renamed } else { downstream.to_owned() }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;

    use super::*;
    use crate::job::Message;

    fn downstream(name: &str, queue: Option<&str>) -> Downstream {
        Downstream {
            name: name.to_owned(),
            queue: queue.map(str::to_owned),
            max_length: None,
            prefetch: 1,
            prefetch_bytes: 1,
        }
    }

    fn destination(
        letter_queue: &LetterQueue,
        key: Option<&str>,
        to: Option<&Downstream>,
    ) -> (String, String, String) {
        let options = Options {
            address: "amqp://localhost".parse().unwrap(),
            prefix: "p".to_owned(),
            declare: true,
            window_bytes: 1,
            rung_unit: crate::amqp::RUNG_UNIT,
            haste: 1,
            downstreams: Vec::new(),
        };
        let letter = Letter {
            message: Message::default(),
            properties: BasicProperties::default(),
            reason: None,
            detail: None,
            status: None,
            attempts: None,
            routing_key: key.map(str::to_owned),
            dead_at: None,
            response: None,
        };
        let Destination { exchange, key, uncertain } = letter_queue.destination(&options, &letter, to);
        (exchange, key, uncertain.unwrap_or_default())
    }

    fn to(exchange: &str, key: &str, uncertain: &str) -> (String, String, String) {
        (exchange.to_owned(), key.to_owned(), uncertain.to_owned())
    }

    #[test]
    fn a_dead_letter_goes_back_to_its_downstream() {
        let letter_queue = LetterQueue::Dead(downstream("billing", None));
        for (key, expected) in [
            (Some("billing"), "billing"),
            (Some("billing.eu.x"), "billing.eu.x"),
            (Some("billings.eu"), "billing"),
            (Some("other"), "billing"),
            (None, "billing"),
        ] {
            assert_eq!(destination(&letter_queue, key, None), to("p.jobs", expected, ""), "{key:?}");
        }
        let foreign = LetterQueue::Dead(downstream("billing", Some("orders")));
        assert_eq!(destination(&foreign, Some("billing.eu"), None), to("", "orders", ""));
    }

    #[test]
    fn an_unroutable_message_keeps_its_key_or_is_renamed() {
        let letter_queue = LetterQueue::Unroutable;
        assert_eq!(
            destination(&letter_queue, Some("biling.eu"), None),
            to("p.jobs", "biling.eu", "p.jobs.biling")
        );
        assert_eq!(destination(&letter_queue, Some(""), None), to("p.jobs", "", "p.jobs."));
        let (own, foreign) = (downstream("billing", None), downstream("billing", Some("orders")));
        for (key, expected) in
            [("biling", "billing"), ("biling.eu", "billing.eu"), ("", "billing"), (".eu", "billing.eu")]
        {
            assert_eq!(
                destination(&letter_queue, Some(key), Some(&own)),
                to("p.jobs", expected, ""),
                "{key}"
            );
        }
        let long = format!("b.{}", "x".repeat(253));
        assert_eq!(destination(&letter_queue, Some(&long), Some(&own)), to("p.jobs", "billing", ""));
        assert_eq!(destination(&letter_queue, Some("biling.eu"), Some(&foreign)), to("", "orders", ""));
    }
}
