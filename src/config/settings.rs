//! The settings, which are valid.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::limits::LimitCost;
use super::secret::Secret;
use crate::dispatch::{self, LaneRules, OnLimit, OnUnavailable, Precision, RetryPolicy};
use crate::job::{CostRule, LanePart, MaxCost, PlanRules};
use crate::limit::LimitSet;
use crate::tls::{ServerTlsOptions as AdminTls, TlsOptions};

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
    /// `memory:`, `file:PATH`, `redis://`, `redis+sentinel://` or `redis+cluster://`, or with `rediss` for TLS.
    pub url: Secret,
    /// The file that the URL names, if it names one.
    pub file: Option<PathBuf>,
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
        let mut options = crate::RedisOptions::default().with_key_prefix(&self.key_prefix);
        if let Some(read) = self.url.reader() {
            options = options.reading_login_again(read);
        }
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
#[derive(Clone, Debug, Default)]
pub struct Admin {
    /// The `HOST:PORT` of the server for probes and metrics; `None` if there is no such server. Port 0 takes any free
    /// port.
    pub listen: Option<String>,
    /// The token of requests that change something; without one they are refused.
    pub token: Option<Secret>,
    /// The token of requests that only look; without one everybody who reaches the address may look. That of changes does too.
    pub read_token: Option<Secret>,
    /// `[admin.tokens.NAME]`: the tokens of people and programs, each with a role.
    pub tokens: Vec<NamedToken>,
    /// The allowed values of `Host` besides `localhost` and addresses: `HOST` (with any port) or `HOST:PORT`, in lower
    /// case.
    pub allow_hosts: Vec<String>,
    /// Whether clients with the role `admin` may read the bodies of dead letters.
    pub show_bodies: bool,
    /// `[admin.tls]`; without it the server speaks no TLS.
    pub tls: Option<AdminTls>,
}

/// `[admin.tokens.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedToken {
    /// The name, by which changes are logged and shown.
    pub name: String,
    /// The token.
    pub token: Secret,
    /// What it allows.
    pub role: Role,
}

/// What a token allows. Each role also allows what those before it do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// To look.
    Read,
    /// To pause and resume, to cancel jobs, and to list and replay dead letters.
    Operate,
    /// To change everything that the admin API changes.
    Admin,
}

impl Role {
    /// The role as the configuration has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// `[shutdown]`
#[derive(Clone, Copy, Debug)]
pub struct Shutdown {
    /// How long requests in flight may take to end after SIGTERM.
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
    /// What jobs cost limits, where that is not their `paced-cost`; those of all plans among them.
    pub costs: Vec<LimitCost>,
    /// Sends in flight per replica.
    pub concurrency: usize,
    /// `[downstreams.NAME.queue]`
    pub queue: Queue,
    /// `[downstreams.NAME.http]`
    pub http: Http,
    /// `[downstreams.NAME.retry]`
    pub retry: RetryPolicy,
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
    /// What makes the lane of a job, in the order of the names in `rules`; nothing where there are no lanes.
    pub parts: Vec<LanePart>,
    /// The lanes, if there are any.
    pub rules: Option<LaneRules>,
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
    /// `http://` or `https://`: where jobs go, or below it. Its query, if it has one, is that of every request.
    pub base_url: Secret,
    /// The time-out for one request, which includes connecting.
    pub timeout: Duration,
    /// The longest age of a connection; zero stands for no bound.
    pub max_connection_age: Duration,
    /// The longest body of a job, in bytes.
    pub max_body: usize,
    /// Request headers that a job may set, in lower case.
    pub allow_headers: Vec<String>,
    /// The methods that a job may have, in upper case; at least one.
    pub methods: Vec<String>,
    /// Whether the path of a job may have `%2F`.
    pub encoded_slash: bool,
    /// Whether a dead letter has the beginning of the answer after which its job was dead.
    pub keep_response: bool,
    /// `http://[USER:PASSWORD@]HOST:PORT`, by which the host is reached; `None` if directly.
    pub proxy: Option<Secret>,
    /// `[downstreams.NAME.http.oauth2]`
    pub oauth2: Option<OAuth2>,
    /// Request headers of every request; names in lower case.
    pub headers: Vec<(String, Secret)>,
}

/// `[downstreams.NAME.http.oauth2]`: the client whose token every request has.
#[derive(Clone, Debug)]
pub struct OAuth2 {
    /// `https://` or `http://`, without credentials, query and fragment.
    pub token_url: String,
    /// The name of the client.
    pub client_id: String,
    /// Its secret.
    pub client_secret: Secret,
    /// What the token is to be good for; it may be empty.
    pub scopes: Vec<String>,
    /// What else each request for a token says, by name, such as `audience`.
    pub params: BTreeMap<String, Secret>,
    /// How the client shows its secret.
    pub client_auth: ClientAuth,
    /// The time-out for one token.
    pub timeout: Duration,
    /// `[downstreams.NAME.http.oauth2.tls]`, or else the authorities of the downstream's own.
    pub tls: Option<TlsOptions>,
}

impl OAuth2 {
    /// Whether the other client is this one, so that both may use one token.
    pub fn is_same_client(&self, other: &Self) -> bool {
        let is_same_secret = match (self.client_secret.file(), other.client_secret.file()) {
            (Some(file), Some(other)) => file == other,
            (None, None) => self.client_secret == other.client_secret,
            _ => false,
        };
        let parts = |client: &Self| {
            let Self { token_url, client_id, scopes, params, client_auth, timeout, tls, .. } = client.clone();
            (token_url, client_id, scopes, params, client_auth, timeout, tls)
        };
        is_same_secret && parts(self) == parts(other)
    }
}

/// How a client shows its secret to the token server (RFC 6749, section 2.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// By HTTP Basic authentication (`client_secret_basic`).
    #[default]
    Basic,
    /// In the body (`client_secret_post`), for servers that take nothing else.
    Post,
}

