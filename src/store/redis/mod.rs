//! State shared through Redis: one script per call, the decision made by the store's own clock.

mod address;
mod cluster;
mod dial;
mod fast;
mod fit;
mod keys;
mod link;
mod listen;
mod scripts;
mod sentinel;
mod servers;
mod slots;
mod state;
mod stored;
mod trouble;
mod url;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::changes::{Changes, Watchers};
use super::{
    BoxFuture, Cancel, Change, Check, Checked, Reserve, Reserved, Scope, Status, Store, StoreError, Tended,
};
use crate::limit::{Level, Limit, LimitSet, Mark};
use crate::time::{Clock, Micros, wall_now};
use scripts::{Ask, Now, ReserveReply, Scripts, Windows};
use servers::Servers;

/// How to talk to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of every key; without braces.
    pub key_prefix: String,
    /// For connecting: name resolution, TLS and authentication included.
    pub connect_timeout: Duration,
    /// For one answer. A reservation whose answer comes later is lost, never taken twice.
    pub response_timeout: Duration,
}

impl Default for Options {
    /// Prefix `paced`, and half a second for each timeout: a call returns within a second. Where sentinels or
    /// nodes of a cluster must first be asked for the server, that may take as long again, and 100 ms for each
    /// that is silent.
    fn default() -> Self {
        let half = Duration::from_millis(500);
        Self { key_prefix: "paced".to_owned(), connect_timeout: half, response_timeout: half }
    }
}

/// How often the edges of calendars are sent: the worker's clock may be far off, and other limits of a set
/// may lead a job to where they were not sent.
const MISSED: usize = 8;

/// Keeps state in Redis (6.2 or later), shared by all who connect to it.
///
/// The server's clock decides. One connection carries all calls (in a cluster, one to each master); it is
/// opened when first needed and anew after an error, so a server that comes back, or its successor after a
/// failover, is found by the next call. No call is ever repeated by itself: a reservation whose answer was
/// lost may have been made.
pub struct RedisStore {
    servers: Arc<Servers>,
    scripts: Scripts,
    prefix: String,
    known: Mutex<HashMap<String, Known>>,
    /// The windows of each downstream's own limits, as they were last heard of.
    windows: Mutex<HashMap<String, Windows>>,
    watchers: Arc<Watchers>,
    listening: Once,
    clock: Option<Arc<dyn Clock>>,
}

/// What was seen of a downstream.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The last epoch: how a store that lost its state is found out.
    epoch: Micros,
    /// How far ahead slots were asked for at most: those that a store has lost lie no further. A single
    /// call may ask for less than what others, or other workers, hold.
    ahead: Duration,
    /// When so far ahead was asked for last: such slots have passed once it is as long ago.
    asked: Option<Instant>,
    /// As in [`Status::reset`].
    reset: u64,
}

impl Known {
    fn asked(&mut self, ahead: Duration) {
        if ahead >= self.ahead || self.asked.is_none_or(|asked| asked.elapsed() > self.ahead) {
            (self.ahead, self.asked) = (ahead, Some(Instant::now()));
        }
    }
}

impl RedisStore {
    /// A store at one of these URLs, with `rediss` instead of `redis` for TLS. Nothing is sent yet.
    ///
    /// - `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]`: one server.
    /// - `redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/MASTER_NAME[/DB]`: the master that
    ///   these sentinels know. The password is the master's; `?sentinel_user=` and `&sentinel_password=` are
    ///   the sentinels' own.
    /// - `redis+cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]`: the cluster of these nodes. All keys
    ///   of a downstream lie on one master.
    ///
    /// What is special in a user or a password is percent-encoded.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the URL or the prefix is wrong.
    pub fn open(url: &str, options: Options) -> Result<Self, StoreError> {
        let Options { key_prefix: prefix, connect_timeout, response_timeout } = options;
        if prefix.contains(['{', '}']) {
            let text = "a key prefix with braces would break the hash tag of every key; leave them out";
            return Err(StoreError::Invalid(text.to_owned()));
        }
        let servers = Servers::open(url, connect_timeout, response_timeout)?;
        Ok(Self {
            servers: Arc::new(servers),
            scripts: Scripts::new(),
            prefix,
            known: Mutex::default(),
            windows: Mutex::default(),
            watchers: Arc::default(),
            listening: Once::new(),
            clock: None,
        })
    }

    /// [`RedisStore::open`], and asks the server whether it is there and fit.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`StoreError`] when the URL is wrong, or the server is away or not fit.
    pub async fn connect(url: &str, options: Options) -> Result<Self, StoreError> {
        let store = Self::open(url, options)?;
        store.ping().await?;
        Ok(store)
    }

