//! Users with no more permissions than docs/rabbitmq.md lists.

use lapin::ExchangeKind;
use lapin::options::ExchangeDeclareOptions;
use paced::amqp::{DeadLetters, Filter, PublishError, Replay, Scan, Warning, check_online, unpark};
use paced::dispatch::{DeadLetter, Parked};
use paced::job::Reason;

use super::dead::{letters, replayed};
use super::park::{limited, park, stay};
use super::*;
use crate::support::api::Answer;
use crate::support::publish::{self, Job};
use crate::support::site::{Site, compare};
use crate::support::unique;

const DOCS: &str = include_str!("../../../docs/rabbitmq.md");

/// The arguments of the lines `rabbitmqctl COMMAND USER ...` that the page has for the user.
fn documented(user: &str) -> Vec<Vec<String>> {
    let lines = DOCS.lines().filter_map(|line| line.trim().strip_prefix("rabbitmqctl "));
    let words = lines.map(|line| line.split_whitespace().map(|word| word.replace('\'', "")).collect());
    let of_user: Vec<Vec<String>> = words.filter(|words: &Vec<String>| words[1] == user).collect();
    assert!(of_user.len() >= 2, "docs/rabbitmq.md has no rights of {user}");
    of_user
}

/// Creates the user as the page describes, with this prefix of names; returns the login.
async fn grant(rabbit: &Rabbit, user: &str, prefix: &str) -> String {
    let name = unique(user);
    for words in documented(user) {
        let words: Vec<String> = words
            .iter()
            .enumerate()
            .map(|(place, word)| match (place, word.as_str()) {
                (0, command) => command.to_owned(),
                (1, _) => name.clone(),
                // A name of an exchange, and patterns.
                _ => {
                    word.replace("paced.", &format!("{prefix}.")).replace("paced[.]", &format!("{prefix}[.]"))
                }
            })
            .collect();
        // What rabbitmqctl calls for these commands.
        let (call, arguments) = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["add_user", user, password] => ("add_user", vec![user, password]),
            ["set_permissions", user, configure, write, read] => {
                ("set_permissions", vec![user, "/", configure, write, read])
            }
            ["set_topic_permissions", user, exchange, write, read] => {
                ("set_topic_permissions", vec![user, "/", exchange, write, read])
            }
            ref other => panic!("docs/rabbitmq.md: {other:?}"),
        };
        let arguments: String = arguments.iter().map(|text| format!("<<\"{text}\">>, ")).collect();
        rabbit.eval(&format!("rabbit_auth_backend_internal:{call}({arguments}<<\"test\">>)")).await;
    }
    format!("{name}:PASSWORD")
}

pub fn as_user(rabbit: &Rabbit, options: &Options, login: &str) -> Options {
    Options { address: url(rabbit, login).parse().unwrap(), ..options.clone() }
}

const DAY: Duration = Duration::from_secs(86_400);

async fn dead_letter(delivery: Delivery) {
    let report = Report { attempts: 1, status: Some(400), released_at: None };
    let letter = DeadLetter::new(Reason::BadId, "too bad", report);
    within("the dead letter", delivery.ticket.dead_letter(letter)).await;
}

