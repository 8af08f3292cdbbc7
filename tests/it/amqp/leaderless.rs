//! Queues without a leader: what is to go there waits, and is published once; everything else continues.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use lapin::types::AMQPValue;
use paced::amqp::unpark;
use paced::dispatch::{DeadLetter, Parked};
use paced::job::Reason;
use paced::time::wall_now;
use tokio::task::JoinSet;

use super::park::{limited, park, stay};
use super::*;
use crate::support::daemon::Paced;
use crate::support::publish::{self, Job};
use crate::support::site::{Site, compare};

/// Delays a thousandth as long.
const UNIT: Duration = Duration::from_millis(1);

/// More than may be outstanding for one queue.
const MANY: u32 = 40;

fn letter() -> DeadLetter {
    DeadLetter::new(Reason::Status, "final", Report::UNSENT)
}

async fn send_to(amqp: &Amqp, options: &Options, downstream: &str, bodies: Vec<String>) {
    for body in bodies {
        let (exchange, properties) =
            (options.jobs_exchange(), BasicProperties::default().with_delivery_mode(2));
        amqp.publisher().publish(&exchange, downstream, properties, &Bytes::from(body)).await.unwrap();
    }
}

/// How often each body is in the queue.
async fn copies(channel: &Channel, queue: &str) -> BTreeMap<String, usize> {
    let mut copies = BTreeMap::new();
    while let Some(got) = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap() {
        *copies.entry(String::from_utf8(got.delivery.data).unwrap()).or_default() += 1;
    }
    copies
}

#[track_caller]
fn assert_all(copies: &BTreeMap<String, usize>, numbers: std::ops::Range<u32>) {
    let expected: BTreeMap<String, usize> = numbered(numbers).into_iter().map(|n| (n, 1)).collect();
    assert_eq!(*copies, expected, "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_of_others_go_on() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "leaderdead");
    options.downstreams.push(Downstream { name: "other".into(), ..options.downstreams[0].clone() });
    let amqp = Amqp::start(options.clone());
    let (mut source, mut other) = (amqp.source("billing").unwrap(), amqp.source("other").unwrap());
    within("the consumers", amqp.ready()).await;
    send_to(&amqp, &options, "billing", numbered(0..MANY)).await;
    send_to(&amqp, &options, "other", numbered(0..200)).await;
    // The channel of the first letter knows its queue, so that the next one is sent to its former leader.
    within("a letter", next(&mut source).await.ticket.dead_letter(letter())).await;
    let queue = "leaderdead.dead.billing";
    let member = rabbit.stop_member(queue).await;
    let mut stuck = JoinSet::new();
    for delivery in take(&mut source, MANY as usize - 1).await {
        stuck.spawn(delivery.ticket.dead_letter(letter()));
    }
    until("the queue to be named", async || amqp.status().unconfirmed() == [queue]).await;
    for round in 0..10 {
        let letters = take(&mut other, 20).await.into_iter().map(|d| d.ticket.dead_letter(letter()));
        within(&format!("letters of the other, {round}"), join_all(letters)).await;
    }
    assert!(stuck.try_join_next().is_none(), "none of them could be published");
    rabbit.restart_member(&member).await;
    while let Some(ended) = within("the letters", stuck.join_next()).await {
        ended.unwrap();
    }
    until("the end of it", async || amqp.status().unconfirmed().is_empty()).await;
    assert!(within("the shutdown", amqp.shutdown(LONG)).await);
    let (_connection, channel) = open(&rabbit.url()).await;
    assert_all(&copies(&channel, queue).await, 0..MANY);
    assert_all(&copies(&channel, "leaderdead.dead.other").await, 0..200);
    for downstream in ["billing", "other"] {
        assert_eq!(depth(&channel, &format!("leaderdead.jobs.{downstream}")).await, 0, "all were acked");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_what_is_not_confirmed() {
    let rabbit = shared().await;
    let options = options(rabbit, "leaderstop");
    let (amqp, mut source) = consuming(options.clone()).await;
    send_to(&amqp, &options, "billing", numbered(0..MANY)).await;
    within("a letter", next(&mut source).await.ticket.dead_letter(letter())).await;
    let queue = "leaderstop.dead.billing";
    let member = rabbit.stop_member(queue).await;
    let mut stuck = JoinSet::new();
    for delivery in take(&mut source, MANY as usize - 1).await {
        stuck.spawn(delivery.ticket.dead_letter(letter()));
    }
    until("the queue to be named", async || amqp.status().unconfirmed() == [queue]).await;
    let status = amqp.status();
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(LONG)).await);
    while let Some(ended) = within("the end of those that wait", stuck.join_next()).await {
        ended.unwrap();
    }
    until("all permits to be given back", async || status.unconfirmed().is_empty()).await;
    rabbit.restart_member(&member).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    assert_eq!(depth(&channel, "leaderstop.jobs.billing").await, MANY - 1, "they come again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_for_other_rungs_go_on() {
    let rabbit = shared().await;
    let options = Options { rung_unit: UNIT, ..options(rabbit, "leaderrung") };
    let (amqp, mut source) = consuming(options.clone()).await;
    send_to(&amqp, &options, "billing", numbered(0..100)).await;
    let far = stay(Duration::from_secs(10_000));
    park(next(&mut source).await, far.clone()).await;
    let rung = "leaderrung.park.4194304s";
    let member = rabbit.stop_member(rung).await;
    let mut stuck = JoinSet::new();
    for delivery in take(&mut source, MANY as usize - 1).await {
        stuck.spawn(delivery.ticket.park(far.clone()));
    }
    until("the queue to be named", async || amqp.status().unconfirmed() == [rung]).await;
    for _ in 0..20 {
        park(next(&mut source).await, stay(2000 * UNIT)).await;
    }
    let home = take(&mut source, 20).await;
    assert!(stuck.try_join_next().is_none(), "none of them could be parked");
    home.into_iter().for_each(ack);
    rabbit.restart_member(&member).await;
    while let Some(ended) = within("the parked", stuck.join_next()).await {
        assert!(matches!(ended.unwrap(), Parked::Done));
    }
    until("the end of it", async || amqp.status().unconfirmed().is_empty()).await;
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(LONG)).await);
    let (_connection, channel) = open(&rabbit.url()).await;
    assert_all(&copies(&channel, rung).await, 0..MANY);
}

