//! The log stops nothing: a stderr that is full, closed or not read costs log lines only.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::Stdio;

use crate::support::api::stamp;
use crate::support::client::Client;
use crate::support::count;
use crate::support::daemon::Paced;
use crate::support::prometheus::Scrape;
use crate::support::publish::Job;
use crate::support::servers::free_port;
use crate::support::site::{Site, compare};
use crate::support::{LONG, until};

const GOOD: usize = 40;
const BAD: usize = 1520;

/// Publishes 40 good jobs among 600 malformed messages, for a daemon with this stderr.
async fn good_jobs_among_bad_ones(topic: &str, stderr: Stdio) {
    let mut site = Site::shared(topic, "rate = '100/s'").await;
    let admin = free_port();
    site.http = format!("[admin]\nlisten = '127.0.0.1:{admin}'\n");
    let replica = Paced::mute(&site.config(), stderr).await;
    let (client, ready) = (Client::new(), format!("http://127.0.0.1:{admin}/readyz"));
    until("a daemon that is ready", LONG, async || {
        client.get(&ready).await.is_ok_and(|reply| reply.status == 200)
    })
    .await;
    let bad = |n: usize| match n % 3 {
        0 => Job::new(format!("bad-{n}")).header("paced-nonsense", "1"),
        1 => Job::new(format!("bad-{n}")).header("paced-path", "../up"),
        _ => Job::new(format!("bad-{n}")).header("paced-cost", "three"),
    };
    let mut jobs = Vec::with_capacity(GOOD + BAD);
    for n in 0..BAD {
        jobs.push(bad(n));
        if n % (BAD / GOOD) == 0 {
            jobs.push(Job::new(format!("good-{}", n / (BAD / GOOD))));
        }
    }
    let begin = stamp();
    site.publish(jobs).await;
    let arrivals = site.api.wait_for(GOOD, LONG).await;
    let tally = compare("good", GOOD, &arrivals);
    assert!(tally.is_clean(), "{topic}: {tally:?}");
    count::assert_never_ahead(&site.api.stamps(), begin, "100/s".parse().unwrap(), 2);
    site.depth(&site.dead_queue(), u32::try_from(BAD).unwrap(), LONG).await;

    let metrics = client.get(&format!("http://127.0.0.1:{admin}/metrics")).await.unwrap().text;
    let scrape = Scrape::read(&metrics);
    let dropped = scrape.sum("paced_log_dropped_total").unwrap();
    if topic == "logblocked" {
        // The log is shorter than its queue, so nothing is lost yet.
        assert!(dropped == 0.0, "{dropped}");
    } else {
        // Unbounded, the dead letters would cause 600 lines and more.
        assert!((10.0..1000.0).contains(&dropped), "{topic}: {dropped} lines were dropped");
    }
    assert_eq!(replica.stop().await, 0, "{topic}");
}

#[tokio::test]
async fn a_full_disk_under_the_log_stops_nothing() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    good_jobs_among_bad_ones("logfull", full.into()).await;
}

#[tokio::test]
async fn a_log_whose_reader_has_gone_stops_nothing() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    good_jobs_among_bad_ones("logclosed", writer.into()).await;
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    // The pipe is full from the start: the first line of the log finds no room.
    writer.write_all(&[b'x'; 65_536]).unwrap();
    good_jobs_among_bad_ones("logblocked", writer.into()).await;
    drop(reader);
}

#[tokio::test]
async fn dead_letters_are_summarized_and_every_line_of_the_log_is_one_line() {
    let site = Site::shared("logsummary", "rate = '100/s'").await;
    let replica = site.replica().await;
    let evil = "\u{202e}\u{1b}[2J\r\nfeigned\u{2028}\u{9b}";
    let jobs = (0..100).map(|n| Job::new(format!("bad-{n}")).header(&format!("paced-{evil}"), "1"));
    site.publish(jobs.collect()).await;
    site.depth(&site.dead_queue(), 100, LONG).await;
    assert_eq!(replica.stop().await, 0);
    let log = replica.log();
    let alone = log.iter().filter(|line| line.contains("\"dead-lettered\"")).count();
    // How many more there are depends on how many seconds it takes.
    assert!(alone >= 10, "{alone} lines of 100");
    let summaries = log.iter().filter_map(|line| {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        value["message"].as_str()?.contains("too many").then(|| value["letters"].as_u64()).flatten()
    });
    assert_eq!(summaries.sum::<u64>(), 100 - alone as u64, "{}", log.join("\n"));
    for line in &log {
        assert!(!line.contains(paced::text::is_unsafe), "{line:?}");
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }

    // Foreign text in the dead letters reaches no terminal unescaped either.
    let table = site.cli(&["dead", "list", "billing", "--limit", "1"]).await;
    let json = site.cli(&["-o", "json", "dead", "list", "billing", "--limit", "1"]).await;
    assert_eq!((table.code, json.code), (0, 0), "{} {}", table.stderr, json.stderr);
    assert!(table.stdout.contains("\\u{202e}"), "{}", table.stdout);
    for text in [table.stdout.replace('\n', ""), json.stdout.replace('\n', "")] {
        assert!(!text.contains(paced::text::is_unsafe), "{text:?}");
    }
}
