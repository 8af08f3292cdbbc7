//! What a first configuration is asked for.

use std::path::Path;

use super::Args;

/// Where the pace is kept without a Redis: beside the configuration, so that it survives restarts.
const STORE: &str = "file:paced.store";

/// The same for a configuration below /etc, which the service and the container may not write.
const SYSTEM_STORE: &str = "file:/var/lib/paced/store";

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
                "Redis, by which all replicas share the pace, such as redis://HOST:6379; for one process alone a file, or memory: \
                 [file:paced.store beside this, or file:/var/lib/paced/store for a configuration below /etc]:"
            }
            Self::Queue => "An existing queue to take the jobs from [one of paced's own]:",
        }
    }

    /// Whether it has neither a default nor may be left out; the rate may be where there are other limits.
    pub(super) const fn is_required(self) -> bool {
        matches!(self, Self::Downstream | Self::BaseUrl | Self::Rate)
    }

    /// Its default in the configuration of this name, if that is known.
    pub(super) fn default(self, file: Option<&Path>) -> Option<&'static str> {
        match self {
            Self::Broker => Some("amqp://127.0.0.1:5672/%2f"),
            Self::Store => {
                let file = file.and_then(|file| std::path::absolute(file).ok());
                Some(if file.is_some_and(|file| file.starts_with("/etc")) { SYSTEM_STORE } else { STORE })
            }
            Self::Margin => Some("0s"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_lies_where_the_daemon_may_write() {
        let store = |file: &str| Field::Store.default(Some(Path::new(file)));
        assert_eq!(store("/etc/paced/paced.toml"), Some("file:/var/lib/paced/store"));
        assert_eq!(store("paced.toml"), Some("file:paced.store"));
        assert_eq!(store("/etcetera/paced.toml"), Some("file:paced.store"));
        assert_eq!(Field::Store.default(None), Some("file:paced.store"));
    }
}
