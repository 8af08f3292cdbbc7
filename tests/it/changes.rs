//! Downstreams that come, go and restart while the daemon runs.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::amqp::many::{channels, vhost};
use crate::support::api::{Answer, Api, Arrival, Gate};
use crate::support::daemon::Paced;
use crate::support::publish::{self, Job};
use crate::support::servers::{rabbit, redis};
use crate::support::site::{Site, compare};
use crate::support::{LONG, eventually, until};

mod beginning;

/// The table of a downstream with this name, API and text.
fn table(name: &str, api: &Api, more: &str) -> String {
    format!("[downstreams.{name}]\n{more}\n[downstreams.{name}.http]\nbase_url = '{}'\n", api.url())
}

/// Writes the configuration and has the daemon read it. Returns once the log has this text since.
async fn reload(paced: &Paced, config: &str, end: &str) {
    let before = paced.log().len();
    std::fs::write(paced.config_file(), config).unwrap();
    paced.hangup();
    eventually(end, LONG, || paced.log()[before..].iter().any(|line| line.contains(end))).await;
}

/// Publishes jobs for a downstream once its queue is consumed: one that is only declared may refuse them.
async fn publish_to(site: &Site, downstream: &str, jobs: Vec<Job>) {
    let queue = format!("{}.jobs.{downstream}", site.prefix);
    let is_consumed =
        async || publish::counts(&site.amqp, &queue).await.is_some_and(|(_, consumers)| consumers > 0);
    until("the queue", LONG, is_consumed).await;
    // A queue is consumed before it is bound, so that they go to the queue itself.
    publish::publish_to(&site.amqp, "", &queue, jobs).await;
}

fn ids(arrivals: &[Arrival]) -> BTreeSet<String> {
    arrivals.iter().map(|arrival| arrival.id().to_owned()).collect()
}

/// A configuration with an admin server and more downstreams.
fn with(site: &Site, more: &str) -> String {
    format!("{}[admin]\nlisten = '127.0.0.1:0'\n{more}", site.config())
}

#[tokio::test]
async fn one_that_comes_is_served_and_one_that_goes_finishes_gives_back_and_is_an_orphan() {
    let site = Site::shared("comes", "rate = '1000/s'").await;
    let api = Api::start();
    let without = with(&site, "");
    let paced = Paced::hasty(&without, 50).await;
    let with = with(&site, &table("more", &api, "rate = '1000/s'\nconcurrency = 1"));
    reload(&paced, &with, "the downstream was added").await;
    publish_to(&site, "more", Job::many("first", 20)).await;
    assert!(compare("first", 20, &api.wait_for(20, LONG).await).is_clean());
    assert!(paced.metrics().await.contains("downstream=\"more\""));

    // One is being sent, and two wait.
    let gate = Gate::closed();
    api.rule({
        let gate = gate.clone();
        move |_| Answer::ok().gated(&gate)
    });
    publish_to(&site, "more", Job::many("second", 3)).await;
    api.wait_for(21, LONG).await;
    reload(&paced, &without, "the downstream was removed").await;
    gate.open();
    paced.wait_line("the downstream is served no more", LONG).await;
    let queue = format!("{}.jobs.more", site.prefix);
    site.depth(&queue, 2, LONG).await;
    assert_eq!(api.count(), 21, "no other one was sent");
    until("an orphan", LONG, async || paced.metrics().await.contains("\npaced_orphans 1")).await;
    assert!(!paced.metrics().await.contains("downstream=\"more\""));
    // The other one is served all the time.
    site.publish(Job::many("job", 10)).await;
    assert!(compare("job", 10, &site.api.wait_for(10, LONG).await).is_clean());

    reload(&paced, &with, "the downstream was added").await;
    assert_eq!(ids(&api.wait_for(23, LONG).await).len(), 23, "the two that waited, and none twice");
    until("no orphan", LONG, async || paced.metrics().await.contains("\npaced_orphans 0")).await;
    assert!(paced.metrics().await.contains("downstream=\"more\""));
    assert_eq!(paced.stop().await, 0);
}

