//! Builds the parts of a daemon from the settings.

use std::sync::Arc;
use std::time::Duration;

use paced::amqp;
use paced::config::{Downstream, Http, Settings};
use paced::dispatch::{Dispatcher, Options, Precision, ReleaseClock, ThreadClock, TokioClock};
use paced::job::{JobLanes, ReplyRules, Rules};
use paced::sink::http::{HttpError, HttpOptions, HttpSink, OAuth2Client, Target, TargetTexts};
use paced::tls::{ServerTls, Tls};
use paced::{FileStore, MemoryStore, RedisStore, Store, StoreError, failpoint};
use tokio::runtime::Handle;

use super::error::Error;
use super::secrets;

/// How long after a stop jobs are still sent whose slots come.
const LINGER: Duration = Duration::from_millis(250);

/// How long the settlement of a job may take once its request has ended: a reply or a dead letter, and the ack.
const SETTLING: Duration = Duration::from_secs(5);

/// The URL of a store in this process's memory.
pub(crate) const MEMORY: &str = "memory:";

/// The store that the settings name, and its TLS, if there are files for it. Nothing is connected yet. A file that another
/// process uses is waited for, or with `at_once` is an error.
pub(crate) fn store(settings: &Settings, at_once: bool) -> Result<(Arc<dyn Store>, Option<Tls>), StoreError> {
    let url = settings.store.url.expose();
    if let Some(file) = &settings.store.file {
        let store = if at_once { FileStore::open(file)? } else { FileStore::waiting(file)? };
        return Ok((Arc::new(store), None));
    }
    if url == MEMORY {
        return Ok((Arc::new(MemoryStore::new()), None));
    }
    let mut options = settings.store.redis_options()?;
    // A process of the daemon alone has one runtime, which runs.
    if let Ok(runtime) = Handle::try_current() {
        options = options.with_runtime(runtime);
    }
    let tls = options.tls.clone();
    Ok((Arc::new(RedisStore::open(url, options)?), tls))
}

/// The TLS of the admin server, if it has any.
pub(super) fn admin_tls(settings: &Settings) -> Result<Option<ServerTls>, Error> {
    let tls = settings.admin.tls.clone().map(ServerTls::load).transpose();
    tls.map_err(|error| Error::setting("admin.tls", error))
}

/// The options of the connections to the broker.
pub(crate) fn amqp(settings: &Settings) -> Result<amqp::Options, Error> {
    let address = settings.amqp.url.expose().parse();
    let mut address: amqp::Address = address.map_err(|error| Error::setting("amqp.url", error))?;
    if let Some(read) = settings.amqp.url.reader() {
        address = address.reading_login_again(settings.amqp.url.expose(), read);
    }
    if let Some(tls) = &settings.amqp.tls {
        let tls = Tls::load(tls.clone()).map_err(|error| Error::setting("amqp.tls", error))?;
        address = address.with_tls(tls);
    }
    Ok(amqp::Options {
        address,
        prefix: settings.amqp.prefix.clone(),
        declare: settings.amqp.declare,
        window_bytes: settings.amqp.window_bytes,
        rung_unit: amqp::RUNG_UNIT,
        haste: failpoint::haste(),
        downstreams: queues(settings),
    })
}

/// The queues of all downstreams.
pub(super) fn queues(settings: &Settings) -> Vec<amqp::Downstream> {
    settings.downstreams.iter().map(|(name, downstream)| queue(name, downstream)).collect()
}

/// The queue of one downstream.
pub(super) fn queue(name: &str, downstream: &Downstream) -> amqp::Downstream {
    amqp::Downstream {
        name: name.to_owned(),
        queue: downstream.queue.name.clone(),
        max_length: downstream.queue.max_length,
        prefetch: downstream.effective_prefetch(),
        prefetch_bytes: downstream.queue.prefetch_bytes,
    }
}

/// The rules for messages to the downstream.
pub(crate) fn rules(settings: &Settings, downstream: &Downstream) -> Rules {
    rules_with(downstream, reply_rules(settings))
}

