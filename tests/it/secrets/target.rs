//! Base URLs and proxies in files, which are replaced while jobs are sent by them.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{HASTE, finished};
use crate::support::api::Api;
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::site::Site;
use crate::support::{LONG, eventually};

/// `me:old` and `me:new`, as HTTP Basic authentication has them.
const OLD: &str = "Basic bWU6b2xk";
const NEW: &str = "Basic bWU6bmV3";

/// The last part of each path that this proxy was asked for, and the login with which it was asked.
fn asked(proxy: &Api) -> BTreeSet<(String, Option<String>)> {
    let last = |path: &str| path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    let login = |login: &str| login.to_owned();
    let arrivals = proxy.arrivals();
    arrivals.iter().map(|a| (last(&a.path), a.header("proxy-authorization").map(login))).collect()
}

#[tokio::test]
async fn a_base_url_and_a_proxy_that_are_replaced_lose_no_job() {
    const EACH: usize = 100;
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let site = Site::shared("target", "rate = '200/s'").await;
    let [old_proxy, new_proxy] = [Api::start(), Api::start()];
    let login = |api: &Api, login: &str| api.url().replace("http://", &format!("http://{login}@"));
    let hook = |name: &str| format!("{}hook/{name}/\n", site.api.url());
    fs::write(path("base"), hook("old")).unwrap();
    fs::write(path("proxy"), login(&old_proxy, "me:old")).unwrap();
    let url = format!("base_url = '{}'", site.api.url());
    let files = format!("base_url_file = '{}'\nproxy_file = '{}'", path("base"), path("proxy"));
    let replica = Paced::hasty(&site.config().replace(&url, &files), HASTE).await;
    site.publish(Job::many("a", EACH)).await;
    old_proxy.wait_for(20, LONG).await;

    // One is noticed by itself, the other one is read with the configuration.
    fs::write(path("base"), hook("new")).unwrap();
    replica.wait_line("secrets read again", LONG).await;
    site.publish(Job::many("b", EACH)).await;
    let is_asked = |name: &str| asked(&old_proxy).iter().any(|(last, _)| last == name);
    eventually("a request uses the new base URL", LONG, || is_asked("new")).await;
    fs::write(path("proxy"), login(&new_proxy, "me:new")).unwrap();
    replica.signal(Signal::HUP);
    replica.wait_line("configuration reloaded", LONG).await;
    site.publish(Job::many("c", EACH)).await;
    let arrivals = || [&old_proxy, &new_proxy].map(Api::arrivals).concat();
    let ids = || arrivals().iter().map(|arrival| arrival.id().to_owned()).collect::<BTreeSet<_>>();
    finished(&site, &replica, 3 * EACH, || ids().len()).await;

    assert_eq!(arrivals().len(), 3 * EACH, "none is doubled");
    assert_eq!(site.api.count(), 0, "no request goes without the proxy");
    let with = |name: &str, login: &str| (name.to_owned(), Some(login.to_owned()));
    assert_eq!(asked(&old_proxy), BTreeSet::from([with("old", OLD), with("new", OLD)]));
    assert_eq!(asked(&new_proxy), BTreeSet::from([with("new", NEW)]));
    let log = replica.log().join("\n");
    assert!(!log.contains("hook") && !log.contains("me:"), "no secret in the log: {log}");
    assert!(!log.contains("needs a restart"), "{log}");
}