/// More than begin at a time: those with jobs, and the others.
#[tokio::test]
async fn of_many_each_is_served() {
    const ALL: usize = 70;
    let site = Site::shared("many", "rate = '1000/s'").await;
    let (api, queue) = (Api::start(), |n: usize| format!("{}-{n}", site.prefix));
    let (_connection, channel) = publish::open(&site.amqp).await;
    let mut tables = String::new();
    for n in 0..ALL {
        channel.queue_declare(queue(n).into(), Default::default(), Default::default()).await.unwrap();
        tables += &table(&format!("d{n}"), &api, &format!("rate = '1000/s'\nqueue.name = '{}'", queue(n)));
    }
    publish::publish_to(&site.amqp, "", &queue(ALL - 1), Job::many("job", 10)).await;
    let paced = Paced::hasty(&with(&site, &tables), 50).await;
    assert!(compare("job", 10, &api.wait_for(10, LONG).await).is_clean());
    paced.wait_ready().await;
    for n in 0..ALL {
        publish::publish_to(&site.amqp, "", &queue(n), Job::many(&format!("later{n}-"), 1)).await;
    }
    assert_eq!(ids(&api.wait_for(10 + ALL, LONG).await).len(), 10 + ALL, "none is lost, none is sent twice");
    assert_eq!(paced.stop().await, 0);
}

#[tokio::test]
async fn one_that_restarts_loses_nothing_and_sends_nothing_twice() {
    let site = Site::shared("restarts", "rate = '200/s'").await;
    let other = Api::start();
    let paced = site.replica().await;
    site.publish(Job::many("job", 200)).await;
    site.api.wait_for(20, LONG).await;
    let elsewhere = site.config().replace(&site.api.url(), &other.url());
    reload(&paced, &elsewhere, "the downstream restarts").await;
    eventually("the rest goes elsewhere", LONG, || site.api.count() + other.count() >= 200).await;
    // A plan that comes is known to the jobs that follow.
    let plan = format!("{elsewhere}[plans.pro]\nlimits = [{{ rate = '100/s' }}]\n");
    reload(&paced, &plan, "the downstream has restarted").await;
    let with_plan = Job::many("planned", 5).into_iter().map(|job| job.header("paced-plan", "pro"));
    site.publish(with_plan.collect()).await;
    let before = site.api.count();
    let there = other.wait_for(205 - before, LONG).await;
    let all: Vec<Arrival> = site.api.arrivals().into_iter().chain(there).collect();
    assert_eq!((all.len(), ids(&all).len()), (205, 205));
    assert!(other.count() > 5, "some went elsewhere");
    assert_eq!(paced.stop().await, 0);
}

/// Changes that come while the one before is not through count once it is.
#[tokio::test]
async fn of_changes_in_quick_succession_the_last_one_counts() {
    let site = Site::shared("quick", "rate = '1000/s'\nconcurrency = 1").await;
    let paced = site.replica().await;
    let gate = Gate::closed();
    site.api.rule({
        let gate = gate.clone();
        move |_| Answer::ok().gated(&gate)
    });
    site.publish(Job::many("job", 5)).await;
    site.api.wait_for(1, LONG).await;
    // The first request keeps the one that is replaced from its end.
    let apis = [Api::start(), Api::start()];
    for api in &apis {
        let config = site.config().replace(&site.api.url(), &api.url());
        reload(&paced, &config, "the downstream restarts").await;
    }
    let last = site.config().replace(&site.api.url(), &apis[1].url()).replace("= 1\n", "= 3\n");
    reload(&paced, &last, "downstreams.billing.concurrency").await;
    let second = Gate::closed();
    apis[1].rule({
        let gate = second.clone();
        move |_| Answer::ok().gated(&gate)
    });
    gate.open();
    eventually("three at a time", LONG, || apis[1].in_flight() == 3).await;
    second.open();
    apis[1].wait_for(4, LONG).await;
    assert_eq!((site.api.count(), apis[0].count(), apis[1].count()), (1, 0, 4));
    assert_eq!(paced.stop().await, 0);
}

