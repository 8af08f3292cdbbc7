//! Limits with costs of their own: an API by requests and tokens.

use super::parts::at_most;
use super::*;
use crate::dispatch::Options;
use crate::job::{CostRule, CostSource, MaxCost};

const MINUTE: Duration = Duration::from_secs(60);

/// 500 requests and 30 000 tokens in a minute that begins with the first job, and a pace of 20/s.
fn bench() -> Bench {
    let mut bench = Bench::new("20/s", QUICK);
    let window = |name: &str, count| Limit::first_hit_window(name, count, MINUTE).unwrap();
    let pace = bench.options.limits.iter().next().cloned();
    let all = pace.into_iter().chain([window("requests", 500), window("tokens", 30_000)]);
    bench.options.limits = LimitSet::new(all.collect()).unwrap();
    bench.options.rules.max_cost = at_most(10);
    let rule = |limit: &str, source, most| CostRule {
        limit: limit.into(),
        plan: None,
        source,
        default: Some(100),
        max_cost: at_most(most),
    };
    let tokens = CostSource::Header("tokens".to_owned());
    bench.options.rules.costs =
        vec![rule("requests", CostSource::Fixed(1), 500), rule("tokens", tokens, 30_000)];
    bench
}

fn tokens(id: &str, tokens: i128) -> Message {
    Message { headers: vec![("tokens".to_owned(), Value::Integer(tokens))], ..message(id) }
}

#[tokio::test(start_paused = true)]
async fn twenty_jobs_of_1500_tokens_go_in_a_minute_and_none_is_dead() {
    let mut bench = bench();
    (0..40).for_each(|job| bench.publish(tokens(&job.to_string(), 1500)));
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    let within = |from, to| released.iter().filter(|at| (from..to).contains(*at)).count();
    assert_eq!((within(0, 60_000), within(60_000, 62_000)), (20, 20), "{released:?}");
    assert!(
        bench.ledger.all().iter().all(|(_, how)| matches!(how, Settled::Acked(_))),
        "{:?}",
        bench.ledger.all()
    );
    let pace = released.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(pace.min() >= Some(50), "the pace counts each job once: {released:?}");
}

#[tokio::test(start_paused = true)]
async fn jobs_of_few_tokens_and_of_many_share_what_there_is() {
    let mut bench = bench();
    for job in 0..10 {
        bench.publish(tokens(&format!("many-{job}"), 2900));
        bench.publish(message(&format!("few-{job}")));
    }
    bench.publish(tokens("next", 101));
    bench.publish(tokens("dead", 30_001));
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert_eq!(released.len(), 21, "10 x 2900 + 10 x 100 are 30 000 tokens");
    assert!(released[19] < 2000 && (60_000..62_000).contains(&released[20]), "{released:?}");
    let dead = bench.ledger.all().into_iter().filter(|(_, how)| !matches!(how, Settled::Acked(_))).count();
    assert_eq!(dead, 1);
}

/// A bucket of this many tokens, and the rules that may go with it.
fn bucket(bench: &Bench, capacity: u32, costs: Vec<CostRule>) -> Options {
    let mut options = bench.options.clone();
    let bucket = Limit::token_bucket("tokens", "1/s".parse().unwrap(), capacity).unwrap();
    options.limits = LimitSet::new(vec![bucket]).unwrap();
    options.rules.max_cost = at_most(if costs.is_empty() { capacity } else { u32::MAX });
    options.rules.costs = costs;
    options
}

fn by_header(most: u32) -> CostRule {
    CostRule {
        limit: "tokens".into(),
        plan: None,
        source: CostSource::Header("tokens".to_owned()),
        default: Some(1),
        max_cost: MaxCost { given: None, ..at_most(most) },
    }
}

/// Jobs that cost 800 wait while the limit comes to hold 100: they are dead, and the job behind them goes.
async fn what_no_limit_holds_any_more_is_dead(before: Vec<CostRule>, after: Vec<CostRule>, costly: Message) {
    let mut bench = Bench::new("1/s", QUICK);
    bench.options = bucket(&bench, 1000, before);
    bench.publish(Message { message_id: Some("first".to_owned()), ..costly.clone() });
    for job in 0..3 {
        bench.publish(Message { message_id: Some(format!("costly{job}")), ..costly.clone() });
    }
    bench.publish(message("plain"));
    let done = bench.start();
    bench.sink.arrived(1).await;
    bench.control().reload(bucket(&bench, 100, after));
    bench.ledger.count(5).await;
    for job in 0..3 {
        assert_eq!(bench.ledger.letter(&format!("costly{job}")).reason, Reason::CostTooLarge);
    }
    bench.sink.arrived(2).await;
    bench.end();
    assert_eq!(done.await.unwrap().unfinished, 0);
}

#[tokio::test(start_paused = true)]
async fn a_cost_whose_rule_is_gone_blocks_no_other_job() {
    what_no_limit_holds_any_more_is_dead(vec![by_header(1000)], Vec::new(), tokens("", 800)).await;
}

#[tokio::test(start_paused = true)]
async fn a_cost_from_before_the_rule_blocks_no_other_job() {
    let cost = ("paced-cost".to_owned(), Value::Integer(800));
    let costly = Message { headers: vec![cost], ..message("") };
    what_no_limit_holds_any_more_is_dead(Vec::new(), vec![by_header(100)], costly).await;
}
