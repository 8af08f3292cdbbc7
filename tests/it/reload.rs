//! SIGHUP: the real daemon reads its configuration again.

use serde_json::Value;

use crate::support::api::{Answer, Gate};
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::site::{Site, compare};
use crate::support::{LONG, eventually};

/// The site's configuration, with edits.
fn edited(site: &Site, edits: &[(&str, &str)]) -> String {
    edits.iter().fold(site.config(), |text, (old, new)| {
        assert!(text.contains(old), "{old}");
        text.replacen(old, new, 1)
    })
}

/// Makes the daemon read this configuration, and waits for the log line that ends the reload.
async fn reload(paced: &Paced, config: &str, end: &str) -> Vec<Value> {
    let before = paced.log().len();
    std::fs::write(paced.config_file(), config).unwrap();
    paced.hangup();
    eventually(end, LONG, || paced.log()[before..].iter().any(|line| line.contains(end))).await;
    paced.log()[before..].iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const DONE: &str = "configuration reloaded";

/// The text of a field of each line that has it.
fn all<'a>(lines: &'a [Value], level: &str, field: &str) -> Vec<&'a str> {
    lines.iter().filter(|line| line["level"] == level).filter_map(|line| line[field].as_str()).collect()
}

#[tokio::test]
async fn a_new_rate_counts_at_once_and_nothing_is_lost() {
    let site = Site::shared("reload", "rate = '2/s'").await;
    let paced = site.replica().await;
    site.publish(Job::many("job", 300)).await;
    site.api.wait_for(2, LONG).await;
    let faster = edited(&site, &[("'2/s'", "'1000/s'")]);
    let lines = reload(&paced, &faster, DONE).await;
    assert_eq!(all(&lines, "INFO", "changed"), ["downstreams.billing.rate"], "{lines:?}");
    // At the old rate they would take two and a half minutes.
    let arrivals = site.api.wait_for(300, LONG).await;
    assert!(compare("job", 300, &arrivals).is_clean());
    let lines = reload(&paced, &faster, DONE).await;
    assert!(lines.iter().any(|line| line["message"].as_str().unwrap().contains("no key changed")));
    assert_eq!(paced.stop().await, 0);
}

#[tokio::test]
async fn who_had_few_jobs_in_hand_takes_as_many_as_the_new_rate_needs() {
    // At 1/h one job at a time is held, which is too few for any fast rate.
    let site = Site::shared("reloadwide", "rate = '1/h'").await;
    let paced = site.replica().await;
    site.publish(Job::many("job", 100)).await;
    site.api.wait_for(1, LONG).await;
    let gate = Gate::closed();
    site.api.rule({
        let gate = gate.clone();
        move |_| Answer::ok().gated(&gate)
    });
    reload(&paced, &edited(&site, &[("'1/h'", "'1000/s'")]), DONE).await;
    eventually("many are sent at once", LONG, || site.api.in_flight() == 64).await;
    gate.open();
    let arrivals = site.api.wait_for(100, LONG).await;
    assert!(compare("job", 100, &arrivals).is_clean());
    assert_eq!(paced.stop().await, 0);
}

#[tokio::test]
async fn with_any_mistake_the_old_configuration_stays() {
    let site = Site::shared("reloadbad", "rate = '200/s'").await;
    let paced = site.replica().await;
    let wrong = edited(&site, &[("'200/s'", "'1/h'\nconcurency = 5\nhorizon = '1 s'")]);
    let lines = reload(&paced, &wrong, "the old one stays").await;
    let errors = all(&lines, "ERROR", "message");
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(
        errors[0].contains("downstreams.billing.concurency: unknown key; did you mean `concurrency`?"),
        "{errors:?}"
    );
    assert!(errors[1].contains("downstreams.billing.horizon: `1 s` is no duration"), "{errors:?}");
    assert!(errors.iter().all(|line| !line.contains("guest:")), "{errors:?}");
    // The rate, which is valid, did not change either.
    site.publish(Job::many("job", 200)).await;
    site.api.wait_for(200, LONG).await;

    std::fs::remove_file(paced.config_file()).unwrap();
    let before = paced.log().len();
    paced.hangup();
    eventually("the warning", LONG, || {
        paced.log()[before..].iter().any(|line| line.contains("cannot be read"))
    })
    .await;
    let lines = reload(&paced, &edited(&site, &[("'200/s'", "'100/s'")]), DONE).await;
    assert_eq!(all(&lines, "INFO", "changed"), ["downstreams.billing.rate"]);
    assert_eq!(paced.stop().await, 0);
}

#[tokio::test]
async fn what_needs_a_restart_is_named_each_time_and_stays_as_it_was() {
    let site = Site::shared("reloadlate", "rate = '200/s'").await;
    let paced = site.replica().await;
    let config = edited(
        &site,
        &[
            ("[amqp]", "precision = 'coarse'\n[amqp]\nwindow_bytes = '8MiB'"),
            ("[downstreams.billing]", "[shutdown]\ndrain_timeout = '7s'\n[downstreams.billing]"),
            ("'200/s'", "'100/s'"),
        ],
    );
    for _ in 0..2 {
        let lines = reload(&paced, &config, DONE).await;
        assert_eq!(
            all(&lines, "WARN", "key"),
            ["amqp.window_bytes", "precision", "shutdown.drain_timeout"],
            "{lines:?}"
        );
    }
    site.publish(Job::many("job", 20)).await;
    let arrivals = site.api.wait_for(20, LONG).await;
    assert!(compare("job", 20, &arrivals).is_clean(), "jobs go where they went");
    assert_eq!(paced.stop().await, 0);
}
