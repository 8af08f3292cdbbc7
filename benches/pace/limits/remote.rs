//! Calls per second, in Redis.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::Costs;
use paced::store::{Reserve, Scope};
use paced::{LimitSet, RedisOptions, RedisStore, Store as _};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo as _, Script};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::{BURST, RATE, figure, over};
use crate::figures::{Bound, Figure, Section, Unit};
use crate::stage::Stage;
use crate::support::{real_now, unique};

const BARE: Figure = figure("bare GCRA script", Unit::PerSecond);
const RESERVE: Figure = figure("paced, reserve script", Unit::PerSecond);
const RATIO: Figure = figure("paced / bare script", Unit::Plain(2));
const BATCHED: Figure = figure("paced, slots with 64 a call", Unit::PerSecond);
const GAIN: Figure = figure("slots with 64 a call / with one a call", Unit::Plain(1));

const BATCH: usize = 64;
/// The number of rounds. The first is not counted: it connects, and loads the scripts.
const ROUNDS: usize = 17;
const ROUND: Duration = Duration::from_millis(200);

pub async fn measure(stage: &Stage, section: &mut Section) -> Result<(), String> {
    let url = stage.redis.url();
    let bare = Bare::connect(&url).await?;
    let (single, batched) = (Paced::connect(&url, &[1]).await?, Paced::connect(&url, &[1; BATCH]).await?);
    for (in_flight, column) in [(1, "1 in flight"), (64, "64 in flight")] {
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            // In every other round paced goes first.
            let first = if round % 2 == 0 { Some(rate(in_flight, &bare).await?) } else { None };
            let single = rate(in_flight, &single).await?;
            let bare = if let Some(bare) = first { bare } else { rate(in_flight, &bare).await? };
            let calls = rate(in_flight, &batched).await?;
            #[expect(clippy::cast_precision_loss, reason = "64 is exact")]
            rounds.push([bare, single, calls * BATCH as f64]);
        }
        let rounds = &rounds[1..];
        section.note(column, BARE, over(rounds, |round| round[0]));
        section.note(column, RESERVE, over(rounds, |round| round[1]));
        section.judge(column, RATIO, over(rounds, |round| round[1] / round[0]), Bound::AtLeast(0.9));
        section.note(column, BATCHED, over(rounds, |round| round[2]));
        section.judge(column, GAIN, over(rounds, |round| round[2] / round[1]), Bound::AtLeast(40.0));
    }
    Ok(())
}

/// A caller that repeats its call; a refusal is an error.
trait Caller: Clone + Send + 'static {
    fn call(&mut self) -> impl Future<Output = Result<(), String>> + Send;
}

/// Calls per second of this many callers, each with one call in flight.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
async fn rate(in_flight: usize, caller: &impl Caller) -> Result<f64, String> {
    let start = real_now();
    let mut callers = JoinSet::new();
    for _ in 0..in_flight {
        let mut caller = caller.clone();
        callers.spawn(async move {
            let mut calls = 0_usize;
            while start.elapsed() < ROUND {
                caller.call().await?;
                calls += 1;
            }
            Ok::<_, String>(calls)
        });
    }
    let mut calls = 0;
    while let Some(done) = callers.join_next().await {
        calls += done.map_err(|error| error.to_string())??;
    }
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}

/// A connection of the client that paced uses.
pub(super) async fn connect(url: &str) -> Result<MultiplexedConnection, String> {
    let text = |error: redis::RedisError| error.to_string();
    let info = url.into_connection_info().map_err(text)?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let client = Client::open(info.set_tcp_settings(tcp)).map_err(text)?;
    // The time-outs are those of paced.
    let patience = Some(RedisOptions::default().response_timeout);
    let config = AsyncConnectionConfig::new().set_response_timeout(patience);
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(text)
}

/// The bare script, called as the client's documentation has it.
#[derive(Clone)]
struct Bare {
    connection: MultiplexedConnection,
    script: Arc<Script>,
    key: Arc<str>,
}

impl Bare {
    async fn connect(url: &str) -> Result<Self, String> {
        let connection = connect(url).await?;
        let script = Arc::new(Script::new(include_str!("../loops/gcra.lua")));
        Ok(Self { connection, script, key: unique(super::NAME).into() })
    }
}

impl Caller for Bare {
    async fn call(&mut self) -> Result<(), String> {
        let mut call = self.script.key(&*self.key);
        let interval = 1_000_000 / RATE;
        call.arg(interval).arg(u64::from(BURST) * u64::from(interval)).arg(1);
        match call.invoke_async(&mut self.connection).await {
            Ok((1, 0)) => Ok(()),
            Ok::<(i64, i64), _>(other) => Err(format!("the bare script answered {other:?}")),
            Err(error) => Err(format!("the bare script: {error}")),
        }
    }
}

/// Calls [`RedisStore::reserve`] for this many slots a call.
#[derive(Clone)]
pub(super) struct Paced {
    store: Arc<RedisStore>,
    limits: Arc<LimitSet>,
    costs: &'static [u32],
}

impl Paced {
    pub(super) async fn connect(url: &str, costs: &'static [u32]) -> Result<Self, String> {
        // The connection of the bare script runs there, too, as that of the daemon does.
        let options =
            RedisOptions::default().with_key_prefix(unique(super::NAME)).with_runtime(Handle::current());
        let store = RedisStore::connect(url, options).await.map_err(|error| error.to_string())?;
        Ok(Self { store: Arc::new(store), limits: Arc::new(super::limits()?), costs })
    }

    /// Makes one call for `key`, or for the whole downstream if it is empty.
    pub(super) async fn reserve(&self, key: &str) -> Result<(), String> {
        let scope = Scope { downstream: "bench", key };
        let (limits, costs) = (&*self.limits, Costs::Each(self.costs));
        let call = Reserve::new(scope, limits, costs, Duration::ZERO);
        let reserved = self.store.reserve(call).await.map_err(|error| error.to_string())?;
        if reserved.slots.len() == self.costs.len() {
            Ok(())
        } else {
            Err(format!("{} of {} slots were granted", reserved.slots.len(), self.costs.len()))
        }
    }
}

impl Caller for Paced {
    async fn call(&mut self) -> Result<(), String> {
        self.reserve("").await
    }
}
