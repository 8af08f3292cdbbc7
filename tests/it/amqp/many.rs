//! Many downstreams over one connection.

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::types::FieldTable;

use super::*;

/// The number of wrong queues, which is more than may attach at a time.
const WRONG: usize = 10;
const ALL: usize = 24;

/// A vhost for one test, so that its channels can be distinguished from those of other tests.
pub(crate) async fn vhost(rabbit: &Rabbit, name: &str) -> String {
    rabbit.add_vhost(name).await;
    format!("{}/{name}", url(rabbit, "guest:guest"))
}

fn many(url: &str, prefix: &str) -> Options {
    let downstream = |n| Downstream {
        name: format!("d{n}"),
        queue: None,
        prefetch: 10,
        max_length: None,
        prefetch_bytes: 64 << 20,
    };
    Options {
        address: url.parse().unwrap(),
        prefix: prefix.into(),
        declare: true,
        window_bytes: 256 << 20,
        rung_unit: paced::amqp::RUNG_UNIT,
        haste: 1,
        downstreams: (0..ALL).map(downstream).collect(),
    }
}

/// How many consumers each channel of the vhost has, as the broker counts. Channels of other vhosts are not asked: those
/// of a test with queues that have no leader answer no question for long.
pub(crate) async fn channels(rabbit: &Rabbit, vhost: &str) -> Vec<usize> {
    let each = format!(
        "[integer_to_list(Count) ++ \" \" || {{Channel, Made}} <- ets:tab2list(channel_created), \
         proplists:get_value(vhost, Made) =:= <<\"{vhost}\">>, \
         [{{consumer_count, Count}}] <- [catch rabbit_channel:info(Channel, [consumer_count])]]"
    );
    let counts = rabbit.eval(&format!("list_to_binary({each})")).await;
    let counts = counts.trim_matches(|other: char| !other.is_ascii_digit());
    counts.split_whitespace().map(|count| count.parse().unwrap()).collect()
}

fn attached(amqp: &Amqp) -> usize {
    (0..ALL).filter(|n| amqp.is_attached(&format!("d{n}"))).count()
}

/// Wrong queues hold up no other downstream, and leave no channels open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wrong_ones_hold_up_no_others() {
    let rabbit = shared().await;
    let url = vhost(rabbit, "many").await;
    let (_connection, channel) = open(&url).await;
    let wrong: Vec<_> = (0..WRONG).map(|n| format!("many.jobs.d{n}")).collect();
    for queue in &wrong {
        // A queue with other arguments would be used as it is; one that is another connection's alone cannot be.
        let declare = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.as_str().into(), declare, FieldTable::default()).await.unwrap();
    }
    let amqp = Amqp::start(many(&url, "many"));
    let sources: Vec<_> = (0..ALL).map(|n| amqp.source(&format!("d{n}")).unwrap()).collect();
    until("the right ones are consumed", async || attached(&amqp) == ALL - WRONG).await;
    assert!((0..WRONG).all(|n| !amqp.is_attached(&format!("d{n}"))) && !amqp.is_ready());
    // All are consumed from the queue of parked jobs too, also those whose other queue is wrong. Those have a channel
    // without a consumer for a moment whenever they try again.
    until("a channel for each consumer", async || {
        let channels = channels(rabbit, "many").await;
        channels.iter().all(|consumers| *consumers <= 1)
            && channels.iter().filter(|consumers| **consumers == 1).count() == 2 * ALL - WRONG
    })
    .await;

    for queue in &wrong {
        channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    }
    within("all", amqp.ready()).await;
    // One of the channels is the test's own, without a consumer. A sweep over the lengths of the queues has one for a
    // moment, too.
    until("a channel for each consumer, and no other", async || {
        let mut channels = channels(rabbit, "many").await;
        channels.sort_unstable();
        channels == [&[0][..], &[1; 2 * ALL]].concat()
    })
    .await;
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    drop(sources);
}

/// How many downstreams share a connection depends on how many channels the broker allows to one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_are_consumed_where_a_connection_may_have_few_channels() {
    let node = NodeForFaults::lock().await;
    let rabbit: &Rabbit = &node;
    rabbit.eval("application:set_env(rabbit, channel_max, 64)").await;
    let options = many(&url(rabbit, "guest:guest"), "fewchannels");
    let amqp = Amqp::start(options.clone());
    let mut sources: Vec<_> = (0..ALL).map(|n| amqp.source(&format!("d{n}")).unwrap()).collect();
    within("all", amqp.ready()).await;
    rabbit.eval("application:set_env(rabbit, channel_max, 2047)").await;
    let counts = rabbit.eval("list_to_binary([integer_to_list(C) ++ \" \" || [{channels, C}] <- rabbit_networking:connection_info_all([channels])])").await;
    let counts: Vec<usize> = counts
        .trim_matches(|other: char| !other.is_ascii_digit())
        .split_whitespace()
        .map(|count| count.parse().unwrap())
        .collect();
    assert!(counts.iter().all(|count| *count <= 64), "{counts:?}");
    // Six downstreams each; and one connection that publishes.
    assert!(counts.len() >= 5, "{counts:?}");
    for (n, source) in sources.iter_mut().enumerate() {
        let (exchange, name) = (options.jobs_exchange(), format!("d{n}"));
        let sent = amqp.publisher();
        sent.publish(&exchange, &name, BasicProperties::default(), &Bytes::from(name.clone())).await.unwrap();
        let delivery = next(source).await;
        assert_eq!(delivery.message.content.body, name);
        ack(delivery);
    }
    assert!(within("the shutdown", amqp.shutdown(LONG)).await);
}

