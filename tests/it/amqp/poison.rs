//! Messages that no client can parse: they end no process and no connection.

use std::collections::BTreeMap;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{AMQPValue, FieldTable};

use crate::support::api::Api;
use crate::support::client::Client;
use crate::support::daemon::Paced;
use crate::support::prometheus::Scrape;
use crate::support::publish::{self, Job, Taken};
use crate::support::raw::{Raw, RawMessage, entry, flag, short, value};
use crate::support::site::{NAME, Site, compare};
use crate::support::tls;

use super::*;

/// The second downstream, which gets no bad message.
const OTHER: &str = "other";

/// A malformed message: its name, the parts that are published as they are, and the detail of its dead letter.
struct Poison {
    name: &'static str,
    suffix: &'static [u8],
    flags: u16,
    properties: Vec<u8>,
    detail: &'static str,
    /// Whether its id can be parsed.
    has_id: bool,
}

/// A message with a malformed header, beside a good one and with an id.
fn in_headers(name: &'static str, bad: &[u8], detail: &'static str) -> Poison {
    let headers = [entry(b"paced-lane", &value(b'S', b"acme")), bad.to_vec()].concat();
    let properties = [value(b'F', &headers)[1..].to_vec(), short(name.as_bytes())].concat();
    Poison { name, suffix: b"", flags: flag::HEADERS | flag::MESSAGE_ID, properties, detail, has_id: true }
}

/// A message with one malformed property, beside the id if that is another property.
fn in_property(name: &'static str, which: u16) -> Poison {
    let bad = short(b"caf\xe9");
    let (flags, properties) = match which {
        flag::MESSAGE_ID => (which, bad),
        before if before > flag::MESSAGE_ID => {
            (before | flag::MESSAGE_ID, [bad, short(name.as_bytes())].concat())
        }
        behind => (behind | flag::MESSAGE_ID, [short(name.as_bytes()), bad].concat()),
    };
    Poison { name, suffix: b"", flags, properties, detail: "is not UTF-8", has_id: which != flag::MESSAGE_ID }
}

fn nested(kind: u8, depth: usize) -> Vec<u8> {
    let mut inner = value(kind, b"");
    for _ in 1..depth {
        inner = value(kind, &if kind == b'F' { entry(b"n", &inner) } else { inner });
    }
    entry(b"deep", &inner)
}

fn poisons() -> Vec<Poison> {
    vec![
        in_headers("arrays", &nested(b'A', 3000), "nests deeper than 32"),
        in_headers("tables", &nested(b'F', 3000), "nests deeper than 32"),
        in_headers("key", &entry(b"caf\xe9", &value(b'S', b"x")), "is not UTF-8"),
        in_headers(
            "inner-key",
            &entry(b"outer", &value(b'F', &entry(b"\xff", &value(b'S', b"x")))),
            "is not UTF-8",
        ),
        in_headers("many", &entry(b"many", &value(b'A', &b"t\x01".repeat(5000))), "over 4096 values"),
        in_property("content-type", flag::CONTENT_TYPE),
        in_property("content-encoding", flag::CONTENT_ENCODING),
        in_property("correlation-id", flag::CORRELATION_ID),
        in_property("reply-to", flag::REPLY_TO),
        in_property("message-id", flag::MESSAGE_ID),
        in_property("type", flag::TYPE),
        in_property("app-id", flag::APP_ID),
        in_property("cluster-id", flag::CLUSTER_ID),
        Poison {
            name: "routing-key",
            suffix: b".\xff",
            flags: flag::MESSAGE_ID,
            properties: short(b"routing-key"),
            detail: "the routing key is not UTF-8",
            has_id: true,
        },
    ]
}

impl Poison {
    fn body(&self) -> Vec<u8> {
        // The body is longer than one frame, and resembles no text.
        self.name.bytes().chain((0..200_000_u32).map(|n| (n % 251) as u8)).collect()
    }

    fn to(&self, exchange: &str, key: &str) -> RawMessage {
        RawMessage {
            exchange: exchange.to_owned(),
            key: [key.as_bytes(), self.suffix].concat(),
            flags: self.flags,
            properties: self.properties.clone(),
            body: self.body(),
        }
    }
}