    /// Decides by this clock instead of the server's: for tests of clocks that step.
    #[doc(hidden)]
    #[must_use]
    pub fn with_test_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The raw value of a state as text: its letter, then its numbers.
    #[doc(hidden)]
    #[must_use]
    pub fn state_text(raw: &[u8]) -> String {
        state::text(raw)
    }

    fn now(&self) -> Now {
        self.clock.as_ref().map_or(Now::Store, |clock| Now::Clock(clock.now()))
    }

    fn known(&self, downstream: &str) -> Known {
        self.all_known().get(downstream).copied().unwrap_or_default()
    }

    /// Takes in an answer; false where it was overtaken: given before a loss or a reset that is known.
    fn remember(&self, downstream: &str, epoch: Micros, status: &Status, ahead: Option<Duration>) -> bool {
        let mut all = self.all_known();
        let known = match all.get_mut(downstream) {
            Some(known) => known,
            None => all.entry(downstream.to_owned()).or_default(),
        };
        ahead.into_iter().for_each(|ahead| known.asked(ahead));
        // Answers may overtake each other; epochs only rise, and within one so do resets.
        let is_newer = (epoch, status.reset) >= (known.epoch, known.reset);
        if is_newer {
            if status.reset > known.reset {
                // What was in use is so no more: a store that loses its state must not be told it again.
                self.all_windows().remove(downstream);
            }
            (known.epoch, known.reset) = (epoch, status.reset);
        }
        is_newer
    }

    fn all_known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_windows(&self) -> MutexGuard<'_, HashMap<String, Windows>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The windows of the limits of a whole downstream. Those of keys are too many to remember.
    fn windows(&self, scope: Scope<'_>) -> Windows {
        let all = self.all_windows();
        all.get(scope.downstream).filter(|_| scope.key.is_empty()).cloned().unwrap_or_default()
    }

    fn remember_windows(
        &self,
        scope: Scope<'_>,
        limits: &LimitSet,
        epoch: Micros,
        marks: impl FnOnce() -> Vec<Mark>,
    ) {
        let is_window = |limit: &Limit| matches!(limit.fresh().level, Level::Window(_));
        if !scope.key.is_empty() || !limits.iter().any(is_window) {
            return;
        }
        let mut all = self.all_windows();
        let known = all.entry(scope.downstream.to_owned()).or_default();
        for (limit, mark) in limits.iter().zip(marks()) {
            let is_overtaken = known.get(limit.name()).is_some_and(|(heard, _)| *heard > epoch);
            if let Mark::Window { window, .. } = mark
                && !is_overtaken
            {
                known.insert(limit.name().to_owned(), (epoch, window));
            }
        }
    }

    /// Has changes by others heard from now on. Without a runtime there is nobody to hear them.
    fn listen(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        self.listening.call_once(|| {
            let (servers, watchers) = (Arc::downgrade(&self.servers), Arc::downgrade(&self.watchers));
            runtime.spawn(listen::listen(servers, keys::channel(&self.prefix), watchers));
        });
    }

    /// Where the edges of calendars are sent from at first: this machine's clock is near the store's.
    fn edges(&self) -> (Micros, Micros) {
        let now = self.clock.as_ref().map_or_else(wall_now, |clock| clock.now());
        (now, now)
    }

    /// One call of the script, and another one for each time that it misses the edges of a calendar.
    async fn ask(&self, scope: Scope<'_>, mut ask: Ask<'_>) -> Result<ReserveReply, StoreError> {
        let mut keys = self.keys(scope, ask.limits);
        let now = self.now();
        if let Some(reply) = self.ask_fast(scope, &keys, &ask, now).await? {
            return Ok(reply);
        }
        if ask.lease.is_some() {
            keys.push(keys::replicas(&self.prefix, scope));
        }
        for turn in 0..MISSED {
            let Known { epoch, ahead, .. } = self.known(scope.downstream);
            let known = (epoch, ahead.max(ask.ahead));
            let call = |run| self.scripts.reserve(&keys, &ask, now, known, run);
            let reply = self.servers.invoke(scope.downstream, call).await?;
            match scripts::missed(&reply) {
                // The guess by this machine's clock is dropped: it may be years off.
                Some(missed) if turn == 0 => ask.edges = missed,
                Some((from, to)) => ask.edges = (ask.edges.0.min(from), ask.edges.1.max(to)),
                None => return Ok(reply),
            }
        }
        let detail = "it asks for the edges of a calendar again and again; is its clock right?";
        Err(self.servers.unexpected(detail.to_owned()))
    }

