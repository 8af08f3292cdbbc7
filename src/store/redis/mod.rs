//! State shared through Redis: one script per call, with decisions made by the store's clock.

mod address;
mod cluster;
mod dial;
mod errors;
mod fit;
mod fleet;
mod history;
mod keys;
mod link;
mod listen;
mod options;
mod packed;
mod record;
mod reply;
mod request;
mod scripts;
mod sentinel;
mod servers;
mod slot_calls;
mod slots;
#[cfg(feature = "failpoints")]
mod tests;
mod url;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::changes::{Changes, Watchers};
use super::fleet::HistoryEntry;
use super::{
    Answer, Cancel, Change, Check, Checked, ParkedGroup, ParkedGroups, RecordState, Reserve, Reserved, Scope,
    Served, ServedReply, Sharing, Stamp, Store, StoreError, TombstoneCall, TombstoneReply,
};
use crate::home::Home;
use crate::limit::LimitSet;
use crate::lock::lock;
use crate::time::{Clock, Micros};
#[doc(hidden)]
pub use fit::Keeping;
use history::History;
pub use options::Options;
use request::{KnownRecord, Now, Reach, Request};
use scripts::Scripts;
use servers::Servers;

/// Keeps state in Redis (6.2 or later), shared by all who connect to it.
///
/// The server's clock decides. One connection carries all calls (in a cluster, one to each master); it is
/// opened when first needed and anew after an error, so a server that comes back, or its successor after a
/// failover, is found by the next call. No call is ever repeated by itself: a reservation whose answer was
/// lost may have been made. The connections run on a runtime of their own ([`Options::with_runtime`]); a call that is
/// made on the store itself, rather than through a shaper or a limiter, needs a tokio runtime with timers.
pub struct RedisStore {
    servers: Arc<Servers>,
    /// The runtime of its connections.
    home: Home,
    scripts: Scripts,
    prefix: String,
    histories: Mutex<history::Histories>,
    /// The replicas whose summaries were listed last.
    replicas: Mutex<Vec<String>>,
    watchers: Arc<Watchers>,
    /// The task that receives changes.
    listening: Mutex<Option<JoinHandle<()>>>,
    clock: Option<Arc<dyn Clock>>,
}

impl RedisStore {
    /// A store at one of these URLs, with `rediss` instead of `redis` for TLS. It does not connect yet.
    ///
    /// - `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]`: one server.
    /// - `redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/MASTER_NAME[/DB]`: the master that
    ///   these sentinels know. The password is the master's; `?sentinel_user=` and `&sentinel_password=` are
    ///   the sentinels' own.
    /// - `redis+cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]`: the cluster of these nodes. All keys
    ///   of a downstream lie on one master.
    ///
    /// Special characters in a user or a password are percent-encoded.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the URL or the prefix is wrong, or there is TLS for a URL without it.
    pub fn open(url: &str, options: Options) -> Result<Self, StoreError> {
        let (prefix, home) = (options.key_prefix.clone(), options.home.clone());
        if prefix.contains(['{', '}']) {
            let text = "a key prefix with braces would break the hash tag of every key; leave them out";
            return Err(StoreError::Invalid(text.to_owned()));
        }
        Ok(Self {
            servers: Arc::new(Servers::open(url, options)?),
            home,
            scripts: Scripts::new(),
            prefix,
            histories: Mutex::default(),
            replicas: Mutex::default(),
            watchers: Arc::default(),
            listening: Mutex::default(),
            clock: None,
        })
    }

    /// [`RedisStore::open`], and checks that the server is reachable and suitable.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`StoreError`] when the URL is wrong, or the server is away or not suitable.
    pub async fn connect(url: &str, options: Options) -> Result<Self, StoreError> {
        let store = Self::open(url, options)?;
        let servers = Arc::clone(&store.servers);
        store.home.run(async move { servers.time().await }).await??;
        Ok(store)
    }