/// The site, on whose connections no heartbeat is missed: a connection that is lost to a busy machine would look like one
/// that a message has ended.
fn patient(site: Site) -> Site {
    let sign = if site.amqp.contains('?') { '&' } else { '?' };
    Site { amqp: format!("{}{sign}heartbeat=600", site.amqp), ..site }
}

/// A replica with two downstreams, and the API of the second one.
async fn replica(site: &Site) -> (Paced, Api) {
    let other = Api::start();
    let config = format!(
        "{}\n[downstreams.{OTHER}]\nrate = '2000/s'\n[downstreams.{OTHER}.http]\nbase_url = '{}'\n\
         [admin]\nlisten = '127.0.0.1:0'\n",
        site.config(),
        other.url()
    );
    (Paced::spawn(&config).await, other)
}

async fn scrape(replica: &Paced) -> Scrape {
    let line = replica.wait_line("probes and metrics are served", LONG).await;
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let url = format!("http://{}/metrics", line["address"].as_str().unwrap());
    Scrape::read(&Client::new().get(&url).await.unwrap().text)
}

/// Publishes 20 good jobs among the malformed messages, and 100 for the other downstream; each arrives once.
async fn good_jobs_arrive(site: &Site, other: &Api, stem: &str) {
    let (before, others_before) = (site.api.arrivals().len(), other.arrivals().len());
    publish::publish(&site.amqp, &site.prefix, NAME, Job::many(stem, 20)).await;
    publish::publish(&site.amqp, &site.prefix, OTHER, Job::many(stem, 100)).await;
    until(stem, async || site.api.arrivals().len() >= before + 20).await;
    until(stem, async || other.arrivals().len() >= others_before + 100).await;
    for (count, arrivals) in [(20, &site.api.arrivals()[before..]), (100, &other.arrivals()[others_before..])]
    {
        let tally = compare(stem, count, arrivals);
        assert!(tally.is_clean(), "{stem}: {tally:?}");
    }
}

fn by_body(letters: Vec<Taken>) -> BTreeMap<Vec<u8>, Taken> {
    letters.into_iter().map(|letter| (letter.body.clone(), letter)).collect()
}

#[tokio::test]
async fn malformed_messages_end_in_the_dead_letters_and_harm_nobody() {
    let rabbit = shared().await;
    let site = patient(Site::shared("poison", "rate = '2000/s'").await);
    let (replica, other) = replica(&site).await;
    let mut raw = Raw::connect(rabbit.port()).await;
    let poisons = poisons();
    for poison in &poisons {
        raw = raw.publish(poison.to(&format!("{}.jobs", site.prefix), NAME)).await;
        good_jobs_arrive(&site, &other, poison.name).await;
        assert_eq!(replica.exited(), None);
    }
    let count = u32::try_from(poisons.len()).unwrap();
    let letters = by_body(site.dead(count, LONG).await);
    for poison in &poisons {
        let name = poison.name;
        let letter = letters.get(&poison.body()).unwrap_or_else(|| panic!("{name}: no letter with its body"));
        assert_eq!(letter.headers["paced-reason"], "malformed-header", "{name}");
        let detail = &letter.headers["paced-detail"];
        assert!(detail.contains(poison.detail), "{name}: {detail}");
        assert_eq!(letter.id(), if poison.has_id { name } else { "" });
        if poison.flags & flag::HEADERS != 0 {
            assert_eq!(letter.headers["paced-lane"], "acme", "{name}");
        }
        assert!(!letter.headers.keys().any(|header| header.starts_with("guard-")), "{name}: {letter:?}");
    }
    let scrape = scrape(&replica).await;
    assert_eq!(scrape.sum("paced_amqp_reconnects_total"), Some(0.0));
    assert_eq!(scrape.sum("paced_poison_total"), Some(f64::from(count)));
    assert_eq!(replica.stop().await, 0);
}

