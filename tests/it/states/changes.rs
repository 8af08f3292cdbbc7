//! Downstreams in files of their own: one with mistakes, and one that is removed while it sends.

use super::*;
use crate::support::api::{Answer, Api, Gate};
use crate::support::publish::{self, Job};
use crate::support::site::Site;

/// The divisor of the intervals.
const HASTE: u32 = 10;

#[tokio::test]
async fn what_becomes_of_files_in_the_directory_is_shown() {
    let (site, folder) = (Site::shared("statefiles", "rate = '100/s'").await, tempfile::tempdir().unwrap());
    let (api, gate) = (Api::start(), Gate::closed());
    let held = gate.clone();
    api.rule(move |_| Answer::ok().gated(&held));
    let [more, wrong] = ["more.toml", "wrong.toml"].map(|name| folder.path().join(name));
    let keys = "rate = '100/s'\nconcurrency = 1\nhttp.timeout = '300s'";
    let table = format!("[downstreams.more]\n{keys}\nhttp.base_url = '{}'\n", api.url());
    fs::write(&more, table).unwrap();
    let dynamic = format!("[dynamic]\ndir = '{}'\n", folder.path().display());
    let replica = AdminReplica::hasty(&format!("{}{}{dynamic}", site.config(), admin()), HASTE).await;
    let states = all();
    let is_so = async |id: &str| {
        are_shown(&replica, 0, vec![Made::new(state(&states, id), "more", "")]).await;
    };

    fs::write(&wrong, "[downstreams.wrong]\nrate = '1/s'\n").unwrap();
    is_so("wrong-file").await;
    fs::remove_file(&wrong).unwrap();

    publish::publish(&site.amqp, &site.prefix, "more", Job::many("job", 3)).await;
    api.wait_for(1, LONG).await;
    fs::remove_file(&more).unwrap();
    is_so("removed").await;
    // That its queue is not consumed any more is no fault.
    let ready = replica.client.get(&format!("{}/readyz?verbose", replica.base)).await.unwrap();
    assert!(ready.status == 200 && !ready.text.contains("[-]"), "{}", ready.text);
    gate.open();
    replica.paced.wait_line("the downstream is served no more", LONG).await;
    is_so("orphan").await;
    assert_eq!(replica.paced.stop().await, 0);
}
