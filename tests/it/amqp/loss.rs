use std::sync::Arc;

use tokio::io::AsyncReadExt;

use super::*;
use crate::support::proxy::Proxy;
use crate::support::servers::free_port;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_queue_is_declared_and_consumed_again() {
    let rabbit = shared().await;
    let options = options(rabbit, "deleted");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, ["old".to_owned()]).await;
    let old = next(&mut source).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    channel.queue_delete("deleted.jobs.billing".into(), Default::default()).await.unwrap();
    until("the loss to be seen", async || !old.ticket.is_live()).await;
    within("the consumer", amqp.ready()).await;
    publish(&amqp, &options, ["new".to_owned()]).await;
    let new = next(&mut source).await;
    assert_eq!(&new.message.content.body[..], b"new");
    ack(new);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_downstream_holds_up_no_other() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "partial");
    options.downstreams.push(Downstream {
        name: "absent".into(),
        queue: Some("partial.theirs".into()),
        prefetch: 10,
        max_length: None,
        prefetch_bytes: 64 << 20,
    });
    let amqp = Amqp::start(options.clone());
    let mut source = amqp.source("billing").unwrap();
    let mut absent = amqp.source("absent").unwrap();
    assert!(amqp.source("absent").is_err(), "one source each");
    until("the other consumer", async || amqp.is_attached("billing")).await;
    publish(&amqp, &options, ["x".to_owned()]).await;
    ack(next(&mut source).await);
    assert!(!amqp.is_ready());
    // The queue is created late, and still consumed.
    let (_connection, channel) = open(&rabbit.url()).await;
    let declare = QueueDeclareOptions::durable();
    channel.queue_declare("partial.theirs".into(), declare, Default::default()).await.unwrap();
    within("the consumer", amqp.ready()).await;
    let key = amqp.publisher();
    key.publish("", "partial.theirs", BasicProperties::default(), &Bytes::from_static(b"y")).await.unwrap();
    let delivery = next(&mut absent).await;
    assert_eq!(delivery.message.routing_key, "partial.theirs");
    ack(delivery);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

/// Every confirmed job is delivered, and none is lost, for any loss of the connections.
#[tokio::test]
async fn losses_are_survived() {
    let node = NodeForFaults::lock().await;
    let rabbit: &Rabbit = &node;
    let options = options(rabbit, "loss");
    let (amqp, mut source) = consuming(options.clone()).await;

    // The broker closes every connection.
    publish(&amqp, &options, numbered(0..5)).await;
    let held = take(&mut source, 5).await;
    assert!(held.iter().all(|delivery| delivery.ticket.is_live()));
    rabbit.close_connections("/").await;
    until("the loss to be seen", async || held.iter().all(|delivery| !delivery.ticket.is_live())).await;
    // Settling a message that is not live any more does nothing.
    held.into_iter().for_each(ack);
    let again = take(&mut source, 5).await;
    // The window has grown, so several consumers had the messages; those that they lose come back in any order.
    let mut all = bodies(&again);
    all.sort_unstable();
    assert_eq!(all, numbered(0..5));
    assert!(again.iter().all(|delivery| delivery.ticket.is_live()));

    // The node stops, and starts again on the same port.
    rabbit.stop().await;
    until("the loss to be seen", async || again.iter().all(|delivery| !delivery.ticket.is_live())).await;
    assert!(!amqp.is_ready());
    let publisher = amqp.publisher();
    let late = {
        let properties = BasicProperties::default().with_delivery_mode(2);
        let exchange = options.jobs_exchange();
        tokio::spawn(async move {
            let body = Bytes::from_static(b"5");
            loop {
                match publisher.publish(&exchange, "billing", properties.clone(), &body).await {
                    Ok(()) => return,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        })
    };
    rabbit.start().await;
    within("the consumer", amqp.ready()).await;
    within("the late publish", late).await.unwrap();
    let mut all = bodies(&take(&mut source, 6).await);
    all.sort_unstable();
    assert_eq!(all, numbered(0..6));

    // The node hangs: its sockets stay open, and only missing heartbeats show it. Closing does not hang either. With
    // the sixteenth message, the last one, the window grows, which does not delay the end.
    rabbit.freeze();
    // Only time-outs can happen now, so their seconds may pass at once.
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    source.close().await;
    while within("the end", source.next()).await.is_some() {}
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    assert!(!within("the shutdown", amqp.shutdown(Duration::from_secs(5))).await, "nothing was taken in");
    tokio::time::resume();
    rabbit.thaw();
}

/// Jobs are consumed once the broker is up, however late that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_may_come_late() {
    let port = free_port();
    let mut options = options(shared().await, "late");
    options.address = format!("amqp://guest:guest@127.0.0.1:{port}").parse().unwrap();
    let amqp = Arc::new(Amqp::start(options.clone()));
    let mut source = amqp.source("billing").unwrap();
    let refused = Amqp::publishing(options.clone()).await.unwrap_err();
    assert!(refused.is_unreachable(), "{refused}");
    assert!(!refused.to_string().contains("guest"), "{refused}");
    let _broker = Proxy::start_on(port, shared().await.port(), Duration::ZERO).unwrap();
    within("the consumer", amqp.ready()).await;
    publish(&amqp, &options, ["x".to_owned()]).await;
    ack(next(&mut source).await);
}

#[tokio::test]
async fn a_peer_that_never_answers_is_given_up() {
    // The server accepts connections, and sends nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let options = Options {
        address: format!("amqp://127.0.0.1:{port}").parse().unwrap(),
        prefix: "silent".into(),
        declare: true,
        window_bytes: 256 << 20,
        rung_unit: paced::amqp::RUNG_UNIT,
        haste: 1,
        downstreams: Vec::new(),
    };
    let attempt = tokio::spawn(Amqp::publishing(options));
    let (mut peer, _) = within("a connection", silent.accept()).await.unwrap();
    let mut greeting = [0; 8];
    within("the greeting", peer.read_exact(&mut greeting)).await.unwrap();
    assert!(greeting.starts_with(b"AMQP"), "{greeting:?}");
    // Only the time-out can happen now, so its seconds may pass at once.
    tokio::time::pause();
    let error = within("the time-out", attempt).await.unwrap().unwrap_err();
    tokio::time::resume();
    assert!(error.is_unreachable(), "{error}");
    // The socket is closed as well: otherwise a thread would wait on it for ever.
    let mut rest = Vec::new();
    within("the end", peer.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"", "nothing more was sent");
}

/// A broker that is slow to stop the consumer still takes the acks of the drain.
#[tokio::test]
async fn what_is_acked_after_a_slow_cancel_is_not_delivered_again() {
    let rabbit = shared().await;
    let proxy = Proxy::start(rabbit.port(), Duration::ZERO).unwrap();
    let mut options = options(rabbit, "slow");
    options.address = format!("amqp://guest:guest@127.0.0.1:{}", proxy.port()).parse().unwrap();
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..5)).await;
    let held = take(&mut source, 5).await;
    proxy.silence();
    // Only the time-out can happen now.
    tokio::time::pause();
    source.close().await;
    assert!(within("the end", source.next()).await.is_none());
    tokio::time::resume();
    proxy.restore();
    assert!(held.iter().all(|delivery| delivery.ticket.is_live()), "the drain continues");
    held.into_iter().for_each(ack);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    let (_connection, channel) = open(&rabbit.url()).await;
    assert_eq!(depth(&channel, "slow.jobs.billing").await, 0);
}
