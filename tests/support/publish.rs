//! A producer and a reader of queues over a plain AMQP client, without any code of the product.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex};

use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

use super::api::Api;
use super::{LONG, apart};

/// A message to publish.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// The `message_id`; `None` if the property is absent.
    pub id: Option<String>,
    /// The body.
    pub body: Vec<u8>,
    /// AMQP headers.
    pub headers: Vec<(String, AMQPValue)>,
    /// All other properties; `id` and `headers` take precedence.
    pub properties: BasicProperties,
    /// Appended to the routing key after a dot.
    pub key_suffix: Option<String>,
}

impl Job {
    /// A job with this id and an empty body.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..Self::default() }
    }

    /// `count` jobs with the ids `STEM-0` and on.
    pub fn many(stem: &str, count: usize) -> Vec<Self> {
        (0..count).map(|n| Self::new(format!("{stem}-{n}"))).collect()
    }

    /// Sets this body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Adds this header of text.
    #[must_use]
    pub fn header(self, name: &str, value: &str) -> Self {
        self.header_value(name, AMQPValue::LongString(value.into()))
    }

    /// Adds this header of any type.
    #[must_use]
    pub fn header_value(mut self, name: &str, value: AMQPValue) -> Self {
        self.headers.push((name.to_owned(), value));
        self
    }

    /// Sets this priority.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.properties = self.properties.with_priority(priority);
        self
    }

    fn properties(&self) -> BasicProperties {
        let mut properties = self.properties.clone().with_delivery_mode(2);
        if let Some(id) = &self.id {
            properties = properties.with_message_id(id.as_str().into());
        }
        if !self.headers.is_empty() {
            let mut table = FieldTable::default();
            for (name, value) in &self.headers {
                table.insert(name.as_str().into(), value.clone());
            }
            properties = properties.with_headers(table);
        }
        properties
    }
}

/// Publishes to the exchange `PREFIX.jobs` with the downstream's name as the key, and returns once
/// the broker has confirmed every message.
pub async fn publish(url: &str, prefix: &str, downstream: &str, jobs: Vec<Job>) {
    publish_to(url, &format!("{prefix}.jobs"), downstream, jobs).await;
}

/// Publishes jobs with the ids `STEM-0` and on while `change` runs, so that the API is sent jobs all the time; returns how
/// many they are.
pub async fn flow(
    url: &str,
    prefix: &str,
    downstream: &str,
    stem: &str,
    api: &Api,
    change: impl Future,
) -> usize {
    const BATCH: usize = 50;
    let (mut change, before, mut count) = (pin!(change), api.count(), 0);
    loop {
        let mut jobs = Job::many(stem, count + BATCH);
        publish(url, prefix, downstream, jobs.split_off(count)).await;
        count += BATCH;
        tokio::select! {
            _ = &mut change => return count,
            is_low = api.reaches(before + count - BATCH / 2, LONG) => assert!(is_low, "jobs do not flow"),
        }
    }
}

/// As [`publish`], to any exchange.
pub async fn publish_to(url: &str, exchange: &str, key: &str, jobs: Vec<Job>) {
    publish_all(url, exchange, jobs.into_iter().map(|job| (key.to_owned(), job)).collect()).await;
}

/// As [`publish_to`], each job with its own key.
pub async fn publish_all(url: &str, exchange: &str, jobs: Vec<(String, Job)>) {
    let (url, exchange) = (url.to_owned(), exchange.to_owned());
    apart(async move {
        let (connection, channel) = open(&url).await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        // Confirms are awaited in batches: never one by one, never unbounded.
        for batch in jobs.chunks(500) {
            let mut confirms = Vec::with_capacity(batch.len());
            for (key, job) in batch {
                let mut key = key.clone();
                if let Some(suffix) = &job.key_suffix {
                    write!(key, ".{suffix}").unwrap();
                }
                let sent = channel.basic_publish(
                    exchange.as_str().into(),
                    key.into(),
                    BasicPublishOptions::default(),
                    &job.body,
                    job.properties(),
                );
                confirms.push(sent.await.unwrap());
            }
            for confirm in confirms {
                assert!(confirm.await.unwrap().is_ack(), "the broker refused a message");
            }
        }
        connection.close(200, "done".into()).await.unwrap();
    })
    .await;
}