    /// Decides by this clock instead of the server's. It serves tests of clocks that step.
    #[doc(hidden)]
    #[must_use]
    pub fn with_test_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// [`RedisStore::with_test_clock`], whose instants are taken as they are: no correction is made for a clock that
    /// steps back. It serves to replay recorded decisions.
    #[doc(hidden)]
    #[must_use]
    pub fn replaying(mut self, clock: Arc<dyn Clock>) -> Self {
        self.scripts = Scripts::without_steps();
        self.with_test_clock(clock)
    }

    /// Has each round of a loop in the scripts call ECHO, so that Redis counts the rounds. It serves tests of how much
    /// work a call is there.
    #[cfg(feature = "failpoints")]
    #[doc(hidden)]
    #[must_use]
    pub fn counting_rounds(mut self) -> Self {
        self.scripts = Scripts::counting_rounds();
        self
    }

    fn now(&self) -> Now {
        self.clock.as_ref().map_or(Now::Store, |clock| Now::Clock(clock.now()))
    }

    /// The knowledge of a downstream that is sent with a call to the given process of the server.
    fn known_record(&self, downstream: &str, run: i64) -> KnownRecord {
        lock(&self.histories)
            .get(downstream)
            .map_or(KnownRecord { run, ..KnownRecord::default() }, |history| history.known_record(run))
    }

    /// Runs `change` on the memory of the downstream.
    fn with_history<T>(&self, downstream: &str, change: impl FnOnce(&mut History) -> T) -> T {
        let mut all = lock(&self.histories);
        match all.get_mut(downstream) {
            Some(history) => change(history),
            None => change(all.entry(downstream.to_owned()).or_default()),
        }
    }

    /// Starts to receive changes made by others, if the runtime runs.
    fn listen(&self) {
        let mut listening = lock(&self.listening);
        if listening.as_ref().is_none_or(JoinHandle::is_finished) {
            let (servers, watchers) = (Arc::downgrade(&self.servers), Arc::downgrade(&self.watchers));
            let listen = listen::listen(servers, keys::channel(&self.prefix), watchers);
            *listening = self.home.spawn(listen);
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client is left out, as its URL may hold a password.
        f.debug_struct("RedisStore").field("address", &self.servers.address()).finish_non_exhaustive()
    }
}

impl crate::store::sealed::Sealed for RedisStore {}

impl Store for RedisStore {
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> Answer<'a, Reserved> {
        Box::pin(async move {
            call.check()?;
            let request = Request {
                limits: call.limits,
                costs: call.costs,
                reach: Reach { ahead: call.ahead, exact: call.exact() },
                sharing: call.sharing,
                asker: call.asker,
                police: false,
                generation: call.generation,
                windows: self.windows(call.scope),
                in_lanes: call.lanes.map(|lanes| self.in_lanes(call.scope, lanes)).transpose()?,
            };
            let horizon = request.horizon();
            let reply = self.run_script(call.scope, request).await?;
            let reserved = reply.reserved(&call).map_err(|detail| self.servers.unexpected(detail))?;
            let states = call.lanes.map(|lanes| lanes.states()).transpose()?;
            self.with_history(call.scope.downstream, |history| {
                let Stamp { now, epoch, .. } = reserved.stamp;
                let is_newest = history.record_answer(reserved.stamp);
                let farthest =
                    reserved.slots.iter().max().copied().filter(|_| is_newest && call.scope.key.is_empty());
                if call.sharing.horizon().is_some() {
                    let ahead = farthest.map_or(Duration::ZERO, |slot| slot.since(now));
                    history.record_shared_call(ahead, farthest);
                } else {
                    history.record_call(horizon, farthest);
                }
                if is_newest {
                    let marks = || reserved.marks_after(&call);
                    let own = call.limits.iter().map(|limit| (limit, call.scope.key));
                    match &states {
                        Some(states) => {
                            history.record_windows((epoch, now), own.chain(states.all.iter().copied()), marks)
                        }
                        None => history.record_windows((epoch, now), own, marks),
                    }
                }
            });
            Ok(reserved)
        })
    }