/// A plan restarts all of them: not all at once.
#[tokio::test]
async fn of_many_that_restart_a_part_does_so_at_a_time() {
    let site = Site::shared("inturn", "rate = '1000/s'").await;
    let (apis, gate) = ([(); 9].map(|()| Api::start()), Gate::closed());
    let mut config = site.config();
    for (n, api) in apis.iter().enumerate() {
        config.push_str(&table(&format!("d{n}"), api, "rate = '1000/s'"));
    }
    let paced = Paced::spawn(&config).await;
    let all: Vec<&Api> = apis.iter().chain([&site.api]).collect();
    let publish = async |stem: &str| {
        for n in 0..9 {
            publish_to(&site, &format!("d{n}"), Job::many(stem, 1)).await;
        }
        site.publish(Job::many(stem, 1)).await;
    };
    for api in &all {
        let gate = gate.clone();
        api.rule(move |arrival| match arrival.id() {
            "held-0" => Answer::ok().gated(&gate),
            _ => Answer::ok(),
        });
    }
    publish("held").await;
    for api in &all {
        api.wait_for(1, LONG).await;
    }
    let plan = format!("{config}[plans.pro]\nlimits = [{{ rate = '100/s' }}]\n");
    reload(&paced, &plan, "the downstream restarts").await;
    publish("next").await;
    // Four of ten wait for what they send; the others serve.
    let served = || all.iter().filter(|api| api.count() == 2).count();
    eventually("the others serve", LONG, || served() >= 6).await;
    assert_eq!(served(), 6);
    gate.open();
    for api in &all {
        let arrivals = api.wait_for(2, LONG).await;
        assert_eq!((arrivals.len(), ids(&arrivals).len()), (2, 2));
    }
    let restarted =
        || paced.log().iter().filter(|line| line.contains("the downstream has restarted")).count();
    eventually("all have restarted", LONG, || restarted() == 10).await;
    assert_eq!(paced.stop().await, 0);
}

#[tokio::test]
async fn fifty_that_come_and_go_leave_no_channel_and_no_connection() {
    let (rabbit, redis) = (rabbit().await, redis().await);
    let mut site = Site::on(rabbit, redis, "fifty", "rate = '1000/s'");
    site.amqp = vhost(rabbit, "fifty").await;
    let api = Api::start();
    let paced = Paced::spawn(&site.config()).await;
    // Two queues of each downstream are consumed; a check of queues has a channel for a moment.
    let consumed = async |downstreams: usize| {
        // The helper that checks queues keeps a channel without a consumer.
        until("the consumers", LONG, async || {
            let (idle, consuming): (Vec<usize>, Vec<usize>) =
                channels(rabbit, "fifty").await.into_iter().partition(|consumers| *consumers == 0);
            idle.len() <= 1 && consuming == vec![1; 2 * downstreams]
        })
        .await;
    };
    consumed(1).await;
    let ports = paced.ports_to(rabbit.port()).len();
    let mut with = site.config();
    for n in 0..50 {
        let _ = write!(with, "{}", table(&format!("d{n}"), &api, "rate = '1000/s'"));
    }
    for round in 1..=3 {
        reload(&paced, &with, "configuration reloaded").await;
        consumed(51).await;
        for n in 0..50 {
            publish_to(&site, &format!("d{n}"), Job::many(&format!("{round}-{n}"), 2)).await;
        }
        let arrivals = api.wait_for(100 * round, LONG).await;
        assert_eq!(ids(&arrivals).len(), 100 * round);
        reload(&paced, &site.config(), "configuration reloaded").await;
        consumed(1).await;
        assert_eq!(paced.ports_to(rabbit.port()).len(), ports);
    }
    assert_eq!(paced.stop().await, 0);
}

