use paced::amqp::{AMQPValue, DeadLetters, Edits, FieldTable, Filter};
use paced::dispatch::DeadLetter;
use paced::job::{Reason, Value};

use super::*;

/// Dead-letters a message for each number; the even ones have expired, the odd ones got a 422.
async fn dead_letter(options: &Options, numbers: std::ops::Range<u32>) {
    let (amqp, mut source) = consuming(options.clone()).await;
    for number in numbers {
        let mut headers = FieldTable::default();
        headers.insert("paced-lane".into(), AMQPValue::LongString("acme".into()));
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_headers(headers)
            .with_message_id(format!("id-{number}").into());
        let (exchange, key) = options.target("billing").unwrap();
        let key = if exchange.is_empty() { key } else { format!("{key}.{number}") };
        let body = Bytes::from(number.to_string());
        amqp.publisher().publish(&exchange, &key, properties, &body).await.unwrap();
        let delivery = next(&mut source).await;
        let (reason, status) =
            if number.is_multiple_of(2) { (Reason::Expired, None) } else { (Reason::Status, Some(422)) };
        let report = Report { attempts: 1, status, released_at: None };
        within(
            "the burial",
            delivery.ticket.dead_letter(DeadLetter { reason, detail: "why".into(), report }),
        )
        .await;
    }
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

async fn listed(dead: &DeadLetters, max: u32) -> Vec<String> {
    let letters = within("the list", dead.list(max)).await.unwrap();
    letters.iter().map(|letter| String::from_utf8(letter.message.body.to_vec()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_changes_nothing() {
    let options = options(shared().await, "list");
    dead_letter(&options, 0..10).await;
    let dead = DeadLetters::open(&options, "billing").await.unwrap();
    // This is more often than RabbitMQ 4 allows by default.
    for _ in 0..25 {
        assert_eq!(listed(&dead, 4).await, numbered(0..4));
    }
    assert_eq!(listed(&dead, 100).await, numbered(0..10));
    assert_eq!(dead.count().await.unwrap(), 10);
    for max in [3, 7, 1, 10] {
        assert_eq!(listed(&dead, max).await, numbered(0..max));
    }
    let letters = dead.list(2).await.unwrap();
    let letter = &letters[1];
    assert_eq!(letter.message.message_id.as_deref(), Some("id-1"));
    assert_eq!(letter.reason.as_deref(), Some("status"));
    assert_eq!(letter.detail.as_deref(), Some("why"));
    assert_eq!(letter.status.as_deref(), Some("422"));
    assert_eq!(letter.attempts.as_deref(), Some("1"));
    assert_eq!(letter.routing_key.as_deref(), Some("billing.1"));
    assert!(letter.dead_at.is_some());
    assert_eq!(letters[0].status, None);
    dead.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_takes_what_matches_and_leaves_the_rest() {
    let options = options(shared().await, "replay");
    dead_letter(&options, 0..10).await;
    let dead = DeadLetters::open(&options, "billing").await.unwrap();
    let filter = Filter { reason: Some("status".into()), ..Filter::default() };
    let edits = Edits { set: vec![("paced-lane".into(), "globex".into())], unset: Vec::new(), new_id: true };
    let mut told = Vec::new();
    let progress = |replay: &paced::amqp::Replay| told.push((replay.seen, replay.replayed));
    let replay = within("the replay", dead.replay(&filter, Some(3), &edits, progress)).await.unwrap();
    assert_eq!((replay.found, replay.seen, replay.replayed, replay.kept, replay.failed), (10, 6, 3, 3, 0));
    assert_eq!(told, [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3)]);
    assert_eq!(listed(&dead, 100).await, ["0", "2", "4", "6", "7", "8", "9"], "in their order");

    // One letter is replayed by its id, unchanged.
    let filter = Filter { id: Some("id-6".into()), ..Filter::default() };
    let replay = within("the replay", dead.replay(&filter, None, &Edits::default(), |_| {})).await.unwrap();
    assert_eq!((replay.found, replay.seen, replay.replayed, replay.kept), (7, 7, 1, 6));
    dead.close().await;

    let (amqp, mut source) = consuming(options).await;
    let deliveries = take(&mut source, 4).await;
    assert_eq!(bodies(&deliveries), ["1", "3", "5", "6"]);
    let first = &deliveries[0].message;
    assert_eq!(first.routing_key, "billing.1");
    assert_eq!(first.message_id, None);
    assert_eq!(first.headers, [("paced-lane".to_owned(), Value::Text("globex".into()))]);
    let last = &deliveries[3].message;
    assert_eq!(last.message_id.as_deref(), Some("id-6"));
    assert_eq!(last.headers, [("paced-lane".to_owned(), Value::Text("acme".into()))]);
    deliveries.into_iter().for_each(ack);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

/// A job that dies again while it is replayed is replayed once, not for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_job_can_die_and_be_replayed_again() {
    let options = options(shared().await, "again");
    dead_letter(&options, 1..2).await;
    for _ in 0..2 {
        let dead = DeadLetters::open(&options, "billing").await.unwrap();
        let replay = dead.replay(&Filter::default(), None, &Edits::default(), |_| {}).await.unwrap();
        assert_eq!((replay.found, replay.replayed), (1, 1));
        dead.close().await;
        let (amqp, mut source) = consuming(options.clone()).await;
        let delivery = next(&mut source).await;
        assert_eq!(delivery.message.routing_key, "billing.1");
        let report = Report { attempts: 1, status: None, released_at: None };
        let letter = DeadLetter { reason: Reason::Expired, detail: String::new(), report };
        within("the burial", delivery.ticket.dead_letter(letter)).await;
        assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_cannot_be_published_stays() {
    let rabbit = shared().await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let declare = QueueDeclareOptions::durable();
    channel.queue_declare("stays.theirs".into(), declare, arguments).await.unwrap();
    let mut options = options(rabbit, "stays");
    options.downstreams[0].queue = Some("stays.theirs".into());
    dead_letter(&options, 0..3).await;

    let dead = DeadLetters::open(&options, "billing").await.unwrap();
    let replay = dead.replay(&Filter::default(), None, &Edits::default(), |_| {}).await.unwrap();
    assert_eq!((replay.replayed, replay.failed), (1, 1), "the queue holds one");
    assert_eq!(replay.error, Some(paced::amqp::PublishError::Rejected));
    assert_eq!(listed(&dead, 100).await, numbered(1..3));
    dead.close().await;
    assert_eq!(pop(&channel, "stays.theirs").await.data, b"0");
}
