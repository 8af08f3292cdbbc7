//! The jobs that must not go yet, in temporary files: they take no place of jobs that can go, and no memory for their
//! bodies.

mod files;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use files::{Extent, Files, Unkept};

use crate::episode::Episode;
use crate::job::{Content, Message, Value};
use crate::time::{Micros, wall_now};

/// The longest sleep until the wall clock, which may be set, is read again.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The time for which nothing more is written after that failed.
pub(super) const REST: Duration = Duration::from_secs(5);

/// After this time without a job that was not kept, the log says that jobs are kept again.
const CALM: Duration = Duration::from_secs(60);

/// The jobs that wait for their time.
#[derive(Debug, Default)]
pub(super) struct Later {
    waiting: BinaryHeap<Reverse<Waiting>>,
    files: Files,
    /// How many were added so far.
    added: u64,
    trouble: Trouble,
}

/// Jobs that were not kept.
#[derive(Debug, Default)]
struct Trouble {
    /// When the last one was not.
    last: Option<Instant>,
    /// Until when nothing is written.
    rests_until: Option<Instant>,
    /// What the log has said, by the kind of the reason.
    episode: Episode<Discriminant<Unkept>>,
}

/// A job that waits, in the order in which they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waiting {
    /// When it may go, or ends.
    pub(super) due: Micros,
    /// Its place in the order of the input.
    number: u64,
    pub(super) first_seen: Micros,
    pub(super) line: u64,
    extent: Extent,
}

/// A message of a line or row, without its body.
#[derive(Serialize, Deserialize)]
struct Head {
    id: Option<String>,
    priority: Option<u8>,
    content_type: Option<String>,
    content_encoding: Option<String>,
    headers: Vec<(String, Field)>,
}

#[derive(Serialize, Deserialize)]
enum Field {
    /// As text, since numbers in JSON are not as long.
    Integer(String),
    /// The bits.
    Float(u64),
    Timestamp(u64),
    Text(Vec<u8>),
    Bool(bool),
}

impl Later {
    /// The number of jobs that wait.
    pub(super) fn len(&self) -> u64 {
        self.waiting.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Keeps a job until it may go, and returns whether it is kept. It writes to a file, so it blocks for a moment.
    pub(super) fn keep(&mut self, due: Micros, now: Micros, line: u64, message: &Message) -> bool {
        if self.trouble.rests_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        match self.add(due, now, line, message) {
            Ok(()) => self.trouble.went_well(),
            Err(reason) => self.trouble.note(&reason),
        }
    }

    fn add(&mut self, due: Micros, first_seen: Micros, line: u64, message: &Message) -> Result<(), Unkept> {
        let head = serde_json::to_vec(&Head::of(message)).map_err(io::Error::from)?;
        let extent = self.files.add(due.since(first_seen), &head, &message.content.body)?;
        self.waiting.push(Reverse(Waiting { due, number: self.added, first_seen, line, extent }));
        self.added += 1;
        Ok(())
    }

    /// Waits until a job may go; for ever if none waits. Cancel safe.
    pub(super) async fn due(&self) {
        let Some(Reverse(Waiting { due, .. })) = self.waiting.peek() else {
            return std::future::pending().await;
        };
        loop {
            let left = due.since(wall_now());
            if left.is_zero() {
                return;
            }
            sleep(left.min(LONGEST_SLEEP)).await;
        }
    }

    /// Takes the first job out, if it may go: an error of the file if it cannot be read back, and is lost to this run. It
    /// reads from a file, so it blocks for a moment.
    pub(super) fn take(&mut self) -> Option<(Waiting, io::Result<Message>)> {
        self.waiting.peek().filter(|Reverse(first)| first.due <= wall_now())?;
        let Reverse(waiting) = self.waiting.pop()?;
        let read = self.files.take(waiting.extent).and_then(|(head, body)| {
            let head: Head = serde_json::from_slice(&head)?;
            Ok(head.message(body.into()))
        });
        Some((waiting, read))
    }
}

impl Trouble {
    /// Notes that a job was kept. Returns true.
    fn went_well(&mut self) -> bool {
        // At a bound some jobs are kept and others are not, so this waits until all are kept for a while.
        let is_calm = self.last.is_none_or(|last| last.elapsed() >= CALM);
        if is_calm && self.episode.end() {
            tracing::info!("jobs for later are kept in temporary files again");
        }
        true
    }

    /// Notes that a job was not kept. Returns false.
    fn note(&mut self, reason: &Unkept) -> bool {
        let now = Instant::now();
        self.last = Some(now);
        if !matches!(reason, Unkept::Bound { .. }) {
            self.rests_until = Some(now + REST);
        }
        if self.episode.note(discriminant(reason)) {
            tracing::warn!(
                "{reason}. Up to 500 further jobs for later wait in memory. Beyond these the input is read on when one of \
                 them went, or when there is room again"
            );
        }
        false
    }
}

impl Head {
    fn of(message: &Message) -> Self {
        let field = |value: &Value| {
            Some(match value {
                Value::Integer(number) => Field::Integer(number.to_string()),
                Value::Float(number) => Field::Float(number.to_bits()),
                Value::Timestamp(seconds) => Field::Timestamp(*seconds),
                Value::Text(text) => Field::Text(text.to_vec()),
                Value::Bool(value) => Field::Bool(*value),
                // No line and no row has such a value.
                Value::Other(_) => return None,
            })
        };
        let headers = message.headers.iter();
        Self {
            id: message.message_id.clone(),
            priority: message.priority,
            content_type: message.content.content_type.clone(),
            content_encoding: message.content.content_encoding.clone(),
            headers: headers.filter_map(|(name, value)| Some((name.clone(), field(value)?))).collect(),
        }
    }

