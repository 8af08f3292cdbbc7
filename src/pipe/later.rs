//! The jobs that wait for their time, in a temporary file: they hold neither a place of those that can go nor memory for
//! their bodies.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::job::{Content, Message, Value};
use crate::time::{Micros, wall_now};

/// The longest sleep until the wall clock, which may be set, is read again.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The time for which nothing more is written to a file that took no more.
const REST: Duration = Duration::from_secs(5);

/// The bytes of jobs that went, from which on the file is written anew without them.
const MAX_DEAD: u64 = 64 * 1024 * 1024;

/// The jobs that wait for their time.
#[derive(Debug, Default)]
pub(super) struct Later {
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// The file, which has no name.
    file: Option<File>,
    /// The end of the last job in the file.
    end: u64,
    /// The bytes of the jobs that wait.
    live: u64,
    /// How many were added so far.
    added: u64,
    trouble: Trouble,
}

/// Writes that failed.
#[derive(Debug, Default)]
struct Trouble {
    /// Until when nothing is written.
    rests_until: Option<Instant>,
    is_known: bool,
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

/// A part of the file: all but the body, and the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    at: u64,
    head: u32,
    body: u32,
}

impl Extent {
    fn length(self) -> u64 {
        u64::from(self.head) + u64::from(self.body)
    }
}

/// All of a message but its body, as lines and rows make it.
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
    /// As text, since JSON has no such long numbers.
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
        let Err(error) = self.add(due, now, line, message) else { return true };
        self.trouble.rests_until = Some(Instant::now() + REST);
        // What was written of it may be what another needs.
        let _ = self.file.as_ref().map(|file| file.set_len(self.end));
        if !std::mem::replace(&mut self.trouble.is_known, true) {
            let folder = std::env::temp_dir();
            tracing::warn!(
                "cannot write to a temporary file in {} ({error}): jobs for later wait in memory, and may hold others up",
                folder.display()
            );
        }
        false
    }

    fn add(&mut self, due: Micros, first_seen: Micros, line: u64, message: &Message) -> io::Result<()> {
        let head = serde_json::to_vec(&Head::of(message))?;
        let body = &message.content.body;
        let too_long = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let extent = Extent {
            at: self.end,
            head: u32::try_from(head.len()).map_err(too_long)?,
            body: u32::try_from(body.len()).map_err(too_long)?,
        };
        let file = match &mut self.file {
            Some(file) => file,
            file => file.insert(temporary()?),
        };
        file.write_all_at(&head, extent.at)?;
        file.write_all_at(body, extent.at + u64::from(extent.head))?;
        self.end += extent.length();
        self.live += extent.length();
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
        let read = self.read(waiting.extent);
        self.live -= waiting.extent.length();
        self.reclaim(MAX_DEAD);
        Some((waiting, read))
    }

    /// Frees the space of jobs that went, if these are more than this many bytes and more than those that wait.
    fn reclaim(&mut self, most: u64) {
        if self.waiting.is_empty() {
            // That it could not be cut costs its space alone.
            self.end = 0;
            let _ = self.file.as_ref().map(|file| file.set_len(0));
        }
        let dead = self.end - self.live;
        if dead > most
            && dead > self.live
            && self.trouble.rests_until.is_none_or(|until| until <= Instant::now())
            && self.rewrite().is_err()
        {
            // The old file is whole.
            self.trouble.rests_until = Some(Instant::now() + REST);
        }
    }

    /// Copies the jobs that wait to a new file.
    fn rewrite(&mut self) -> io::Result<()> {
        let Some(old) = &self.file else { return Ok(()) };
        let new = temporary()?;
        let (mut waiting, mut end, mut buffer) = (self.waiting.clone().into_vec(), 0, Vec::new());
        for Reverse(Waiting { extent, .. }) in &mut waiting {
            // A job is bounded by the longest line.
            buffer.resize(extent.head as usize + extent.body as usize, 0);
            old.read_exact_at(&mut buffer, extent.at)?;
            new.write_all_at(&buffer, end)?;
            extent.at = end;
            end += extent.length();
        }
        (self.file, self.end, self.waiting) = (Some(new), end, BinaryHeap::from(waiting));
        Ok(())
    }

    fn read(&self, Extent { at, head, body }: Extent) -> io::Result<Message> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let (mut text, mut content) = (vec![0; head as usize], vec![0; body as usize]);
        file.read_exact_at(&mut text, at)?;
        file.read_exact_at(&mut content, at + u64::from(head))?;
        let head: Head = serde_json::from_slice(&text)?;
        Ok(head.message(content.into()))
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

/// A file that is gone once it is closed, for this user alone.
fn temporary() -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = std::env::temp_dir().join(format!("paced-{}", Uuid::now_v7()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
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
        assert_eq!((later.len(), later.end, later.is_empty()), (0, 0, true));
        let mut binary = Message::default();
        binary.content.body = Bytes::from_static(b"\xff\0");
        assert!(later.keep(Micros(0), now, 9, &binary));
        assert_eq!(later.take().expect("due").1.expect("read"), binary);
    }

    #[tokio::test(start_paused = true)]
    async fn the_space_of_jobs_that_went_is_freed() {
        let (mut later, far) = (Later::default(), Micros(i64::MAX));
        let long = |n: u64| message(&format!("{{\"id\": \"{n}\", \"body\": \"{}\"}}", "x".repeat(1000)));
        assert!(later.keep(far, Micros(0), 0, &long(0)));
        for line in 1..=100 {
            assert!(later.keep(Micros(0), Micros(0), line, &long(line)));
            let (waiting, job) = later.take().expect("due");
            assert_eq!((waiting.line, job.expect("read")), (line, long(line)));
            later.reclaim(10_000);
            assert!(later.end < 13_000, "{}", later.end);
        }
        assert_eq!(
            (later.len(), later.file.as_ref().expect("a file").metadata().expect("read").len()),
            (1, later.end)
        );
        let Reverse(first) = *later.waiting.peek().expect("the first");
        assert_eq!(later.read(first.extent).expect("read"), long(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_takes_no_more_is_left_alone_for_some_seconds() {
        let (mut later, job) = (Later::default(), message(r#"{"id": "a"}"#));
        assert!(later.keep(Micros(0), Micros(0), 1, &job));
        // A file that is open for reading alone fails as a full disk does.
        let good = later.file.replace(File::open("/dev/null").expect("open"));
        assert!(!later.keep(Micros(0), Micros(0), 2, &job));
        later.file = good;
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
