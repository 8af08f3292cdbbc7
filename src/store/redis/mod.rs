//! State shared through Redis: one script per call, the decision made by the store's own clock.

mod address;
mod cluster;
mod dial;
mod fit;
mod keys;
mod known;
mod link;
mod listen;
mod options;
mod packed;
mod reply;
mod scripts;
mod sentinel;
mod servers;
mod slots;
mod state;
mod stored;
mod tell;
mod trouble;
mod url;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::changes::{Changes, Watchers};
use super::{
    BoxFuture, Cancel, Change, Check, Checked, Lanes, RecordState, Reserve, Reserved, Scope, Store,
    StoreError,
};
use crate::limit::LimitSet;
use crate::time::{Clock, Micros, wall_now};
use known::Known;
pub use options::Options;
use reply::{Answer, Reply};
use scripts::Scripts;
use servers::Servers;
use tell::{Ask, InLanes, Now, Seen, Windows};

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
    known: Mutex<known::All>,
    watchers: Arc<Watchers>,
    /// Hears of changes; it ends with the runtime that it was started in.
    listening: Mutex<Option<JoinHandle<()>>>,
    clock: Option<Arc<dyn Clock>>,
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
            watchers: Arc::default(),
            listening: Mutex::default(),
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

    /// [`RedisStore::with_test_clock`], whose instants are taken as they are: nothing is corrected for one that goes
    /// back. For recorded decisions.
    #[doc(hidden)]
    #[must_use]
    pub fn replaying(mut self, clock: Arc<dyn Clock>) -> Self {
        self.scripts = Scripts::without_steps();
        self.with_test_clock(clock)
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

    /// What is told of a downstream with a call to this process of the server.
    fn seen(&self, downstream: &str, run: i64) -> Seen {
        self.all_known().get(downstream).map_or(Seen { run, ..Seen::default() }, |known| known.seen(run))
    }

    /// Runs `change` on what is known of the downstream.
    fn know<T>(&self, downstream: &str, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut all = self.all_known();
        match all.get_mut(downstream) {
            Some(known) => change(known),
            None => change(all.entry(downstream.to_owned()).or_default()),
        }
    }

    fn all_known(&self) -> MutexGuard<'_, known::All> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_lanes<'a>(&self, scope: Scope<'_>, lanes: Lanes<'a>) -> Result<InLanes<'a>, StoreError> {
        let states = lanes.states()?;
        let all = self.all_known();
        let known = all.get(scope.downstream);
        let known =
            states.all.iter().map(|(limit, key)| known.and_then(|known| known.window(limit, key))).collect();
        Ok(InLanes { lanes, states, known })
    }

    fn windows(&self, scope: Scope<'_>) -> Windows {
        self.all_known().get(scope.downstream).map(|known| known.windows(scope.key)).unwrap_or_default()
    }

    /// Has changes by others heard from now on. Without a runtime there is nobody to hear them.
    fn listen(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        if listening.as_ref().is_none_or(JoinHandle::is_finished) {
            let (servers, watchers) = (Arc::downgrade(&self.servers), Arc::downgrade(&self.watchers));
            let listen = listen::listen(servers, keys::channel(&self.prefix), watchers);
            *listening = Some(runtime.spawn(listen));
        }
    }

    /// Where the edges of calendars are sent from at first: this machine's clock is near the store's.
    fn edges(&self) -> (Micros, Micros) {
        let now = self.clock.as_ref().map_or_else(wall_now, |clock| clock.now());
        (now, now)
    }

    /// One call of the script, and another one for each time that it misses the edges of a calendar.
    async fn ask(&self, scope: Scope<'_>, mut ask: Ask<'_>) -> Result<Reply, StoreError> {
        let mut keys = self.keys(scope, ask.limits);
        if let Some(in_lanes) = &ask.in_lanes {
            keys.extend(keys::of(&self.prefix, scope, in_lanes.states.all.iter().copied()));
        }
        let now = self.now();
        if let Some(reply) = self.ask_fast(scope, &keys, &ask, now).await? {
            return Ok(reply);
        }
        if ask.replica().is_some() {
            keys.push(keys::replicas(&self.prefix, scope));
        }
        for turn in 0..MISSED {
            let call = |run| {
                let seen = self.seen(scope.downstream, run);
                self.scripts.reserve(&keys, &ask, now, seen.or_asking(&ask))
            };
            let packed: Vec<u8> = self.servers.invoke(scope.downstream, call).await?;
            let answer = Answer::read(&packed, ask.all_limits().map(|(limit, _)| limit))
                .map_err(|detail| self.servers.unexpected(detail))?;
            match answer {
                Answer::Reply(reply) => return Ok(*reply),
                // The guess by this machine's clock is dropped: it may be years off.
                Answer::Missing(from, to) if turn == 0 => ask.edges = (from, to),
                Answer::Missing(from, to) => ask.edges = (ask.edges.0.min(from), ask.edges.1.max(to)),
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
    ) -> Result<Option<Reply>, StoreError> {
        if !ask.is_fast() {
            return Ok(None);
        }
        let call = |run| {
            let seen = self.seen(scope.downstream, run);
            self.scripts.fast(keys, ask, &ask.fast(now, seen.or_asking(ask)))
        };
        let answer = self.servers.invoke(scope.downstream, call).await?;
        Reply::fast(&answer, ask.limits, ask.asker.is_some())
            .map_err(|detail| self.servers.unexpected(detail))
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

impl RedisStore {
    /// What holds for a whole downstream, after a change to it if there is one.
    async fn record(&self, downstream: &str, change: Option<Change<'_>>) -> Result<RecordState, StoreError> {
        let scope = Scope { downstream, key: "" };
        scope.check()?;
        change.map_or(Ok(()), |change| change.check())?;
        let keys = match change {
            Some(Change::Reset { limits }) => keys::restarted(&self.prefix, scope, limits),
            _ => keys::record_and_terms(&self.prefix, scope).to_vec(),
        };
        let channel = keys::channel(&self.prefix);
        let call = |run| {
            let seen = self.seen(downstream, run);
            self.scripts.record(&keys, (&channel, downstream), change.as_ref(), self.now(), seen)
        };
        let state = reply::record(self.servers.invoke(downstream, call).await?)
            .map_err(|detail| self.servers.unexpected(detail))?;
        self.know(downstream, |known| known.remember((state.epoch, state.now), &state.status));
        Ok(state)
    }
}

impl crate::store::sealed::Sealed for RedisStore {}

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
                shared: call.shared,
                asker: call.asker,
                police: false,
                generation: call.generation,
                edges: self.edges(),
                known: self.windows(call.scope),
                in_lanes: call.lanes.map(|lanes| self.in_lanes(call.scope, lanes)).transpose()?,
            };
            let horizon = ask.horizon();
            let reply = self.ask(call.scope, ask).await?;
            let reserved = reply.reserved(&call).map_err(|detail| self.servers.unexpected(detail))?;
            let states = call.lanes.map(|lanes| lanes.states()).transpose()?;
            self.know(call.scope.downstream, |known| {
                let is_newest = known.remember((reserved.epoch, reserved.now), &reserved.status);
                let farthest =
                    reserved.slots.iter().max().copied().filter(|_| is_newest && call.scope.key.is_empty());
                if call.shared.is_some() {
                    let ahead = farthest.map_or(Duration::ZERO, |slot| slot.since(reserved.now));
                    known.reserved(ahead, farthest);
                } else {
                    known.asked(horizon, farthest);
                }
                if is_newest {
                    let marks = || reserved.marks_after(&call);
                    let when = (reserved.epoch, reserved.now);
                    let own = call.limits.iter().map(|limit| (limit, call.scope.key));
                    match &states {
                        Some(states) => {
                            known.remember_windows(when, own.chain(states.all.iter().copied()), marks)
                        }
                        None => known.remember_windows(when, own, marks),
                    }
                }
            });
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
                shared: None,
                asker: None,
                police: true,
                generation: call.generation,
                edges: self.edges(),
                known: self.windows(call.scope),
                in_lanes: None,
            };
            let reply = self.ask(call.scope, ask).await?;
            let (checked, marks) = reply.checked(&call).map_err(|detail| self.servers.unexpected(detail))?;
            self.know(call.scope.downstream, |known| {
                if known.remember((checked.epoch, checked.now), &checked.status) {
                    let limits = call.limits.iter().map(|limit| (limit, call.scope.key));
                    known.remember_windows((checked.epoch, checked.now), limits, || marks);
                }
            });
            Ok(checked)
        })
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            call.check()?;
            let mut keys = self.keys(call.scope, call.limits);
            keys.extend(keys::of(&self.prefix, call.scope, call.states().skip(call.limits.len())));
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

    fn read_record<'a>(&'a self, downstream: &'a str) -> BoxFuture<'a, Result<RecordState, StoreError>> {
        Box::pin(self.record(downstream, None))
    }

    fn update_record<'a>(
        &'a self,
        downstream: &'a str,
        change: Change<'a>,
    ) -> BoxFuture<'a, Result<RecordState, StoreError>> {
        Box::pin(self.record(downstream, Some(change)))
    }

    fn set_horizon(&self, downstream: &str, horizon: Duration) {
        self.know(downstream, |known| known.set_horizon(horizon));
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
