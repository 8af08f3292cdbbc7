//! The loops that paced is compared with, as a process of their own.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use redis::IntoConnectionInfo as _;
use redis::aio::MultiplexedConnection;
use tokio::sync::Semaphore;

use super::http::Sender;

/// A prefetch that a careful user sets: enough for the broker to be always ahead.
const PREFETCH: u16 = 1000;

/// The arguments with which the bench starts itself as a loop.
#[derive(Debug, Parser)]
pub struct Options {
    #[arg(long)]
    amqp: String,
    #[arg(long)]
    queue: String,
    #[arg(long)]
    url: String,
    #[arg(long)]
    in_flight: usize,
    /// With one script call per job
    #[arg(long, requires = "interval")]
    redis: Option<String>,
    /// Between two slots: µs
    #[arg(long)]
    interval: Option<u64>,
}

/// Consumes until it is killed.
pub fn main(options: &Options) -> ExitCode {
    // The runtime is the same as paced's.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(consume(options)),
        Err(error) => Err(error.to_string()),
    };
    let why = ended.err().unwrap_or_else(|| "the consumer ended".to_owned());
    eprintln!("loop: {why}");
    ExitCode::FAILURE
}

async fn consume(options: &Options) -> Result<(), String> {
    let sender = Sender::new(&options.url)?;
    let limit = match &options.redis {
        Some(url) => Some(Limit::connect(url, &options.queue, options.interval.unwrap_or(1)).await?),
        None => None,
    };
    let places = Arc::new(Semaphore::new(options.in_flight));
    let text = |error: lapin::Error| error.to_string();
    let connection =
        Connection::connect(&options.amqp, ConnectionProperties::default()).await.map_err(text)?;
    let channel = connection.create_channel().await.map_err(text)?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.map_err(text)?;
    let (queue, consume) = (options.queue.as_str().into(), BasicConsumeOptions::default());
    let mut jobs =
        channel.basic_consume(queue, "".into(), consume, FieldTable::default()).await.map_err(text)?;
    println!("ready");

    while let Some(job) = jobs.next().await {
        let job = job.map_err(text)?;
        let place = Arc::clone(&places).acquire_owned().await.map_err(|error| error.to_string())?;
        let (sender, limit) = (sender.clone(), limit.clone());
        tokio::spawn(async move {
            if let Some(limit) = limit {
                limit.wait().await;
            }
            release(&sender, job, place).await;
        });
    }
    Ok(())
}

async fn release(sender: &Sender, mut job: Delivery, place: tokio::sync::OwnedSemaphorePermit) {
    let body = std::mem::take(&mut job.data);
    let id = job.properties.message_id().as_ref().map_or("", |id| id.as_str());
    let sent = sender.send(id, body).await;
    drop(place);
    // An error means that the channel is closed, and then the job is delivered again.
    let _ = if sent {
        job.ack(BasicAckOptions::default()).await
    } else {
        job.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await
    };
}

/// The limit of about twenty lines.
#[derive(Clone)]
struct Limit {
    connection: MultiplexedConnection,
    script: Arc<redis::Script>,
    key: String,
    interval: u64,
}

impl Limit {
    async fn connect(url: &str, key: &str, interval: u64) -> Result<Self, String> {
        let text = |error: redis::RedisError| error.to_string();
        let info = url.into_connection_info().map_err(text)?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = redis::Client::open(info.set_tcp_settings(tcp)).map_err(text)?;
        let connection = client.get_multiplexed_async_connection().await.map_err(text)?;
        let script = Arc::new(redis::Script::new(include_str!("take.lua")));
        Ok(Self { connection, script, key: key.to_owned(), interval })
    }

    async fn wait(mut self) {
        let mut call = self.script.key(self.key.as_str());
        call.arg(self.interval);
        let wait: Result<u64, _> = call.invoke_async(&mut self.connection).await;
        match wait {
            Ok(wait) => tokio::time::sleep(Duration::from_micros(wait)).await,
            // The loop is for comparison, on a server that is up; the error is only shown.
            Err(error) => eprintln!("loop: no slot: {error}"),
        }
    }
}