/// A content header that fits the producer's frames, but not those of paced.
#[tokio::test]
async fn a_content_header_over_the_frame_size_is_cut() {
    let rabbit = shared().await;
    let site = Site::shared("oversized", "rate = '2000/s'").await;
    let site = patient(Site { amqp: format!("{}?frame_max=8192", site.amqp), ..site });
    let (replica, other) = replica(&site).await;
    let mut raw = Raw::connect(rabbit.port()).await;
    let oversized =
        in_headers("oversized", &entry(b"large", &value(b'x', &[7; 20_000])), "the properties take 20");
    // The headers end at the last byte that fits, and one byte later.
    let rest = in_headers("last", &entry(b"large", &value(b'x', b"")), "").properties.len();
    let sized = |name, length: usize| {
        let bytes = 8192 - 8 - 14 - rest + length - 4;
        in_headers(name, &entry(b"large", &value(b'x', &vec![7; bytes])), "and must fit 8184")
    };
    let jobs = format!("{}.jobs", site.prefix);
    for poison in [&oversized, &sized("more", 5)] {
        raw = raw.publish(poison.to(&jobs, NAME)).await;
        good_jobs_arrive(&site, &other, poison.name).await;
    }
    raw = raw.publish(RawMessage { body: b"fits".to_vec(), ..sized("last", 4).to(&jobs, NAME) }).await;
    until("the job that fits", async || site.api.arrivals().iter().any(|arrival| arrival.id() == "last"))
        .await;
    drop(raw);
    let letters = by_body(site.dead(2, LONG).await);
    for poison in [oversized, sized("more", 5)] {
        let letter = &letters[&poison.body()];
        let detail = &letter.headers["paced-detail"];
        assert!(detail.contains(poison.detail), "{detail}");
        // RabbitMQ 4 reorders the headers: those after the one that is too long are cut off with it.
        assert_eq!(letter.id(), poison.name);
    }
    assert_eq!(scrape(&replica).await.sum("paced_amqp_reconnects_total"), Some(0.0));
    assert_eq!(replica.stop().await, 0);
}

/// Declares an exchange of the test's own.
async fn any(site: &Site, channel: &Channel) -> String {
    let name = format!("{}.any", site.prefix);
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declare =
        channel.exchange_declare(name.as_str().into(), ExchangeKind::Topic, options, FieldTable::default());
    declare.await.unwrap();
    name
}

/// Binds the queue for any routing key.
async fn bind(channel: &Channel, queue: &str, exchange: &str) {
    let options = QueueBindOptions::default();
    let bind = channel.queue_bind(queue.into(), exchange.into(), "#".into(), options, FieldTable::default());
    bind.await.unwrap();
}

/// The broker itself makes the headers longer than any frame: its account of a dead-lettering repeats the routing keys
/// of the message.
#[tokio::test]
async fn an_account_of_dead_letterings_may_outgrow_a_frame() {
    let rabbit = shared().await;
    let site = patient(Site::shared("x-death", "rate = '2000/s'").await);
    let (replica, other) = replica(&site).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let (exchange, waiting) = (any(&site, &channel).await, format!("{}.waiting", site.prefix));
    let mut arguments = FieldTable::default();
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(1));
    let jobs = AMQPValue::LongString(format!("{}.jobs", site.prefix).into());
    arguments.insert("x-dead-letter-exchange".into(), jobs);
    let declare = QueueDeclareOptions::durable();
    channel.queue_declare(waiting.as_str().into(), declare, arguments).await.unwrap();
    bind(&channel, &waiting, &exchange).await;
    // There are 400 more routing keys, all of which are also in the account.
    let keys: Vec<u8> = (0..400).flat_map(|n| value(b'S', format!("{n:0>250}").as_bytes())).collect();
    let poison = in_headers("death", &entry(b"CC", &value(b'A', &keys)), "the properties take 2");
    let raw = Raw::connect(rabbit.port()).await.publish(poison.to(&exchange, NAME)).await;
    let letters = site.dead(1, LONG).await;
    assert_eq!(letters[0].body, poison.body());
    assert_eq!(letters[0].id(), "death");
    let detail = &letters[0].headers["paced-detail"];
    assert!(detail.contains(poison.detail), "{detail}");
    good_jobs_arrive(&site, &other, "behind").await;
    assert_eq!(scrape(&replica).await.sum("paced_amqp_reconnects_total"), Some(0.0));
    assert_eq!(replica.stop().await, 0);
    drop(raw);
}

