//! Reads jobs one by one, at most as many at once as the window holds.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::io::AsyncBufRead;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use uuid::Uuid;

use super::outcome::{AnswerBody, Progress, Record};
use super::records::{Entry, Records};
use super::resume::{Mismatch, Outcomes, Step};
use super::{Notice, Notify, PipeOptions, WINDOW};
use crate::dispatch::{DeadLetter, Delivery, Parked, Report, Source, Stay, Ticket, Unburied};
use crate::job::{Message, Reason, shown};
use crate::sink::{Receipt, Response};

/// The queue that a job names, so that its answer is kept. There is no broker, and the ticket takes the reply.
const REPLY_TO: &str = "outcome";

/// A source of the jobs of an input. The `downstream` of a line is ignored, since there is only one.
#[derive(Debug)]
pub struct InputSource<R> {
    records: Records<R>,
    outcomes: Outcomes,
    with_body: bool,
    ended: bool,
    window: Arc<Semaphore>,
    /// The next job's place in the window; kept when [`Source::next`] is dropped.
    place: Option<OwnedSemaphorePermit>,
    shared: Shared,
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
        let PipeOptions { with_body, outcomes } = options;
        Self {
            records,
            outcomes,
            with_body,
            ended: false,
            window: Arc::new(Semaphore::new(WINDOW)),
            place: None,
            shared: Shared { records: sender, progress, notify },
        }
    }

    /// The next message that is to be sent, and its line; `None` at the end of the input.
    ///
    /// Cancel safe.
    async fn message(&mut self) -> Option<(u64, Message)> {
        loop {
            let entry = match self.records.next().await {
                Ok(Some(entry)) => entry,
                Ok(None) => {
                    self.shared.progress.ended();
                    self.outcomes.end().unwrap_or_else(|mismatch| self.refuse(mismatch));
                    return None;
                }
                Err(error) => {
                    self.shared.progress.unreadable();
                    self.shared.notify.tell(&Notice::Unreadable { line: self.records.line(), error });
                    return None;
                }
            };
            match self.examine(entry) {
                Ok(Some(found)) => return Some(found),
                Ok(None) => {}
                Err(mismatch) => {
                    self.refuse(mismatch);
                    return None;
                }
            }
        }
    }

    /// The message of an entry, if it is to be sent.
    fn examine(&mut self, Entry { line, job }: Entry) -> Result<Option<(u64, Message)>, Mismatch> {
        let mut message = match job {
            Ok(message) => message,
            Err(error) => {
                self.shared.progress.skipped();
                self.shared.notify.tell(&Notice::Skipped { line, error });
                return Ok(None);
            }
        };
        match self.outcomes.step(line, message.message_id.as_deref())? {
            Step::Skip => {
                self.shared.progress.resumed();
                return Ok(None);
            }
            Step::SendAgain(id) => message.message_id = Some(id),
            Step::Send => {}
        }
        Ok(Some((line, message)))
    }

    fn refuse(&self, mismatch: Mismatch) {
        self.shared.progress.mismatched();
        self.shared.notify.tell(&Notice::Mismatch(mismatch));
    }

    fn deliver(&mut self, line: u64, mut message: Message, place: OwnedSemaphorePermit) -> Delivery {
        // The id is reported in the outcome and sent as the key, so it is needed before decoding.
        let id = message.message_id.get_or_insert_with(|| Uuid::now_v7().to_string()).clone();
        let answer = self.with_body.then(OnceLock::new);
        if answer.is_some() {
            message.reply_to = Some(REPLY_TO.to_owned());
        }
        self.shared.progress.handed_out();
        let ticket = InputTicket { line, id, answer, place: Some(place), shared: self.shared.clone() };
        Delivery { message, ticket: Box::new(ticket), stay: None }
    }
}

impl<R: AsyncBufRead + Unpin + Send + 'static> Source for InputSource<R> {
    async fn next(&mut self) -> Option<Delivery> {
        if self.ended {
            return None;
        }
        let records = self.shared.records.clone();
        let place = match self.place.take() {
            Some(place) => place,
            None => tokio::select! {
                biased;
                // No outcome can be written any more.
                () = records.closed() => return None,
                place = Arc::clone(&self.window).acquire_owned() => place.ok()?,
            },
        };
        self.place = Some(place);
        let message = tokio::select! {
            biased;
            () = records.closed() => None,
            message = self.message() => message,
        };
        let Some(((line, message), place)) = message.zip(self.place.take()) else {
            self.ended = true;
            return None;
        };
        Some(self.deliver(line, message, place))
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
    /// The body of the answer, once there is one; `None` if it is not wanted.
    answer: Option<OnceLock<Bytes>>,
    /// The job's place in the window; `None` once it is settled.
    place: Option<OwnedSemaphorePermit>,
    shared: Shared,
}

impl InputTicket {
    fn settle(&mut self, reason: Option<Reason>, report: Report) {
        let Some(place) = self.place.take() else { return };
        let body = match self.answer.take().map(OnceLock::into_inner) {
            None => AnswerBody::Unwanted,
            Some(None) => AnswerBody::None,
            Some(Some(body)) => AnswerBody::Kept(body),
        };
        let record =
            Record { line: self.line, id: std::mem::take(&mut self.id), reason, report, body, place };
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
        self.settle(None, report);
    }

    /// It counts as returned: nobody cancels jobs in a store that belongs to this process alone.
    fn discard(self: Box<Self>, _report: Report) {}

    fn dead_letter(mut self: Box<Self>, letter: DeadLetter) -> BoxFuture<'static, Option<Unburied>> {
        Box::pin(async move {
            let DeadLetter { reason, detail, report, .. } = letter;
            let id = shown(self.id.as_bytes(), 255);
            self.shared.notify.tell(&Notice::Failed { line: self.line, id, reason, detail });
            self.settle(Some(reason), report);
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
