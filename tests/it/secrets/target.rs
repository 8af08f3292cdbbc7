//! Base URLs and proxies in files, which are replaced while jobs are sent by them.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{LONG, finished};
use crate::support::api::Api;
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::site::Site;

#[tokio::test]
async fn a_base_url_and_a_proxy_that_are_replaced_lose_no_job() {
    const JOBS: usize = 400;
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let site = Site::shared("target", "rate = '200/s'").await;
    let [old_proxy, new_proxy] = [Api::start(), Api::start()];
    let login = |api: &Api, login: &str| api.url().replace("http://", &format!("http://{login}@"));
    fs::write(path("base"), format!("{}hook/old/\n", site.api.url())).unwrap();
    fs::write(path("proxy"), login(&old_proxy, "me:old")).unwrap();
    let url = format!("base_url = '{}'", site.api.url());
    let files = format!("base_url_file = '{}'\nproxy_file = '{}'", path("base"), path("proxy"));
    let replica = Paced::spawn(&site.config().replace(&url, &files)).await;
    site.publish(Job::many("job", JOBS)).await;
    old_proxy.wait_for(50, LONG).await;

    // The jobs before and after it have one of them each, and both.
    fs::write(path("base"), format!("{}hook/new/\n", site.api.url())).unwrap();
    replica.wait_line("secrets read again", LONG).await;
    fs::write(path("proxy"), login(&new_proxy, "me:new")).unwrap();
    replica.signal(Signal::HUP);
    replica.wait_line("configuration reloaded", LONG).await;
    let arrivals = || [&old_proxy, &new_proxy].map(Api::arrivals).concat();
    let ids = || arrivals().iter().map(|arrival| arrival.id().to_owned()).collect::<BTreeSet<_>>();
    finished(&site, &replica, JOBS, || ids().len()).await;

    assert_eq!(arrivals().len(), JOBS, "none is doubled");
    assert_eq!(site.api.count(), 0, "no request goes by no proxy");
    let paths = |api: &Api| -> BTreeSet<String> {
        let path = |path: &str| path.split('/').rev().nth(1).unwrap_or_default().to_owned();
        api.arrivals().iter().map(|arrival| path(&arrival.path)).collect()
    };
    assert_eq!(paths(&old_proxy), BTreeSet::from(["new".to_owned(), "old".to_owned()]));
    assert_eq!(paths(&new_proxy), BTreeSet::from(["new".to_owned()]));
    let log = replica.log().join("\n");
    assert!(!log.contains("hook") && !log.contains("me:"), "no secret in the log: {log}");
    assert!(!log.contains("needs a restart"), "{log}");
}
