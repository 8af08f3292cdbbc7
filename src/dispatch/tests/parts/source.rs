//! A source that hands out what the test publishes, and tickets that record how each message was settled.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::dispatch::{DeadLetter, Delivery, Liveness, Parked, Report, Source, Stay, Ticket, Unburied};
use crate::sink::{Receipt, Response};

/// A `reply_to` that takes no message.
pub(in crate::dispatch) const NOWHERE: &str = "nowhere";

/// A `reply_to` that takes messages only for jobs that were delivered again.
pub(in crate::dispatch) const LATER: &str = "later";

/// How a message was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Settled {
    Replied(String),
    Acked(Report),
    Discarded(Report),
    Dead(DeadLetter),
    Back,
    Parked(Stay),
}

/// The settlements that the tickets of one test record, in order.
#[derive(Clone, Debug, Default)]
pub(in crate::dispatch) struct Ledger(Arc<Mutex<Vec<(String, Settled)>>>, Arc<Notify>);

impl Ledger {
    fn note(&self, id: &str, settled: Settled) {
        self.0.lock().unwrap().push((id.to_owned(), settled));
        self.1.notify_waiters();
    }

    pub(in crate::dispatch) fn all(&self) -> Vec<(String, Settled)> {
        self.0.lock().unwrap().clone()
    }

    /// The settlements after the first ones, of which there are this many.
    pub(in crate::dispatch) fn after(&self, first: usize) -> Vec<(String, Settled)> {
        self.0.lock().unwrap()[first..].to_vec()
    }

    pub(in crate::dispatch) fn of(&self, id: &str) -> Vec<Settled> {
        self.all().into_iter().filter(|(other, _)| other == id).map(|(_, settled)| settled).collect()
    }

    /// The dead letter that a job became; there must be no other settlement of it.
    #[track_caller]
    pub(in crate::dispatch) fn letter(&self, id: &str) -> DeadLetter {
        match &self.of(id)[..] {
            [Settled::Dead(letter)] => letter.clone(),
            other => panic!("{id}: {other:?}"),
        }
    }

    pub(in crate::dispatch) async fn count(&self, count: usize) {
        loop {
            let more = self.1.notified();
            if self.all().len() >= count {
                return;
            }
            more.await;
        }
    }
}

/// A message's place in the window, from when it is handed out until its ticket is dropped.
pub(in crate::dispatch) type Place = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

#[derive(Debug)]
pub(in crate::dispatch) struct ScriptedTicket {
    pub(in crate::dispatch) _place: Place,
    pub(in crate::dispatch) id: String,
    pub(in crate::dispatch) reply_to: Option<String>,
    pub(in crate::dispatch) live: Arc<AtomicBool>,
    pub(in crate::dispatch) ledger: Ledger,
    pub(in crate::dispatch) generation: u64,
    pub(in crate::dispatch) redelivered: bool,
    pub(in crate::dispatch) may_be_given_back: bool,
    pub(in crate::dispatch) parking: ScriptedParking,
}

/// What becomes of jobs that are to be parked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::dispatch) enum ScriptedParking {
    /// The source cannot park.
    #[default]
    Absent,
    Done,
    /// After a second; unacked if the channel is lost by then.
    Slow,
    /// The channel is lost before the confirm.
    Lost,
    /// The same after a second.
    LostLater,
    Refused,
}

impl Ticket for ScriptedTicket {
    fn may_be_given_back(&self) -> bool {
        self.may_be_given_back
    }

    fn is_live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn is_redelivered(&self) -> bool {
        self.redelivered
    }

    fn ack(self: Box<Self>, _receipt: Receipt, report: Report) {
        self.ledger.note(&self.id, Settled::Acked(report));
    }

    fn discard(self: Box<Self>, report: Report) {
        self.ledger.note(&self.id, Settled::Discarded(report));
    }

    fn liveness(&self) -> Liveness {
        let live = Arc::clone(&self.live);
        Arc::new(move || live.load(Ordering::SeqCst))
    }

