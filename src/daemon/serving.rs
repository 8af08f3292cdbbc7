//! Runs the dispatchers. Some begin and end while the daemon runs.
//!
//! ```text
//! order ─▶ begin ─▶ running ─ order ─▶ ending ─▶ its channels are closed ─▶ the next one of its name begins, or none
//! ```
//!
//! If many restart, such as all of them for a new plan, only a part restarts at a time, in another order in each
//! process. So the other dispatchers serve their APIs meanwhile, and usually another replica serves the API of one
//! that restarts.
//!
//! At the start of many, those begin first that have jobs (`starts.rs`).
//!
//! A dispatcher that must end finishes its sends, however long a request takes, and gives its other jobs back to the
//! broker. When the daemon stops, it has `shutdown.drain_timeout` for that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use paced::amqp::{self, Amqp};
use paced::dispatch::{Dispatcher, Drained};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::factory::Made;
use super::starts::{AT_ONCE, Starts};
use crate::status::{Dispatchers, Handle};

/// How many restart at a time: a part of those that run, and at least some.
const RESTARTING_PART: usize = 8;
const RESTARTING: usize = 4;

/// How long a dispatcher may take beyond its drain: the broker confirms the last acks meanwhile.
const LATE: Duration = Duration::from_secs(60);

/// How long one counts as beginning at most: its queue may be missing.
const BEGINNING: Duration = Duration::from_secs(2);

/// The dispatchers that end and begin at one reload. If a name is in both lists, its new dispatcher begins once the
/// old one has ended.
pub(super) struct Order {
    pub(super) ended: Vec<String>,
    pub(super) begun: Vec<Made>,
}

/// All dispatchers of a daemon.
pub(super) struct Serving {
    amqp: Arc<Amqp>,
    dispatchers: Dispatchers,
    orders: mpsc::UnboundedReceiver<Order>,
    /// Ends all dispatchers.
    stop: CancellationToken,
    running: JoinSet<Ended>,
    /// The dispatchers that have not begun.
    starts: Starts<(Dispatcher, Handle)>,
    /// The downstreams whose dispatchers run, or have not begun, or not ended yet.
    names: BTreeSet<String>,
    /// Those that begin once the dispatcher of their name has ended.
    next: BTreeMap<String, Made>,
    /// The dispatchers that wait for their turn to replace one that runs.
    turn: Turn,
}

/// The dispatchers that wait for their turn to replace one that runs. The order of the map is another one in each process.
type Turn = HashMap<String, Made>;

/// A dispatcher that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) name: String,
    pub(super) drained: Drained,
    /// False if the dispatcher ended by an order, and the broker has not confirmed its last acks.
    pub(super) is_flushed: bool,
    /// Whether it ended by an order, while others still run.
    is_ordered: bool,
}

impl Serving {
    /// No dispatchers yet. Those that run are in `dispatchers`, and end with `stop`.
    pub(super) fn new(
        amqp: Arc<Amqp>,
        dispatchers: Dispatchers,
        orders: mpsc::UnboundedReceiver<Order>,
        stop: CancellationToken,
    ) -> Self {
        let (running, starts, names) = (JoinSet::new(), Starts::none(), BTreeSet::new());
        let (next, turn) = (BTreeMap::new(), Turn::new());
        Self { amqp, dispatchers, orders, stop, running, starts, names, next, turn }
    }

    /// Starts the first dispatchers, whose handles are in the list. If they are many, they begin while [`Serving::run`] runs.
    ///
    /// # Errors
    /// The connections know no such downstream.
    pub(super) fn begin_all(&mut self, all: Vec<(Made, Handle)>) -> Result<(), amqp::Error> {
        if all.len() <= AT_ONCE {
            let mut all = all.into_iter();
            return all.try_for_each(|(made, handle)| self.begin(made.name, made.dispatcher, handle.end));
        }
        let wait = |(made, handle): (Made, Handle)| {
            handle.set_begun(false);
            (made.name, (made.dispatcher, handle))
        };
        let waiting: BTreeMap<_, _> = all.into_iter().map(wait).collect();
        self.names.extend(waiting.keys().cloned());
        self.starts = Starts::of(waiting, self.amqp.with_jobs());
        Ok(())
    }

    /// Starts one that has waited for its turn.
    fn begin_next(&mut self, name: String, (dispatcher, handle): (Dispatcher, Handle)) {
        if let Err(error) = self.begin(name.clone(), dispatcher, handle.end.clone()) {
            self.cannot_serve(&name, &error);
            // What was to replace it need not wait for its end.
            let replacement = self.next.remove(&name).or_else(|| self.turn.remove(&name));
            return self.start(replacement.into_iter().collect());
        }
        handle.set_begun(true);
        let amqp = Arc::clone(&self.amqp);
        self.starts.begun(Box::pin(async move { drop(timeout(BEGINNING, amqp.attached(&name)).await) }));
    }

    fn cannot_serve(&mut self, name: &str, error: &amqp::Error) {
        tracing::error!(downstream = name, %error, "the downstream cannot be served");
        self.names.remove(name);
        self.dispatchers.forget(name);
    }

