//! The warnings of `check --online` about a broker that works, but may lose jobs.

use paced::amqp::{AMQPValue, Downstream, FieldTable, Server, Warning, check_online};

use super::*;
use crate::support::servers::Redis;
use crate::support::site::Site;
use crate::support::unique;

/// Whether quorum queues that name no delivery limit have one, as they do from this version on.
fn limits_by_default(server: &Server) -> bool {
    server.max_message_size() == Some(16 << 20)
}

fn table(arguments: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Declares a queue, and returns the warnings about a downstream that consumes it.
async fn warned_of(
    options: &Options,
    channel: &Channel,
    durable: bool,
    arguments: &[(&str, AMQPValue)],
) -> (Server, Vec<Warning>) {
    let queue = unique("foreign");
    let declare = QueueDeclareOptions { durable, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), declare, table(arguments)).await.unwrap();
    let mut options = options.clone();
    options.downstreams = vec![Downstream {
        name: "theirs".into(),
        queue: Some(queue.clone()),
        prefetch: 10,
        max_length: None,
        prefetch_bytes: 64 << 20,
    }];
    let findings = within("the check", check_online(&options)).await;
    assert_eq!(findings.errors, [], "{queue}");
    channel.queue_delete(queue.into(), Default::default()).await.unwrap();
    (findings.server.unwrap(), findings.warnings)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_queue_that_drops_what_comes_back_often_is_warned_of() {
    let rabbit = shared().await;
    let options = options(rabbit, &unique("returns"));
    let (_connection, channel) = open(&rabbit.url()).await;
    let (quorum, bound) = (("x-queue-type", text("quorum")), ("x-max-length", AMQPValue::LongInt(7)));
    let exchange = ("x-dead-letter-exchange", text("some exchange"));
    let limit = ("x-delivery-limit", AMQPValue::LongInt(7));
    let more = [
        ("x-expires", AMQPValue::LongInt(3_600_000)),
        ("x-message-ttl", AMQPValue::LongInt(3_600_000)),
        ("x-overflow", text("reject-publish")),
        bound.clone(),
        quorum.clone(),
    ];
    for (durable, arguments, dropped_after) in [
        (false, &[][..], None),
        (true, std::slice::from_ref(&bound), None),
        (true, &[quorum.clone(), exchange.clone()], None),
        (true, &[quorum.clone(), exchange, limit.clone()], None),
        (true, std::slice::from_ref(&quorum), Some("20")),
        (true, &[quorum.clone(), bound.clone()], Some("20")),
        (true, &more, Some("20")),
        (true, &[more[4].clone(), limit], Some("7")),
    ] {
        let (server, warnings) = warned_of(&options, &channel, durable, arguments).await;
        let limits: Vec<&str> = warnings
            .iter()
            .map(|warning| match warning {
                Warning::NoDeadLetterExchange { downstream, limit, .. } if downstream == "theirs" => {
                    limit.as_str()
                }
                other => panic!("{other}"),
            })
            .collect();
        let mut expected: Vec<&str> = dropped_after.into_iter().collect();
        if !limits_by_default(&server) {
            expected.retain(|limit| *limit == "7");
        }
        assert_eq!(limits, expected, "{server}: {arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_queue_that_may_not_be_configured_is_warned_of_with_an_if() {
    let rabbit = shared().await;
    let (prefix, user) = (unique("unknown"), unique("user"));
    rabbit.add_user(&user, "pw", [&format!("^{prefix}[.]"), ".*", ".*"]).await;
    let mut options = options(rabbit, &prefix);
    options.address = url(rabbit, &format!("{user}:pw")).parse().unwrap();
    let (_connection, channel) = open(&rabbit.url()).await;
    let quorum = [("x-queue-type", text("quorum"))];
    let (server, warnings) = warned_of(&options, &channel, true, &quorum).await;
    match &warnings[..] {
        [Warning::PerhapsNoDeadLetterExchange { downstream, .. }] if limits_by_default(&server) => {
            assert_eq!(downstream, "theirs");
            assert!(warnings[0].to_string().contains("if queue foreign-"), "{}", warnings[0]);
        }
        others => assert!(others.is_empty() && !limits_by_default(&server), "{server}: {others:?}"),
    }
}

/// The declarations by which the check examines a queue are refused if there is no such queue, by every version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_gone_is_not_declared_by_a_check() {
    let rabbit = shared().await;
    let (connection, channel) = open(&rabbit.url()).await;
    let queue = unique("gone");
    let arguments =
        table(&[("x-queue-type", text("quorum")), ("x-queue-leader-locator", text("paced-check"))]);
    let declared =
        channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::durable(), arguments).await;
    assert!(declared.unwrap_err().to_string().contains("invalid arg"), "refused");
    let channel = connection.create_channel().await.unwrap();
    let look =
        channel.queue_declare(queue.into(), QueueDeclareOptions::default().passive(), Default::default());
    assert!(look.await.unwrap_err().to_string().contains("NOT_FOUND"), "and not created");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_names_the_broker_and_warns_of_bodies_that_it_does_not_take() {
    let rabbit = shared().await;
    let mut site = Site::shared("bodies", "rate = '100/s'").await;
    site.http = "max_body = '17MiB'".to_owned();
    let checked = site.cli(&["check", "--online"]).await;
    assert_eq!(checked.code, 0, "{}{}", checked.stdout, checked.stderr);
    let version = rabbit.version().await;
    assert!(checked.stdout.contains(&format!("(RabbitMQ {version})\n")), "{}", checked.stdout);
    let is_new = version.split('.').next().unwrap().parse::<u32>().unwrap() >= 4;
    let warned = checked.stderr.contains("http.max_body is 17825792 bytes");
    assert_eq!(warned, is_new, "{version}: {}", checked.stderr);

    // A server that runs no scripts is refused as a store, with the reason.
    let redis = Redis::without_scripts().await;
    site.store = redis.url();
    let checked = site.cli(&["check", "--online"]).await;
    assert_eq!(checked.code, 69, "{}{}", checked.stdout, checked.stderr);
    assert!(checked.stderr.contains("no scripting engine"), "{}", checked.stderr);
}