/// Parks jobs in two of the queues where they wait for a limit: the first `short` ones for 64 s, the others for 256 s. Returns
/// the name of the second queue.
async fn park_in_two(
    amqp: &Amqp,
    source: &mut AmqpSource,
    options: &Options,
    short: u32,
    all: u32,
) -> String {
    send_to(amqp, options, "billing", numbered(0..all)).await;
    let waits = (0..all).map(|n| Duration::from_secs(if n < short { 100 } else { 600 }));
    let deliveries = take(source, all as usize).await;
    let parked: Vec<_> = deliveries
        .into_iter()
        .zip(waits)
        .map(|(delivery, wait)| delivery.ticket.park(limited(wait)))
        .collect();
    for parked in parked {
        assert!(matches!(within("the confirm", parked).await, Parked::Done));
    }
    format!("{}.wait.billing.256s", options.prefix)
}

/// The broker says of such a queue that nothing is in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_come_home_from_a_queue_that_does_not_answer_at_first() {
    let rabbit = shared().await;
    let options = options(rabbit, "leaderwait");
    let (amqp, mut source) = consuming(options.clone()).await;
    let queue = park_in_two(&amqp, &mut source, &options, 1, 21).await;
    let member = rabbit.stop_member(&queue).await;
    source.unpark(None);
    // All queues were checked before the first one was emptied.
    let first = next(&mut source).await;
    assert_eq!(first.message.content.body, "0");
    ack(first);
    rabbit.restart_member(&member).await;
    let home = take(&mut source, 20).await;
    assert_eq!(bodies(&home), numbered(1..21));
    home.into_iter().for_each(ack);
    assert!(amqp.shutdown(LONG).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tool_does_not_take_a_queue_that_does_not_answer_for_empty() {
    let rabbit = shared().await;
    let options = options(rabbit, "leadertool");
    let (amqp, mut source) = consuming(options.clone()).await;
    let queue = park_in_two(&amqp, &mut source, &options, 1, 6).await;
    let member = rabbit.stop_member(&queue).await;
    let silent = within("the tool", unpark(&options, "billing")).await;
    assert!(silent.is_err(), "{silent:?}");
    ack(next(&mut source).await);
    rabbit.restart_member(&member).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    until("the queue to answer", async || depth(&channel, &queue).await == 5).await;
    assert_eq!(within("the tool", unpark(&options, "billing")).await, Ok(5));
    let home = take(&mut source, 5).await;
    assert_eq!(bodies(&home), numbered(1..6));
    home.into_iter().for_each(ack);
    assert!(amqp.shutdown(LONG).await);
}

/// It is sure of all that was acked, although parked jobs are being brought home from a queue that does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_parked_jobs_that_come_home() {
    const SHORT: u32 = 2_000;
    let rabbit = shared().await;
    for attempt in 0..10 {
        let mut options = options(rabbit, &format!("leaderempty{attempt}"));
        options.downstreams[0].prefetch = 3_000;
        options.downstreams.push(Downstream { name: "other".into(), ..options.downstreams[0].clone() });
        let amqp = Amqp::start(options.clone());
        let (mut source, mut other) = (amqp.source("billing").unwrap(), amqp.source("other").unwrap());
        within("the consumers", amqp.ready()).await;
        let queue = park_in_two(&amqp, &mut source, &options, SHORT, SHORT + 1).await;
        send_to(&amqp, &options, "other", numbered(0..200)).await;
        let deliveries = take(&mut other, 200).await;
        source.unpark(None);
        // The other queue had its job when all were checked.
        ack(next(&mut source).await);
        let member = rabbit.suspend_member(&queue).await;
        let hangs = tokio::select! {
            // It was emptied before it was suspended.
            _ = take(&mut source, SHORT as usize) => false,
            () = until("the queue to be consumed", async || rabbit.is_to_be_consumed(&member).await) => true,
        };
        deliveries.into_iter().for_each(ack);
        drop((source, other));
        let flushed = amqp.shutdown(LONG * 2 / 3).await;
        rabbit.resume_member(&member).await;
        assert!(flushed);
        let (_connection, channel) = open(&rabbit.url()).await;
        assert_eq!(depth(&channel, &format!("{}.jobs.other", options.prefix)).await, 0, "all were acked");
        if hangs {
            return;
        }
    }
    panic!("a queue is emptied faster than a member is suspended");
}

