//! Long jobs: what they take in memory, and what they do to others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::HeaderMap;
use futures_util::StreamExt;
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::daemon::Paced;
use crate::support::publish::{Job, drain, open, publish_to};
use crate::support::servers::{rabbit, redis};
use crate::support::{eventually, scaled, unique};

const LONG: Duration = Duration::from_secs(300);
const MIB: usize = 1 << 20;
/// The bytes from which on a job of these tests is not short.
const SHORT: usize = 1 << 16;

/// The most memory of the whole daemon, with long jobs of this size: the bytes that one downstream holds, which are two of
/// them, a message in transit, and the daemon itself. All long jobs together are more.
fn bound_mib(long: usize) -> usize {
    100 + 3 * long / MIB
}

/// Reads every request to its end and keeps none. Each long job is answered after the one before it, and after one more
/// short job has come: the other downstream goes on beside long jobs, or nothing does.
#[derive(Default)]
struct Seen {
    /// How often each long job was read completely, by its id.
    long: Mutex<BTreeMap<String, usize>>,
    short: watch::Sender<usize>,
    /// Held by the long job whose answer comes next.
    turn: tokio::sync::Mutex<()>,
}

async fn api() -> (String, Arc<Seen>) {
    let seen = Arc::<Seen>::default();
    let long = async |State(seen): State<Arc<Seen>>, headers: HeaderMap, body: Body| {
        let mut body = body.into_data_stream();
        let mut bytes = 0;
        while let Some(Ok(piece)) = body.next().await {
            bytes += piece.len();
        }
        if bytes >= SHORT {
            let _turn = seen.turn.lock().await;
            let mut short = seen.short.subscribe();
            let before = *short.borrow();
            short.wait_for(|count| *count > before).await.unwrap();
        }
        let id = headers["idempotency-key"].to_str().unwrap().to_owned();
        *seen.long.lock().unwrap().entry(id).or_default() += 1;
    };
    let short = async |State(seen): State<Arc<Seen>>| {
        seen.short.send_modify(|count| *count += 1);
    };
    let router = Router::new()
        .route("/long/", axum::routing::post(long))
        .route("/short/", axum::routing::post(short))
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::clone(&seen));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, seen)
}

/// Two queues that keep their messages on disk: one of long jobs, and one of short ones.
struct Queues {
    prefix: String,
    url: String,
}

impl Queues {
    async fn new(topic: &str) -> Self {
        let (prefix, url) = (unique(topic), rabbit().await.url());
        let (connection, channel) = open(&url).await;
        for name in ["long", "short"] {
            let mut arguments = FieldTable::default();
            arguments.insert("x-queue-mode".into(), AMQPValue::LongString("lazy".into()));
            let queue = format!("{prefix}.{name}");
            channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
        }
        connection.close(200, "done".into()).await.unwrap();
        Self { prefix, url }
    }

    /// Publishes jobs of this size, a few at a time.
    async fn publish_long(&self, count: usize, bytes: usize) {
        let (connection, channel) = open(&self.url).await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let body = vec![b'x'; bytes];
        for place in 0..count {
            let id = format!("{bytes}-{place}");
            let properties = BasicProperties::default().with_delivery_mode(2).with_message_id(id.into());
            let queue = format!("{}.long", self.prefix);
            let options = BasicPublishOptions::default();
            let sent = channel.basic_publish("".into(), queue.into(), options, &body, properties);
            assert!(sent.await.unwrap().await.unwrap().is_ack());
        }
        connection.close(200, "done".into()).await.unwrap();
    }

    fn config(&self, api: &str, store: &str, long: usize) -> String {
        let Self { prefix, url } = self;
        let held = 2 * long / MIB;
        format!(
            "[amqp]\nurl = '{url}?heartbeat=120'\nprefix = '{prefix}'\n[store]\nurl = '{store}'\nkey_prefix = '{prefix}'\n\
             [downstreams.long]\nrate = '10000/s'\n\
             queue = {{ name = '{prefix}.long', prefetch_bytes = '{held}MiB' }}\n\
             http = {{ base_url = '{api}long/', max_body = '128MiB' }}\n\
             [downstreams.short]\nrate = '100/s'\nqueue.name = '{prefix}.short'\nhttp.base_url = '{api}short/'\n"
        )
    }
}

/// The peak resident memory of the process.
fn peak_mib(paced: &Paced) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", paced.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<usize>().unwrap() / 1024
}

/// Lets a daemon send these long jobs, in their order, while another downstream continues at its pace. Returns how many
/// were sent more than once.
async fn takes(topic: &str, jobs: &[(usize, usize)]) -> usize {
    let longest = jobs.iter().map(|(_, bytes)| *bytes).max().unwrap();
    let queues = Queues::new(topic).await;
    let (api, seen) = api().await;
    for (count, bytes) in jobs {
        queues.publish_long(*count, *bytes).await;
    }
    let all: usize = jobs.iter().map(|(count, _)| count).sum();
    publish_to(&queues.url, "", &format!("{}.short", queues.prefix), Job::many("short", 20_000)).await;
    let paced = Paced::spawn(&queues.config(&api, &redis().await.url(), longest)).await;
    eventually("every long job", LONG, || seen.long.lock().unwrap().len() >= all).await;
    let peak = peak_mib(&paced);
    let bound = bound_mib(longest);
    eprintln!("{topic}: peak {peak} MiB, at most {bound}, and {} short jobs", *seen.short.borrow());
    assert!(peak < bound, "{peak} MiB");
    assert_eq!(paced.stop().await, 0);
    let seen = std::mem::take(&mut *seen.long.lock().unwrap());
    assert_eq!(seen.len(), all);
    // Jobs that are left were sent and not acked, since their connection was replaced: they come once more.
    let left = drain(&queues.url, &format!("{}.long", queues.prefix)).await;
    assert!(left.iter().all(|job| job.redelivered), "what is left was delivered before");
    let again = seen.values().filter(|times| **times > 1).count() + left.len();
    eprintln!("{topic}: {again} of {all} long jobs were delivered again");
    again
}

/// The number and the size of the jobs.
fn jobs() -> [(usize, usize); 2] {
    let scaled = |name, default| usize::try_from(scaled(name, default)).unwrap();
    let long = scaled("PACED_LONG_JOBS", 20);
    let bytes = scaled("PACED_LONG_MIB", 8) * MIB;
    // A 64th of what is held: the longest that need no connection of their own.
    [(long, bytes), (scaled("PACED_SHORTER_JOBS", 40), bytes / 32)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_jobs_stay_within_their_bytes_in_whichever_order_they_come() {
    let [long, shorter] = jobs();
    assert_eq!(takes("longfirst", &[long, shorter]).await, 0, "each once");
    assert_eq!(takes("longlast", &[shorter, long]).await, 0, "each once");
    // A full window of jobs that are so short that no trouble is expected. Where the shared connection is replaced,
    // jobs that were being sent and were not acked yet come again.
    let again = takes("surprise", &[(1500, 1024), long]).await;
    assert!(again <= 64, "no more than were being sent at once: {again}");
}
