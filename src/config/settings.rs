//! The settings, which are valid.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::dispatch::{self, OnLimit, OnUnavailable, Precision, RetryPolicy};
use crate::job::{MaxCost, PlanRules};
use crate::limit::LimitSet;
use crate::sink::BodyMatch;
use crate::tls::TlsOptions;

/// All of `paced.toml`, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The precision of releases.
    pub precision: Precision,
    /// `[amqp]`
    pub amqp: Amqp,
    /// `[store]`
    pub store: Store,
    /// `[reply]`
    pub reply: Reply,
    /// `[admin]`
    pub admin: Admin,
    /// `[shutdown]`
    pub shutdown: Shutdown,
    /// `[downstreams.NAME]`, by name.
    pub downstreams: BTreeMap<String, Downstream>,
}

/// `[amqp]`
#[derive(Clone, Debug)]
pub struct Amqp {
    /// `amqp://` or `amqps://`.
    pub url: Secret,
    /// The prefix of the names of all exchanges and queues.
    pub prefix: String,
    /// If false, exchanges and queues are only checked passively.
    pub declare: bool,
    /// The bytes of messages that this process holds unsettled, over all downstreams.
    pub window_bytes: u64,
    /// `[amqp.tls]`
    pub tls: Option<TlsOptions>,
}

/// `[store]`
#[derive(Clone, Debug)]
pub struct Store {
    /// `memory:`, `redis://`, `redis+sentinel://` or `redis+cluster://`, or with `rediss` for TLS.
    pub url: Secret,
    /// The prefix of all keys.
    pub key_prefix: String,
    /// The policy of downstreams that set none.
    pub on_unavailable: OnUnavailable,
    /// `[store.tls]`
    pub tls: Option<TlsOptions>,
}

impl Store {
    /// The options of a store in Redis. It reads the files of its TLS, so it blocks for a moment.
    ///
    /// # Errors
    /// A file was good when the settings were read, and is not any more.
    #[cfg(feature = "redis")]
    pub fn redis_options(&self) -> Result<crate::RedisOptions, crate::StoreError> {
        let options = crate::RedisOptions::default().with_key_prefix(&self.key_prefix);
        let Some(tls) = &self.tls else { return Ok(options) };
        let tls = crate::tls::Tls::load(tls.clone());
        tls.map(|tls| options.with_tls(tls))
            .map_err(|error| crate::StoreError::Invalid(format!("store.tls: {error}")))
    }
}

/// `[reply]`
#[derive(Clone, Debug)]
pub struct Reply {
    /// The allowed prefixes of the names of queues that replies go to.
    pub allow: Vec<String>,
}

/// `[admin]`
#[derive(Clone, Debug)]
pub struct Admin {
    /// The `HOST:PORT` of the server for probes and metrics; `None` if there is no such server. Port 0 takes any free
    /// port.
    pub listen: Option<String>,
    /// The token of requests that change something; without one they are refused.
    pub token: Option<Secret>,
    /// The token of requests that only look; without one whoever reaches the address may look. That of changes does too.
    pub read_token: Option<Secret>,
    /// The allowed values of `Host` besides this machine's own names: `HOST` (with any port) or `HOST:PORT`, in lower
    /// case.
    pub allow_hosts: Vec<String>,
}

/// `[shutdown]`
#[derive(Clone, Copy, Debug)]
pub struct Shutdown {
    /// How long sends in flight may take to end after SIGTERM.
    pub drain_timeout: Duration,
}

/// `[downstreams.NAME]`
#[derive(Clone, Debug)]
pub struct Downstream {
    /// `rate` and `limits`.
    pub limits: LimitSet,
    /// The limits of its jobs under each of `[plans.NAME]`, by name.
    pub plans: Vec<Plan>,
    /// `on_limit`
    pub on_limit: OnLimit,
    /// `on_unavailable`, or the store's.
    pub on_unavailable: OnUnavailable,
    /// The revision of the limits: a lower one never replaces a higher one.
    pub revision: Option<u64>,
    /// How far ahead of now a slot may be granted.
    pub horizon: Duration,
    /// The age at which a job that has not been tried is dead-lettered instead of released; `None` stands for no bound.
    pub max_wait: Option<Duration>,
    /// How long a job that cannot go yet is held here before it is parked.
    pub hold_max: Duration,
    /// The highest cost of one job; `None` stands for what the limits release in a minute.
    pub max_cost: Option<u32>,
    /// Sends in flight per replica.
    pub concurrency: usize,
    /// `[downstreams.NAME.queue]`
    pub queue: Queue,
    /// `[downstreams.NAME.http]`
    pub http: Http,
    /// `[downstreams.NAME.retry]`
    pub retry: RetryPolicy,
    /// `[downstreams.NAME.retry]`: the longest that a `Retry-After` may pause.
    pub max_pause: Duration,
    /// `[downstreams.NAME.retry]`: the body of a success by which the downstream throttles.
    pub throttled_when: Option<BodyMatch>,
    /// `[downstreams.NAME.lanes]`
    pub lanes: Lanes,
    /// `[downstreams.NAME.tls]`
    pub tls: Option<TlsOptions>,
}