    fn message(self, body: Bytes) -> Message {
        let value = |field| match field {
            // It was written from a number.
            Field::Integer(text) => Value::Integer(text.parse().unwrap_or_default()),
            Field::Float(bits) => Value::Float(f64::from_bits(bits)),
            Field::Timestamp(seconds) => Value::Timestamp(seconds),
            Field::Text(text) => Value::Text(text.into()),
            Field::Bool(value) => Value::Bool(value),
        };
        let Self { id, priority, content_type, content_encoding, headers } = self;
        Message {
            message_id: id,
            priority,
            content: Content { body, content_type, content_encoding },
            headers: headers.into_iter().map(|(name, field)| (name, value(field))).collect(),
            ..Message::default()
        }
    }
}

#[cfg(test)]
impl Later {
    /// Has at most this number of jobs kept.
    pub(super) fn limit_jobs(&mut self, jobs: u64) {
        self.files.set_bounds(files::Bounds { jobs, ..files::Bounds::default() });
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::files::Bounds;
    use super::*;
    use crate::job::ndjson;

    fn message(text: &str) -> Message {
        ndjson::parse(text.as_bytes()).expect("a job").message
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_come_back_whole_when_their_time_has_come_in_its_order() {
        let (mut later, start) = (Later::default(), Instant::now());
        let now = wall_now();
        let jobs = [
            r#"{"id": "b", "body": {"n": 1}, "cost": 3.0, "not_before": 1.5e9, "priority": 7}"#,
            r#"{"id": "a", "lane": "grün", "headers": {"x-n": 12345678901234567890, "content-type": "text/plain"}}"#,
            "{}",
        ]
        .map(message);
        for (line, (after, job)) in [(20, &jobs[0]), (10, &jobs[1]), (20, &jobs[2])].into_iter().enumerate() {
            let due = now.plus(Duration::from_secs(after));
            assert!(later.keep(due, now, line as u64, job));
        }
        assert!(later.take().is_none(), "too early");
        for (line, after) in [(1_usize, 10), (0, 20), (2, 20)] {
            later.due().await;
            assert!(start.elapsed() >= Duration::from_secs(after));
            let (waiting, job) = later.take().expect("due");
            assert_eq!((waiting.line, waiting.first_seen), (line as u64, now));
            assert_eq!(job.expect("read"), jobs[line]);
        }
        assert!(start.elapsed() < Duration::from_secs(21));
        assert_eq!((later.len(), later.files.size(), later.is_empty()), (0, (1, 0), true));
        let mut binary = Message::default();
        binary.content.body = Bytes::from_static(b"\xff\0");
        assert!(later.keep(Micros(0), now, 9, &binary));
        assert_eq!(later.take().expect("due").1.expect("read"), binary);
    }

    /// One job of the first file stays, so that the file cannot be freed.
    #[tokio::test(start_paused = true)]
    async fn the_space_of_jobs_that_went_is_freed() {
        let files = Files::within(Bounds { file: 4_000, bytes: 20_000, jobs: 50 });
        let (mut later, far) = (Later { files, ..Later::default() }, Micros(i64::MAX));
        let long = |n: u64| message(&format!("{{\"id\": \"{n}\", \"body\": \"{}\"}}", "x".repeat(1000)));
        assert!(later.keep(far, Micros(0), 0, &long(0)));
        for line in 1..=100 {
            assert!(later.keep(Micros(0), Micros(0), line, &long(line)));
            let (waiting, job) = later.take().expect("due");
            assert_eq!((waiting.line, job.expect("read")), (line, long(line)));
        }
        let (files, bytes) = later.files.size();
        assert!(files == 2 && bytes < 2_000, "{files} {bytes}");
        assert_eq!(later.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_finds_no_room_is_not_kept_until_some_went() {
        let files = Files::within(Bounds { file: 4_000, bytes: 20_000, jobs: 2 });
        let (mut later, job) = (Later { files, ..Later::default() }, message(r#"{"id": "a"}"#));
        let kept = [1, 2, 3].map(|line| later.keep(Micros(0), Micros(0), line, &job));
        assert_eq!((kept, later.len()), ([true, true, false], 2));
        assert_eq!(later.take().expect("due").0.line, 1);
        assert!(later.keep(Micros(0), Micros(0), 4, &job), "at once");
        assert!(later.trouble.episode.is_named());
        assert!(later.take().expect("due").1.is_ok());
        tokio::time::advance(CALM).await;
        assert!(later.keep(Micros(0), Micros(0), 5, &job));
        assert!(!later.trouble.episode.is_named(), "it is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_takes_no_more_is_left_alone_for_some_seconds() {
        let (mut later, job) = (Later::default(), message(r#"{"id": "a"}"#));
        assert!(later.keep(Micros(0), Micros(0), 1, &job));
        // A file that is open for reading alone fails as a full disk does.
        let good = later.files.replace_last(File::open("/dev/null").expect("open"));
        assert!(!later.keep(Micros(0), Micros(0), 2, &job));
        later.files.replace_last(good);
        assert!(!later.keep(Micros(0), Micros(0), 3, &job), "it rests");
        tokio::time::advance(REST).await;
        assert!(later.keep(Micros(0), Micros(0), 4, &job));
        let lines = [later.take(), later.take()].map(|taken| taken.expect("due"));
        assert_eq!(
            lines.map(|(waiting, read)| (waiting.line, read.expect("read"))),
            [(1, job.clone()), (4, job)]
        );
        assert!(later.is_empty());
    }
}