/// How many messages are ready in a queue; `None` when there is no such queue.
///
/// The connection is kept for the next call, since tests poll.
pub async fn depth(url: &str, queue: &str) -> Option<u32> {
    counts(url, queue).await.map(|(messages, _)| messages)
}

/// The ready messages of a queue and its consumers, if it is there.
pub async fn counts(url: &str, queue: &str) -> Option<(u32, u32)> {
    let (url, queue) = (url.to_owned(), queue.to_owned());
    apart(async move {
        let looker = LOOKERS.lock().unwrap().entry(url.clone()).or_default().clone();
        let mut kept = looker.lock().await;
        if !kept.as_ref().is_some_and(|(connection, _)| connection.status().connected()) {
            *kept = Some(open(&url).await);
        }
        let (connection, channel) = kept.as_mut()?;
        if !channel.status().connected() {
            match connection.create_channel().await {
                Ok(another) => *channel = another,
                // lapin uses the number of a channel again, but keeps the error that the broker closed it with.
                Err(_) => (*connection, *channel) = open(&url).await,
            }
        }
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        // A queue that is missing costs the channel.
        let found = channel.queue_declare(queue.as_str().into(), passive, FieldTable::default()).await;
        found.ok().map(|queue| (queue.message_count(), queue.consumer_count()))
    })
    .await
}

/// The connections and channels that [`depth`] keeps, by URL.
static LOOKERS: LazyLock<Mutex<BTreeMap<String, Looker>>> = LazyLock::new(Mutex::default);

type Looker = Arc<tokio::sync::Mutex<Option<(Connection, Channel)>>>;

/// Declares a durable quorum queue with no other arguments.
pub async fn declare_quorum(url: &str, queue: &str) {
    let (url, queue) = (url.to_owned(), queue.to_owned());
    apart(async move {
        let (connection, channel) = open(&url).await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.as_str().into(), options, arguments).await.unwrap();
        connection.close(200, "done".into()).await.unwrap();
    })
    .await;
}

/// A message that was taken out of a queue.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The routing key that it came with.
    pub routing_key: String,
    /// The body.
    pub body: Vec<u8>,
    /// Every property.
    pub properties: BasicProperties,
    /// The headers that are text or numbers, as text.
    pub headers: BTreeMap<String, String>,
    /// Whether it was delivered before.
    pub redelivered: bool,
}

impl Taken {
    /// The `message_id`; "" when absent.
    pub fn id(&self) -> &str {
        self.properties.message_id().as_ref().map_or("", |id| id.as_str())
    }
}

/// Takes every message that is ready out of a queue.
pub async fn drain(url: &str, queue: &str) -> Vec<Taken> {
    let (url, queue) = (url.to_owned(), queue.to_owned());
    apart(async move {
        let (connection, channel) = open(&url).await;
        let mut taken = Vec::new();
        while let Some(message) =
            channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap()
        {
            let delivery = message.delivery;
            delivery.ack(BasicAckOptions::default()).await.unwrap();
            taken.push(Taken {
                routing_key: delivery.routing_key.to_string(),
                body: delivery.data,
                headers: texts(&delivery.properties),
                properties: delivery.properties,
                redelivered: delivery.redelivered,
            });
        }
        connection.close(200, "done".into()).await.unwrap();
        taken
    })
    .await
}

/// A connection with one channel, on the support runtime if called there.
pub async fn open(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.expect("the broker");
    let channel = connection.create_channel().await.expect("a channel");
    (connection, channel)
}

fn texts(properties: &BasicProperties) -> BTreeMap<String, String> {
    let Some(table) = properties.headers() else { return BTreeMap::new() };
    table.inner().iter().filter_map(|(name, value)| Some((name.to_string(), text(value)?))).collect()
}

fn text(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::Boolean(yes) => yes.to_string(),
        AMQPValue::ShortShortInt(n) => n.to_string(),
        AMQPValue::ShortShortUInt(n) => n.to_string(),
        AMQPValue::ShortInt(n) => n.to_string(),
        AMQPValue::ShortUInt(n) => n.to_string(),
        AMQPValue::LongInt(n) => n.to_string(),
        AMQPValue::LongUInt(n) => n.to_string(),
        AMQPValue::LongLongInt(n) => n.to_string(),
        AMQPValue::Timestamp(n) => n.to_string(),
        AMQPValue::Float(x) => x.to_string(),
        AMQPValue::Double(x) => x.to_string(),
        _ => return None,
    })
}