/// A plan of `[plans.NAME]`, as it applies to one downstream.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// The downstream's limits, and then the plan's: each downstream has states of its own for them.
    pub limits: LimitSet,
}

/// `[downstreams.NAME.lanes]`
#[derive(Clone, Debug)]
pub struct Lanes {
    /// The plan of jobs that name none.
    pub default_plan: Option<String>,
}

/// `[downstreams.NAME.queue]`
#[derive(Clone, Debug)]
pub struct Queue {
    /// An existing queue instead of `PREFIX.jobs.NAME`.
    pub name: Option<String>,
    /// The most messages that wait in the queue: beyond it the broker refuses more; `None` stands for no bound.
    pub max_length: Option<u64>,
    /// The window: messages unacked at once.
    pub prefetch: u16,
    /// The window: bytes of messages that are held unsettled.
    pub prefetch_bytes: u64,
}

/// `[downstreams.NAME.http]`
#[derive(Clone, Debug)]
pub struct Http {
    /// `http://` or `https://`, ending in `/`.
    pub base_url: Secret,
    /// The time-out for one request, which includes connecting.
    pub timeout: Duration,
    /// The longest age of a connection; zero stands for no bound.
    pub max_connection_age: Duration,
    /// The longest body of a job, in bytes.
    pub max_body: usize,
    /// Request headers that a job may set, in lower case.
    pub allow_headers: Vec<String>,
    /// Whether a dead letter has the beginning of the answer that its job died of.
    pub keep_response: bool,
    /// `http://[USER:PASSWORD@]HOST:PORT`, by which the host is reached; `None` if directly.
    pub proxy: Option<Secret>,
    /// Request headers of every request; names in lower case.
    pub headers: Vec<(String, Secret)>,
}

/// A text that may hold credentials: it is shown as `***`, or as a URL without its user information. One from a file of
/// its own is always shown as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    hidden: bool,
    /// The file that it was read from, if it has one of its own.
    file: Option<PathBuf>,
}

impl Secret {
    /// Wraps a text; if it is a URL, it is shown without user information and query.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), hidden: false, file: None }
    }

    /// Wraps a text of which nothing is ever shown.
    #[must_use]
    pub fn hidden(text: impl Into<String>) -> Self {
        Self { text: text.into(), hidden: true, file: None }
    }

    /// Wraps the text of a file, of which nothing is ever shown.
    #[must_use]
    pub fn of_file(text: impl Into<String>, file: PathBuf) -> Self {
        Self { text: text.into(), hidden: true, file: Some(file) }
    }

    /// The file that it was read from, if it has one of its own.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The text itself: for the connection, never for a log.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The part of a URL that may be shown; `None` if anything about it is odd, such as a password with an unencoded
    /// `/`, `?` or `#`, or a password without `@`.
    fn shown(&self) -> Option<String> {
        const SCHEMES: [&str; 6] = ["amqp", "amqps", "redis", "rediss", "http", "https"];
        const SEVERAL: [&str; 4] = ["redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"];
        let (scheme, rest) = self.text.split_once("://").filter(|_| !self.hidden)?;
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
        let path = tail.split(['?', '#']).next().unwrap_or_default();
        let known = match SEVERAL.contains(&scheme) {
            true => hosts.split(',').all(is_host),
            false => SCHEMES.contains(&scheme) && is_host(hosts),
        };
        let odd = tail.contains('@') || self.text.contains(|c: char| c.is_whitespace() || c.is_control());
        (known && !odd).then(|| format!("{scheme}://{hosts}{path}"))
    }
}

/// Whether the text is a host, with a valid port if it has one; a password without a host has none.
fn is_host(host: &str) -> bool {
    let port = match host.strip_prefix('[') {
        Some(inner) => inner.split_once(']').map(|(_, port)| port),
        None => Some(&host[host.find(':').unwrap_or(host.len())..]),
    };
    port.is_some_and(|port| {
        port.is_empty() || port.strip_prefix(':').is_some_and(|digits| digits.parse::<u16>().is_ok())
    })
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text == "memory:" && !self.hidden {
            return f.write_str(&self.text);
        }
        f.write_str(self.shown().as_deref().unwrap_or("***"))
    }
}

impl Downstream {
    /// The prefetch to ask the broker for; see [`dispatch::window`].
    #[must_use]
    pub fn effective_prefetch(&self) -> u16 {
        dispatch::window(self.queue.prefetch, &self.limits, self.on_limit)
    }

    /// The highest cost of one job without a plan, and the bound that sets it; see [`dispatch::max_cost`].
    #[must_use]
    pub fn max_cost(&self) -> MaxCost {
        self.max_cost_in(&self.limits)
    }

