//! How long messages may be unacked, as far as the broker lets a consumer say so.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_of_quorum_queues_have_a_timeout_of_their_own_also_if_others_declared_them() {
    let rabbit = shared().await;
    let (_connection, channel) = open(&rabbit.url()).await;
    support::publish::declare_quorum(&rabbit.url(), "timeouts.theirs").await;
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare("timeouts.classic".into(), durable, Default::default()).await.unwrap();
    let mut options = options(rabbit, "timeouts");
    let own = options.downstreams[0].clone();
    for (name, queue) in [("theirs", "timeouts.theirs"), ("classic", "timeouts.classic")] {
        options.downstreams.push(Downstream {
            name: name.to_owned(),
            queue: Some(queue.to_owned()),
            ..own.clone()
        });
    }
    for declare in [true, false] {
        options.declare = declare;
        let amqp = Amqp::start(options.clone());
        let mut sources = ["billing", "theirs", "classic"].map(|name| amqp.source(name).unwrap());
        within("the consumers", amqp.ready()).await;
        let mut consumers = String::new();
        until("the consumers of all queues", async || {
            consumers = rabbit
                .eval(
                    "[{Queue, lists:keymember(<<\"x-consumer-timeout\">>, 1, proplists:get_value(arguments, Consumer))} \
                     || Consumer <- rabbit_amqqueue:consumers_all(<<\"/\">>), \
                     {resource, _, queue, <<\"timeouts.\", Queue/binary>>} \
                     <- [proplists:get_value(queue_name, Consumer)]]",
                )
                .await;
            consumers.matches("{<<").count() == 6
        })
        .await;
        for queue in ["jobs.billing", "home.billing", "theirs", "home.theirs", "home.classic"] {
            let has_one = format!("{{<<\"{queue}\">>,true}}");
            assert!(consumers.contains(&has_one), "declare = {declare}, {queue}: {consumers}");
        }
        // A broker that knows the time-out refuses it for this one, which is consumed without.
        let body = Bytes::from_static(b"classic");
        amqp.publisher().publish("", "timeouts.classic", BasicProperties::default(), &body).await.unwrap();
        let delivery = next(&mut sources[2]).await;
        assert_eq!(delivery.message.content.body, body);
        ack(delivery);
        assert!(amqp.shutdown(LONG).await);
    }
}
