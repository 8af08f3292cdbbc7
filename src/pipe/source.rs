//! Reads jobs one by one, at most as many at once as the window holds.

use std::io;
use std::sync::OnceLock;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::io::AsyncBufRead;
use tokio::sync::mpsc;
use tokio::time::sleep;
use uuid::Uuid;

use super::later::{Later, REST, Waiting};
use super::outcome::{AnswerBody, Ending, Place, Record};
use super::progress::Progress;
use super::records::{Entry, Records};
use super::resume::{Mismatch, Outcomes, Step};
use super::{Notice, Notify, PipeOptions};
use crate::dispatch::{
    DeadLetter, Delivery, ParkReason, Parked, Report, Source, Stay, Ticket, Unburied, too_far,
};
use crate::job::ndjson::replace_request_headers;
use crate::job::{Message, Rules, cost_of, decode, shown};
use crate::sink::{Receipt, Response};
use crate::time::{Micros, wall_now};
use window::{Ready, Window};

mod window;

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
    pub(super) later: Later,
    /// Until it is kept or may go, no more is read of the input.
    for_later: Option<ForLater>,
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

/// A job for later that was read, and is kept nowhere else yet.
#[derive(Debug)]
struct ForLater {
    due: Micros,
    first_seen: Micros,
    line: u64,
    message: Message,
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
            for_later: None,
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
                self.count_later();
                match self.back(waiting, read) {
                    Some(ready) => return Some(ready),
                    None => continue,
                }
            }
            if self.for_later.is_some() {
                match self.put_off().await {
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
                        let first_seen = wall_now();
                        match self.due(&message, first_seen) {
                            None => return Some(Ready { line, message, stay: None, share: None }),
                            Some(due) => self.for_later = Some(ForLater { due, first_seen, line, message }),
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
                Some(Ready { line, message, stay: Some(stay), share: None })
            }
            Err(error) => {
                self.shared.progress.lost();
                self.shared.notify.report(&Notice::Lost { line, error });
                None
            }
        }
    }

    /// Keeps the job for later that was read, until its time or its deadline. If it cannot be kept, it waits for a share of
    /// the places, and is returned with it. It stays where it is while neither can be had and it is not due, but not longer
    /// than until one that is kept may go. Cancel safe.
    async fn put_off(&mut self) -> Option<Ready> {
        let ForLater { due, first_seen, line, message } = self.for_later.as_ref()?;
        let left = due.since(wall_now());
        if !left.is_zero() && self.later.keep(*due, *first_seen, *line, message) {
            self.for_later = None;
            self.count_later();
            return None;
        }
        self.count_later();
        let share = if left.is_zero() {
            None
        } else {
            tokio::select! {
                biased;
                share = self.window.share(message) => share,
                () = self.later.due() => return None,
                // Then it may go, or there may be room in the files.
                () = sleep(left.min(REST)) => return None,
            }
        };
        let ForLater { line, message, .. } = self.for_later.take()?;
        self.count_later();
        Some(Ready { line, message, stay: None, share })
    }

    fn count_later(&self) {
        self.shared.progress.later(self.later.len() + u64::from(self.for_later.is_some()));
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

    fn deliver(&self, Ready { line, mut message, stay, .. }: Ready, place: Place) -> Delivery {
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

    /// Only cancelled jobs are discarded here: no broker delivers a line a second time.
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
