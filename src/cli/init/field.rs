//! What a first configuration is asked for.

use super::Args;

/// A part of a first configuration, in the order in which it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    Downstream,
    BaseUrl,
    Rate,
    Margin,
    Broker,
    Store,
    Queue,
}

impl Field {
    pub(super) const ALL: [Self; 7] =
        [Self::Downstream, Self::BaseUrl, Self::Rate, Self::Margin, Self::Broker, Self::Store, Self::Queue];

    pub(super) const fn option(self) -> &'static str {
        match self {
            Self::Downstream => "--downstream",
            Self::BaseUrl => "--base-url",
            Self::Rate => "--rate",
            Self::Margin => "--margin",
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
            Self::Margin => args.margin.as_ref(),
            Self::Broker => args.broker.as_ref(),
            Self::Store => args.store.as_ref(),
            Self::Queue => args.queue.as_ref(),
        }
    }

    pub(super) const fn question(self) -> &'static str {
        match self {
            Self::Downstream => "Name of the API, which is the routing key of its jobs, such as billing:",
            Self::BaseUrl => {
                "Its URL, to which a job's path is appended behind one slash, such as https://api.example.com/v1/:"
            }
            Self::Rate => "What it allows, such as 50/s or 1000/minute:",
            Self::Margin => {
                "Does it count in any window, such as in any second? If so, by how much arrivals there may jitter, such as \
                 50ms [0s]:"
            }
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
            Self::Margin => Some("0s"),
            _ => None,
        }
    }
}
