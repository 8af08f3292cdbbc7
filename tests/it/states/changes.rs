//! Downstreams in files of their own: one with mistakes, and one that restarts and is removed while it sends.

use super::*;
use crate::support::api::{Answer, Api, Gate};
use crate::support::publish::{self, Job};
use crate::support::site::Site;

/// The divisor of the intervals.
const HASTE: u32 = 10;

#[tokio::test]
async fn what_becomes_of_files_in_the_directory_is_shown() {
    let (site, folder) = (Site::shared("statefiles", "rate = '100/s'").await, tempfile::tempdir().unwrap());
    let (api, gates) = (Api::start(), [Gate::closed(), Gate::closed()]);
    let held = gates.clone();
    api.rule(move |arrival| Answer::ok().gated(&held[usize::from(arrival.path.starts_with("/other"))]));
    let [more, wrong] = ["more.toml", "wrong.toml"].map(|name| folder.path().join(name));
    let keys = "rate = '100/s'\nconcurrency = 1\nhttp.timeout = '300s'";
    let table = |base: &str| format!("[downstreams.more]\n{keys}\nhttp.base_url = '{base}'\n");
    fs::write(&more, table(&api.url())).unwrap();
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
    fs::write(&more, table(&format!("{}/other/", api.url().trim_end_matches('/')))).unwrap();
    is_so("restarting").await;
    gates[0].open();
    replica.paced.wait_line("the downstream has restarted", LONG).await;
    api.wait_for(2, LONG).await;
    fs::remove_file(&more).unwrap();
    is_so("removed").await;
    // That its queue is not consumed any more is no fault.
    let ready = replica.client.get(&format!("{}/readyz?verbose", replica.base)).await.unwrap();
    assert!(ready.status == 200 && !ready.text.contains("[-]"), "{}", ready.text);
    gates[1].open();
    replica.paced.wait_line("the downstream is served no more", LONG).await;
    is_so("orphan").await;
    assert_eq!(replica.paced.stop().await, 0);
}