    fn dead_letter(self: Box<Self>, letter: DeadLetter) -> BoxFuture<'static, Option<Unburied>> {
        Box::pin(async move {
            if !self.is_live() {
                return Some(Unburied::Unpublished(letter));
            }
            self.ledger.note(&self.id, Settled::Dead(letter));
            None
        })
    }

    fn give_back(self: Box<Self>) {
        self.ledger.note(&self.id, Settled::Back);
    }

    fn can_park(&self) -> bool {
        self.parking != ScriptedParking::Absent
    }

    fn park(self: Box<Self>, stay: Stay) -> BoxFuture<'static, Parked> {
        self.ledger.note(&self.id, Settled::Parked(stay));
        Box::pin(async move {
            match self.parking {
                ScriptedParking::Done => Parked::Done,
                ScriptedParking::Slow => {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    if self.is_live() { Parked::Done } else { Parked::Unacked }
                }
                ScriptedParking::Lost => Parked::Lost,
                ScriptedParking::LostLater => {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Parked::Lost
                }
                ScriptedParking::Absent | ScriptedParking::Refused => Parked::Refused(self),
            }
        })
    }

    /// Replies to `NOWHERE`, and to `LATER` at first, are never confirmed, and end once the channel is lost.
    fn reply<'a>(&'a self, response: &'a Response) -> BoxFuture<'a, bool> {
        let is_taken = match self.reply_to.as_deref() {
            Some(NOWHERE) => false,
            Some(LATER) => self.redelivered,
            _ => true,
        };
        if !is_taken {
            return Box::pin(async {
                while self.is_live() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                false
            });
        }
        let body = String::from_utf8_lossy(&response.body).into_owned();
        self.ledger.note(&self.id, Settled::Replied(format!("{} {body}", response.status)));
        Box::pin(std::future::ready(true))
    }
}

pub(in crate::dispatch) struct ScriptedSource {
    pub(in crate::dispatch) messages: mpsc::UnboundedReceiver<(Delivery, Place)>,
    pub(in crate::dispatch) window: Arc<Semaphore>,
    /// The place of the next message.
    pub(in crate::dispatch) place: Option<OwnedSemaphorePermit>,
    pub(in crate::dispatch) windows: Arc<Mutex<Vec<u16>>>,
    pub(in crate::dispatch) pauses: Arc<Mutex<Vec<bool>>>,
    pub(in crate::dispatch) is_paused: bool,
    pub(in crate::dispatch) full: watch::Receiver<bool>,
    pub(in crate::dispatch) most_at_once: Arc<AtomicUsize>,
    pub(in crate::dispatch) parking: SourceParking,
}

/// How a source parks.
#[derive(Clone, Debug, Default)]
pub(in crate::dispatch) struct SourceParking {
    /// Whether it can park; set at the start, by the tickets.
    pub(in crate::dispatch) can_park: Arc<AtomicBool>,
    /// How often parked jobs were brought back.
    pub(in crate::dispatch) unparked: Arc<AtomicUsize>,
    /// Those under these versions of their limits were not, the last time.
    pub(in crate::dispatch) versions: Arc<Mutex<Option<String>>>,
}

impl Source for ScriptedSource {
    fn pause(&mut self) -> BoxFuture<'static, ()> {
        self.is_paused = true;
        self.pauses.lock().unwrap().push(true);
        Box::pin(tokio::time::sleep(Duration::from_millis(3)))
    }

    fn resume(&mut self) {
        self.is_paused = false;
        self.pauses.lock().unwrap().push(false);
    }

    fn resize(&mut self, window: u16) {
        self.windows.lock().unwrap().push(window);
    }

    fn can_park(&self) -> bool {
        self.parking.can_park.load(Ordering::SeqCst)
    }

    fn most_at_once(&self, _: usize) -> usize {
        self.most_at_once.load(Ordering::SeqCst)
    }

    fn unpark(&self, versions: Option<String>) {
        *self.parking.versions.lock().unwrap() = versions;
        self.parking.unparked.fetch_add(1, Ordering::SeqCst);
    }

    fn is_full(&self) -> bool {
        *self.full.borrow()
    }

    async fn next(&mut self) -> Option<Delivery> {
        if self.is_paused {
            std::future::pending::<()>().await;
        }
        loop {
            let _ = self.full.wait_for(|is_full| !*is_full).await;
            if self.place.is_none() {
                let window = Arc::clone(&self.window);
                self.place = match Arc::clone(&window).try_acquire_owned() {
                    Ok(place) => Some(place),
                    Err(_) => window.acquire_owned().await.ok(),
                };
            }
            tokio::select! {
                biased;
                Ok(_) = self.full.wait_for(|is_full| *is_full) => {}
                delivery = self.messages.recv() => {
                    let (delivery, place) = delivery?;
                    *place.lock().unwrap() = self.place.take();
                    return Some(delivery);
                }
            }
        }
    }

    async fn close(&mut self) {
        self.is_paused = false;
        self.messages.close();
    }
}
