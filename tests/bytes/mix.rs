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
use crate::support::{eventually, real_now, scaled, unique};

const LONG: Duration = Duration::from_secs(300);
pub(crate) const MIB: usize = 1 << 20;
/// The rate of the short jobs, a second.
const SHORT_RATE: f64 = 100.0;
/// The bytes from which on a job of these tests is not short.
const SHORT: usize = 1 << 16;

/// The most memory of the whole daemon, with long jobs of this size: the bytes that one downstream holds, which are two of
/// them, a message in transit, and the daemon itself. All long jobs together are more.
fn bound_mib(long: usize) -> usize {
    100 + 3 * long / MIB
}

/// Reads every request to its end and keeps none. Each long job is answered after the one before it, and after one more
/// short job has come: the other downstream continues beside long jobs, or nothing does.
#[derive(Default)]
struct Seen {
    /// How often each job of that downstream was read completely, by its id.
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

    /// Publishes jobs of these sizes, in this order.
    async fn publish_long(&self, sizes: &[usize]) {
        let (connection, channel) = open(&self.url).await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let body = vec![b'x'; sizes.iter().copied().max().unwrap()];
        for (place, size) in sizes.iter().enumerate() {
            let properties = BasicProperties::default().with_delivery_mode(2);
            let properties = properties.with_message_id(place.to_string().into());
            let queue = format!("{}.long", self.prefix);
            let options = BasicPublishOptions::default();
            let sent = channel.basic_publish("".into(), queue.into(), options, &body[..*size], properties);
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
             [downstreams.short]\nrate = '{SHORT_RATE}/s'\nqueue.name = '{prefix}.short'\nhttp.base_url = '{api}short/'\n"
        )
    }
}

/// The peak resident memory of the process.
pub(crate) fn peak_mib(paced: &Paced) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", paced.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<usize>().unwrap() / 1024
}

/// How many connections to the broker the process has, and how many bytes the broker has sent over them.
pub(crate) async fn connections(paced: &Paced) -> (usize, usize) {
    let broker = rabbit().await;
    let ports = paced.ports_to(broker.port());
    let each = "[{peer_port, Port}, {send_oct, Sent}] <- rabbit_networking:connection_info_all([peer_port, send_oct])";
    let sum = format!("lists:sum([Sent || {each}, lists:member(Port, {ports:?})])");
    (ports.len(), broker.eval(&sum).await.parse().unwrap())
}

/// Lets a daemon send jobs of these sizes, in their order, while another downstream continues over the same connection.
async fn takes(topic: &str, sizes: &[usize]) {
    let (longest, all) = (sizes.iter().copied().max().unwrap(), sizes.len());
    let queues = Queues::new(topic).await;
    let (api, seen) = api().await;
    queues.publish_long(sizes).await;
    publish_to(&queues.url, "", &format!("{}.short", queues.prefix), Job::many("short", 20_000)).await;
    let paced = Paced::spawn(&queues.config(&api, &redis().await.url(), longest)).await;
    let short = || *seen.short.borrow();
    eventually("a short job", LONG, || short() > 0).await;
    let (since, before) = (real_now(), short());
    eventually("every long job", LONG, || seen.long.lock().unwrap().len() >= all).await;
    let (took, after) = (since.elapsed().as_secs_f64(), short());
    let (peak, (_, sent)) = (peak_mib(&paced), connections(&paced).await);
    let bytes = sizes.iter().sum::<usize>();
    let pace = 100.0 * (after - before) as f64 / (took * SHORT_RATE);
    eprintln!(
        "{topic}: {took:.1} s, peak {peak} MiB, at most {}; {} MiB sent of {} MiB; {after} short jobs, at {pace:.1} % of their pace",
        bound_mib(longest),
        sent / MIB,
        bytes / MIB,
    );
    // Only `make bytes` says how much, as the machine has time for nothing else then: a busy one has no such pace.
    let least = scaled("PACED_SHORT_PACE", 0);
    if least > 0 {
        assert!(pace >= f64::from(least), "{pace:.1} % of {SHORT_RATE}/s, at least {least} %");
    }
    assert!(peak < bound_mib(longest), "{peak} MiB");
    // The short jobs are of a few bytes, and some are held.
    assert!(sent <= 2 * bytes + 8 * MIB, "{sent} bytes for {bytes}");
    assert_eq!(paced.stop().await, 0);
    let seen = std::mem::take(&mut *seen.long.lock().unwrap());
    assert_eq!((seen.len(), seen.values().filter(|times| **times > 1).count()), (all, 0), "each once");
    assert!(drain(&queues.url, &format!("{}.long", queues.prefix)).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_jobs_stay_within_their_bytes_in_whichever_order_they_come() {
    let scaled = |name, default| usize::try_from(scaled(name, default)).unwrap();
    let bytes = scaled("PACED_LONG_MIB", 8) * MIB;
    let long = vec![bytes; scaled("PACED_LONG_JOBS", 20)];
    let shorter = vec![bytes / 32; scaled("PACED_SHORTER_JOBS", 40)];
    takes("longfirst", &[&long[..], &shorter].concat()).await;
    takes("longlast", &[&shorter[..], &long].concat()).await;
    // A full window of jobs that are so short that no trouble is expected, and then both kinds by turns.
    let share = shorter.len().div_ceil(long.len());
    let mut mixed = vec![1024; 1500];
    for (place, one) in long.iter().enumerate() {
        mixed.push(*one);
        mixed.extend(shorter.iter().skip(place * share).take(share));
    }
    takes("surprise", &mixed).await;
}