/// Queues of replies are chosen by producers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_to_others_go_on() {
    let rabbit = shared().await;
    let options = options(rabbit, "leaderreply");
    let (amqp, mut source) = consuming(options.clone()).await;
    let inbox = |n: usize| format!("leaderreplies-{n}");
    for n in 0..3 {
        publish::declare_quorum(&rabbit.url(), &inbox(n)).await;
    }
    let asking = async |n: usize| {
        let properties = BasicProperties::default().with_reply_to(inbox(n).into());
        let exchange = options.jobs_exchange();
        amqp.publisher().publish(&exchange, "billing", properties, &Bytes::new()).await.unwrap();
    };
    let reply = async |delivery: Delivery| {
        delivery.ticket.reply(&Response::default()).await;
        ack(delivery);
    };
    asking(0).await;
    within("a reply", reply(next(&mut source).await)).await;
    let member = rabbit.stop_member(&inbox(0)).await;
    let mut stuck = JoinSet::new();
    for _ in 0..MANY {
        asking(0).await;
        stuck.spawn(reply(next(&mut source).await));
    }
    until("the queue to be named", async || amqp.status().unconfirmed() == [inbox(0)]).await;
    for n in 0..60 {
        asking(1 + n % 2).await;
        within("a reply to another", reply(next(&mut source).await)).await;
    }
    assert!(stuck.try_join_next().is_none());
    rabbit.restart_member(&member).await;
    while let Some(ended) = within("the replies", stuck.join_next()).await {
        ended.unwrap();
    }
    assert!(within("the shutdown", amqp.shutdown(LONG)).await);
    let (_connection, channel) = open(&rabbit.url()).await;
    for (n, count) in [(0, MANY + 1), (1, 30), (2, 30)] {
        assert_eq!(depth(&channel, &inbox(n)).await, count, "{n}");
    }
}