fn rules_with(downstream: &Downstream, reply: ReplyRules) -> Rules {
    Rules {
        max_body: downstream.http.max_body,
        allow_headers: downstream.http.allow_headers.clone(),
        methods: downstream.http.methods.clone(),
        encoded_slash: downstream.http.encoded_slash,
        max_cost: downstream.max_cost(),
        costs: downstream.cost_rules(),
        plans: downstream.plan_rules(),
        lanes: JobLanes { parts: downstream.lanes.parts.clone(), default_plan: downstream.default_plan() },
        reply,
    }
}

/// The queues that replies may go to: never one that a downstream of this configuration consumes. All downstreams have the same.
pub(super) fn reply_rules(settings: &Settings) -> ReplyRules {
    let queues = settings.downstreams.values().filter_map(|downstream| downstream.queue.name.clone());
    ReplyRules {
        allow: settings.reply.allow.clone(),
        own: Some(format!("{}.", settings.amqp.prefix)),
        consumed: Arc::new(queues.collect()),
    }
}

/// The clock that releases jobs: as precise as configured, or tokio's where no thread can be started.
pub(crate) fn clock(precision: Precision) -> Arc<dyn ReleaseClock> {
    match precision {
        Precision::Coarse => Arc::new(TokioClock),
        Precision::Fine => match ThreadClock::start() {
            Ok(clock) => Arc::new(clock),
            Err(error) => {
                tracing::warn!(%error, "no thread for the release clock; releases will be about 1 ms late");
                Arc::new(TokioClock)
            }
        },
    }
}

/// The options of one downstream's dispatcher.
pub(super) fn options(
    settings: &Settings,
    name: &str,
    downstream: &Downstream,
    reply: &ReplyRules,
) -> Options {
    Options {
        downstream: name.to_owned(),
        limits: downstream.limits.clone(),
        plans: downstream.plans.iter().map(|plan| plan.limits.clone()).collect(),
        lanes: downstream.lanes.rules.clone(),
        on_limit: downstream.on_limit,
        horizon: downstream.horizon,
        concurrency: downstream.concurrency,
        retry: downstream.retry.clone(),
        max_wait: downstream.max_wait,
        hold_max: downstream.hold_max,
        on_unavailable: downstream.on_unavailable,
        revision: downstream.revision,
        proposes_limits: true,
        prefetch: downstream.queue.prefetch,
        rules: rules_with(downstream, reply.clone()),
        linger: LINGER,
        drain_timeout: settings.shutdown.drain_timeout,
    }
}

/// What the sink of a downstream has in common with other ones.
#[derive(Default)]
pub(super) struct Shared {
    /// Its TLS, if there are files for it.
    pub(super) tls: Option<Tls>,
    /// The client whose tokens its requests have, if they have tokens.
    pub(super) client: Option<OAuth2Client>,
}

/// The dispatcher of a downstream with these options, and where its requests go.
pub(super) fn dispatcher(
    options: Options,
    http: &Http,
    shared: Shared,
    store: Arc<dyn Store>,
    clock: Arc<dyn ReleaseClock>,
) -> Result<(Dispatcher, Target), HttpError> {
    let TargetTexts { base_url, proxy, headers } = secrets::texts(http);
    let mut sink = HttpSink::new(HttpOptions {
        base_url,
        timeout: http.timeout,
        headers,
        max_connection_age: http.max_connection_age,
        keep_response: http.keep_response,
        tls: shared.tls,
        proxy,
    })?;
    if let Some(files) = secrets::files(&options.downstream, http) {
        sink = sink.reading_again(files);
    }
    if let Some(client) = shared.client {
        sink = sink.with_tokens_of(client);
    }
    let target = sink.target();
    let token_timeout = http.oauth2.as_ref().map_or(Duration::ZERO, |oauth2| oauth2.timeout);
    let dispatcher = Dispatcher::new(options, store, Arc::new(sink), clock)
        .with_send_timeout(http.timeout + token_timeout + SETTLING);
    Ok((dispatcher, target))
}
