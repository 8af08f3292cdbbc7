use paced::amqp::{AMQPValue, DeadLetters, Edits, FieldTable, Filter, Letter, Replay, Scan, Tally};
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
        within("the burial", delivery.ticket.dead_letter(DeadLetter::new(reason, "why", report))).await;
    }
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

/// The first `max` letters.
pub(super) async fn letters(dead: &DeadLetters, max: u32) -> Vec<Letter> {
    let scan = Scan { limit: Some(max), ..Scan::default() };
    within("the list", dead.list(&scan, |_| {})).await.unwrap().0
}

/// The bodies of the first `max` letters.
pub(super) async fn listed(dead: &DeadLetters, max: u32) -> Vec<String> {
    let letters = letters(dead, max).await;
    letters.iter().map(|letter| String::from_utf8(letter.message.content.body.to_vec()).unwrap()).collect()
}

/// Replays the letters that match.
pub(super) async fn replayed(dead: &DeadLetters, filter: Filter) -> Tally {
    let scan = Scan { filter, ..Scan::default() };
    within("the replay", dead.replay(&scan, &Replay::default(), |_| {})).await.unwrap()
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
    let letters = letters(&dead, 2).await;
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
    let scan = Scan { filter, limit: Some(3), ..Scan::default() };
    let edits = Edits { set: vec![("paced-lane".into(), "globex".into())], unset: Vec::new(), new_id: true };
    let replay = Replay { edits, ..Replay::default() };
    let mut steps = Vec::new();
    let progress = |tally: &Tally| steps.push((tally.seen, tally.done));
    let tally = within("the replay", dead.replay(&scan, &replay, progress)).await.unwrap();
    assert_eq!((tally.found, tally.seen, tally.done, tally.kept, tally.failed), (10, 6, 3, 3, 0));
    assert_eq!(steps, [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3)]);
    assert_eq!(listed(&dead, 100).await, ["0", "2", "4", "6", "7", "8", "9"], "in their order");

    // One letter is replayed by its id, unchanged.
    let filter = Filter { id: Some("id-6".into()), ..Filter::default() };
    let tally = replayed(&dead, filter).await;
    assert_eq!((tally.found, tally.seen, tally.done, tally.kept), (7, 7, 1, 6));
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
        let tally = replayed(&dead, Filter::default()).await;
        assert_eq!((tally.found, tally.done), (1, 1));
        dead.close().await;
        let (amqp, mut source) = consuming(options.clone()).await;
        let delivery = next(&mut source).await;
        assert_eq!(delivery.message.routing_key, "billing.1");
        let report = Report { attempts: 1, status: None, released_at: None };
        let letter = DeadLetter::new(Reason::Expired, "", report);
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
    let tally = replayed(&dead, Filter::default()).await;
    assert_eq!((tally.done, tally.failed), (1, 1), "the queue holds one");
    assert_eq!(tally.error, Some(paced::amqp::PublishError::Rejected));
    assert_eq!(listed(&dead, 100).await, numbered(1..3));
    dead.close().await;
    assert_eq!(pop(&channel, "stays.theirs").await.data, b"0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_removes_what_matches_and_was_there() {
    let options = options(shared().await, "purge");
    dead_letter(&options, 0..10).await;
    let dead = DeadLetters::open(&options, "billing").await.unwrap();
    let filter = Filter { status: Some(422), key: Some("billing.3".into()), ..Filter::default() };
    let scan = Scan { filter, ..Scan::default() };
    let tally = within("the purge", dead.purge(&scan, |_| {})).await.unwrap();
    assert_eq!((tally.found, tally.done, tally.kept), (10, 1, 9));
    let old = Filter { older_than: Some(Duration::from_secs(3600)), ..Filter::default() };
    let new = Filter { newer_than: Some(Duration::from_secs(3600)), ..Filter::default() };
    let matching = async |filter| {
        let scan = Scan { filter, ..Scan::default() };
        within("the count", dead.count_matching(&scan, |_| {})).await.unwrap().done
    };
    assert_eq!((matching(old).await, matching(new).await), (0, 9));
    assert_eq!(listed(&dead, 100).await, ["0", "1", "2", "4", "5", "6", "7", "8", "9"]);

    // A purge of as many as were counted removes none that came later.
    let scan = Scan { first: Some(4), ..Scan::default() };
    let tally = within("the purge", dead.purge(&scan, |_| {})).await.unwrap();
    assert_eq!((tally.found, tally.done), (4, 4));
    assert_eq!(listed(&dead, 100).await, numbered(5..10));

    let scan = Scan { limit: Some(2), ..Scan::default() };
    let stop = scan.stop.clone();
    let tally = within("the purge", dead.purge(&scan, |_| stop.cancel())).await.unwrap();
    assert_eq!((tally.done, tally.stopped), (1, true));
    assert_eq!(listed(&dead, 100).await, numbered(6..10), "in their order");
    dead.close().await;
}
