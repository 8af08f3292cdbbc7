//! Logs: to stderr, as text or JSON. Metrics go through the `metrics` facade where they arise.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    /// Where stderr is a terminal and `NO_COLOR` is not set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// Whether to colour stderr.
    pub(crate) fn on(self) -> bool {
        match self {
            Self::Auto => {
                std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                    && std::io::stderr().is_terminal()
            }
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Starts logging. `RUST_LOG` beats `level`.
pub(crate) fn init(level: LevelFilter, format: LogFormat, color: Color) {
    // What lapin and its kin say of a lost connection, the supervisor says better.
    let default = format!("{level},lapin=off,amq_protocol=off,async_rs=off,hyper=warn,reqwest=warn");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let result = match format {
        LogFormat::Text => builder.with_ansi(color.on()).with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_ansi(false).try_init(),
    };
    // Already initialised: somebody else's subscriber has the logs, which is fine.
    drop(result);
}