impl Downstream {
    /// The prefetch to ask the broker for; see [`dispatch::window`].
    pub fn effective_prefetch(&self) -> u16 {
        let Self { queue, limits, on_limit, hold_max, concurrency, .. } = self;
        dispatch::window(queue.prefetch, limits, *on_limit, *hold_max, *concurrency)
    }

    /// The highest cost of one job without a plan, and the bound that sets it; see [`dispatch::max_cost`].
    pub fn max_cost(&self) -> MaxCost {
        self.max_cost_in(&self.limits)
    }

    /// The rules of the plans.
    pub fn plan_rules(&self) -> Vec<PlanRules> {
        let rules =
            |plan: &Plan| PlanRules { name: plan.name.clone(), max_cost: self.max_cost_in(&plan.limits) };
        self.plans.iter().map(rules).collect()
    }

    /// The plan of jobs that name none, as an index into `plans`. Where there are lanes, their limits count as one.
    pub fn default_plan(&self) -> Option<usize> {
        let name = self.lanes.default_plan.as_deref();
        let name = name.or_else(|| self.lanes.rules.as_ref().map(|_| PlanRules::LANES))?;
        self.plans.iter().position(|plan| plan.name == name)
    }

    fn max_cost_in(&self, limits: &LimitSet) -> MaxCost {
        let own: Vec<&str> = self.costs.iter().map(|cost| cost.limit.as_str()).collect();
        dispatch::max_cost_without(&self.effective(limits), &own, self.max_cost)
    }

    /// The limits as they decide: those of a downstream that rejects police.
    fn effective(&self, limits: &LimitSet) -> LimitSet {
        match self.on_limit {
            OnLimit::Wait => limits.clone(),
            OnLimit::Reject => limits.clone().policing(),
        }
    }

    /// What jobs cost limits, where that is not their `paced-cost`.
    pub fn cost_rules(&self) -> Vec<CostRule> {
        let rule = |cost: &LimitCost| {
            let has = |limits: &LimitSet| limits.iter().any(|limit| limit.name() == cost.limit);
            let plan = match has(&self.limits) {
                true => None,
                false => Some(self.plans.iter().position(|plan| has(&plan.limits))?),
            };
            let limits = plan.map_or(&self.limits, |plan| &self.plans[plan].limits);
            Some(CostRule {
                limit: cost.limit.as_str().into(),
                plan,
                source: cost.source.clone(),
                default: cost.default,
                max_cost: dispatch::max_cost_of(&self.effective(limits), &cost.limit, cost.max_cost)?,
            })
        };
        self.costs.iter().filter_map(rule).collect()
    }
}

#[cfg(test)]
mod tests;
