use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use paced::amqp::FieldTable as Table;
use paced::dispatch::DeadLetter;
use paced::job::{Reason, Value};

use super::*;

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_comes_as_it_was_published() {
    let options = options(shared().await, "roundtrip");
    let (amqp, mut source) = consuming(options.clone()).await;
    let mut headers = Table::default();
    for (name, value) in [
        ("paced-a", AMQPValue::ShortShortInt(-1)),
        ("paced-b", AMQPValue::ShortShortUInt(200)),
        ("paced-c", AMQPValue::ShortInt(-300)),
        ("paced-d", AMQPValue::ShortUInt(60_000)),
        ("paced-e", AMQPValue::LongInt(-70_000)),
        ("paced-f", AMQPValue::LongUInt(4_000_000_000)),
        ("paced-g", AMQPValue::LongLongInt(i64::MIN)),
        ("paced-h", AMQPValue::Double(1.5)),
        ("paced-i", AMQPValue::Float(0.5)),
        ("paced-j", AMQPValue::Boolean(true)),
        ("paced-k", text("grüße")),
        ("paced-l", AMQPValue::FieldTable(FieldTable::default())),
        ("paced-m", AMQPValue::Void),
        ("paced-n", AMQPValue::Timestamp(12)),
        ("http-accept", text("*/*")),
        ("traceparent", text("00-1")),
        ("x-other", text("left out")),
        ("tokens", AMQPValue::Boolean(true)),
    ] {
        headers.insert(name.into(), value);
    }
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_headers(headers)
        .with_content_type("text/plain".into())
        .with_content_encoding("gzip".into())
        .with_message_id("id-1".into())
        .with_priority(7)
        .with_correlation_id("c-1".into())
        .with_reply_to("r-1".into());
    let body = Bytes::from(vec![0xff; 300_000]);
    let publisher = amqp.publisher();
    publisher.publish(&options.jobs_exchange(), "billing.eu.1", properties, &body).await.unwrap();

    let delivery = next(&mut source).await;
    let message = &delivery.message;
    assert_eq!(message.routing_key, "billing.eu.1");
    assert_eq!(message.content.body, body);
    assert_eq!(message.content.content_type.as_deref(), Some("text/plain"));
    assert_eq!(message.content.content_encoding.as_deref(), Some("gzip"));
    assert_eq!(message.message_id.as_deref(), Some("id-1"));
    assert_eq!(message.priority, Some(7));
    assert_eq!(message.correlation_id.as_deref(), Some("c-1"));
    assert_eq!(message.reply_to.as_deref(), Some("r-1"));
    let expected = [
        ("http-accept", Value::Text("*/*".into())),
        ("paced-a", Value::Integer(-1)),
        ("paced-b", Value::Integer(200)),
        ("paced-c", Value::Integer(-300)),
        ("paced-d", Value::Integer(60_000)),
        ("paced-e", Value::Integer(-70_000)),
        ("paced-f", Value::Integer(4_000_000_000)),
        ("paced-g", Value::Integer(i64::MIN.into())),
        ("paced-h", Value::Float(1.5)),
        ("paced-i", Value::Float(0.5)),
        ("paced-j", Value::Bool(true)),
        ("paced-k", Value::Text("grüße".into())),
        ("paced-l", Value::Other("table")),
        ("paced-m", Value::Other("void")),
        ("paced-n", Value::Timestamp(12)),
        ("traceparent", Value::Text("00-1".into())),
    ];
    assert_eq!(message.headers, expected.map(|(name, value)| (name.to_owned(), value)));
    // Others are there for limits that count by them, with their types.
    let other = |name| delivery.ticket.header(name);
    assert_eq!(other("x-other"), Some(Value::Text("left out".into())));
    assert_eq!((other("tokens"), other("absent")), (Some(Value::Bool(true)), None));
    ack(delivery);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acked_is_gone_and_unsettled_comes_again() {
    let options = options(shared().await, "acks");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..100)).await;
    let mut deliveries = take(&mut source, 100).await;
    let numbers: Vec<u32> = bodies(&deliveries).iter().map(|body| body.parse().unwrap()).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>(), "in order");
    // Every third message stays unsettled, the others are acked from both ends.
    let mut open = Vec::new();
    while !deliveries.is_empty() {
        let at = if deliveries.len() % 2 == 0 { 0 } else { deliveries.len() - 1 };
        let delivery = deliveries.remove(at);
        let number: u32 = String::from_utf8_lossy(&delivery.message.content.body).parse().unwrap();
        if number.is_multiple_of(3) { open.push(delivery) } else { ack(delivery) }
    }
    assert!(open.iter().all(|delivery| delivery.ticket.is_live()));
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    assert!(open.iter().all(|delivery| !delivery.ticket.is_live()), "they come again");

    let (amqp, mut source) = consuming(options).await;
    let mut again: Vec<u32> =
        bodies(&take(&mut source, 34).await).iter().map(|body| body.parse().unwrap()).collect();
    again.sort_unstable();
    assert_eq!(again, (0..100).filter(|number| number % 3 == 0).collect::<Vec<_>>());
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_leave_by_themselves() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "linger");
    options.downstreams[0].prefetch = 3;
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..30)).await;
    // The window is three: each further message needs acks that nobody flushes, behind a gap.
    let held = next(&mut source).await;
    for _ in 1..30 {
        ack(next(&mut source).await);
    }
    assert!(held.ticket.is_live());
    ack(held);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    let (_connection, channel) = open(&rabbit.url()).await;
    assert_eq!(depth(&channel, "linger.jobs.billing").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn given_back_comes_again_first() {
    let options = options(shared().await, "returns");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, ["one".to_owned()]).await;
    for _ in 0..50 {
        next(&mut source).await.ticket.give_back();
    }
    let delivery = next(&mut source).await;
    assert_eq!(&delivery.message.content.body[..], b"one", "no delivery limit was met");
    ack(delivery);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_source_ends_behind_what_had_arrived() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "closing");
    options.downstreams[0].prefetch = 10;
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..25)).await;
    let first = next(&mut source).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    until("a full window", async || depth(&channel, "closing.jobs.billing").await == 15).await;
    source.close().await;
    let mut rest = Vec::new();
    while let Some(delivery) = within("the end", source.next()).await {
        rest.push(delivery);
    }
    assert_eq!(bodies(&rest), numbered(1..10));
    // The message is settled after the close, and still processed.
    ack(first);
    rest.drain(..4).for_each(ack);
    rest.drain(..2).for_each(|delivery| delivery.ticket.give_back());
    drop(rest);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    until("the rest in the queue", async || depth(&channel, "closing.jobs.billing").await == 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buried_message_lies_in_the_dead_letters_and_nowhere_else() {
    let rabbit = shared().await;
    let options = options(rabbit, "bury");
    let (amqp, mut source) = consuming(options.clone()).await;
    let mut headers = Table::default();
    headers.insert("paced-lane".into(), text("acme"));
    headers.insert("x-death".into(), text("not a death"));
    let properties = BasicProperties::default()
        .with_delivery_mode(1)
        .with_headers(headers)
        .with_message_id("job-1".into())
        .with_user_id("guest".into())
        .with_expiration("60000".into());
    let body = Bytes::from_static(b"payload");
    amqp.publisher().publish(&options.jobs_exchange(), "billing.x", properties, &body).await.unwrap();
    let delivery = next(&mut source).await;
    let report = Report { attempts: 2, status: Some(422), released_at: None };
    let letter = DeadLetter::new(Reason::Status, "the downstream says 422", report)
        .with_response(Bytes::from_static(b"\xff{\0"));
    within("the burial", delivery.ticket.dead_letter(letter)).await;
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);

    let (_connection, channel) = open(&rabbit.url()).await;
    assert_eq!(depth(&channel, "bury.jobs.billing").await, 0);
    let letter = pop(&channel, "bury.dead.billing").await;
    assert_eq!(letter.data, b"payload");
    assert_eq!(letter.properties.delivery_mode(), &Some(2));
    assert_eq!(letter.properties.message_id().as_ref().unwrap().as_str(), "job-1");
    assert_eq!((letter.properties.user_id(), letter.properties.expiration()), (&None, &None));
    let headers = letter.properties.headers().clone().unwrap();
    let mut headers = headers.inner().clone();
    let AMQPValue::LongLongInt(dead_at) = headers.remove("paced-dead-at").unwrap() else { panic!() };
    assert!(dead_at > 1_700_000_000_000, "epoch ms: {dead_at}");
    // The dead letters' own queue counts too.
    headers.remove("x-delivery-count");
    let expected = [
        ("paced-attempts", AMQPValue::LongLongInt(2)),
        ("paced-detail", text("the downstream says 422")),
        ("paced-lane", text("acme")),
        ("paced-reason", text("status")),
        ("paced-response", AMQPValue::LongString(b"\xff{\0".to_vec().into())),
        ("paced-routing-key", text("billing.x")),
        ("paced-status", AMQPValue::LongLongInt(422)),
    ];
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    assert_eq!(headers, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_whose_queue_was_deleted_is_not_lost() {
    let rabbit = shared().await;
    let options = options(rabbit, "nodead");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, ["x".to_owned()]).await;
    let delivery = next(&mut source).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    channel.queue_delete("nodead.dead.billing".into(), Default::default()).await.unwrap();
    let report = Report { attempts: 0, status: None, released_at: None };
    let letter = DeadLetter::new(Reason::BadId, "", report);
    within("the burial", delivery.ticket.dead_letter(letter)).await;
    assert_eq!(pop(&channel, "nodead.dead.billing").await.data, b"x");
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outcome_goes_to_who_waits_for_it() {
    let rabbit = shared().await;
    let options = options(rabbit, "reply");
    let (amqp, mut source) = consuming(options.clone()).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let declare = QueueDeclareOptions::durable();
    channel.queue_declare("reply.inbox".into(), declare, Default::default()).await.unwrap();
    let response = Response {
        status: 201,
        headers: vec![("x-a".into(), "1".into())],
        body: Bytes::from_static(b"made"),
        ..Response::default()
    };
    for queue in ["reply.inbox", "reply.gone"] {
        let properties =
            BasicProperties::default().with_reply_to(queue.into()).with_correlation_id("c-9".into());
        amqp.publisher()
            .publish(&options.jobs_exchange(), "billing", properties, &Bytes::new())
            .await
            .unwrap();
        let delivery = next(&mut source).await;
        // A requester that is gone does not hold up the job.
        within("the reply", delivery.ticket.reply(&response)).await;
        ack(delivery);
    }
    let reply = pop(&channel, "reply.inbox").await;
    assert_eq!(reply.properties.correlation_id().as_ref().unwrap().as_str(), "c-9");
    assert_eq!(reply.properties.content_type().as_ref().unwrap().as_str(), "application/json");
    let read: serde_json::Value = serde_json::from_slice(&reply.data).unwrap();
    assert_eq!(read, serde_json::json!({ "status": 201, "headers": { "x-a": "1" }, "body": "made" }));
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_dropped_unsettled_gives_its_message_back() {
    let options = options(shared().await, "dropped");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, ["one".to_owned()]).await;
    drop(next(&mut source).await);
    let again = next(&mut source).await;
    assert_eq!(&again.message.content.body[..], b"one");
    ack(again);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_requester_that_reads_nothing_does_not_hold_the_job() {
    let rabbit = shared().await;
    let options = options(rabbit, "noreader");
    let (amqp, mut source) = consuming(options.clone()).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let mut arguments = Table::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), text("reject-publish"));
    channel.queue_declare("noreader.inbox".into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
    let publisher = amqp.publisher();
    publisher.publish("", "noreader.inbox", BasicProperties::default(), &Bytes::new()).await.unwrap();
    let properties = BasicProperties::default().with_reply_to("noreader.inbox".into());
    publisher.publish(&options.jobs_exchange(), "billing", properties, &Bytes::new()).await.unwrap();
    let delivery = next(&mut source).await;
    within("the end of the reply", delivery.ticket.reply(&Response::default())).await;
    assert!(delivery.ticket.is_live());
    ack(delivery);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    assert_eq!(depth(&channel, "noreader.inbox").await, 1);
}

/// Intake would refuse this name, which costs the channel each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_kills_its_channel_ends_after_three_attempts_and_hurts_nobody_else() {
    let rabbit = shared().await;
    let options = options(rabbit, "killer");
    let (amqp, mut source) = consuming(options.clone()).await;
    let publisher = amqp.publisher();
    let killer = BasicProperties::default().with_reply_to("amq.rabbitmq.reply-to.x.y".into());
    publisher.publish(&options.jobs_exchange(), "billing", killer, &Bytes::new()).await.unwrap();
    let delivery = next(&mut source).await;
    let response = Response::default();
    let empty = Bytes::new();
    {
        let ending = within("the end of the reply", delivery.ticket.reply(&response));
        let mut ending = std::pin::pin!(ending);
        let mut is_over = false;
        // The last one begins before the end, too.
        while !is_over {
            let other = publisher.publish("", "killer.dead.billing", BasicProperties::default(), &empty);
            let mut other = std::pin::pin!(other);
            let sent = tokio::select! {
                _ = &mut ending => {
                    is_over = true;
                    within("a confirm", other).await
                }
                sent = &mut other => sent,
            };
            sent.expect("others continue");
        }
    }
    assert!(delivery.ticket.is_live(), "the connection is not lost");
    ack(delivery);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    let (_connection, channel) = open(&rabbit.url()).await;
    assert_eq!(depth(&channel, "killer.jobs.billing").await, 0, "it is settled");
}

/// A quorum queue takes few commands at a time and leaves the rest in the channel: an ack must not be lost there when
/// the channel closes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_behind_many_give_backs_are_taken_in_before_the_end() {
    let rabbit = shared().await;
    let (_connection, channel) = open(&rabbit.url()).await;
    for round in 0..10 {
        let options = options(rabbit, &format!("behind{round}"));
        let (amqp, mut source) = consuming(options.clone()).await;
        publish(&amqp, &options, numbered(0..100)).await;
        let mut deliveries = take(&mut source, 100).await;
        source.close().await;
        assert!(within("the end", source.next()).await.is_none());
        let back = deliveries.split_off(10);
        back.into_iter().for_each(|delivery| delivery.ticket.give_back());
        deliveries.into_iter().for_each(ack);
        assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
        let queue = format!("behind{round}.jobs.billing");
        // The channel has closed; the messages that it held return a little later.
        until("the rest in the queue", async || depth(&channel, &queue).await >= 90).await;
        assert_eq!(depth(&channel, &queue).await, 90, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_grows_and_shrinks_while_messages_are_out() {
    let mut options = options(shared().await, "windowsteps");
    options.downstreams[0].prefetch = 2;
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..40)).await;
    let (_client, channel) = crate::support::publish::open(&url(shared().await, "guest:guest")).await;
    let queue = format!("{}.jobs.billing", options.prefix);
    let first = take(&mut source, 2).await;
    until("the others are in the queue", async || depth(&channel, &queue).await == 38).await;

    source.resize(10);
    // Messages that are unsettled stay so, and count.
    let more = take(&mut source, 8).await;
    until("the others are in the queue", async || depth(&channel, &queue).await == 30).await;
    source.resize(3);
    let mut all: Vec<Delivery> = first.into_iter().chain(more).collect();
    assert_eq!(bodies(&all), numbered(0..10), "in their order, each once");
    let kept = all.pop().unwrap();
    all.into_iter().for_each(ack);
    let few = take(&mut source, 2).await;
    until("the others are in the queue", async || depth(&channel, &queue).await == 28).await;
    assert_eq!(bodies(&few), numbered(10..12));
    few.into_iter().chain([kept]).for_each(ack);
    for number in 12..40 {
        let delivery = next(&mut source).await;
        assert_eq!(bodies(std::slice::from_ref(&delivery)), [number.to_string()]);
        ack(delivery);
    }
    assert!(amqp.shutdown(LONG).await, "every ack was taken in");
    assert_eq!(depth(&channel, &queue).await, 0);
}