async fn shut(amqp: Amqp) {
    assert!(amqp.shutdown(Duration::from_secs(30)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_that_are_documented_are_enough_for_the_daemon() {
    let rabbit = shared().await;
    let prefix = unique("rights");
    let declaring = as_user(rabbit, &options(rabbit, &prefix), &grant(rabbit, "paced", &prefix).await);
    let (amqp, mut source) = consuming(declaring.clone()).await;
    publish(&amqp, &declaring, numbered(0..5)).await;
    let mut taken = take(&mut source, 5).await;
    dead_letter(taken.pop().unwrap()).await;
    park(taken.pop().unwrap(), stay(300 * DAY)).await;
    park(taken.pop().unwrap(), limited(Duration::from_secs(600))).await;
    assert_eq!(within("the jobs that wait", unpark(&declaring, "billing")).await, Ok(1));
    taken.push(next(&mut source).await);
    taken.into_iter().for_each(ack);
    drop(source);
    shut(amqp).await;
    let findings = within("the check", check_online(&declaring)).await;
    assert_eq!((findings.errors, findings.warnings), (vec![], vec![]));

    // Names of others are out of reach, except through the default exchange.
    let elsewhere = Options { prefix: unique("elsewhere"), ..declaring.clone() };
    let error = within("the refusal", Amqp::publishing(elsewhere)).await.unwrap_err();
    assert!(error.is_unauthorized(), "{error}");

    // Where everything exists, a user that declares nothing needs fewer permissions. One of the queues that jobs are parked
    // in was declared above.
    let (_connection, channel) = open(&rabbit.url()).await;
    for rung in (0..22).map(|power| format!("{prefix}.park.{}s", 1 << power)) {
        let (kind, durable) =
            (ExchangeKind::Fanout, ExchangeDeclareOptions { durable: true, ..Default::default() });
        channel.exchange_declare(rung.as_str().into(), kind, durable, Default::default()).await.unwrap();
        let durable = QueueDeclareOptions::durable();
        channel.queue_declare(rung.as_str().into(), durable, Default::default()).await.unwrap();
        let (queue, exchange) = (rung.as_str().into(), rung.as_str().into());
        channel.queue_bind(queue, exchange, "".into(), Default::default(), Default::default()).await.unwrap();
    }
    // Those of jobs that wait for a limit are there, and need not be writable, nor exist.
    let name = unique("before");
    let write = format!("^(amq[.]default|{prefix}[.](home|park[.].*))$");
    rabbit.add_user(&name, "secret", ["^$", &write, ".*"]).await;
    let mut before = as_user(rabbit, &declaring, &format!("{name}:secret"));
    before.declare = false;
    let (amqp, mut source) = consuming(before).await;
    publish::publish(&rabbit.url(), &prefix, "billing", Job::many("early", 3)).await;
    let waiting = take(&mut source, 3).await;
    let parked = waiting.into_iter().map(|one| one.ticket.park(limited(Duration::from_secs(600))));
    for parked in parked.collect::<Vec<_>>() {
        let parked = within("the confirm", parked).await;
        assert!(matches!(parked, Parked::Done), "{parked:?}");
    }
    until("them to wait", async || depth(&channel, &format!("{prefix}.park.512s")).await == 3).await;
    assert_eq!(depth(&channel, &format!("{prefix}.wait.billing.256s")).await, 0);
    drop(source);
    shut(amqp).await;
    // All of them must exist, or else they are not used.
    let mut running = as_user(rabbit, &declaring, &grant(rabbit, "paced-run", &prefix).await);
    running.declare = false;
    channel.exchange_delete(format!("{prefix}.wait.billing.16s").into(), Default::default()).await.unwrap();
    channel.queue_delete(format!("{prefix}.wait.billing.64s").into(), Default::default()).await.unwrap();
    let findings = within("the check", check_online(&running)).await;
    let missing = ["16s", "64s"].map(|wait| format!("{prefix}.wait.billing.{wait}")).to_vec();
    let some_missing = Warning::SomeWaitsMissing { downstream: "billing".into(), missing };
    assert_eq!((findings.errors, findings.warnings), (vec![], vec![some_missing]));
    channel.exchange_delete(format!("{prefix}.wait.billing.4s").into(), Default::default()).await.unwrap();
    let findings = within("the check", check_online(&running)).await;
    assert_eq!((findings.errors, findings.warnings), (vec![], vec![]));
    let (amqp, mut source) = consuming(running.clone()).await;
    publish::publish(&rabbit.url(), &prefix, "billing", Job::many("job", 5)).await;
    let mut taken = take(&mut source, 5).await;
    dead_letter(taken.pop().unwrap()).await;
    park(taken.pop().unwrap(), stay(300 * DAY)).await;
    for waiting in 4..=5 {
        park(taken.pop().unwrap(), limited(Duration::from_secs(600))).await;
        until("it to wait", async || depth(&channel, &format!("{prefix}.park.512s")).await == waiting).await;
    }
    taken.into_iter().for_each(ack);
    let (publisher, exchange, body) = (amqp.publisher(), running.jobs_exchange(), Bytes::new());
    let refused = publisher.publish(&exchange, "billing", Default::default(), &body);
    let refused = within("the refusal", refused).await;
    assert!(matches!(refused, Err(PublishError::Refused(_))), "{refused:?}");
    drop(source);
    shut(amqp).await;

    // Both dead letters are listed by one user, and replayed by another.
    let mut looking = as_user(rabbit, &declaring, &grant(rabbit, "dead-list", &prefix).await);
    looking.declare = false;
    let dead = within("the dead letters", DeadLetters::open(&looking, "billing")).await.unwrap();
    assert_eq!(letters(&dead, 10).await.len(), 2);
    let tally = replayed(&dead, Filter::default()).await;
    assert!(matches!(tally.error, Some(PublishError::Refused(_))), "{tally:?}");
    within("the close", dead.close()).await;
    publish::publish(&rabbit.url(), &prefix, "biling", Job::many("misspelt", 2)).await;
    let dead = within("the unroutable", DeadLetters::open_unroutable(&looking)).await.unwrap();
    assert_eq!(letters(&dead, 10).await.len(), 2);
    within("the close", dead.close()).await;
    let mut sending = as_user(rabbit, &declaring, &grant(rabbit, "dead-replay", &prefix).await);
    sending.declare = false;
    let dead = within("the dead letters", DeadLetters::open(&sending, "billing")).await.unwrap();
    let tally = replayed(&dead, Filter::default()).await;
    assert_eq!((tally.done, tally.error), (2, None));
    within("the close", dead.close()).await;
    let dead = within("the unroutable", DeadLetters::open_unroutable(&sending)).await.unwrap();
    let scan = Scan { limit: Some(1), ..Scan::default() };
    let replay = Replay { to: Some("billing".into()), ..Replay::default() };
    let tally = within("the replay", dead.replay(&scan, &replay, |_| {})).await.unwrap();
    assert_eq!((tally.found, tally.done, tally.error), (2, 1, None));
    let tally = within("the purge", dead.purge(&Scan::default(), |_| {})).await.unwrap();
    assert_eq!(tally.done, 1);
    within("the close", dead.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_reaches_its_own_downstream_alone() {
    let rabbit = shared().await;
    let prefix = unique("rights");
    let mut all = options(rabbit, &prefix);
    all.downstreams.push(Downstream {
        name: "other".into(),
        queue: None,
        prefetch: 10,
        max_length: None,
        prefetch_bytes: 64 << 20,
    });
    shut(within("declarations", Amqp::publishing(all.clone())).await.unwrap()).await;
    let mut options = as_user(rabbit, &all, &grant(rabbit, "producer", &prefix).await);
    options.declare = false;
    let amqp = within("the connection", Amqp::publishing(options.clone())).await.unwrap();
    let exchange = options.jobs_exchange();
    for (key, may) in [("billing", true), ("billing.eu", true), ("other", false), ("billings", false)] {
        let (publisher, body) = (amqp.publisher(), Bytes::new());
        let published = publisher.publish_routed(&exchange, key, Default::default(), &body);
        let published = within("an answer", published).await;
        assert_eq!(published.is_ok(), may, "{key}: {published:?}");
    }
    let direct = amqp.publisher();
    let direct =
        direct.publish_routed("", &format!("{prefix}.jobs.other"), Default::default(), &Bytes::new()).await;
    assert!(matches!(direct, Err(PublishError::Refused(_))), "{direct:?}");
    shut(amqp).await;
    publish::publish_to(&rabbit.url(), "", &format!("{prefix}.dead.billing"), Job::many("dead", 1)).await;
    let dead = within("the connection", DeadLetters::open(&options, "billing")).await.unwrap();
    let error = within("the refusal", dead.list(&Scan::default(), |_| {})).await.unwrap_err();
    assert!(error.is_unauthorized(), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_that_is_documented_is_needed_or_its_lack_is_said() {
    let rabbit = shared().await;
    let prefix = unique("rights");
    let everything = options(rabbit, &prefix);
    shut(within("declarations", Amqp::publishing(everything.clone())).await.unwrap()).await;
    let user = unique("less");
    let mut options = as_user(rabbit, &everything, &format!("{user}:pw"));
    options.declare = false;
    let own = format!("^{prefix}[.]");

    rabbit.add_user(&user, "pw", ["^$", "^$", &own]).await;
    let findings = within("the check", check_online(&options)).await;
    assert_eq!(findings.errors, []);
    let [Warning::NoParking { missing }, Warning::MayNotPublish { detail }] = &findings.warnings[..] else {
        panic!("{:?}", findings.warnings)
    };
    assert!(detail.contains("amq.default"), "{detail}");
    assert_eq!(missing[..2], [format!("{prefix}.home"), format!("{prefix}.home.billing")]);
    assert_eq!(missing.len(), 2 + 23, "each rung: {missing:?}");

    rabbit.set_rights("/", &user, ["^$", "^amq[.]default$", &format!("^{prefix}[.]dead[.]")]).await;
    let findings = within("the check", check_online(&options)).await;
    let [paced::amqp::Error::Refused { what, .. }] = &findings.errors[..] else {
        panic!("{:?}", findings.errors)
    };
    assert_eq!(*what, format!("queue {prefix}.jobs.billing"));
    // RabbitMQ 4.3 requires a permission for passive declarations: those of both exchanges and of a queue, which
    // consuming does not need.
    let version = rabbit.version().await;
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap());
    let is_strict = (numbers.next(), numbers.next()) >= (Some(4), Some(3));
    let blind = findings.warnings.iter().filter(|warning| matches!(warning, Warning::MayNotLook { .. }));
    assert_eq!(blind.count(), if is_strict { 3 } else { 0 }, "{version}: {:?}", findings.warnings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_declared_or_looked_at_is_used_as_it_is_with_one_warning() {
    let rabbit = shared().await;
    let mut site = Site::shared("degraded", "rate = '500/s'").await;
    site.api.rule(|arrival| Answer::status(if arrival.id() == "job-7" { 400 } else { 200 }));
    site.declare().await;

    // amqp.declare is true, but the user may only consume the jobs and publish dead letters.
    let user = unique("degraded");
    let read = format!("^{}[.]jobs[.]", site.prefix);
    rabbit.add_user(&user, "pw", ["^$", "^amq[.]default$", &read]).await;
    site.publish(Job::many("job", 50)).await;
    let own = std::mem::replace(&mut site.amqp, url(rabbit, &format!("{user}:pw")));
    let replica = site.replica().await;
    let arrivals = site.api.wait_for(50, LONG).await;
    assert!(compare("job", 50, &arrivals).is_clean());
    site.amqp = own;
    let dead = site.dead(1, LONG).await;
    assert_eq!(dead.len(), 1);
    assert_eq!(replica.stop().await, 0);
    let log = replica.log();
    let warned = log.iter().filter(|line| line.contains("WARN") && line.contains("not allowed"));
    // One warning is about the shared exchanges, one about the downstream's own queues, and one about parking.
    assert_eq!(warned.count(), 3, "{}", log.join("\n"));
}