/// A site whose configuration has a directory, and the path of that directory.
fn with_directory(site: &Site, folder: &tempfile::TempDir) -> (String, std::path::PathBuf) {
    let dir = folder.path().join("downstreams.d");
    std::fs::create_dir(&dir).unwrap();
    (with(site, &format!("[dynamic]\ndir = '{}'\n", dir.display())), dir)
}

/// Writes a file as editors do.
fn put(dir: &std::path::Path, name: &str, text: &str) {
    let new = dir.join(format!(".{name}.new"));
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, dir.join(name)).unwrap();
}

#[tokio::test]
async fn files_of_the_directory_come_and_go_without_a_signal() {
    let (site, folder) = (Site::shared("files", "rate = '1000/s'").await, tempfile::TempDir::new().unwrap());
    let (config, dir) = with_directory(&site, &folder);
    let api = Api::start();
    let replicas = [Paced::hasty(&config, 10).await, Paced::hasty(&config, 10).await];
    put(&dir, "more.toml", &table("more", &api, "rate = '1000/s'"));
    for paced in &replicas {
        paced.wait_line("the downstream was added", LONG).await;
    }
    publish_to(&site, "more", Job::many("first", 20)).await;
    assert!(compare("first", 20, &api.wait_for(20, LONG).await).is_clean());

    put(&dir, "more.toml", &table("more", &api, "rate = '1000/s'\nconcurrency = 7"));
    for paced in &replicas {
        paced.wait_line("downstreams.more.concurrency", LONG).await;
    }
    // A file with mistakes counts as it was before, and a new one not at all.
    put(&dir, "other.toml", "[downstreams.other]\nrate = '1/s'\n");
    put(&dir, "more.toml", "[downstreams.more\n");
    for paced in &replicas {
        paced.wait_line("other.toml:1:1: downstreams.other.http.base_url: missing", LONG).await;
        paced.wait_line("files of dynamic.dir are wrong", LONG).await;
        until("it is shown", LONG, async || paced.metrics().await.contains("\npaced_config_loaded 0")).await;
    }
    publish_to(&site, "more", Job::many("second", 20)).await;
    api.wait_for(40, LONG).await;
    // It keeps no other file out.
    put(&dir, "third.toml", &table("third", &api, "rate = '1000/s'"));
    publish_to(&site, "third", Job::many("third", 20)).await;
    api.wait_for(60, LONG).await;
    std::fs::remove_file(dir.join("more.toml")).unwrap();
    std::fs::remove_file(dir.join("other.toml")).unwrap();
    for paced in &replicas {
        paced.wait_line("the downstream is served no more", LONG).await;
        until("it is right", LONG, async || paced.metrics().await.contains("\npaced_config_loaded 1")).await;
        until("an orphan", LONG, async || paced.metrics().await.contains("\npaced_orphans 1")).await;
        assert!(!paced.log().iter().any(|line| line.contains("needs a restart")));
    }
    site.publish(Job::many("job", 10)).await;
    assert!(compare("job", 10, &site.api.wait_for(10, LONG).await).is_clean());
    for paced in &replicas {
        assert_eq!(paced.stop().await, 0);
    }
}

