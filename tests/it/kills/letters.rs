//! A command that is killed while it replays or purges letters.

use std::process::Command;

use crate::support::blocking;
use crate::support::daemon::binary;

use super::*;

/// A command has one letter at a time, so that the window of replicas does not matter.
const COMMAND: &[Window] = &[Window::One];

/// Runs `paced dead`, which ends at the point.
async fn killed_command(site: &Site, kill: &Kill, args: &[&str]) {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("paced.toml"), site.config()).unwrap();
    let mut command = Command::new(binary());
    command.current_dir(folder.path()).env(FAIL_AT, kill.point).arg("dead").args(args);
    let killed = blocking(move || command.output().unwrap()).await;
    assert_eq!(killed.status.code(), None, "{kill:?}: {killed:?}");
}

#[tokio::test]
async fn a_kill_while_letters_are_replayed_loses_none() {
    let points = [("replay:publish=4", NONE), ("replay:confirmed=4", ONE), ("letter:removed=4", ANY)];
    each(COMMAND, &points, async |kill, expected| {
        let site = kill.site("killreplay", "").await;
        site.api.rule(|_| Answer::status(404));
        let replica = site.replica().await;
        site.publish(Job::many("job", JOBS)).await;
        site.depth(&site.dead_queue(), u32::try_from(JOBS).unwrap(), LONG).await;
        assert_eq!(replica.stop().await, 0);
        let before = site.api.count();
        site.api.rule(|_| Answer::ok());
        killed_command(&site, &kill, &["replay", "billing"]).await;
        let rest = site.cli(&["dead", "replay", "billing"]).await;
        assert_eq!(rest.code, 0, "{kill:?}: {}", rest.stderr);
        finish(&site, &kill, before).await;
        let arrivals = site.api.arrivals();
        kill.copies("requests", &expected, arrivals[before..].iter().map(|arrival| arrival.id()));
        assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(0), "{kill:?}");
    })
    .await;
}

#[tokio::test]
async fn a_kill_while_unroutable_messages_are_replayed_loses_none() {
    let points = [("replay:publish=4", NONE), ("replay:confirmed=4", ONE), ("letter:removed=4", ANY)];
    each(COMMAND, &points, async |kill, expected| {
        let site = kill.site("killlost", "").await;
        site.declare().await;
        publish::publish(&site.amqp, &site.prefix, "biling", Job::many("job", JOBS)).await;
        let queue = format!("{}.unroutable", site.prefix);
        site.depth(&queue, u32::try_from(JOBS).unwrap(), LONG).await;
        let args = ["replay", "--unroutable", "--to", "billing"];
        killed_command(&site, &kill, &args).await;
        let rest = site.cli(&["dead", "replay", "--unroutable", "--to", "billing"]).await;
        assert_eq!(rest.code, 0, "{kill:?}: {}", rest.stderr);
        finish(&site, &kill, 0).await;
        let arrivals = site.api.arrivals();
        kill.copies("requests", &expected, arrivals.iter().map(|arrival| arrival.id()));
        assert_eq!(publish::depth(&site.amqp, &queue).await, Some(0), "{kill:?}");
    })
    .await;
}

#[tokio::test]
async fn a_kill_while_letters_are_purged_removes_no_others() {
    // How many letters are left after the kill. Whether the last ack reached the broker is not known.
    let points = [("purge:remove=4", 7..=8), ("letter:removed=4", 6..=7)];
    each(COMMAND, &points, async |kill, left| {
        let site = kill.site("killpurge", "").await;
        site.declare().await;
        let letter = |reason: &'static str| move |job: Job| job.header("paced-reason", reason);
        let doomed = Job::many("job", JOBS).into_iter().map(letter("status"));
        let others = Job::many("other", JOBS).into_iter().map(letter("expired"));
        // Each that matches lies behind one that does not.
        let letters = others.zip(doomed).flat_map(<[Job; 2]>::from).collect();
        publish::publish_to(&site.amqp, "", &site.dead_queue(), letters).await;
        site.depth(&site.dead_queue(), 20, LONG).await;
        let purge = ["purge", "billing", "--yes", "--reason", "status"];
        killed_command(&site, &kill, &purge).await;
        let listed = async || {
            let listed = site.cli(&["-o", "json", "dead", "list", "billing"]).await;
            assert_eq!(listed.code, 0, "{kill:?}: {}", listed.stderr);
            let id = |line: &str| {
                let letter: serde_json::Value = serde_json::from_str(line).unwrap();
                letter["id"].as_str().unwrap().to_owned()
            };
            listed.stdout.lines().map(id).collect::<Vec<_>>()
        };
        until("the letters to return", LONG, async || {
            let (doomed, others): (Vec<_>, Vec<_>) =
                listed().await.into_iter().partition(|id| id.starts_with("job"));
            left.contains(&doomed.len()) && others.len() == JOBS
        })
        .await;
        let rest = site.cli(&[&["dead"], &purge[..]].concat()).await;
        assert_eq!(rest.code, 0, "{kill:?}: {}", rest.stderr);
        let found = listed().await;
        assert_eq!(found.len(), JOBS, "{kill:?}: {found:?}");
        kill.copies("others", &NONE, found.iter().map(String::as_str));
    })
    .await;
}
