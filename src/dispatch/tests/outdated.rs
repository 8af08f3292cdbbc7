//! Credentials that are refused because they were replaced, or should be: that says nothing about the jobs.

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use super::*;
use crate::sink::Outcome;

fn outdated(replaced: bool) -> Outcome {
    let detail = "the downstream answered 401 Unauthorized".to_owned();
    Outcome::Outdated {
        detail,
        status: 401,
        replaced,
        is: crate::sink::Meaning::Unauthorized,
        response: None,
    }
}

fn answer(bench: &Bench, id: &str, times: usize, replaced: bool) {
    (0..times).for_each(|_| bench.sink.answer(id, outdated(replaced)));
}

fn dead_letters(bench: &Bench) -> usize {
    bench.ledger.all().iter().filter(|(_, how)| matches!(how, Settled::Dead(_))).count()
}

fn times(bench: &Bench, id: &str) -> usize {
    bench.sink.ids().iter().filter(|sent| *sent == id).count()
}

#[tokio::test(start_paused = true)]
async fn jobs_that_meet_credentials_which_were_replaced_go_again_at_new_slots_and_nothing_stops() {
    let mut bench = Bench::new("100/s", QUICK);
    for id in (0..40).step_by(4) {
        answer(&bench, &id.to_string(), 2, true);
    }
    bench.publish_many(0..40);
    let (start, done) = (Instant::now(), bench.start());
    bench.end();
    done.await.unwrap();
    assert_eq!((dead_letters(&bench), bench.pauses()), (0, vec![]));
    for id in 0..40 {
        let sent = if id % 4 == 0 { 3 } else { 1 };
        assert_eq!(times(&bench, &id.to_string()), sent, "{id}");
        assert!(
            matches!(&bench.ledger.of(&id.to_string())[..], [Settled::Acked(report)] if report.attempts as usize == sent)
        );
    }
    // 60 requests at the pace; the repeated ones waited for nothing else.
    let last = bench.sink.millis(start).pop().unwrap();
    assert!((580..1200).contains(&last), "{last} ms");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_refused_with_each_new_secret_is_dead_in_the_end() {
    let mut bench = Bench::new("100/s", QUICK);
    answer(&bench, "13", 20, true);
    bench.publish_many(0..1000);
    let done = bench.start();
    bench.ledger.count(1000).await;
    let letter = bench.ledger.letter("13");
    assert_eq!((letter.reason, letter.report.status), (Reason::Status, Some(401)));
    assert_eq!((times(&bench, "13"), dead_letters(&bench), bench.pauses()), (5, 1, vec![]));
    bench.end();
    done.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_job_is_dead_because_there_are_no_new_credentials() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.tickets.may_be_given_back = false;
    // One among others that succeed, more often than it may be tried.
    answer(&bench, "3", 10, false);
    bench.publish_many(0..500);
    let _running = bench.start();
    bench.ledger.count(499).await;
    assert_eq!((dead_letters(&bench), bench.ledger.of("3").len()), (0, 0));
    bench.ledger.count(500).await;
    assert!(matches!(&bench.ledger.of("3")[..], [Settled::Acked(_)]));

    // All of them: the replica takes no jobs until one succeeds.
    for id in 500..520 {
        answer(&bench, &id.to_string(), 3, false);
    }
    bench.publish_many(500..520);
    bench.ledger.count(520).await;
    assert_eq!((dead_letters(&bench), bench.pauses().first()), (0, Some(&true)));
    assert!(bench.sink.secrets.reads.load(Ordering::SeqCst) > 0, "they are read again");
}

#[tokio::test(start_paused = true)]
async fn what_the_token_server_failed_at_does_not_count_once_there_is_a_new_token() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.tickets.may_be_given_back = false;
    // While there is no new token, others that the API accepts come in between; then there are new ones, also refused at
    // first.
    answer(&bench, "late", 4, false);
    answer(&bench, "late", 3, true);
    bench.publish(message("late"));
    let _running = bench.start();
    for other in 0..4 {
        bench.sink.arrived(2 * other + 1).await;
        bench.publish_many(other..other + 1);
        bench.ledger.count(other + 1).await;
    }
    bench.ledger.count(5).await;
    assert!(matches!(&bench.ledger.of("late")[..], [Settled::Acked(_)]), "{:?}", bench.ledger);
    assert_eq!((times(&bench, "late"), dead_letters(&bench)), (8, 0));
}