    /// The script for most calls; none where this one is not for it, and nothing is decided yet.
    async fn ask_fast(
        &self,
        scope: Scope<'_>,
        keys: &[String],
        ask: &Ask<'_>,
        now: Now,
    ) -> Result<Option<ReserveReply>, StoreError> {
        let Some(clock) = fast::clock(ask, now) else { return Ok(None) };
        let known = self.known(scope.downstream).epoch;
        let call = |run| self.scripts.fast(keys, &fast::argument(ask, clock, known, run));
        let answer = self.servers.invoke(scope.downstream, call).await?;
        fast::reply(&answer).map_err(|detail| self.servers.unexpected(detail))
    }

    fn keys(&self, scope: Scope<'_>, limits: &LimitSet) -> Vec<String> {
        keys::all(&self.prefix, scope, limits)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the client: its URL may hold a password.
        f.debug_struct("RedisStore").field("address", &self.servers.address()).finish_non_exhaustive()
    }
}

impl Store for RedisStore {
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> BoxFuture<'a, Result<Reserved, StoreError>> {
        Box::pin(async move {
            call.check()?;
            let ask = Ask {
                limits: call.limits,
                costs: call.costs,
                ahead: call.ahead,
                exact: call.exact(),
                lease: call.lease,
                police: false,
                generation: call.generation,
                edges: self.edges(),
                known: self.windows(call.scope),
            };
            let reply = self.ask(call.scope, ask).await?;
            let reserved =
                scripts::reserved(&call, &reply).map_err(|detail| self.servers.unexpected(detail))?;
            let (epoch, status) = (reserved.epoch, &reserved.status);
            if self.remember(call.scope.downstream, epoch, status, Some(call.ahead)) {
                let marks = || scripts::marks_after(&call, &reserved);
                self.remember_windows(call.scope, call.limits, epoch, marks);
            }
            Ok(reserved)
        })
    }

    fn check<'a>(&'a self, call: Check<'a>) -> BoxFuture<'a, Result<Checked, StoreError>> {
        Box::pin(async move {
            call.check()?;
            let ask = Ask {
                limits: call.limits,
                costs: call.costs,
                ahead: Duration::ZERO,
                exact: Micros::MAX,
                lease: None,
                police: true,
                generation: call.generation,
                edges: self.edges(),
                known: self.windows(call.scope),
            };
            let reply = self.ask(call.scope, ask).await?;
            let (checked, marks) =
                scripts::checked(&call, &reply).map_err(|detail| self.servers.unexpected(detail))?;
            if self.remember(call.scope.downstream, checked.epoch, &checked.status, None) {
                self.remember_windows(call.scope, call.limits, checked.epoch, || marks);
            }
            Ok(checked)
        })
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            call.check()?;
            let keys = self.keys(call.scope, call.limits);
            let cancel = |_| self.scripts.cancel(&keys, &call, self.now());
            let given: i64 = self.servers.invoke(call.scope.downstream, cancel).await?;
            Ok(given == 1)
        })
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            scope.check()?;
            let keys = self.keys(scope, limits);
            let reset = |_| self.scripts.reset(&keys, limits, self.now());
            let _: i64 = self.servers.invoke(scope.downstream, reset).await?;
            Ok(())
        })
    }

    fn tend<'a>(
        &'a self,
        downstream: &'a str,
        change: Change<'a>,
    ) -> BoxFuture<'a, Result<Tended, StoreError>> {
        Box::pin(async move {
            let scope = Scope { downstream, key: "" };
            scope.check()?;
            change.check()?;
            let keys = match change {
                Change::Reset { limits } => keys::restarted(&self.prefix, scope, limits),
                _ => keys::tended(&self.prefix, scope).to_vec(),
            };
            let channel = keys::channel(&self.prefix);
            let known = self.known(downstream);
            let tend = |run| {
                let known = (known.epoch, known.ahead, run);
                self.scripts.tend(&keys, (&channel, downstream), &change, self.now(), known)
            };
            let tended = scripts::tended(self.servers.invoke(downstream, tend).await?)
                .map_err(|detail| self.servers.unexpected(detail))?;
            self.remember(downstream, tended.epoch, &tended.status, None);
            Ok(tended)
        })
    }

    fn changes(&self, downstream: &str) -> Changes {
        self.listen();
        self.watchers.subscribe(downstream)
    }

    fn ping(&self) -> BoxFuture<'_, Result<Micros, StoreError>> {
        Box::pin(async move {
            let now = self.servers.time().await?;
            Ok(self.clock.as_ref().map_or(now, |clock| clock.now()))
        })
    }
}