    fn check<'a>(&'a self, call: Check<'a>) -> Answer<'a, Checked> {
        Box::pin(async move {
            call.check()?;
            let request = Request {
                limits: call.limits,
                costs: call.costs,
                reach: Reach { ahead: Duration::ZERO, exact: Micros::MAX },
                sharing: Sharing::None,
                asker: None,
                police: true,
                generation: call.generation,
                windows: self.windows(call.scope),
                in_lanes: None,
            };
            let reply = self.run_script(call.scope, request).await?;
            let (checked, marks) = reply.checked(&call).map_err(|detail| self.servers.unexpected(detail))?;
            self.with_history(call.scope.downstream, |history| {
                if history.record_answer(checked.stamp) {
                    let Stamp { now, epoch, .. } = checked.stamp;
                    let limits = call.limits.iter().map(|limit| (limit, call.scope.key));
                    history.record_windows((epoch, now), limits, || marks);
                }
            });
            Ok(checked)
        })
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> Answer<'a, bool> {
        Box::pin(async move {
            call.check()?;
            let mut keys = self.keys(call.scope, call.limits);
            keys.extend(keys::of(&self.prefix, call.scope, call.states().skip(call.limits.len())));
            let cancel = |_| self.scripts.cancel(&keys, &call, self.now());
            let given: i64 = self.servers.invoke(call.scope.downstream, cancel).await?;
            Ok(given == 1)
        })
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> Answer<'a, ()> {
        Box::pin(async move {
            scope.check()?;
            let keys = self.keys(scope, limits);
            let reset = |_| self.scripts.reset(&keys, limits, self.now());
            let _: i64 = self.servers.invoke(scope.downstream, reset).await?;
            Ok(())
        })
    }

    fn read_record<'a>(&'a self, downstream: &'a str) -> Answer<'a, RecordState> {
        Box::pin(self.record(downstream, None))
    }

    fn update_record<'a>(&'a self, downstream: &'a str, change: Change<'a>) -> Answer<'a, RecordState> {
        Box::pin(self.record(downstream, Some(change)))
    }

    fn tombstones<'a>(&'a self, downstream: &'a str, call: TombstoneCall<'a>) -> Answer<'a, TombstoneReply> {
        Box::pin(self.call_tombstones(downstream, call))
    }

    fn leave_summary<'a>(&'a self, replica: &'a str, summary: &'a str, ttl: Duration) -> Answer<'a, ()> {
        Box::pin(self.leave(replica, summary, ttl))
    }

    fn summaries(&self) -> Answer<'_, Vec<String>> {
        Box::pin(self.list_summaries())
    }

    fn served<'a>(&'a self, call: Served<'a>) -> Answer<'a, ServedReply> {
        Box::pin(self.note_served(call))
    }

    fn note_parked<'a>(&'a self, downstream: &'a str, jobs: i64) -> Answer<'a, i64> {
        Box::pin(self.add_parked(downstream, jobs))
    }

    fn parked_groups<'a>(
        &'a self,
        downstream: &'a str,
        call: ParkedGroups<'a>,
    ) -> Answer<'a, Vec<ParkedGroup>> {
        Box::pin(self.add_parked_groups(downstream, call))
    }

    fn history<'a>(&'a self, downstream: &'a str, text: Option<&'a str>) -> Answer<'a, Vec<HistoryEntry>> {
        Box::pin(self.add_to_history(downstream, text))
    }

    fn set_horizon(&self, downstream: &str, horizon: Duration) {
        self.with_history(downstream, |history| history.set_horizon(horizon));
    }

    fn changes(&self, downstream: &str) -> Changes {
        self.listen();
        self.watchers.subscribe(downstream)
    }

    fn address(&self) -> Option<&str> {
        Some(self.servers.address())
    }

    fn ping(&self) -> Answer<'_, Micros> {
        Box::pin(async move {
            let now = self.servers.time().await?;
            Ok(self.clock.as_ref().map_or(now, |clock| clock.now()))
        })
    }
}