/// A change of the directory brings in no change of `paced.toml` that nobody asked for, and a directory that is away removes
/// nothing.
#[tokio::test]
async fn a_change_of_the_directory_concerns_no_other_source() {
    let (site, folder) = (Site::shared("apart", "rate = '1000/s'").await, tempfile::TempDir::new().unwrap());
    let (config, dir) = with_directory(&site, &folder);
    let api = Api::start();
    put(&dir, "more.toml", &table("more", &api, "rate = '1000/s'"));
    let paced = Paced::hasty(&config, 10).await;
    std::fs::write(paced.config_file(), "[downstreams.billing\n").unwrap();
    put(&dir, "third.toml", &table("third", &api, "rate = '1000/s'"));
    paced.wait_line("the downstream was added", LONG).await;
    let away = folder.path().join("away");
    std::fs::rename(&dir, &away).unwrap();
    paced.wait_line("downstreams.d: cannot be read", LONG).await;
    publish_to(&site, "more", Job::many("more", 5)).await;
    publish_to(&site, "third", Job::many("third", 5)).await;
    api.wait_for(10, LONG).await;
    site.publish(Job::many("job", 5)).await;
    site.api.wait_for(5, LONG).await;
    assert!(!paced.log().iter().any(|line| line.contains("the downstream was removed")));
    std::fs::rename(&away, &dir).unwrap();
    assert_eq!(paced.stop().await, 0);
}

/// What a file needs may come after it, and the directory itself does not change then.
#[tokio::test]
async fn a_file_whose_secret_comes_later_is_read_again() {
    let (site, folder) = (Site::shared("later", "rate = '1000/s'").await, tempfile::TempDir::new().unwrap());
    let (config, dir) = with_directory(&site, &folder);
    let (api, secret) = (Api::start(), folder.path().join("token"));
    let paced = Paced::hasty(&config, 50).await;
    let headers = format!("headers.authorization_file = '{}'\n", secret.display());
    put(&dir, "more.toml", &format!("{}{headers}", table("more", &api, "rate = '1000/s'")));
    paced.wait_line("files of dynamic.dir are wrong", LONG).await;
    std::fs::write(&secret, "Bearer late").unwrap();
    paced.wait_line("the downstream was added", LONG).await;
    publish_to(&site, "more", Job::many("first", 5)).await;
    api.wait_for(5, LONG).await;
    until("it is right", LONG, async || paced.metrics().await.contains("\npaced_config_loaded 1")).await;
    let wrong = paced.log().iter().filter(|line| line.contains("files of dynamic.dir are wrong")).count();
    assert_eq!(wrong, 1, "it is named once");
    assert_eq!(paced.stop().await, 0);
}

/// What is sent may take as long as a request: a removal is no stop of the process.
#[tokio::test]
async fn one_that_goes_finishes_requests_that_take_longer_than_a_stop_may() {
    let site = Site::shared("patient", "rate = '1000/s'").await;
    let api = Api::start();
    let without = format!("{}[shutdown]\ndrain_timeout = '1ms'\n", with(&site, ""));
    let paced = Paced::spawn(&format!("{without}{}", table("more", &api, "rate = '1000/s'"))).await;
    let gate = Gate::closed();
    api.rule({
        let gate = gate.clone();
        move |_| Answer::ok().gated(&gate)
    });
    publish_to(&site, "more", Job::many("job", 3)).await;
    api.wait_for(3, LONG).await;
    reload(&paced, &without, "the downstream was removed").await;
    // The other one has done something meanwhile.
    site.publish(Job::many("other", 100)).await;
    site.api.wait_for(100, LONG).await;
    gate.open();
    paced.wait_line("the downstream is served no more", LONG).await;
    assert!(!paced.log().iter().any(|line| line.contains("the drain timed out")));
    site.depth(&format!("{}.jobs.more", site.prefix), 0, LONG).await;
    assert_eq!(api.count(), 3);
    assert_eq!(paced.stop().await, 0);
}

/// Jobs that are left in a queue which nobody consumes are named.
#[tokio::test]
async fn the_queue_that_a_downstream_has_left_is_named() {
    let site = Site::shared("left", "rate = '1000/s'").await;
    let paced = Paced::spawn(&site.config()).await;
    let other = site.config().replace("rate = '1000/s'", "rate = '1000/s'\nqueue.name = 'orders'");
    reload(&paced, &other, "the downstream has another queue").await;
    let line = paced.wait_line("the downstream has another queue", LONG).await;
    assert!(line.contains(&site.queue()) && line.contains("orders"), "{line}");
    assert_eq!(paced.stop().await, 0);
}