/// Malformed messages that the broker or somebody else put into the dead letters are listed and stay.
#[tokio::test]
async fn malformed_dead_letters_are_listed_and_not_replayed() {
    let rabbit = shared().await;
    let site = Site::shared("deadpoison", "rate = '2000/s'").await;
    site.declare().await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let (exchange, queue) = (any(&site, &channel).await, site.dead_queue());
    bind(&channel, &queue, &exchange).await;
    let mut raw = Raw::connect(rabbit.port()).await;
    let poisons = poisons();
    for poison in &poisons {
        raw = raw.publish(poison.to(&exchange, "x")).await;
    }
    let good = [b"first".to_vec(), b"second".to_vec()].map(|body| RawMessage {
        exchange: exchange.clone(),
        flags: flag::MESSAGE_ID,
        properties: short(&body),
        body,
        ..RawMessage::default()
    });
    for good in good {
        raw = raw.publish(good).await;
    }
    let count = u32::try_from(poisons.len()).unwrap();
    site.depth(&queue, count + 2, LONG).await;

    for _ in 0..2 {
        let output = site.cli(&["-o", "json", "dead", "list", NAME]).await;
        assert_eq!(output.code, 0, "{}", output.stderr);
        let lines: Vec<serde_json::Value> =
            output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), poisons.len() + 2);
        for (line, poison) in lines.iter().zip(&poisons) {
            assert_eq!(line["reason"], "malformed-header", "{}: {line}", poison.name);
            assert!(line["detail"].as_str().unwrap().contains(poison.detail), "{}: {line}", poison.name);
            assert_eq!(line["bytes"], poison.body().len());
        }
        assert!(lines[poisons.len()]["reason"].is_null());
    }

    let output = site.cli(&["-o", "json", "dead", "replay", NAME]).await;
    assert_eq!(output.code, 1, "{}", output.stderr);
    let report: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let expected = serde_json::json!({
        "found": count + 2, "replayed": 2, "kept": 0, "failed": count
    });
    assert_eq!(report, expected);
    assert!(output.stderr.contains("a dead letter is malformed: "), "{}", output.stderr);
    // The jobs are there, and all malformed letters where they were.
    site.depth(&site.queue(), 2, LONG).await;
    site.depth(&queue, count, LONG).await;
}

/// RabbitMQ cuts its texts at 255 bytes, even within a character.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_of_the_broker_that_is_cut_within_a_character_costs_one_channel() {
    let rabbit = shared().await;
    let mut options = options(rabbit, &crate::support::unique("cut"));
    for letter in ["", "a"] {
        // One of the two is cut within a character, wherever the name begins in the text.
        let queue = format!("{letter}{}", "\u{e4}".repeat(125));
        options.downstreams[0].queue = Some(queue);
        let errors = within("the check", paced::amqp::check_online(&options)).await.errors;
        // RabbitMQ 4 itself fails on such a name, and reports it.
        let understood = match &errors[..] {
            [paced::amqp::Error::NotFound { .. }] => true,
            [paced::amqp::Error::Failed { detail, .. }] => detail.contains("INTERNAL_ERROR"),
            _ => false,
        };
        assert!(understood, "{errors:?}");
    }
}

/// The guard works over TLS too, which ends before it.
#[tokio::test]
async fn amqps_is_guarded_too() {
    let rabbit = shared().await;
    let site = Site::shared("amqps", "rate = '2000/s'").await;
    let front = tls::Front::start(rabbit.port()).await;
    let tls = patient(Site { amqp: format!("amqps://localhost:{}/%2f", front.port()), ..site });
    let config = tls.config() + "[admin]\nlisten = '127.0.0.1:0'\n";
    let replica = Paced::start(&config, &[], &[("SSL_CERT_FILE", tls::CA)]).await;
    replica.wait_ready().await;
    let mut raw = Raw::connect(rabbit.port()).await;
    let poisons = poisons();
    for poison in &poisons {
        raw = raw.publish(poison.to(&format!("{}.jobs", tls.prefix), NAME)).await;
    }
    publish::publish(&rabbit.url(), &tls.prefix, NAME, Job::many("good", 20)).await;
    until("the good jobs", async || tls.api.arrivals().len() >= 20).await;
    assert!(compare("good", 20, &tls.api.arrivals()).is_clean());
    let site = Site { amqp: rabbit.url(), ..tls };
    let letters = by_body(site.dead(u32::try_from(poisons.len()).unwrap(), LONG).await);
    assert!(poisons.iter().all(|poison| letters.contains_key(&poison.body())));
    assert_eq!(scrape(&replica).await.sum("paced_amqp_reconnects_total"), Some(0.0));
    assert_eq!(replica.stop().await, 0);
}
