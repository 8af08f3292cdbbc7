//! Logs: to stderr, as text or JSON. Metrics go through the `metrics` facade where they arise, and
//! out through [`Exporter`].

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

mod exporter;

pub(crate) use exporter::Exporter;

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

/// What lapin and its kin say of a lost connection, the supervisor says better; and what they say of the
/// rest has the bodies of messages in it.
const QUIET: [(&str, &str); 4] =
    [("lapin", "off"), ("amq_protocol", "off"), ("async_rs", "off"), ("hyper", "warn")];

/// Starts logging. `RUST_LOG` beats `level`.
pub(crate) fn init(level: LevelFilter, format: LogFormat, color: Color) {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let filter = EnvFilter::try_new(directives(level, &wanted))
        .unwrap_or_else(|_| EnvFilter::new(directives(level, "")));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let result = match format {
        LogFormat::Text => builder.with_ansi(color.on()).with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_ansi(false).try_init(),
    };
    // Already initialised: somebody else's subscriber has the logs, which is fine.
    drop(result);
}

/// The filter: what `wanted` says, else `level`; other crates are quiet unless they are named there.
fn directives(level: LevelFilter, wanted: &str) -> String {
    let wanted = wanted.trim();
    let mut all = if wanted.is_empty() { level.to_string() } else { wanted.to_owned() };
    let named = |name: &str| wanted.split(',').any(|directive| directive.trim().starts_with(name));
    for (name, at_most) in QUIET {
        if !named(name) {
            all += &format!(",{name}={at_most}");
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_crates_are_quiet_unless_named() {
        let rest = "lapin=off,amq_protocol=off,async_rs=off,hyper=warn";
        assert_eq!(directives(LevelFilter::INFO, ""), format!("info,{rest}"));
        assert_eq!(directives(LevelFilter::INFO, " "), format!("info,{rest}"), "empty is unset");
        assert_eq!(directives(LevelFilter::INFO, "debug"), format!("debug,{rest}"));
        assert_eq!(
            directives(LevelFilter::INFO, "warn, lapin::channel=trace,hyper=debug"),
            "warn, lapin::channel=trace,hyper=debug,amq_protocol=off,async_rs=off"
        );
    }
}
