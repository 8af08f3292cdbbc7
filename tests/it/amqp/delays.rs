//! Delays of hours and days, as a dispatcher keeps them, on a ladder whose unit is 50 us: an hour takes 0.18 s.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lapin::types::{AMQPValue, FieldTable};
use paced::LimitSet;
use paced::dispatch::{self, Backoff, Dispatcher, OnLimit, OnUnavailable, RetryPolicy, ThreadClock};
use paced::job::{CostBound, Job, JobLanes, METHODS, MaxCost, ReplyRules, Rules};
use paced::sink::{Handover, Outcome, Sink};
use paced::store::{BoxFuture, MemoryStore};
use paced::time::{Micros, wall_now};
use tokio_util::sync::CancellationToken;

use super::*;

/// One of the seconds by which the ladder is made.
const UNIT: Duration = Duration::from_micros(50);
const HOUR: Duration = Duration::from_micros(3600 * 50);
/// How long jobs are held: what the broker takes to move a message is not scaled.
const HOLD_MAX: Duration = Duration::from_millis(100);
/// The longest delay, in hours: a day and one more.
const HOURS: u32 = 25;
/// How many jobs wait for each number of hours, and the time from one to the next.
const EACH: u32 = 8;
const APART: Duration = Duration::from_millis(20);

/// When each job came from the broker: the first time from the queue of the jobs, later from where it was parked.
type Visits = Arc<Mutex<BTreeMap<String, Vec<Micros>>>>;

/// Notes when jobs come.
struct NotingSource(AmqpSource, Visits);

impl Source for NotingSource {
    async fn next(&mut self) -> Option<Delivery> {
        let delivery = self.0.next().await?;
        let (id, now) = (delivery.message.message_id.clone().unwrap(), wall_now());
        self.1.lock().unwrap().entry(id).or_default().push(now);
        Some(delivery)
    }

    fn can_park(&self) -> bool {
        self.0.can_park()
    }

    async fn close(&mut self) {
        self.0.close().await;
    }
}

/// Accepts every job, and records when.
#[derive(Debug, Default)]
struct NotingSink(Mutex<Vec<(String, Micros)>>);

impl Sink for NotingSink {
    fn release<'a>(&'a self, job: &'a Job, handover: Handover<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            if !(handover.look)() {
                return Outcome::Missed;
            }
            self.0.lock().unwrap().push((job.id.clone(), wall_now()));
            Outcome::Delivered(Receipt::new(Response::without_body(Some(200))))
        })
    }
}

fn dispatcher(sink: Arc<NotingSink>) -> Dispatcher {
    let limit = paced::Limit::leaky_bucket("rate", "1000/s".parse().unwrap(), 1).unwrap();
    let options = dispatch::Options {
        downstream: "billing".into(),
        limits: LimitSet::new(vec![limit]).unwrap(),
        plans: Vec::new(),
        lanes: None,
        on_limit: OnLimit::Wait,
        horizon: Duration::from_millis(100),
        concurrency: 64,
        retry: RetryPolicy {
            backoff: Backoff { min: Duration::from_secs(1), max: Duration::from_secs(1) },
            ..RetryPolicy::default()
        },
        max_wait: None,
        hold_max: HOLD_MAX,
        on_unavailable: OnUnavailable::Hold,
        revision: None,
        proposes_limits: true,
        prefetch: 100,
        rules: Rules {
            max_body: 1024,
            allow_headers: Vec::new(),
            methods: METHODS.map(str::to_owned).to_vec(),
            encoded_slash: false,
            max_cost: MaxCost { units: 1, bound: CostBound::Given, given: Some(1) },
            costs: Vec::new(),
            plans: Vec::new(),
            lanes: JobLanes::default(),
            reply: ReplyRules::default(),
        },
        linger: Duration::ZERO,
        drain_timeout: Duration::from_secs(5),
    };
    Dispatcher::new(options, Arc::new(MemoryStore::new()), sink, Arc::new(ThreadClock::start().unwrap()))
}

/// When each job may go, by its id: its delay after the start, and a little more, so that jobs need not wait for each
/// other.
fn schedule(start: Micros) -> BTreeMap<String, Micros> {
    let jobs = (1..=HOURS).flat_map(|hours| (0..EACH).map(move |number| (hours, number)));
    jobs.map(|(hours, number)| {
        let at = start.plus(HOUR * hours + APART * number);
        // The header has whole milliseconds.
        (format!("{hours}h-{number}"), Micros(at.0 / 1000 * 1000))
    })
    .collect()
}

async fn publish_all(amqp: &Amqp, options: &Options, schedule: &BTreeMap<String, Micros>) {
    let (publisher, exchange) = (amqp.publisher(), options.jobs_exchange());
    let publish = async |(id, at): (&String, &Micros)| {
        let mut headers = FieldTable::default();
        headers.insert("paced-not-before".into(), AMQPValue::LongLongInt(at.0 / 1000));
        let properties = BasicProperties::default().with_headers(headers).with_message_id(id.as_str().into());
        publisher.publish(&exchange, "billing", properties, &Bytes::new()).await.unwrap();
    };
    futures_util::future::join_all(schedule.iter().map(publish)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hours_and_days_go_round_and_end_not_early() {
    let rabbit = shared().await;
    let options = Options { rung_unit: UNIT, ..options(rabbit, "delays") };
    let (amqp, source) = consuming(options.clone()).await;
    let (sink, visits, stop) = (Arc::new(NotingSink::default()), Visits::default(), CancellationToken::new());
    let source = NotingSource(source, Arc::clone(&visits));
    let running = tokio::spawn(dispatcher(Arc::clone(&sink)).run(source, stop.clone()));
    let schedule = schedule(wall_now().plus(Duration::from_secs(1)));
    publish_all(&amqp, &options, &schedule).await;
    until("all jobs", async || sink.0.lock().unwrap().len() >= schedule.len()).await;
    stop.cancel();
    running.await.unwrap();
    assert!(amqp.shutdown(LONG).await);

    let released = std::mem::take(&mut *sink.0.lock().unwrap());
    assert_eq!(released.len(), schedule.len(), "none goes twice");
    for (id, at) in &released {
        let due = schedule[id];
        assert!(*at >= due, "{id} is {:?} early", due.since(*at));
    }
    let mut most = 0;
    for (id, visits) in &*visits.lock().unwrap() {
        // A stay is the longest one that leaves an eighth of the wait, or five units, and there is one for each power of
        // two: so it takes more than a half of seven eighths of the wait.
        for stay in visits.windows(2) {
            let (stayed, wait) = (stay[1].since(stay[0]), schedule[id].since(stay[0]));
            assert!(stayed >= wait * 7 / 16, "{id} came home after {stayed:?} of {wait:?}");
        }
        most = most.max(visits.len() - 1);
    }
    assert!((2..=24).contains(&most), "{most} stays");
}
