use lapin::options::ExchangeDeclareOptions;
use paced::amqp::{AMQPValue, Error, FieldTable, Warning, check_online};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_changes_nothing() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "check");
    options.downstreams.push(Downstream {
        name: "theirs".into(),
        queue: Some("check.theirs".into()),
        prefetch: 10,
        max_length: None,
        prefetch_bytes: 64 << 20,
    });
    // Queues that `run` would declare may be missing, an existing queue may not.
    let findings = within("the check", check_online(&options)).await;
    assert_eq!(findings.errors, [Error::NotFound { what: "queue check.theirs".into() }]);
    assert_eq!(findings.warnings, [], "of what is not there nothing can be known");
    assert_eq!(findings.server.unwrap().to_string(), format!("RabbitMQ {}", rabbit.version().await));
    options.downstreams.pop();
    assert_eq!(within("the check", check_online(&options)).await.errors, []);

    options.declare = false;
    let errors = within("the check", check_online(&options)).await.errors;
    let missing = [
        "exchange check.jobs",
        "exchange check.unroutable",
        "queue check.unroutable",
        "queue check.jobs.billing",
        "queue check.dead.billing",
    ];
    assert_eq!(errors, missing.map(|what| Error::NotFound { what: what.into() }), "nothing was created");

    // Queues declared by one user are accepted by another that may not declare.
    options.declare = true;
    let amqp = Amqp::publishing(options.clone()).await.unwrap();
    assert!(amqp.shutdown(Duration::from_secs(30)).await);
    options.declare = false;
    assert_eq!(within("the check", check_online(&options)).await.errors, []);
    let (amqp, _source) = consuming(options).await;
    assert!(amqp.shutdown(Duration::from_secs(30)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_differs_is_used_as_it_is_and_an_exchange_is_not() {
    let rabbit = shared().await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(7));
    let declare = QueueDeclareOptions::durable();
    channel.queue_declare("differs.dead.billing".into(), declare, arguments).await.unwrap();
    let options = options(rabbit, "differs");
    let amqp = Amqp::publishing(options.clone()).await.unwrap();
    assert!(amqp.shutdown(LONG).await);
    let findings = within("the check", check_online(&options)).await;
    let [Warning::OtherArguments { queue, detail, way }] = &findings.warnings[..] else {
        panic!("{findings:?}")
    };
    assert_eq!(queue, "differs.dead.billing");
    assert!(detail.contains("x-max-length") || detail.contains("x-delivery-limit"), "{detail}");
    assert!(way.contains(r#"'^differs\.dead\.billing$' '{"delivery-limit":1000000}'"#), "{way}");

    channel.queue_delete("differs.dead.billing".into(), Default::default()).await.unwrap();
    channel.exchange_delete("differs.jobs".into(), Default::default()).await.unwrap();
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let kind = lapin::ExchangeKind::Direct;
    channel.exchange_declare("differs.jobs".into(), kind, durable, FieldTable::default()).await.unwrap();
    let error = Amqp::publishing(options).await.unwrap_err();
    let Error::Inequivalent { what, detail } = &error else { panic!("{error}") };
    assert_eq!(what, "exchange differs.jobs");
    assert!(detail.contains("type"), "{detail}");
    assert!(!error.is_unreachable() && !error.is_unauthorized());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_login_is_distinguished_from_a_missing_broker() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "login");
    let elsewhere = format!("{}/none", url(rabbit, "guest:guest"));
    for wrong in [url(rabbit, "guest:s3cret"), elsewhere] {
        options.address = wrong.parse().unwrap();
        let errors = within("the refusal", check_online(&options)).await.errors;
        assert!(errors[0].is_unauthorized(), "{errors:?}");
        assert!(!errors[0].to_string().contains("s3cret"), "{errors:?}");
    }
    options.address = "amqp://127.0.0.1:1".parse().unwrap();
    let errors = within("the refusal", check_online(&options)).await.errors;
    assert!(errors[0].is_unreachable() && !errors[0].is_unauthorized(), "{errors:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_permissions_learns_which_are_missing() {
    let rabbit = shared().await;
    rabbit.add_user("limited", "pw", ["^$", ".*", ".*"]).await;
    let mut options = options(rabbit, "limited");
    options.address = url(rabbit, "limited:pw").parse().unwrap();
    let error = Amqp::publishing(options.clone()).await.unwrap_err();
    let Error::Refused { what, .. } = &error else { panic!("{error}") };
    assert_eq!(what, "exchange limited.unroutable");
    assert!(error.is_unauthorized());
    // Without the permission to declare, existing queues can still be used.
    let mut theirs = options.clone();
    theirs.address = url(rabbit, "guest:guest").parse().unwrap();
    assert!(Amqp::publishing(theirs).await.unwrap().shutdown(Duration::from_secs(30)).await);
    options.declare = false;
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, ["x".to_owned()]).await;
    ack(next(&mut source).await);
    assert!(amqp.shutdown(Duration::from_secs(30)).await);
}
