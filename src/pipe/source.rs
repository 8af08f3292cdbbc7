//! Reads jobs one by one, at most as many at once as the window holds.

use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::io::AsyncBufRead;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use uuid::Uuid;

use super::later::{Later, Waiting};
use super::outcome::{AnswerBody, Ending, Place, Record};
use super::progress::Progress;
use super::records::{Entry, Records};
use super::resume::{Mismatch, Outcomes, Step};
use super::{Notice, Notify, PipeOptions, WINDOW, WINDOW_BYTES};
use crate::dispatch::{
    DeadLetter, Delivery, ParkReason, Parked, Report, Source, Stay, Ticket, Unburied, too_far,
};
use crate::job::ndjson::replace_request_headers;
use crate::job::{Message, Rules, cost_of, decode, shown};
use crate::sink::{Receipt, Response};
use crate::time::{Micros, wall_now};

/// The queue that a job names, so that its answer is kept. There is no broker, and the ticket takes the reply.
const REPLY_TO: &str = "(outcome)";

/// A source of the jobs of an input. The `downstream` of a line is ignored, since there is only one.
#[derive(Debug)]
pub struct InputSource<R> {
    records: Records<R>,
    outcomes: Outcomes,
    making: Making,
    ended: bool,
    /// Whether the input was read to its end.
    at_end: bool,
    later: Later,
    window: Window,
    shared: Shared,
}

/// What becomes of the jobs of the input.
#[derive(Debug)]
struct Making {
    with_body: bool,
    headers: Vec<(String, String)>,
    rules: Option<Rules>,
}

/// A job that was read, and may go.
#[derive(Debug)]
struct Ready {
    line: u64,
    message: Message,
    /// Its stay, if it waited for its time.
    stay: Option<Stay>,
}

/// The jobs and bytes that may be read ahead, and what is kept of the next one when [`Source::next`] is dropped.
#[derive(Debug)]
struct Window {
    jobs: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// The next job's place.
    place: Option<OwnedSemaphorePermit>,
    /// The next job, which waits for room for its body.
    read: Option<Ready>,
}

impl Window {
    fn new() -> Self {
        let (jobs, bytes) = (Semaphore::new(WINDOW), Semaphore::new(WINDOW_BYTES));
        Self { jobs: Arc::new(jobs), bytes: Arc::new(bytes), place: None, read: None }
    }

    /// Waits for a place for one more job. Cancel safe.
    async fn open(&mut self) {
        if self.place.is_none() {
            // The semaphore is never closed.
            self.place = Arc::clone(&self.jobs).acquire_owned().await.ok();
        }
    }

    /// Waits for room for the job that was read. Cancel safe.
    async fn take(&mut self) -> Option<(Ready, Place)> {
        let length = self.read.as_ref()?.message.content.body.len().min(WINDOW_BYTES);
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        let bytes = Arc::clone(&self.bytes).acquire_many_owned(bytes).await.ok()?;
        let (ready, job) = self.read.take().zip(self.place.take())?;
        Some((ready, Place { job, bytes }))
    }
}

/// The state that a source and its tickets share.
#[derive(Clone, Debug)]
struct Shared {
    records: mpsc::UnboundedSender<Record>,
    progress: Progress,
    notify: Notify,
}