#[tokio::test(start_paused = true)]
async fn a_long_outage_of_the_token_server_does_not_wear_a_job_out() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.tickets.may_be_given_back = false;
    answer(&bench, "0", 400, false);
    // Then it is refused like any other that may be at fault: that alone counts.
    (0..3).for_each(|_| bench.sink.answer("0", dead(401)));
    bench.publish_many(0..1);
    let _running = bench.start();
    let begun = Instant::now();
    bench.ledger.count(1).await;
    assert!(begun.elapsed() > Duration::from_secs(16 * 60), "{:?}", begun.elapsed());
    assert!(matches!(&bench.ledger.of("0")[..], [Settled::Acked(_)]), "{:?}", bench.ledger);
    assert_eq!((times(&bench, "0"), dead_letters(&bench)), (404, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_with_each_new_secret_is_judged_by_its_status_as_the_policy_says() {
    // The statuses that are tried again, how often each job is sent, and why it is dead.
    let cases = [("503", 4, Reason::Status), ("401", 3 + 5, Reason::AttemptsExhausted)];
    for (statuses, sent, reason) in cases {
        let mut bench = Bench::new("100/s", QUICK);
        bench.options.retry.answers.on_unauthorized = crate::sink::Statuses::NONE;
        bench.options.retry.answers.on = statuses.parse().unwrap();
        bench.options.retry.max_attempts = 5;
        let ids = ["a", "b", "c", "d"];
        for id in ids {
            answer(&bench, id, 20, true);
            bench.publish(message(id));
        }
        let _running = bench.start();
        bench.ledger.count(ids.len()).await;
        for id in ids {
            let letter = bench.ledger.letter(id);
            assert_eq!((letter.reason, letter.report.status), (reason, Some(401)), "{statuses}");
            assert_eq!(times(&bench, id), sent, "{statuses}");
        }
        assert_eq!(
            bench.pauses(),
            Vec::<bool>::new(),
            "{statuses}: the operator said that no 401 is about the credentials"
        );
    }
}

/// The fields `error` of what is logged as an error.
#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Errors {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == Level::ERROR {
            event.record(&mut self.clone());
        }
    }
}

impl Visit for Errors {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "error" {
            self.0.lock().unwrap().push(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

#[tokio::test(start_paused = true)]
async fn the_log_tells_once_why_the_secrets_cannot_be_read_until_that_changes() {
    const MINUTE: Duration = Duration::from_secs(60);
    // With a second subscriber, no other thread decides for this one whether an event is wanted.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let errors = Errors::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(errors.clone()));
    let mut bench = Bench::new("100/s", QUICK);
    bench.tickets.may_be_given_back = false;
    bench.sink.secrets.accepts.store(false, Ordering::SeqCst);
    bench.publish_many(0..20);
    let _running = bench.start();
    for (error, lines) in [(Some("one"), 1), (Some("two"), 2), (None, 2), (Some("two"), 3)] {
        let before = bench.sink.secrets.reads.load(Ordering::SeqCst);
        *bench.sink.secrets.error.lock().unwrap() = error.map(str::to_owned);
        tokio::time::sleep(MINUTE).await;
        let trials = bench.sink.secrets.reads.load(Ordering::SeqCst) - before;
        assert!(trials >= 10, "{trials} in a minute");
        assert_eq!(errors.0.lock().unwrap().len(), lines, "{:?}", errors.0);
    }
    assert_eq!(*errors.0.lock().unwrap(), ["one", "two", "two"]);
}