    /// Starts a dispatcher whose handle is in the list, and which runs until `end`.
    ///
    /// # Errors
    /// The connections know no such downstream.
    fn begin(
        &mut self,
        name: String,
        dispatcher: Dispatcher,
        end: CancellationToken,
    ) -> Result<(), amqp::Error> {
        let source = self.amqp.source(&name)?;
        self.names.insert(name.clone());
        let (amqp, stop) = (Arc::clone(&self.amqp), self.stop.clone());
        // Boxed, it is not part of the task twice.
        let run = Box::pin(dispatcher.run_among(source, end.clone(), stop.clone()));
        self.running.spawn(async move {
            let drained = run.await;
            let is_ordered = end.is_cancelled() && !stop.is_cancelled();
            let is_flushed = !is_ordered || amqp.remove(&name).await;
            if !is_flushed {
                tracing::warn!(
                    downstream = name,
                    "RabbitMQ has not confirmed the last acks; jobs that were just sent may be sent again"
                );
            }
            Ended { name, drained, is_flushed, is_ordered }
        });
        Ok(())
    }

    /// Carries out orders until a dispatcher ends by itself, and returns that. Cancel safe.
    pub(super) async fn run(&mut self) -> Result<Ended, JoinError> {
        loop {
            tokio::select! {
                Some(order) = self.orders.recv() => self.carry_out(order),
                (name, one) = self.starts.next() => self.begin_next(name, one),
                Some(ended) = self.running.join_next() => match ended {
                    Ok(Ended { name, drained, is_ordered: true, .. }) => self.ended(&name, drained),
                    ended => return ended,
                },
            }
        }
    }

    /// Waits for the next dispatcher that ends; `None` once none is left. Cancel safe.
    pub(super) async fn next_ended(&mut self) -> Option<Result<Ended, JoinError>> {
        self.running.join_next().await
    }

    /// How many dispatchers have not ended.
    pub(super) fn left(&self) -> usize {
        self.running.len()
    }

    fn carry_out(&mut self, Order { ended, begun }: Order) {
        let replaced: BTreeSet<&String> = begun.iter().map(|made| &made.name).collect();
        for name in ended {
            self.next.remove(&name);
            self.turn.remove(&name);
            if !replaced.contains(&name) {
                self.dispatchers.set_leaving(&name, true);
                self.end(&name);
            }
        }
        let (later, now): (Vec<Made>, Vec<Made>) =
            begun.into_iter().partition(|made| self.names.contains(&made.name));
        for made in later {
            let is_ending = self.dispatchers.is_ending(&made.name);
            let name = made.name.clone();
            self.dispatchers.set_leaving(&name, false);
            _ = if is_ending { self.next.insert(name, made) } else { self.turn.insert(name, made) };
        }
        self.start(now);
        self.restart();
    }

    /// Ends dispatchers that wait for their replacement, as many as may restart at a time.
    fn restart(&mut self) {
        let most = RESTARTING.max(self.names.len() / RESTARTING_PART);
        while self.next.len() < most
            && let Some(name) = self.turn.keys().next().cloned()
        {
            self.next.extend(self.turn.remove_entry(&name));
            self.end(&name);
        }
    }

    /// Makes a dispatcher end. If it does not end in time, the log says so: until then its successor cannot begin.
    fn end(&mut self, name: &str) {
        self.starts.hasten(name);
        let is_ending = self.dispatchers.is_ending(name);
        let Some(handle) = self.dispatchers.end(name).filter(|_| !is_ending) else { return };
        let (name, dispatchers, stop) = (name.to_owned(), self.dispatchers.clone(), self.stop.clone());
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            let within = handle.longest_drain + LATE;
            sleep(within).await;
            let is_there = |other: &Handle| other.view.is_same(&handle.view);
            if dispatchers.all().get(&name).is_some_and(is_there) {
                tracing::error!(
                    downstream = name,
                    ?within,
                    "the dispatcher did not end in time; until it ends, this replica sends nothing to this downstream"
                );
            }
        }));
    }

    /// Starts dispatchers with new names: no running one has such a name. The bytes of the window are divided once.
    fn start(&mut self, made: Vec<Made>) {
        let queues: Vec<_> = made.iter().map(|made| made.queue.clone()).collect();
        if let Err(error) = self.amqp.add(&queues) {
            tracing::error!(%error, "downstreams cannot be served");
            return;
        }
        for Made { name, dispatcher, .. } in made {
            let handle = Handle::of(&dispatcher, self.stop.child_token());
            match self.begin(name.clone(), dispatcher, handle.end.clone()) {
                Ok(()) => self.dispatchers.insert(name, handle),
                Err(error) => self.cannot_serve(&name, &error),
            }
        }
    }

    fn ended(&mut self, name: &str, drained: Drained) {
        self.names.remove(name);
        let unfinished = drained.unfinished;
        if unfinished > 0 {
            tracing::warn!(
                downstream = name,
                unfinished,
                "the drain timed out; these jobs will be sent again"
            );
        }
        if let Some(made) = self.next.remove(name) {
            self.start(vec![made]);
            tracing::info!(downstream = name, "the downstream has restarted");
        } else {
            self.dispatchers.forget(name);
            tracing::info!(
                downstream = name,
                "the downstream is served no more; the jobs in its queues stay there"
            );
        }
        self.restart();
    }
}
