use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, duplex};
use tokio::time::timeout;

use super::*;
use crate::dispatch::{DeadLetter, Delivery, Report, Source as _};
use crate::job::template::Template;
use crate::job::{CostBound, JobLanes, METHODS, MaxCost, ReplyRules, Rules, decode};
use crate::sink::{Receipt, Response};
use crate::time::{Micros, wall_now};

mod cancelled;
mod fuzz;
mod later;

const PATIENT: Duration = Duration::from_secs(60);

/// Notices, as text.
#[derive(Clone, Default)]
struct Notices(Arc<Mutex<Vec<String>>>);

impl Notices {
    fn notify(&self) -> Notify {
        let notices = Arc::clone(&self.0);
        Notify::new(move |notice| notices.lock().expect("no panic").push(notice.to_string()))
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }
}

async fn open_lines<R, W>(reader: R, writer: W, notify: Notify) -> (InputSource<R>, OutcomeWriter<W>)
where
    R: AsyncBufRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send,
{
    let records = Records::open(reader, &Format::Ndjson).await.expect("nothing is read yet");
    open(records, writer, PipeOptions { rules: Some(rules()), ..PipeOptions::default() }, notify)
}

fn rules() -> Rules {
    Rules {
        max_body: MAX_LINE,
        allow_headers: Vec::new(),
        methods: METHODS.map(str::to_owned).to_vec(),
        encoded_slash: false,
        max_cost: MaxCost { units: 1, bound: CostBound::Given, given: Some(1) },
        costs: Vec::new(),
        plans: Vec::new(),
        lanes: JobLanes::default(),
        reply: ReplyRules::default(),
    }
}

fn report(attempts: u32, status: Option<u16>) -> Report {
    Report { attempts, status, released_at: (attempts > 0).then_some(Micros(1_700_000_000_123_400)) }
}

fn ack(delivery: Delivery) {
    let response = Response { status: 200, ..Response::default() };
    delivery.ticket.ack(Receipt::new(response), report(1, Some(200)));
}