    /// The rules of the plans.
    #[must_use]
    pub fn plan_rules(&self) -> Vec<PlanRules> {
        let rules =
            |plan: &Plan| PlanRules { name: plan.name.clone(), max_cost: self.max_cost_in(&plan.limits) };
        self.plans.iter().map(rules).collect()
    }

    /// The plan of jobs that name none, as an index into `plans`.
    #[must_use]
    pub fn default_plan(&self) -> Option<usize> {
        let name = self.lanes.default_plan.as_deref()?;
        self.plans.iter().position(|plan| plan.name == name)
    }

    fn max_cost_in(&self, limits: &LimitSet) -> MaxCost {
        let limits = match self.on_limit {
            OnLimit::Wait => limits.clone(),
            OnLimit::Reject => limits.clone().policing(),
        };
        dispatch::max_cost(&limits, self.max_cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    #[test]
    fn urls_are_shown_without_what_is_secret() {
        for (text, shown) in [
            ("memory:", "memory:"),
            ("amqp://guest:hunter2@rabbit:5672/%2f", "amqp://rabbit:5672/%2f"),
            ("amqps://rabbit", "amqps://rabbit"),
            ("redis://:hunter2@[::1]:6379/3", "redis://[::1]:6379/3"),
            ("redis://hunter2@cache", "redis://cache"),
            ("rediss://u:hunter2@p@cache/", "rediss://cache/"),
            ("https://api/v1/?token=hunter2#hunter2", "https://api/v1/"),
            ("redis+cluster://u:hunter2@a:7000,[::1]:7000,b", "redis+cluster://a:7000,[::1]:7000,b"),
            (
                "rediss+sentinel://:hunter2@a,b:1/my-master/3?sentinel_password=hunter2",
                "rediss+sentinel://a,b:1/my-master/3",
            ),
            // The password has an unencoded delimiter.
            ("redis+cluster://u:hunter2,b", "***"),
            ("redis+cluster://a,u:hun/ter2@b", "***"),
            ("amqp://u:hun/ter2@rabbit/", "***"),
            ("amqp://u:hun?ter2@rabbit/", "***"),
            ("amqp://u:hun#ter2@rabbit/", "***"),
            ("amqp://u:5672/hunter2@rabbit/", "***"),
            // The URL has a password without a host.
            ("amqp://guest:hunter2", "***"),
            ("amqp://guest:hunter2/", "***"),
            ("amqp://[::1:hunter2", "***"),
            ("amqp://[::1]hunter2", "***"),
            // The text is none of the accepted URLs.
            ("guest:hunter2@rabbit", "***"),
            ("hunter2://rabbit", "***"),
            ("Bearer hunter2", "***"),
            ("https://api/ hunter2", "***"),
            ("memory:hunter2", "***"),
            ("", "***"),
        ] {
            let secret = Secret::new(text);
            assert_eq!(secret.to_string(), shown, "{text}");
            assert_eq!(format!("{secret:?}"), shown, "{text}");
            assert_eq!(secret.expose(), text);
            assert_eq!(Secret::hidden(text).to_string(), "***");
        }
    }

    #[test]
    fn the_window_is_what_a_minute_releases() {
        let prefetch = |limits: &[(&str, u32)], prefetch: u16| {
            let limits = limits.iter().enumerate().map(|(index, (rate, burst))| {
                Limit::leaky_bucket(index.to_string(), rate.parse().unwrap(), *burst).unwrap()
            });
            let downstream = Downstream {
                limits: LimitSet::new(limits.collect()).unwrap(),
                plans: Vec::new(),
                on_limit: OnLimit::Wait,
                on_unavailable: OnUnavailable::Hold,
                revision: None,
                horizon: Duration::from_millis(100),
                max_wait: None,
                hold_max: Duration::from_secs(60),
                max_cost: None,
                concurrency: 64,
                queue: Queue { name: None, max_length: None, prefetch, prefetch_bytes: 64 << 20 },
                http: Http {
                    base_url: Secret::new("http://localhost/"),
                    timeout: Duration::from_secs(30),
                    max_connection_age: Duration::from_secs(90),
                    max_body: 1,
                    allow_headers: Vec::new(),
                    keep_response: true,
                    proxy: None,
                    headers: Vec::new(),
                },
                retry: RetryPolicy::default(),
                max_pause: Duration::ZERO,
                throttled_when: None,
                lanes: Lanes { default_plan: None },
                tls: None,
            };
            downstream.effective_prefetch()
        };
        assert_eq!(prefetch(&[("50/s", 1)], 1000), 1000);
        assert_eq!(prefetch(&[("10/s", 1)], 1000), 600);
        assert_eq!(prefetch(&[("1/h", 1)], 1000), 1);
        assert_eq!(prefetch(&[("1/7s", 1)], 1000), 9);
        assert_eq!(prefetch(&[("1/m", 5)], 1000), 5);
        assert_eq!(prefetch(&[("50/s", 1), ("2/s", 1)], 1000), 120);
        assert_eq!(prefetch(&[("1000000/s", u32::MAX)], 65_535), 65_535);
    }
}
