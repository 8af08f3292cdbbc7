//! Requests of untrusted producers that must not succeed: replies into others' queues, and costs that hold up
//! everybody.

use std::time::Duration;

use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::{BasicProperties, Channel};

use crate::support::api::Api;
use crate::support::client::Client;
use crate::support::daemon::run_cli;
use crate::support::prometheus::Scrape;
use crate::support::publish::{self, Job, Taken};
use crate::support::servers::free_port;
use crate::support::site::Site;

/// Shorter than the time for which a job that costs too much would hold up the others.
const LONG: Duration = Duration::from_secs(60);

/// Names for Direct Reply-To that no broker makes; the first ones crash a channel of RabbitMQ 3.10.
const MALFORMED: [&str; 6] = [
    "amq.rabbitmq.reply-to.x.y",
    "amq.rabbitmq.reply-to.AAAA.BBBB",
    "amq.rabbitmq.reply-to.g1h3DnJlcGx5QHJhYmJpdG1xAAADOgAAAABnb1Vb.kZcTtkQJ0F5VRCmTRRgxCQ==",
    "amq.rabbitmq.reply-to.",
    "amq.rabbitmq.reply-to.x",
    "amq.rabbitmq.reply-to...",
];

fn asking(id: &str, queue: &str) -> Job {
    let mut job = Job::new(id);
    job.properties = job.properties.with_reply_to(queue.into()).with_correlation_id(id.into());
    job
}

async fn declare(channel: &Channel, queue: &str) {
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), Default::default()).await.unwrap();
}

fn text(letter: &Taken, name: &str) -> String {
    let headers = letter.properties.headers().as_ref().unwrap();
    headers.inner()[name].as_long_string().unwrap().to_string()
}

#[tokio::test]
async fn replies_go_only_where_they_are_allowed_and_cost_no_connection() {
    let mut site = Site::shared("replyto", "rate = '200/s'").await;
    let (admin, foreign, allowed) =
        (free_port(), format!("foreign-{}", site.prefix), format!("replies-{}", site.prefix));
    let (_connection, channel) = publish::open(&site.amqp).await;
    declare(&channel, &foreign).await;
    declare(&channel, &allowed).await;
    site.http = format!(
        "[downstreams.other]\nrate = '100/s'\nhttp.base_url = '{0}other/'\n\
         [downstreams.third]\nrate = '100/s'\nqueue.name = '{foreign}'\nhttp.base_url = '{0}other/'\n\
         [admin]\nlisten = '127.0.0.1:{admin}'\n[reply]\nallow = ['amq.', 'foreign', 'replies', '{1}']\n",
        site.api.url(),
        site.prefix,
    );
    let replica = site.replica().await;
    let own = ["jobs.billing", "jobs.other", "dead.other", "dead.billing", "unroutable", "made-up"];
    let mut forbidden: Vec<String> = own.iter().map(|queue| format!("{}.{queue}", site.prefix)).collect();
    forbidden.extend(MALFORMED.map(str::to_owned));
    forbidden.extend([foreign.clone(), "not-on-the-list".to_owned()]);
    let mut jobs = Vec::new();
    for (place, queue) in forbidden.iter().enumerate() {
        jobs.push(asking(&format!("bad-{place}"), queue));
        // This message is no job anyway, and would get its reply for that.
        jobs.push(asking(&format!("twice-{place}"), queue).header("paced-nonsense", "1"));
        jobs.push(asking(&format!("good-{place}"), &allowed));
    }
    site.publish(jobs).await;
    let count = u32::try_from(forbidden.len()).unwrap();
    site.depth(&allowed, count, LONG).await;
    let letters = site.dead(2 * count, LONG).await;
    for letter in &letters {
        let (reason, detail) = (text(letter, "paced-reason"), text(letter, "paced-detail"));
        if letter.id().starts_with("bad-") {
            assert_eq!(reason, "malformed-header", "{detail}");
            assert!(detail.starts_with("reply_to is `"), "{detail}");
        } else {
            assert_eq!(reason, "unknown-header", "{detail}");
        }
    }
    site.depth(&site.queue(), 0, LONG).await;
    for queue in [&format!("{}.jobs.other", site.prefix), &format!("{}.dead.other", site.prefix), &foreign] {
        assert_eq!(publish::depth(&site.amqp, queue).await, Some(0), "{queue}");
    }
    let arrivals = site.api.arrivals();
    assert_eq!(arrivals.len(), forbidden.len());
    assert!(arrivals.iter().all(|arrival| arrival.id().starts_with("good-")), "a reply became a job");

    let metrics = Client::new().get(&format!("http://127.0.0.1:{admin}/metrics")).await.unwrap().text;
    assert_eq!(Scrape::read(&metrics).sum("paced_amqp_reconnects_total"), Some(0.0));
    assert_eq!(replica.stop().await, 0);
    let log = replica.log().join("\n");
    assert!(!log.contains("lost the connection"), "{log}");
}