async fn dead_letter(delivery: Delivery, reason: Reason, report: Report) {
    delivery.ticket.dead_letter(DeadLetter::new(reason, "because", report)).await;
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn parsed(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test]
async fn every_outcome_is_one_line_in_the_order_of_completion() {
    let input = br#"{"id": "a", "body": "x"}
{"id": "b"}
{"id": "c"}
{"id": "d"}
{"id": "e"}
"#;
    let notices = Notices::default();
    let mut out = Vec::new();
    let (mut source, writer) = open_lines(&input[..], &mut out, notices.notify()).await;
    let mut jobs = Vec::new();
    while jobs.len() < 5 {
        jobs.push(source.next().await.expect("a job"));
    }
    assert!(source.next().await.is_none());
    drop(source);
    let [a, b, c, d, e] = <[Delivery; 5]>::try_from(jobs).expect("five");
    assert!(a.ticket.is_live());
    dead_letter(c, Reason::UnknownHeader, report(0, None)).await;
    ack(a);
    dead_letter(d, Reason::AttemptsExhausted, report(8, Some(503))).await;
    dead_letter(b, Reason::Expired, report(0, None)).await;
    dead_letter(e, Reason::ForbiddenPath, report(1, None)).await;
    let totals = writer.run().await.expect("written");
    let text = String::from_utf8(out.clone()).expect("text");
    let first = text.lines().nth(1).expect("a line");
    assert_eq!(
        first,
        r#"{"line":1,"id":"a","outcome":"delivered","reason":null,"status":200,"attempts":1,"released_at":"2023-11-14T22:13:20.123400Z"}"#
    );
    let at = "2023-11-14T22:13:20.123400Z";
    let line = |line: u64, id: &str, outcome: &str, reason: &str, status: Value, attempts: u32, at: Value| {
        json!({"line": line, "id": id, "outcome": outcome, "reason": reason, "status": status,
            "attempts": attempts, "released_at": at})
    };
    let mut lines = parsed(&out);
    lines.remove(1);
    assert_eq!(
        lines,
        [
            line(3, "c", "rejected", "unknown-header", Value::Null, 0, Value::Null),
            line(4, "d", "dead", "attempts-exhausted", json!(503), 8, json!(at)),
            line(2, "b", "dead", "expired", Value::Null, 0, Value::Null),
            line(5, "e", "dead", "forbidden-path", Value::Null, 1, json!(at)),
        ]
    );
    assert_eq!(totals, Totals { delivered: 1, dead: 3, rejected: 1, ..Totals::default() });
    assert!(!totals.is_clean());
    assert_eq!(notices.all()[0], "line 3: job c: unknown-header: because");
    assert_eq!(notices.all().len(), 4);
}

#[tokio::test]
async fn bad_lines_are_reported_with_their_number_and_skipped() {
    let input = "\u{feff}{\"id\": \"a\"}\r\n\n   \nnope\n{\"lnae\": \"x\"}\n[]\n{\"id\": \"b\"}";
    let notices = Notices::default();
    let mut out = Vec::new();
    let (mut source, writer) = open_lines(input.as_bytes(), &mut out, notices.notify()).await;
    ack(source.next().await.expect("a"));
    ack(source.next().await.expect("b"));
    assert!(source.next().await.is_none());
    drop(source);
    let totals = writer.run().await.expect("written");
    let lines: Vec<_> = parsed(&out).iter().map(|line| (line["line"].clone(), line["id"].clone())).collect();
    assert_eq!(lines, [(json!(1), json!("a")), (json!(7), json!("b"))]);
    assert_eq!(totals, Totals { delivered: 2, skipped: 3, ..Totals::default() });
    assert!(!totals.is_clean());
    let notices = notices.all();
    assert!(notices[0].starts_with("line 4: not JSON (column "), "{notices:?}");
    assert_eq!(notices[1], "line 5: unknown key `lnae`; did you mean `lane`?");
    assert!(notices[2].starts_with("line 6: not an object"), "{notices:?}");
}

#[tokio::test]
async fn a_line_that_is_too_long_is_skipped() {
    let mut input = vec![b'x'; MAX_LINE + 1];
    input.extend_from_slice(b"\n{\"id\": \"b\"}\n");
    let notices = Notices::default();
    let (mut source, _writer) = open_lines(io::Cursor::new(input), tokio::io::sink(), notices.notify()).await;
    let delivery = source.next().await.expect("b");
    assert_eq!(delivery.message.message_id.as_deref(), Some("b"));
    assert_eq!(notices.all(), ["line 1: longer than 16 MiB; split the job"]);
}

#[tokio::test]
async fn an_absent_id_is_the_same_in_line_and_request() {
    let mut out = Vec::new();
    let (mut source, writer) = open_lines(&b"{}\n{}\n"[..], &mut out, Notices::default().notify()).await;
    let mut ids = Vec::new();
    while let Some(delivery) = source.next().await {
        ids.push(decode(&delivery.message, &rules()).expect("a job").id);
        ack(delivery);
    }
    drop(source);
    assert!(writer.run().await.expect("written").is_clean());
    let reported: Vec<_> =
        parsed(&out).iter().map(|line| line["id"].as_str().expect("text").to_owned()).collect();
    assert_eq!(reported, ids);
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 2);
}

#[tokio::test]
async fn a_bad_id_is_reported_as_it_came() {
    let notices = Notices::default();
    let mut out = Vec::new();
    let (mut source, writer) = open_lines(&b"{\"id\": \"a\\nb\"}\n"[..], &mut out, notices.notify()).await;
    dead_letter(source.next().await.expect("a job"), Reason::BadId, report(0, None)).await;
    drop(source);
    assert_eq!(writer.run().await.expect("written").rejected, 1);
    assert_eq!(parsed(&out)[0]["id"], "a\nb");
    assert_eq!(notices.all(), ["line 1: job a\\nb: bad-id: because"]);
}

