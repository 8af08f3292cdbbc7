//! Reads jobs line by line, at most as many at once as the window holds.

use std::sync::Arc;

use tokio::io::AsyncBufRead;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use uuid::Uuid;

use super::lines::{Line, Lines};
use super::outcome::{Progress, Record};
use super::{MAX_LINE, Notice, Notify, SkipError, WINDOW};
use crate::dispatch::{DeadLetter, Delivery, Parked, Report, Source, Stay, Ticket};
use crate::job::{Message, Reason, ndjson, shown};
use crate::sink::{Receipt, Response};
use crate::store::BoxFuture;

/// A source of jobs from lines of JSON. The `downstream` of a line is ignored, since there is only one.
#[derive(Debug)]
pub struct NdjsonSource<R> {
    lines: Lines<R>,
    /// The number of the last line that was read.
    number: u64,
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

impl<R: AsyncBufRead + Unpin + Send + 'static> NdjsonSource<R> {
    pub(super) fn new(
        reader: R,
        records: mpsc::UnboundedSender<Record>,
        progress: Progress,
        notify: Notify,
    ) -> Self {
        Self {
            lines: Lines::new(reader, MAX_LINE),
            number: 0,
            ended: false,
            window: Arc::new(Semaphore::new(WINDOW)),
            place: None,
            shared: Shared { records, progress, notify },
        }
    }

    /// The message of the next line that is a job; `None` at the end of the input.
    ///
    /// Cancel safe.
    async fn message(&mut self) -> Option<Message> {
        loop {
            let line = match self.lines.next().await {
                Ok(Some(line)) => line,
                Ok(None) => return None,
                Err(error) => {
                    self.shared.progress.unreadable();
                    self.shared.notify.tell(&Notice::Unreadable { line: self.number, error });
                    return None;
                }
            };
            self.number += 1;
            let parsed = match &line {
                Line::TooLong => Err(SkipError::TooLong),
                Line::Whole(text) => match text.trim_ascii_end() {
                    [] => continue,
                    text => ndjson::parse(text).map_err(SkipError::Line),
                },
            };
            match parsed {
                Ok(line) => return Some(line.message),
                Err(error) => {
                    self.shared.progress.skipped();
                    self.shared.notify.tell(&Notice::Skipped { line: self.number, error });
                }
            }
        }
    }

    fn deliver(&mut self, mut message: Message, place: OwnedSemaphorePermit) -> Delivery {
        // The id is reported in the outcome and sent as the key, so it is needed before decoding.
        let id = message.message_id.get_or_insert_with(|| Uuid::now_v7().to_string()).clone();
        let ticket = NdjsonTicket { line: self.number, id, place: Some(place), shared: self.shared.clone() };
        Delivery { message, ticket: Box::new(ticket), stay: None }
    }
}

impl<R: AsyncBufRead + Unpin + Send + 'static> Source for NdjsonSource<R> {
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
        let Some((message, place)) = message.zip(self.place.take()) else {
            self.ended = true;
            return None;
        };
        Some(self.deliver(message, place))
    }

    async fn close(&mut self) {
        self.ended = true;
    }
}

/// Reports the outcome of one job, once. When it is dropped or given back, the job counts as returned.
#[derive(Debug)]
struct NdjsonTicket {
    line: u64,
    id: String,
    /// The job's place in the window; `None` once it is settled.
    place: Option<OwnedSemaphorePermit>,
    shared: Shared,
}

impl NdjsonTicket {
    fn settle(&mut self, reason: Option<Reason>, report: Report) {
        let Some(place) = self.place.take() else { return };
        let record = Record { line: self.line, id: std::mem::take(&mut self.id), reason, report, place };
        self.shared.progress.settled(record.kind());
        // Without a writer nobody receives it; the writer's error is reported already.
        let _ = self.shared.records.send(record);
    }
}

impl Drop for NdjsonTicket {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.shared.progress.returned();
        }
    }
}

impl Ticket for NdjsonTicket {
    fn is_live(&self) -> bool {
        !self.shared.records.is_closed()
    }

    fn ack(mut self: Box<Self>, _receipt: Receipt, report: Report) {
        self.settle(None, report);
    }

    /// It counts as returned: nobody cancels jobs in a store that belongs to this process alone.
    fn discard(self: Box<Self>, _report: Report) {}

    fn dead_letter(mut self: Box<Self>, letter: DeadLetter) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let DeadLetter { reason, detail, report } = letter;
            let id = shown(self.id.as_bytes(), 255);
            self.shared.notify.tell(&Notice::Failed { line: self.line, id, reason, detail });
            self.settle(Some(reason), report);
        })
    }

    fn give_back(self: Box<Self>) {
        // Dropping the ticket counts it.
    }

    /// It is refused: lines wait nowhere else.
    fn park(self: Box<Self>, _stay: Stay) -> BoxFuture<'static, Parked> {
        Box::pin(std::future::ready(Parked::Refused(self)))
    }

    fn reply<'a>(&'a self, _response: &'a Response) -> BoxFuture<'a, ()> {
        // A line cannot ask for a reply.
        Box::pin(std::future::ready(()))
    }
}