/// Before anything is consumed, the downstreams are known in whose queues jobs wait, also where other queues are missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_with_jobs_are_known_before_they_are_consumed() {
    const MISSING: usize = 3;
    let rabbit = shared().await;
    let url = vhost(rabbit, "survey").await;
    let (_connection, channel) = open(&url).await;
    for n in MISSING..ALL {
        for queue in [format!("survey.jobs.d{n}"), format!("survey.home.d{n}")] {
            channel
                .queue_declare(queue.into(), QueueDeclareOptions::default(), FieldTable::default())
                .await
                .unwrap();
        }
    }
    let jobs = || crate::support::publish::Job::many("job", 2);
    for queue in ["survey.home.d7", "survey.jobs.d20", "survey.jobs.d9"] {
        crate::support::publish::publish_to(&url, "", queue, jobs()).await;
    }
    let found = async |prefix: &str| {
        let amqp = Amqp::start(many(&url, prefix));
        let (mut with_jobs, mut names) = (amqp.with_jobs(), Vec::new());
        while let Some(name) = within("the survey", with_jobs.recv()).await {
            names.push(name);
        }
        assert!(within("the shutdown", amqp.shutdown(LONG)).await);
        names
    };
    assert_eq!(found("survey").await, ["d9", "d20", "d7"]);
    // Where nothing was declared yet, nothing waits.
    assert!(found("nothing").await.is_empty());
}

/// The shared exchanges are ensured once per connection: again over the next one, and when one is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_all_share_comes_back() {
    let rabbit = shared().await;
    let url = vhost(rabbit, "share").await;
    let (_connection, channel) = open(&url).await;
    let amqp = Amqp::start(many(&url, "share"));
    let sources: Vec<_> = (0..ALL).map(|n| amqp.source(&format!("d{n}")).unwrap()).collect();
    within("all", amqp.ready()).await;

    // On the same connection, a queue that is declared again misses its exchange.
    let delete = ExchangeDeleteOptions::default();
    channel.exchange_delete("share.jobs".into(), delete).await.unwrap();
    channel.queue_delete("share.jobs.d7".into(), QueueDeleteOptions::default()).await.unwrap();
    until("the exchange", async || is_exchange(&url, "share.jobs").await).await;
    within("all", amqp.ready()).await;

    // On another connection, no queue has to miss it.
    channel.exchange_delete("share.jobs".into(), delete).await.unwrap();
    rabbit.close_connections("share").await;
    until("the exchange", async || is_exchange(&url, "share.jobs").await).await;
    within("all", amqp.ready()).await;
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    drop(sources);
}

/// Uses a connection of its own each time, since the broker closes the channel with a refusal.
async fn is_exchange(url: &str, name: &str) -> bool {
    let (_connection, channel) = open(url).await;
    let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(name.into(), ExchangeKind::Topic, passive, FieldTable::default()).await.is_ok()
}

/// Those that come are consumed beside the others. Those that go leave no channel, and give back what they have not settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_come_and_go_leave_nothing_behind() {
    const STAY: usize = 2;
    let rabbit = shared().await;
    let url = vhost(rabbit, "come").await;
    let mut options = many(&url, "come");
    let more = options.downstreams.split_off(STAY);
    let amqp = Amqp::start(options.clone());
    let _stay: Vec<_> = options.downstreams.iter().map(|one| amqp.source(&one.name).unwrap()).collect();
    within("those that stay", amqp.ready()).await;
    for round in 0..3 {
        amqp.add(&more).unwrap();
        assert!(amqp.add(&more[..1]).is_err(), "it is there already");
        let mut sources: Vec<_> = more.iter().map(|one| amqp.source(&one.name).unwrap()).collect();
        within("all", amqp.ready()).await;
        assert_eq!((attached(&amqp), amqp.status().downstreams().len()), (ALL, ALL));
        if round == 0 {
            let jobs = crate::support::publish::Job::many("job", 2);
            crate::support::publish::publish_to(&url, "come.jobs", &more[0].name, jobs).await;
        }
        // One of two is settled in the first round, and the other one in the second.
        let mut held = match round {
            0 => take(&mut sources[0], 2).await,
            1 => take(&mut sources[0], 1).await,
            _ => Vec::new(),
        };
        held.drain(..held.len().min(1)).for_each(ack);
        drop(sources);
        for downstream in &more {
            assert!(within("the end", amqp.remove(&downstream.name)).await);
        }
        assert_eq!(amqp.status().downstreams().len(), STAY);
        assert!(amqp.is_ready() && amqp.source(&more[0].name).is_err());
        until("the channels of those that stay", async || channels(rabbit, "come").await == [1; 2 * STAY])
            .await;
        drop(held);
    }
    let (_connection, channel) = open(&url).await;
    let jobs = format!("come.jobs.{}", more[0].name);
    let queue =
        channel.queue_declare(jobs.into(), QueueDeclareOptions::default().passive(), FieldTable::default());
    assert_eq!(queue.await.unwrap().message_count(), 0, "both were settled");
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}