#[tokio::test]
async fn the_window_holds_until_outcomes_are_written() {
    let input = "{}\n".repeat(WINDOW + 2);
    let (writer_end, mut reader_end) = duplex(64 * 1024);
    let (mut source, writer) =
        open_lines(io::Cursor::new(input), writer_end, Notices::default().notify()).await;
    let mut jobs = Vec::new();
    for _ in 0..WINDOW {
        jobs.push(source.next().await.expect("a job"));
    }
    assert!(poll(pin!(source.next())).is_pending(), "the window is full");
    ack(jobs.pop().expect("a job"));
    assert!(poll(pin!(source.next())).is_pending(), "the outcome is not written yet");
    let running = tokio::spawn(writer.run());
    jobs.push(timeout(PATIENT, source.next()).await.expect("a place").expect("a job"));
    assert!(poll(pin!(source.next())).is_pending(), "full again");
    drop(jobs.pop());
    assert!(
        timeout(PATIENT, source.next()).await.expect("a place").is_some(),
        "a dropped ticket frees its place"
    );
    drop((jobs, source));
    let read = async {
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut reader_end, &mut text).await.map(|_| text)
    };
    let text = timeout(PATIENT, read).await.expect("an end").expect("text");
    assert_eq!(text.lines().count(), 1);
    let totals = running.await.expect("no panic").expect("written");
    assert_eq!(totals, Totals { delivered: 1, returned: WINDOW as u64 + 1, ..Totals::default() });
}

#[tokio::test]
async fn rows_of_bare_commas_are_counted_and_are_no_jobs() {
    let input = "id,body\na,x\n,\n , \n,,,\n\"\",\"\"\nb,\n";
    let records = Records::open(input.as_bytes(), &Format::Csv(Template::default())).await.expect("a table");
    assert_eq!(records.count().await.expect("readable"), 2);
    let records = Records::open(input.as_bytes(), &Format::Csv(Template::default())).await.expect("a table");
    let notices = Notices::default();
    let (mut source, writer) = open(records, tokio::io::sink(), PipeOptions::default(), notices.notify());
    while let Some(delivery) = source.next().await {
        ack(delivery);
    }
    drop(source);
    let totals = writer.run().await.expect("written");
    assert_eq!(totals, Totals { delivered: 2, blank: 4, ..Totals::default() });
    assert!(totals.is_clean() && notices.all().is_empty());
}

#[tokio::test]
async fn bodies_that_are_json_say_so() {
    let input = concat!(
        "{\"body\": \"{\\\"a\\\": 1}\"}\n",
        "{\"body\": \"[1, 2]\", \"headers\": {\"content-type\": \"text/plain\"}}\n",
        "{\"body\": \"{no\"}\n",
        "{\"body\": \"7\"}\n",
    );
    let (mut source, _writer) =
        open_lines(input.as_bytes(), tokio::io::sink(), Notices::default().notify()).await;
    let mut types = Vec::new();
    while let Some(delivery) = source.next().await {
        types.push(delivery.message.content.content_type.unwrap_or_default());
    }
    assert_eq!(types, ["application/json", "text/plain", "", ""]);
}

/// Of long bodies fewer are read ahead, and one that is settled and written lets the next one in.
#[tokio::test]
async fn the_window_bounds_the_bytes_of_bodies() {
    let input = format!("{{\"body\": \"{}\"}}\n", "x".repeat(MAX_LINE - 100)).repeat(9);
    let (mut source, writer) =
        open_lines(io::Cursor::new(input), tokio::io::sink(), Notices::default().notify()).await;
    let running = tokio::spawn(writer.run());
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(source.next().await.expect("a job"));
    }
    assert!(poll(pin!(source.next())).is_pending(), "64 MiB are read");
    ack(jobs.pop().expect("a job"));
    jobs.push(timeout(PATIENT, source.next()).await.expect("room").expect("a job"));
    assert!(poll(pin!(source.next())).is_pending(), "full again");
    drop((jobs, source));
    let totals = running.await.expect("no panic").expect("written");
    assert_eq!((totals.delivered, totals.returned), (1, 4));
}

