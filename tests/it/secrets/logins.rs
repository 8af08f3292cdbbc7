//! The logins to the broker and the store, whose URLs have files.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Mutex, mpsc};

use paced::{ReadSecret, RedisOptions, RedisStore, Store as _};
use tempfile::TempDir;

use super::finished;
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::servers::{Redis, rabbit};
use crate::support::site::Site;
use crate::support::{LONG, until};

/// The URL with this login.
fn with_login(url: &str, login: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    format!("{scheme}://{login}@{place}")
}

/// How many different jobs have arrived.
fn ids(site: &Site) -> usize {
    site.api.arrivals().iter().map(|arrival| arrival.id().to_owned()).collect::<BTreeSet<_>>().len()
}

#[tokio::test]
async fn a_new_password_of_the_store_is_used_for_the_next_connection() {
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "storelogin", "rate = '200/s'");
    redis.command(&["ACL", "SETUSER", "paced", "on", ">old", "~*", "&*", "+@all"]).await.unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("url");
    fs::write(&file, with_login(&site.store, "paced:old")).unwrap();
    let url = format!("url = '{}'", site.store);
    let config = site.config().replace(&url, &format!("url_file = '{}'", file.display()));
    let replica = Paced::spawn(&config).await;
    site.publish(Job::many("a", 50)).await;
    site.api.wait_for(50, LONG).await;

    redis.command(&["ACL", "SETUSER", "paced", "resetpass", ">new"]).await.unwrap();
    fs::write(&file, with_login(&site.store, "paced:new")).unwrap();
    redis.command(&["CLIENT", "KILL", "USER", "paced"]).await.unwrap();
    site.publish(Job::many("b", 50)).await;
    finished(&site, &replica, 100, || ids(&site)).await;
    let log = replica.log().join("\n");
    assert!(!log.contains("paced:old") && !log.contains("paced:new"), "{log}");
}

#[tokio::test]
async fn a_file_system_that_does_not_answer_keeps_no_store_away() {
    let redis = Redis::dedicated().await;
    let (hang, hung) = mpsc::channel::<()>();
    let hung = Mutex::new(hung);
    let read = ReadSecret::new(move || {
        let _ = hung.lock().unwrap().recv();
        Err("it has ended".to_owned())
    });
    let options = RedisOptions::default().reading_login_again(read);
    let store = RedisStore::open(&redis.url(), options).unwrap();
    // Each connection waits for the file for a while, and has the login that was read before.
    let answers = async || store.ping().await.is_ok();
    until("the store answers", LONG, answers).await;
    redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
    until("the store is there again", LONG, answers).await;
    drop(hang);
}

#[tokio::test]
async fn a_new_password_of_the_broker_is_used_for_the_next_connection() {
    let (broker, site) = (rabbit().await, Site::shared("brokerlogin", "rate = '200/s'").await);
    let user = &site.prefix;
    broker.add_user(user, "old", [".*"; 3]).await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("url");
    fs::write(&file, with_login(&site.amqp, &format!("{user}:old"))).unwrap();
    let url = format!("url = '{}'", site.amqp);
    let config = site.config().replace(&url, &format!("url_file = '{}'", file.display()));
    let replica = Paced::spawn(&config).await;
    site.publish(Job::many("a", 50)).await;
    site.api.wait_for(50, LONG).await;

    broker.set_password(user, "new").await;
    fs::write(&file, with_login(&site.amqp, &format!("{user}:new"))).unwrap();
    assert!(broker.close_connections_of(user).await > 0);
    site.publish(Job::many("b", 50)).await;
    finished(&site, &replica, 100, || ids(&site)).await;
}
