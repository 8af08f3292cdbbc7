//! Jobs that wait in the broker, and come back in time.

use lapin::types::{AMQPValue, FieldTable};
use paced::amqp::{Error, unpark};
use paced::dispatch::{DeadLetter, ParkReason, Parked, Stay};
use paced::job::{Reason, Value};
use paced::time::{Micros, wall_now};

use super::late::consumers;
use super::rights::as_user;
use super::*;
use crate::support::unique;

/// Delays a thousandth as long.
const UNIT: Duration = Duration::from_millis(1);

pub fn stay(wait: Duration) -> Stay {
    let now = wall_now();
    Stay {
        until: now.plus(wait),
        reason: ParkReason::NotBefore,
        attempts: 0,
        throttled: 0,
        refused: 0,
        unreadable: 0,
        first_seen: now,
        assigned_id: None,
        versions: None,
    }
}

fn scaled(rabbit: &Rabbit, prefix: &str) -> Options {
    Options { rung_unit: UNIT, ..options(rabbit, prefix) }
}

pub async fn park(delivery: Delivery, stay: Stay) {
    assert!(delivery.ticket.can_park());
    let parked = within("the confirm", delivery.ticket.park(stay)).await;
    assert!(matches!(parked, Parked::Done), "{parked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_job_comes_back_as_it_was() {
    let rabbit = shared().await;
    let options = scaled(rabbit, "parked");
    let (amqp, mut source) = consuming(options.clone()).await;
    let mut headers = FieldTable::default();
    for (name, value) in [
        ("paced-cost", AMQPValue::LongInt(3)),
        ("x-death", AMQPValue::Void),
        ("x-opt-delivery-time", AMQPValue::LongLongInt(1)),
        // From outside these mean nothing.
        ("paced-parked", AMQPValue::LongLongInt(i64::MAX)),
        ("paced-parked-for", AMQPValue::LongString("retry".into())),
        ("paced-attempts", AMQPValue::LongLongInt(7)),
        ("paced-first-seen", AMQPValue::LongLongInt(1)),
    ] {
        headers.insert(name.into(), value);
    }
    let properties = BasicProperties::default()
        .with_headers(headers)
        .with_priority(7)
        .with_timestamp(1_700_000_000)
        .with_correlation_id("c".into())
        .with_reply_to("replies.r".into())
        // It is shorter than the stay, and must not end it.
        .with_expiration("500".into());
    let body = Bytes::from_static(b"body");
    let mut delivery = None;
    // On a busy machine it may expire before it is taken.
    while delivery.is_none() {
        let (publisher, properties) = (amqp.publisher(), properties.clone());
        publisher.publish(&options.jobs_exchange(), "billing.eu", properties, &body).await.unwrap();
        delivery = tokio::time::timeout(Duration::from_secs(5), source.next()).await.ok();
    }
    let delivery = delivery.unwrap().unwrap();
    assert_eq!(delivery.stay, None, "it was not parked by paced");
    let id = Some("0199".to_owned());
    let stay = Stay {
        reason: ParkReason::Retry,
        attempts: 5,
        throttled: 2,
        refused: 1,
        unreadable: 1,
        assigned_id: id.clone(),
        ..stay(2000 * UNIT)
    };
    let parked_at = wall_now();
    park(delivery, stay.clone()).await;
    let left = stay.until.since(wall_now());

    let home = next(&mut source).await;
    let stayed = wall_now().since(parked_at);
    // The longest stay that leaves five units of the wait is a power of two, and so more than a half of that.
    assert!(stayed >= left.saturating_sub(5 * UNIT) / 2, "it stayed for {stayed:?} of {left:?}");
    let millis = |at: Micros| Micros((at.0 + 999) / 1000 * 1000);
    let expected = Stay { until: millis(stay.until), assigned_id: None, ..stay };
    assert_eq!(home.stay, Some(expected));
    let message = &home.message;
    assert_eq!((message.routing_key.as_str(), &message.content.body), ("billing.eu", &body));
    assert_eq!((message.message_id.clone(), message.priority), (id, Some(7)));
    assert_eq!(message.reply_to.as_deref(), Some("replies.r"));
    assert!(message.headers.iter().any(|(name, _)| name == "paced-cost"), "{:?}", message.headers);

    // A dead letter has its own routing key again, and nothing of the stay.
    let letter = DeadLetter::new(Reason::Status, "final", Report::UNSENT);
    within("the letter", home.ticket.dead_letter(letter)).await;
    assert!(amqp.shutdown(LONG).await);
    let (_connection, channel) = open(&rabbit.url()).await;
    let letter = pop(&channel, "parked.dead.billing").await;
    let headers = letter.properties.headers().clone().unwrap();
    let header = |name: &str| headers.inner().get(name).cloned();
    assert_eq!(header("paced-routing-key"), Some(AMQPValue::LongString("billing.eu".into())));
    assert_eq!(header("paced-cost"), Some(AMQPValue::LongInt(3)));
    for name in ["paced-parked", "paced-parked-for", "paced-first-seen", "x-death", "x-opt-delivery-time"] {
        assert_eq!(header(name), None, "{name}");
    }
    assert_eq!(letter.properties.timestamp(), &Some(1_700_000_000));
    assert_eq!(depth(&channel, "parked.home.billing").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_with_a_frame_of_headers_is_parked_whole_or_held() {
    let rabbit = shared().await;
    let options = scaled(rabbit, "frames");
    let (amqp, mut source) = consuming(options.clone()).await;
    let deliver = async |source: &mut AmqpSource, sizes: &[(&str, usize)]| {
        let mut headers = FieldTable::default();
        for (name, size) in sizes {
            headers.insert((*name).into(), AMQPValue::LongString("x".repeat(*size).into()));
        }
        let properties = BasicProperties::default().with_headers(headers).with_message_id("id".into());
        let (exchange, publisher) = (options.jobs_exchange(), amqp.publisher());
        publisher.publish(&exchange, "billing", properties, &Bytes::from_static(b"body")).await.unwrap();
        next(source).await
    };
    let wait = stay(2000 * UNIT);
    let delivery =
        deliver(&mut source, &[("x-shovelled", 60_000), ("mine", 30_000), ("paced-path", 37_880)]).await;
    park(delivery, wait.clone()).await;
    let home = next(&mut source).await;
    let path = |delivery: &Delivery| {
        let Some((_, Value::Text(path))) = delivery.message.headers.iter().find(|(n, _)| n == "paced-path")
        else {
            panic!("{:?}", delivery.message.headers)
        };
        path.len()
    };
    assert_eq!((path(&home), home.message.message_id.as_deref()), (37_880, Some("id")));
    let letter = DeadLetter::new(Reason::Status, "final", Report::UNSENT);
    within("the letter", home.ticket.dead_letter(letter)).await;

    // Nothing of this one can be dropped, so it stays here; those behind it are still parked.
    let whole = deliver(&mut source, &[("paced-path", 127_900)]).await;
    let held = within("the answer", whole.ticket.park(wait.clone())).await;
    let Parked::Refused(held) = held else { panic!("{held:?}") };
    assert!(held.is_live() && held.can_park(), "others can be parked");
    park(deliver(&mut source, &[("paced-path", 1)]).await, wait).await;
    let short = next(&mut source).await;
    assert_eq!(path(&short), 1);
    ack(short);
    drop(held);
    assert_eq!(path(&next(&mut source).await), 127_900, "it is delivered again as it was");
    drop(source);
    assert!(amqp.shutdown(LONG).await);
    let (_connection, channel) = open(&rabbit.url()).await;
    let letter = pop(&channel, "frames.dead.billing").await;
    let headers = letter.properties.headers().clone().unwrap();
    let has = |name: &str| headers.contains_key(name);
    assert!(has("mine") && has("paced-path") && !has("x-shovelled"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_for_the_same_time_come_home_in_order() {
    // The broker keeps the order of those that stay equally long. Where the machine is so slow that the last ones have less
    // left than the first ones' stay takes, it is tried again.
    for attempt in 0..10 {
        let options = scaled(shared().await, &format!("sametime{attempt}"));
        let (amqp, mut source) = consuming(options.clone()).await;
        publish(&amqp, &options, numbered(0..100)).await;
        let deliveries = take(&mut source, 100).await;
        let stay = stay(2000 * UNIT);
        // The calls have the order, and nothing is awaited between them.
        let parked: Vec<_> =
            deliveries.into_iter().map(|delivery| delivery.ticket.park(stay.clone())).collect();
        for parked in parked {
            assert!(matches!(within("the confirm", parked).await, Parked::Done));
        }
        let stay_equally_long = stay.until.since(wall_now()) >= (1024 + 5) * UNIT;
        let home = take(&mut source, 100).await;
        if stay_equally_long {
            assert_eq!(bodies(&home), numbered(0..100));
        }
        home.into_iter().for_each(ack);
        assert!(amqp.shutdown(LONG).await);
        if stay_equally_long {
            return;
        }
    }
    panic!("it takes more than a second to park a hundred jobs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_parked_while_the_window_is_small() {
    let rabbit = shared().await;
    let mut options = scaled(rabbit, "narrow");
    options.downstreams[0].prefetch = 1;
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..20)).await;
    for number in 0..19 {
        let delivery = next(&mut source).await;
        assert_eq!(delivery.message.content.body, number.to_string());
        park(delivery, stay(Duration::from_secs(10_000))).await;
    }
    let last = next(&mut source).await;
    assert_eq!(last.message.content.body, "19");
    ack(last);
    assert!(amqp.shutdown(LONG).await);
    let (_connection, channel) = open(&rabbit.url()).await;
    until("all to be parked", async || depth(&channel, "narrow.park.4194304s").await == 19).await;
    assert_eq!(depth(&channel, "narrow.jobs.billing").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rung_that_was_deleted_is_declared_again() {
    let rabbit = shared().await;
    let options = scaled(rabbit, "lostrung");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..2)).await;
    let mut deliveries = take(&mut source, 2).await;
    let wait = Duration::from_secs(10_000);
    park(deliveries.pop().unwrap(), stay(wait)).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let rung = "lostrung.park.4194304s";
    channel.exchange_delete(rung.into(), Default::default()).await.unwrap();
    channel.queue_delete(rung.into(), Default::default()).await.unwrap();
    park(deliveries.pop().unwrap(), stay(wait)).await;
    until("the second job to be parked", async || depth(&channel, rung).await == 1).await;
    assert!(amqp.shutdown(LONG).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_queues_nothing_is_parked() {
    let rabbit = shared().await;
    let mut options = scaled(rabbit, "passive");
    // Another process declares what jobs need, and not what parking needs.
    let amqp = Amqp::publishing(options.clone()).await.unwrap();
    publish(&amqp, &options, numbered(0..1)).await;
    assert!(amqp.shutdown(LONG).await);
    options.declare = false;
    let (amqp, mut source) = consuming(options.clone()).await;
    let delivery = next(&mut source).await;
    assert!(!delivery.ticket.can_park());
    ack(delivery);
    assert!(amqp.shutdown(LONG).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_channel_parks_nothing_more() {
    let rabbit = shared().await;
    let options = scaled(rabbit, "lostpark");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..1)).await;
    let delivery = next(&mut source).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    channel.queue_delete("lostpark.jobs.billing".into(), Default::default()).await.unwrap();
    until("the channel to be lost", async || !delivery.ticket.is_live()).await;
    let parked = within("the result", delivery.ticket.park(stay(Duration::from_secs(10_000)))).await;
    assert!(matches!(parked, Parked::Lost), "{parked:?}");
    drop(source);
    assert!(amqp.shutdown(LONG).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_parked_comes_back_also_where_nothing_more_can_be_parked() {
    let rabbit = shared().await;
    let mut options = scaled(rabbit, "halfway");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..2)).await;
    let wait = stay(Duration::from_secs(2));
    for delivery in take(&mut source, 2).await {
        park(delivery, wait.clone()).await;
    }
    drop(source);
    assert!(amqp.shutdown(LONG).await);
    // One rung exists, and the others do not.
    options.declare = false;
    let (amqp, mut source) = consuming(options.clone()).await;
    for delivery in take(&mut source, 2).await {
        assert!(!delivery.ticket.can_park());
        assert_eq!(delivery.stay.as_ref().map(|stay| stay.reason), Some(ParkReason::NotBefore));
        ack(delivery);
    }
    assert!(amqp.shutdown(LONG).await);
}

/// A stay of a job that waits for a limit.
pub fn limited(wait: Duration) -> Stay {
    Stay { reason: ParkReason::Limit, ..stay(wait) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_learns_of_a_change_later_leaves_what_was_parked_since() {
    let (mut options, queue) = (options(shared().await, "later"), "later.wait.billing.256s");
    options.downstreams[0].prefetch = 1_000;
    let (amqp, mut source) = consuming(options.clone()).await;
    let (_connection, channel) = open(&shared().await.url()).await;
    // Replicas that know of the change park beside one that does not, and then alone.
    let versions: Vec<_> = [("a", 20), ("b", 10), ("a", 5), ("b", 600)]
        .into_iter()
        .flat_map(|(versions, count)| std::iter::repeat_n(versions, count))
        .collect();
    publish(&amqp, &options, numbered(0..635)).await;
    let deliveries = take(&mut source, 635).await;
    let wait = limited(Duration::from_secs(600));
    let under = |versions: &&str| Stay { versions: Some((*versions).to_owned()), ..wait.clone() };
    let parked: Vec<_> = deliveries
        .into_iter()
        .zip(&versions)
        .map(|(delivery, versions)| delivery.ticket.park(under(versions)))
        .collect();
    for parked in parked {
        assert!(matches!(within("the confirm", parked).await, Parked::Done));
    }
    until("all to wait", async || depth(&channel, queue).await == 635).await;
    source.unpark(Some("b".to_owned()));
    // It ends when 250 in a row were parked since; they come in groups of as many at most.
    let home = take(&mut source, 35 + 250).await;
    assert_eq!(bodies(&home), numbered(0..285));
    let found: Vec<_> = home.iter().filter_map(|home| home.stay.as_ref()?.versions.as_deref()).collect();
    assert_eq!(found, versions[..285]);
    let left = 600 - 250 - 249..=600 - 250;
    until("the rest to stay", async || left.contains(&depth(&channel, queue).await)).await;
    assert!(amqp.shutdown(LONG).await);
}

/// A queue that had no jobs at first is checked again. What was parked there meanwhile stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_are_parked_behind_a_change_stay_although_their_queue_is_checked_again() {
    const SINCE: u32 = 300;
    let mut options = options(shared().await, "lookagain");
    options.downstreams[0].prefetch = 1_000;
    // It is checked after half a second and after 5 s.
    options.haste = 2;
    let (amqp, mut source) = consuming(options.clone()).await;
    let (_connection, channel) = open(&shared().await.url()).await;
    publish(&amqp, &options, numbered(0..SINCE + 1)).await;
    let mut deliveries = take(&mut source, SINCE as usize + 1).await.into_iter();
    let under = |versions: &str, wait| Stay { versions: Some(versions.to_owned()), ..limited(wait) };
    park(deliveries.next().unwrap(), under("a", Duration::from_secs(60))).await;
    source.unpark(Some("b".to_owned()));
    // All six queues were checked by now.
    let home = take(&mut source, 1).await;
    assert_eq!(bodies(&home), numbered(0..1));
    let wait = under("b", Duration::from_secs(600));
    let parked: Vec<_> = deliveries.map(|delivery| delivery.ticket.park(wait.clone())).collect();
    for parked in parked {
        assert!(matches!(within("the confirm", parked).await, Parked::Done));
    }
    let first = take(&mut source, 1).await;
    assert_eq!(bodies(&first), numbered(1..2), "it is checked again");
    let queue = "lookagain.wait.billing.256s";
    until("its consumer to be gone", async || consumers(&channel, queue).await == 0).await;
    assert!(depth(&channel, queue).await >= SINCE - 32, "a few come home without use");
    assert!(amqp.shutdown(LONG).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_wait_for_a_limit_come_home_in_order_when_asked_for() {
    const JOBS: u32 = 2_000;
    let mut options = options(shared().await, "unpark");
    options.downstreams[0].prefetch = 3_000;
    assert_eq!(within("nothing", unpark(&options, "billing")).await, Ok(0), "there are no such queues");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..JOBS + 1)).await;
    let mut deliveries = take(&mut source, JOBS as usize + 1).await;
    // The wait of this one is its own.
    let own = deliveries.pop().unwrap();
    park(own, Stay { reason: ParkReason::Retry, ..stay(Duration::from_secs(600)) }).await;
    let wait = Duration::from_secs(600);
    let (_connection, channel) = open(&shared().await.url()).await;
    let park_all = async |deliveries: Vec<Delivery>| {
        let parked: Vec<_> =
            deliveries.into_iter().map(|delivery| delivery.ticket.park(limited(wait))).collect();
        for parked in parked {
            assert!(matches!(within("the confirm", parked).await, Parked::Done));
        }
        until("all to wait", async || depth(&channel, "unpark.wait.billing.256s").await == JOBS).await;
    };
    park_all(deliveries).await;
    assert_eq!(within("all to be asked for", unpark(&options, "billing")).await, Ok(JOBS));
    let home = take(&mut source, JOBS as usize).await;
    assert_eq!(bodies(&home), numbered(0..JOBS));
    park_all(home).await;
    // By several at once, each is brought home once, in any order.
    let all = futures_util::future::try_join_all((0..3).map(|_| unpark(&options, "billing")));
    let unparked = within("all to be asked for", all).await.unwrap();
    assert_eq!(unparked.iter().sum::<u32>(), JOBS, "{unparked:?}");
    let home = take(&mut source, JOBS as usize).await;
    let mut bodies = bodies(&home);
    bodies.sort_by_key(|body| body.parse::<u32>().unwrap());
    assert_eq!(bodies, numbered(0..JOBS));
    // One that comes back for nothing waits again, in full.
    let mut home = home.into_iter();
    park(home.next().unwrap(), limited(wait)).await;
    home.for_each(ack);
    assert!(amqp.shutdown(LONG).await);
    assert_eq!(depth(&channel, "unpark.wait.billing.256s").await, 1);
    assert_eq!(depth(&channel, "unpark.park.512s").await, 1);
    assert_eq!(depth(&channel, "unpark.home.billing").await, 0);
}

/// Connections that are there already do, and so few bytes are under way that others have theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_any_size_come_home_where_no_more_connections_may_be_opened() {
    let (rabbit, prefix, user) = (shared().await, unique("few"), unique("few"));
    rabbit.add_user(&user, "pw", [".*"; 3]).await;
    let options = as_user(rabbit, &options(rabbit, &prefix), &format!("{user}:pw"));
    let (amqp, mut source) = consuming(options.clone()).await;
    // Short ones, so that many are under way, and then long ones.
    let sizes = [(60, 10), (12, 1 << 20), (20, 10)];
    let lengths = sizes.into_iter().flat_map(|(count, length)| std::iter::repeat_n(length, count));
    // The width of a format is 65 535 at most.
    let all: Vec<String> =
        lengths.enumerate().map(|(n, length)| format!("{n}{}", " ".repeat(length))).collect();
    publish(&amqp, &options, all.clone()).await;
    let deliveries = take(&mut source, all.len()).await;
    rabbit.bound_connections(&user, 2).await;
    let refused = within("a refusal", unpark(&options, "billing")).await;
    assert!(matches!(refused, Err(Error::Login { .. })), "the tool has one of its own: {refused:?}");
    // Nothing is parked.
    source.unpark(None);
    let parked: Vec<_> = deliveries
        .into_iter()
        .map(|delivery| delivery.ticket.park(limited(Duration::from_secs(600))))
        .collect();
    for parked in parked {
        assert!(matches!(within("the confirm", parked).await, Parked::Done));
    }
    source.unpark(None);
    let home = take(&mut source, all.len()).await;
    assert!(bodies(&home) == all, "in their order");
    home.into_iter().for_each(ack);
    assert!(amqp.shutdown(LONG).await);
}
