//! What the log has of a reload: its mistakes, and its changes.

use paced::config::{ConfigErrors, DownstreamChanges, Loaded, Settings};
use tokio::task::JoinError;

use super::error::Error;

/// Why a configuration that was read cannot take effect.
pub(super) enum Wrong {
    Settings(ConfigErrors),
    Part(Error),
    Panic(JoinError),
}

impl Wrong {
    /// The mistakes, a line each.
    pub(super) fn lines(&self) -> Vec<String> {
        match self {
            Self::Settings(errors) => errors.iter().map(ToString::to_string).collect(),
            Self::Part(error) => vec![error.to_string()],
            Self::Panic(error) => vec![error.to_string()],
        }
    }

    /// Logs that they keep the old configuration in effect, at SIGHUP or else at a change of the directory.
    pub(super) fn log(&self, is_of_all: bool) {
        match self {
            Self::Settings(errors) => {
                for error in errors {
                    tracing::error!("{error}");
                }
                let errors = errors.iter().count();
                match is_of_all {
                    true => tracing::error!(
                        errors,
                        "the configuration is wrong: the old one stays in effect; correct it and send SIGHUP again"
                    ),
                    false => tracing::error!(
                        errors,
                        "the directory of downstreams cannot be used: the old configuration stays in effect until it can"
                    ),
                }
            }
            Self::Part(error) => tracing::error!(
                %error,
                "a downstream cannot be served as it is configured: the old configuration stays in effect; correct it"
            ),
            Self::Panic(error) => tracing::error!(%error, "the configuration could not be read again"),
        }
    }
}

/// The mistakes of files in the directory of `[dynamic]`, a line each.
pub(super) fn mistakes(loaded: &Loaded) -> Vec<String> {
    loaded.mistakes().iter().map(ToString::to_string).collect()
}

/// Logs the mistakes of files in the directory of `[dynamic]`.
pub(super) fn log_mistakes(loaded: &Loaded) {
    let mistakes = loaded.mistakes();
    for mistake in mistakes {
        tracing::error!("{mistake}");
    }
    if !mistakes.is_empty() {
        tracing::error!(
            errors = mistakes.len(),
            "files of dynamic.dir are wrong: each counts as it was before, or is left out, until it is right"
        );
    }
}

/// Logs what a reload has changed.
pub(super) fn log(changed: &[String], DownstreamChanges { added, removed, replaced }: &DownstreamChanges) {
    for downstream in added {
        tracing::info!(downstream, "the downstream was added");
    }
    for downstream in removed {
        tracing::info!(
            downstream,
            "the downstream was removed: it finishes what it sends, and gives the rest back"
        );
    }
    for (downstream, keys) in replaced {
        let keys = keys.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        tracing::info!(
            downstream,
            keys,
            "the downstream restarts with the new values of these keys, once what it sends has ended"
        );
    }
    let (added, removed, replaced) = (added.len(), removed.len(), replaced.len());
    if changed.is_empty() && added + removed + replaced == 0 {
        tracing::info!("configuration reloaded: no key changed that a reload applies");
    } else {
        tracing::info!(changed = changed.join(", "), added, removed, replaced, "configuration reloaded");
    }
}

/// Warns of the queues of downstreams that have another one now: nothing else names the jobs that are left there.
pub(super) fn warn_of_left_queues(old: &Settings, new: &Settings, changes: &DownstreamChanges) {
    for downstream in changes.replaced.keys() {
        if let (Some(left), Some(queue)) = (queue_of(old, downstream), queue_of(new, downstream))
            && left != queue
        {
            tracing::warn!(
                downstream,
                left,
                queue,
                "the downstream has another queue: nobody consumes the jobs that are left in the one before; move them, or \
                 delete that queue"
            );
        }
    }
}

/// The queue of a downstream.
fn queue_of(settings: &Settings, downstream: &str) -> Option<String> {
    let queue = &settings.downstreams.get(downstream)?.queue;
    Some(queue.name.clone().unwrap_or_else(|| format!("{}.jobs.{downstream}", settings.amqp.prefix)))
}