/// A copy is not published again while the first one may still be accepted, however long that takes: here for several times
/// the time-out of a publish.
#[tokio::test]
async fn a_parked_job_is_published_once_however_late_its_rung_confirms() {
    let site = Site::shared("leaderlate", "rate = '200/s'\nhold_max = '1s'").await;
    let replica = Paced::start(&site.config(), &["-v"], &[("PACED_TEST_IMPATIENCE", "30")]).await;
    replica.wait_ready().await;
    let later = |stem: &str, count, seconds| -> Vec<Job> {
        let at = wall_now().plus(Duration::from_secs(seconds)).0 / 1000;
        let not_before = |job: Job| job.header_value("paced-not-before", AMQPValue::LongLongInt(at));
        Job::many(stem, count).into_iter().map(not_before).collect()
    };
    let rung = format!("{}.park.8s", site.prefix);
    site.publish(later("first", 1, 16)).await;
    site.depth(&rung, 1, LONG).await;
    let rabbit = crate::support::servers::rabbit().await;
    let member = rabbit.stop_member(&rung).await;
    site.publish(later("late", 10, 16)).await;
    site.publish(Job::many("now", 20)).await;
    replica.wait_line("does not confirm", LONG).await;
    let status = site.api.wait_for(20, LONG).await;
    assert!(compare("now", 20, &status).is_clean(), "others continue");
    rabbit.restart_member(&member).await;
    replica.wait_line("confirms what is published to this queue again", LONG).await;
    site.api.wait_for(31, LONG).await;
    until("no message to be left", async || publish::depth(&site.amqp, &rung).await == Some(0)).await;
    assert_eq!(replica.stop().await, 0);
    let mut counts = BTreeMap::<String, usize>::new();
    site.api.arrivals().iter().for_each(|arrival| *counts.entry(arrival.id().to_owned()).or_default() += 1);
    assert!(counts.len() == 31 && counts.values().all(|count| *count == 1), "{counts:?}");
}

/// All downstreams share the consuming connection, also with one whose queue answers nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_removed_leaves_the_connection_to_the_others() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "leadergone");
    options.downstreams.push(Downstream { name: "other".into(), ..options.downstreams[0].clone() });
    let amqp = Amqp::start(options.clone());
    let [mut source, mut other] = ["billing", "other"].map(|name| amqp.source(name).unwrap());
    within("the consumers", amqp.ready()).await;
    for name in ["billing", "other"] {
        send_to(&amqp, &options, name, numbered(0..2)).await;
    }
    let (held, gone) = (take(&mut other, 2).await, take(&mut source, 2).await);
    let member = rabbit.suspend_member("leadergone.jobs.billing").await;
    gone.into_iter().for_each(ack);
    drop(source);
    let flushed = within("the removal", amqp.remove("billing")).await;
    rabbit.resume_member(&member).await;
    assert!(!flushed, "nothing says that the queue has the acks");
    assert!(held.iter().all(|delivery| delivery.ticket.is_live()), "the connection is the same");
    held.into_iter().for_each(ack);
    assert!(within("the removal", amqp.remove("other")).await);
    let (_connection, channel) = open(&rabbit.url()).await;
    assert_eq!(depth(&channel, "leadergone.jobs.other").await, 0, "all were acked");
    assert!(within("the shutdown", amqp.shutdown(LONG)).await);
}