/// Direct Reply-To, which the default allows too, is in the next test.
#[tokio::test]
async fn by_default_replies_go_to_queues_that_the_broker_named() {
    let site = Site::shared("replydefault", "rate = '200/s'").await;
    let foreign = format!("billing-{}", site.prefix);
    let (connection, channel) = publish::open(&site.amqp).await;
    declare(&channel, &foreign).await;
    let named = channel.queue_declare("".into(), QueueDeclareOptions::default(), Default::default()).await;
    let named = named.unwrap().name().to_string();
    assert!(named.starts_with("amq.gen-"), "{named}");
    let replica = site.replica().await;
    site.publish(vec![asking("good", &named), asking("bad", &foreign)]).await;
    site.depth(&named, 1, LONG).await;
    let letter = site.dead(1, LONG).await.remove(0);
    let detail = text(&letter, "paced-detail");
    assert_eq!((letter.id(), text(&letter, "paced-reason").as_str()), ("bad", "malformed-header"));
    assert!(detail.contains("which `reply.allow` does not allow; add it there"), "{detail}");
    // The log has the key, and the beginning of the name that it lacks.
    let line = replica.wait_line("dead-lettered", LONG).await;
    assert!(line.contains("`reply.allow`") && line.contains(&foreign[..20]), "{line}");
    assert_eq!(publish::depth(&site.amqp, &foreign).await, Some(0));
    assert_eq!(replica.stop().await, 0);
    connection.close(200, "OK".into()).await.unwrap();
}

#[tokio::test]
async fn direct_reply_to_works() {
    let site = Site::shared("direct", "rate = '200/s'").await;
    let replica = site.replica().await;
    let (connection, channel) = publish::open(&site.amqp).await;
    let consume = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let direct = "amq.rabbitmq.reply-to";
    let mut replies =
        channel.basic_consume(direct.into(), "".into(), consume, Default::default()).await.unwrap();
    for id in ["good", "bad"] {
        let mut properties = BasicProperties::default()
            .with_message_id(id.into())
            .with_correlation_id(id.into())
            .with_reply_to(direct.into());
        if id == "bad" {
            let mut headers = paced::amqp::FieldTable::default();
            headers.insert("paced-nonsense".into(), lapin::types::AMQPValue::Boolean(true));
            properties = properties.with_headers(headers);
        }
        let exchange = format!("{}.jobs", site.prefix);
        let options = BasicPublishOptions::default();
        channel.basic_publish(exchange.into(), "billing".into(), options, b"{}", properties).await.unwrap();
    }
    let mut statuses = Vec::new();
    for _ in 0..2 {
        use futures_util::StreamExt as _;
        let reply = tokio::time::timeout(LONG, replies.next()).await.expect("a reply in time");
        let Delivery { properties, data, .. } = reply.unwrap().unwrap();
        let reply: serde_json::Value = serde_json::from_slice(&data).unwrap();
        let id = properties.correlation_id().as_ref().unwrap().to_string();
        statuses.push((id, reply["status"].as_u64().unwrap()));
    }
    statuses.sort();
    assert_eq!(statuses, [("bad".to_owned(), 0), ("good".to_owned(), 200)]);
    connection.close(200, "OK".into()).await.unwrap();
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn a_cost_over_max_cost_is_dead_at_once_and_the_next_job_goes_on_time() {
    // With 1200 units a minute, each of the jobs that are dead would hold up the next one for more than a minute.
    let site = Site::shared("maxcost", "rate = '20/s'").await;
    let checked = site.cli(&["check"]).await;
    assert!(
        checked
            .stdout
            .contains("a job may cost up to 1200, what the limit `leaky-bucket-0` releases in a minute")
    );
    let replica = site.replica().await;
    let jobs = vec![
        Job::new("first"),
        Job::new("greedy").header("paced-cost", "3600"),
        Job::new("one-more").header("paced-cost", "1201"),
        Job::new("next"),
    ];
    site.publish(jobs).await;
    let arrivals = site.api.wait_for(2, LONG).await;
    let mut ids = [arrivals[0].id(), arrivals[1].id()];
    ids.sort_unstable();
    assert_eq!(ids, ["first", "next"]);
    let letters = site.dead(2, LONG).await;
    for letter in &letters {
        let detail = text(letter, "paced-detail");
        assert_eq!(text(letter, "paced-reason"), "cost-too-large");
        assert!(detail.contains("`max_cost` is 1200"), "{detail}");
    }
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn pipe_refuses_a_cost_over_max_cost_too() {
    let jobs = b"{\"id\": \"a\"}\n{\"id\": \"greedy\", \"cost\": 3600}\n{\"id\": \"three\", \"cost\": 3}\n{\"id\": \"b\"}\n";
    let pipe = async |args: &[&str]| {
        let api = Api::start();
        let url = api.url();
        let all: Vec<&str> = ["pipe", "--rate", "20/s", "--to"]
            .into_iter()
            .chain([url.as_str()])
            .chain(args.iter().copied())
            .collect();
        let output = run_cli(&all, jobs).await;
        assert_eq!(output.code, 1, "{}", output.stderr);
        let ids: Vec<String> = api.arrivals().iter().map(|arrival| arrival.id().to_owned()).collect();
        (ids.join(" "), output.stderr)
    };
    let (ids, stderr) = pipe(&[]).await;
    assert_eq!(ids, "a three b");
    assert!(
        stderr.contains("job greedy: cost-too-large: `paced-cost` is 3600; `max_cost` is 1200"),
        "{stderr}"
    );
    let (ids, stderr) = pipe(&["--max-cost", "2"]).await;
    assert_eq!(ids, "a b");
    assert!(
        stderr.contains("job three: cost-too-large: `paced-cost` is 3; `max_cost` is 2: split"),
        "{stderr}"
    );
}
