//! What a first configuration is asked for.

use std::path::Path;

use paced::config;

use super::render;
use super::{Answers, Args};

/// A part of a first configuration, in the order in which it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    Downstream,
    BaseUrl,
    Rate,
    Broker,
    Store,
    Queue,
}

impl Field {
    pub(super) const ALL: [Self; 6] =
        [Self::Downstream, Self::BaseUrl, Self::Rate, Self::Broker, Self::Store, Self::Queue];

    pub(super) const fn option(self) -> &'static str {
        match self {
            Self::Downstream => "--downstream",
            Self::BaseUrl => "--base-url",
            Self::Rate => "--rate",
            Self::Broker => "--broker",
            Self::Store => "--store",
            Self::Queue => "--queue",
        }
    }

    pub(super) const fn given(self, args: &Args) -> Option<&String> {
        match self {
            Self::Downstream => args.downstream.as_ref(),
            Self::BaseUrl => args.base_url.as_ref(),
            Self::Rate => args.rate.as_ref(),
            Self::Broker => args.broker.as_ref(),
            Self::Store => args.store.as_ref(),
            Self::Queue => args.queue.as_ref(),
        }
    }

    pub(super) const fn question(self) -> &'static str {
        match self {
            Self::Downstream => "Name of the API, which is the routing key of its jobs, such as billing:",
            Self::BaseUrl => {
                "Its URL, to which each job's path is appended, such as https://api.example.com/v1/:"
            }
            Self::Rate => "What it allows, such as 50/s or 1000/minute:",
            Self::Broker => "RabbitMQ [amqp://127.0.0.1:5672/%2f]:",
            Self::Store => {
                "Redis, by which all replicas share the pace, such as redis://HOST:6379; memory: for one process alone \
                 [memory:]:"
            }
            Self::Queue => "An existing queue to take the jobs from [one of paced's own]:",
        }
    }

    /// Whether it has neither a default nor may be left out.
    pub(super) const fn is_required(self) -> bool {
        matches!(self, Self::Downstream | Self::BaseUrl | Self::Rate)
    }

    pub(super) const fn default(self) -> Option<&'static str> {
        match self {
            Self::Broker => Some("amqp://127.0.0.1:5672/%2f"),
            Self::Store => Some("memory:"),
            _ => None,
        }
    }

    /// Checks an answer as the daemon would. The problem never repeats a secret.
    pub(super) fn check(self, answer: &str) -> Result<(), String> {
        let others = [
            (Self::Downstream, "billing"),
            (Self::BaseUrl, "http://localhost/"),
            (Self::Rate, "1/s"),
            (Self::Broker, "amqp://127.0.0.1/"),
            (Self::Store, "memory:"),
        ];
        let mut answers: Answers = others.map(|(field, text)| (field, text.to_owned())).into();
        answers.insert(self, answer.to_owned());
        let checked = config::load_text("answer", &render::document(&answers), Path::new(""));
        let first =
            |errors: config::ConfigErrors| errors.iter().next().map(|error| error.problem().to_owned());
        checked.map(drop).map_err(|errors| first(errors).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_checked_as_the_daemon_would() {
        for (field, wrong, expected) in [
            (Field::Downstream, "My API", "no name for a downstream"),
            (Field::Downstream, "", "no name for a downstream"),
            (Field::BaseUrl, "https://api.example.com", "does not end in `/`"),
            (Field::Rate, "fast", "`fast` is no rate"),
            (Field::Rate, "5\"\n[admin]\n#", "is no rate"),
            (Field::Broker, "redis://a", "not the URL of a broker"),
            (Field::Broker, "amqp://user:hunter2@", "has no host"),
            (Field::Store, "amqp://a", "not the URL of a store"),
            (Field::Queue, "", "no name of a queue"),
        ] {
            let problem = field.check(wrong).unwrap_err();
            assert!(problem.contains(expected) && !problem.contains("hunter2"), "{wrong}: {problem}");
        }
        for (field, right) in [
            (Field::Downstream, "crm"),
            (Field::BaseUrl, "https://api.example.com/"),
            (Field::Rate, "1 per 3 seconds"),
            (Field::Broker, "amqps://user:secret@a/v"),
            (Field::Store, "redis+cluster://a,b"),
            (Field::Queue, "a \"queue\""),
        ] {
            assert_eq!(field.check(right), Ok(()), "{right}");
        }
    }
}