impl<R: AsyncBufRead + Unpin + Send + 'static> InputSource<R> {
    pub(super) fn new(
        records: Records<R>,
        sender: mpsc::UnboundedSender<Record>,
        progress: Progress,
        options: PipeOptions,
        notify: Notify,
    ) -> Self {
        let PipeOptions { with_body, headers, rules, outcomes } = options;
        Self {
            records,
            outcomes,
            making: Making { with_body, headers, rules },
            ended: false,
            at_end: false,
            later: Later::default(),
            window: Window::new(),
            shared: Shared { records: sender, progress, notify },
        }
    }

    /// The next job that is to be sent; `None` at the end of the input, once none waits for its time any
    /// more.
    ///
    /// Cancel safe.
    async fn job(&mut self) -> Option<Ready> {
        loop {
            if let Some((waiting, read)) = self.later.take() {
                self.shared.progress.later(self.later.len());
                match self.back(waiting, read) {
                    Some(ready) => return Some(ready),
                    None => continue,
                }
            }
            if self.at_end {
                if self.later.is_empty() {
                    return None;
                }
                self.later.due().await;
                continue;
            }
            let entry = tokio::select! {
                biased;
                () = self.later.due() => continue,
                entry = self.records.next() => entry,
            };
            self.shared.progress.blank(self.records.blank());
            match entry {
                Ok(Some(entry)) => match self.examine(entry) {
                    Ok(Some((line, message))) => {
                        if let Some(ready) = self.put_off(line, message) {
                            return Some(ready);
                        }
                    }
                    Ok(None) => {}
                    Err(mismatch) => {
                        self.refuse(mismatch);
                        return None;
                    }
                },
                Ok(None) => {
                    self.at_end = true;
                    self.shared.progress.ended();
                    self.outcomes.end().unwrap_or_else(|mismatch| self.refuse(mismatch));
                }
                Err(error) => {
                    self.at_end = true;
                    self.unreadable(error);
                }
            }
        }
    }

    /// The job that has waited for its time, which goes before those that were read after it.
    fn back(&self, waiting: Waiting, read: io::Result<Message>) -> Option<Ready> {
        let Waiting { line, first_seen, due, .. } = waiting;
        match read {
            Ok(message) => {
                let stay = Stay {
                    until: due,
                    reason: ParkReason::NotBefore,
                    attempts: 0,
                    throttled: 0,
                    refused: 0,
                    unreadable: 0,
                    first_seen,
                    assigned_id: None,
                    versions: None,
                };
                Some(Ready { line, message, stay: Some(stay) })
            }
            Err(error) => {
                self.shared.progress.lost();
                self.shared.notify.report(&Notice::Lost { line, error });
                None
            }
        }
    }

    /// Keeps a message for its time, or until its deadline, if that is to come. One that cannot be kept is returned, and
    /// waits with a place.
    fn put_off(&mut self, line: u64, message: Message) -> Option<Ready> {
        let now = wall_now();
        if let Some(due) = self.due(&message, now)
            && self.later.keep(due, now, line, &message)
        {
            self.shared.progress.later(self.later.len());
            return None;
        }
        Some(Ready { line, message, stay: None })
    }

    /// When a job for later may go or ends; `None` if it goes now, and one that is to be refused does.
    fn due(&self, message: &Message, now: Micros) -> Option<Micros> {
        // Most jobs have no time, and are decoded only once.
        message.headers.iter().find(|(name, _)| name == "paced-not-before")?;
        let times = decode(message, self.making.rules.as_ref()?).ok()?.times;
        let start = times.not_before.filter(|_| too_far(times.not_before, now).is_none())?;
        let due = times.deadline.map_or(start, |deadline| deadline.min(start));
        (due > now).then_some(due)
    }

    fn unreadable(&self, error: io::Error) {
        self.shared.progress.unreadable();
        self.shared.notify.report(&Notice::Unreadable { line: self.records.line(), error });
    }

    /// The message of an entry, if it is to be sent.
    fn examine(&mut self, Entry { line, job }: Entry) -> Result<Option<(u64, Message)>, Mismatch> {
        let mut message = match job {
            Ok(message) => message,
            Err(error) => {
                self.shared.progress.skipped();
                self.shared.notify.report(&Notice::Skipped { line, error });
                return Ok(None);
            }
        };
        match self.outcomes.step(line, message.message_id.as_deref())? {
            Step::Skip(done) => {
                self.shared.progress.done_before(done);
                return Ok(None);
            }
            Step::SendAgain(id) => message.message_id = Some(id),
            Step::Send => {}
        }
        replace_request_headers(&mut message, &self.making.headers);
        message.content.name_json();
        Ok(Some((line, message)))
    }

    fn refuse(&self, mismatch: Mismatch) {
        self.shared.progress.mismatched();
        self.shared.notify.report(&Notice::Mismatch(mismatch));
    }

    fn deliver(&self, Ready { line, mut message, stay }: Ready, place: Place) -> Delivery {
        // The id is reported in the outcome and sent as the key, so it is needed before decoding.
        let id = message.message_id.get_or_insert_with(|| Uuid::now_v7().to_string()).clone();
        let answer = self.making.with_body.then(OnceLock::new);
        if answer.is_some() {
            message.reply_to = Some(REPLY_TO.to_owned());
        }
        self.shared.progress.handed_out();
        let cost = cost_of(&message);
        let ticket = InputTicket { line, id, cost, answer, place: Some(place), shared: self.shared.clone() };
        Delivery { message, ticket: Box::new(ticket), stay }
    }
}