async fn half_open() -> (DuplexStream, InputSource<BufReader<DuplexStream>>, OutcomeWriter<tokio::io::Sink>) {
    let (feed, input) = duplex(1024);
    let (source, writer) =
        open_lines(BufReader::new(input), tokio::io::sink(), Notices::default().notify()).await;
    (feed, source, writer)
}

#[tokio::test]
async fn a_dropped_next_loses_nothing() {
    let (mut feed, mut source, writer) = half_open().await;
    for piece in ["{\"id\"", ": \"a", "\"}"] {
        feed.write_all(piece.as_bytes()).await.expect("room");
        assert!(poll(pin!(source.next())).is_pending());
    }
    feed.write_all(b"\n").await.expect("room");
    let delivery = timeout(PATIENT, source.next()).await.expect("in time").expect("a job");
    assert_eq!(delivery.message.message_id.as_deref(), Some("a"));
    ack(delivery);
    drop((feed, source));
    assert!(writer.run().await.expect("written").is_clean());
}

#[tokio::test]
async fn a_closed_source_ends_and_what_goes_back_is_counted() {
    let (mut feed, mut source, writer) = half_open().await;
    feed.write_all(b"{}\n{}\n{}\n").await.expect("room");
    let (first, second) = (source.next().await.expect("a job"), source.next().await.expect("a job"));
    source.close().await;
    assert!(source.next().await.is_none());
    first.ticket.give_back();
    drop((second, source));
    let totals = writer.run().await.expect("written");
    assert_eq!(totals, Totals { returned: 2, ..Totals::default() });
    assert!(!totals.is_clean());
}

#[tokio::test]
async fn without_a_reader_of_outcomes_nothing_more_is_released() {
    let (gone, end) = duplex(1);
    drop(end);
    let (mut source, writer) = open_lines(&b"{}\n{}\n{}\n"[..], gone, Notices::default().notify()).await;
    let (first, second) = (source.next().await.expect("a job"), source.next().await.expect("a job"));
    ack(first);
    let error = writer.run().await.expect_err("nobody reads");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert!(!second.ticket.is_live());
    assert!(source.next().await.is_none());
}

#[tokio::test]
async fn input_that_breaks_off_is_reported() {
    let broken = tokio::io::AsyncReadExt::chain(&b"{}\n{\"id"[..], Broken);
    let notices = Notices::default();
    let (mut source, writer) = open_lines(BufReader::new(broken), tokio::io::sink(), notices.notify()).await;
    ack(source.next().await.expect("a job"));
    assert!(source.next().await.is_none());
    drop(source);
    let totals = writer.run().await.expect("written");
    assert_eq!(totals, Totals { delivered: 1, bad_input: Some(BadInput::Unreadable), ..Totals::default() });
    assert!(!totals.is_clean());
    assert_eq!(notices.all(), ["the input breaks off after line 1: the disk is gone"]);
}

struct Broken;

impl tokio::io::AsyncRead for Broken {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::Error::other("the disk is gone")))
    }
}

#[tokio::test]
async fn outcomes_are_flushed_while_the_source_is_open() {
    let (mut feed, input) = duplex(1024);
    let (writer_end, reader_end) = duplex(1024);
    let (mut source, writer) =
        open_lines(BufReader::new(input), tokio::io::BufWriter::new(writer_end), Notices::default().notify())
            .await;
    let progress = writer.progress();
    let running = tokio::spawn(writer.run());
    feed.write_all(b"{\"id\": \"a\"}\n").await.expect("room");
    ack(source.next().await.expect("a job"));
    assert_eq!(progress.totals().delivered, 1);
    let mut lines = BufReader::new(reader_end).lines();
    let line =
        timeout(PATIENT, lines.next_line()).await.expect("in time").expect("readable").expect("a line");
    assert!(line.contains(r#""id":"a""#), "{line}");
    drop((feed, source));
    assert!(running.await.expect("no panic").expect("written").is_clean());
}