impl<R: AsyncBufRead + Unpin + Send + 'static> Source for InputSource<R> {
    async fn next(&mut self) -> Option<Delivery> {
        if self.ended {
            return None;
        }
        let records = self.shared.records.clone();
        let next = async {
            self.window.open().await;
            if self.window.read.is_none() {
                self.window.read = self.job().await;
                self.shared.progress.held(self.window.read.is_some());
            }
            self.window.take().await
        };
        let next = tokio::select! {
            biased;
            // No outcome can be written any more.
            () = records.closed() => None,
            next = next => next,
        };
        let Some((ready, place)) = next else {
            self.ended = true;
            return None;
        };
        self.shared.progress.held(false);
        Some(self.deliver(ready, place))
    }

    async fn close(&mut self) {
        self.ended = true;
    }
}

/// Reports the outcome of one job, once. When it is dropped or given back, the job counts as returned.
#[derive(Debug)]
struct InputTicket {
    line: u64,
    id: String,
    cost: u32,
    /// The body of the answer, once there is one; `None` if it is not wanted.
    answer: Option<OnceLock<Bytes>>,
    /// The job's place in the window; `None` once it is settled.
    place: Option<Place>,
    shared: Shared,
}

impl InputTicket {
    fn settle(&mut self, ending: Ending, report: Report) {
        let Some(place) = self.place.take() else { return };
        let body = match self.answer.take().map(OnceLock::into_inner) {
            None => AnswerBody::Unwanted,
            Some(None) => AnswerBody::None,
            Some(Some(body)) => AnswerBody::Kept(body),
        };
        let (line, id, cost) = (self.line, std::mem::take(&mut self.id), self.cost);
        let record = Record { line, id, cost, ending, report, body, place };
        self.shared.progress.settled(record.kind());
        // Without a writer nobody receives it; the writer's error is reported already.
        let _ = self.shared.records.send(record);
    }
}

impl Drop for InputTicket {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.shared.progress.returned();
        }
    }
}

impl Ticket for InputTicket {
    fn is_live(&self) -> bool {
        !self.shared.records.is_closed()
    }

    fn ack(mut self: Box<Self>, _receipt: Receipt, report: Report) {
        self.settle(Ending::Delivered, report);
    }

    /// Only jobs that were cancelled come here: lines are not delivered again.
    fn discard(mut self: Box<Self>, report: Report) {
        self.settle(Ending::Cancelled, report);
    }

    fn dead_letter(mut self: Box<Self>, letter: DeadLetter) -> BoxFuture<'static, Option<Unburied>> {
        Box::pin(async move {
            let DeadLetter { reason, detail, report, .. } = letter;
            let id = shown(self.id.as_bytes(), 255);
            self.shared.notify.report(&Notice::Failed { line: self.line, id, reason, detail });
            self.settle(Ending::Failed(reason), report);
            None
        })
    }

    fn give_back(self: Box<Self>) {
        // Dropping the ticket counts it.
    }

    /// It is refused: lines wait nowhere else.
    fn park(self: Box<Self>, _stay: Stay) -> BoxFuture<'static, Parked> {
        Box::pin(std::future::ready(Parked::Refused(self)))
    }

    fn reply<'a>(&'a self, response: &'a Response) -> BoxFuture<'a, bool> {
        // Without a status there was no answer, and the body is a text for people.
        if let Some(answer) = self.answer.as_ref().filter(|_| response.status != 0) {
            // A job is replied to once.
            let _ = answer.set(response.body.clone());
        }
        Box::pin(std::future::ready(true))
    }
}
