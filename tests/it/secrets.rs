//! Secrets in files, which are replaced while jobs are sent with them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use crate::support::api::{Answer, Api, Arrival};
use crate::support::daemon::Paced;
use crate::support::publish::{self, Job};
use crate::support::site::{NAME, Site, compare};
use crate::support::{LONG, eventually};

mod logins;
mod oauth2;
mod target;

/// The divisor of the intervals at which the daemon checks files.
const HASTE: u32 = 10;

/// Decides whom an API lets in.
#[derive(Clone, Default)]
struct Gatekeeper(Arc<Mutex<Gate>>);

#[derive(Default)]
struct Gate {
    /// The values of `Authorization` that it takes.
    tokens: BTreeSet<String>,
    /// The jobs that it has taken.
    taken: BTreeSet<String>,
    refused: usize,
}

impl Gatekeeper {
    /// Answers 401 to requests without one of the tokens.
    fn guard(&self, api: &Api) {
        let keeper = self.clone();
        api.rule(move |arrival| {
            let mut gate = keeper.0.lock().unwrap();
            if arrival.header("authorization").is_some_and(|token| gate.tokens.contains(token)) {
                gate.taken.insert(arrival.id().to_owned());
                return Answer::ok();
            }
            gate.refused += 1;
            Answer::status(401)
        });
    }

    /// Takes these tokens and no others, once `change` is done: no request is answered meanwhile.
    fn take_after(&self, tokens: &[&str], change: impl FnOnce()) {
        let mut gate = self.0.lock().unwrap();
        change();
        gate.tokens = tokens.iter().map(|token| (*token).to_owned()).collect();
    }

    fn refused(&self) -> usize {
        self.0.lock().unwrap().refused
    }

    fn taken(&self) -> usize {
        self.0.lock().unwrap().taken.len()
    }
}

/// A secret as Kubernetes keeps it: `token` is a link to `..data/token`, and `..data` one to a folder that is replaced.
struct Volume(TempDir);

impl Volume {
    fn new(token: &str) -> Self {
        let volume = Self(TempDir::new().unwrap());
        volume.put(token, "..1");
        symlink("..data/token", volume.token()).unwrap();
        volume
    }

    fn token(&self) -> PathBuf {
        self.0.path().join("token")
    }

    /// Puts another token in place, in a folder of this name.
    fn put(&self, token: &str, folder: &str) {
        let path = |name: &str| self.0.path().join(name);
        let old = fs::read_link(path("..data")).ok();
        fs::create_dir(path(folder)).unwrap();
        fs::write(path(folder).join("token"), token).unwrap();
        symlink(folder, path("..data_tmp")).unwrap();
        fs::rename(path("..data_tmp"), path("..data")).unwrap();
        if let Some(old) = old {
            fs::remove_dir_all(self.0.path().join(old)).unwrap();
        }
    }
}

async fn guarded(topic: &str, downstream: &str, file: &Path) -> (Site, Gatekeeper) {
    let mut site = Site::shared(topic, downstream).await;
    site.http = format!("headers = {{ authorization_file = '{}' }}", file.display());
    let keeper = Gatekeeper::default();
    keeper.guard(&site.api);
    (site, keeper)
}

/// Waits until this many jobs were taken, and stops; none is dead.
async fn finished(site: &Site, replica: &Paced, jobs: usize, taken: impl Fn() -> usize) {
    eventually("every job is taken", LONG, || taken() == jobs).await;
    assert_eq!(replica.stop().await, 0);
    site.depth(&site.queue(), 0, LONG).await;
    site.depth(&site.dead_queue(), 0, LONG).await;
}

fn is_used(api: &Api, token: &str) -> bool {
    api.arrivals().iter().any(|arrival| has(arrival, token))
}

fn has(arrival: &Arrival, token: &str) -> bool {
    arrival.header("authorization") == Some(token)
}

#[tokio::test]
async fn a_token_that_is_replaced_while_the_api_takes_both_is_never_refused() {
    let volume = Volume::new("Bearer 0\n");
    let (site, keeper) = guarded("rotated", "rate = '200/s'\nconcurrency = 1", &volume.token()).await;
    keeper.take_after(&["Bearer 0"], || ());
    let replica = Paced::hasty(&site.config(), HASTE).await;
    let replace = async {
        site.api.wait_for(20, LONG).await;
        let mut old = "Bearer 0".to_owned();
        for n in 1..=3 {
            let new = format!("Bearer {n}");
            keeper.take_after(&[&old, &new], || match n {
                // As Kubernetes replaces it.
                1 => volume.put(&format!("{new}\n"), "..2"),
                // Rewritten where it is, and then replaced by another file.
                2 => fs::write(fs::canonicalize(volume.token()).unwrap(), format!("{new}\n")).unwrap(),
                _ => {
                    let other = volume.0.path().join("other");
                    fs::write(&other, format!("{new}\n")).unwrap();
                    fs::rename(other, volume.token()).unwrap();
                }
            });
            // One request is under way at a time, so none with the old token comes after one with the new token.
            eventually("the new token is used", LONG, || is_used(&site.api, &new)).await;
            keeper.take_after(&[&new], || ());
            site.api.wait_for(site.api.count() + 10, LONG).await;
            old = new;
        }
    };
    let jobs = publish::flow(&site.amqp, &site.prefix, NAME, "job", &site.api, replace).await;
    finished(&site, &replica, jobs, || keeper.taken()).await;
    assert_eq!(keeper.refused(), 0, "401");
    let arrivals = site.api.arrivals();
    let tally = compare("job", jobs, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
    let with = |token: &str| -> BTreeSet<usize> {
        arrivals.iter().filter(|arrival| has(arrival, token)).map(|arrival| arrival.connection).collect()
    };
    assert!(with("Bearer 0").intersection(&with("Bearer 1")).next().is_some(), "connections are kept");
    assert!(!replica.log().iter().any(|line| line.contains("Bearer")), "no secret in the log");
}

#[tokio::test]
async fn a_token_that_the_api_drops_at_once_costs_no_job_and_each_request_is_refused_once_at_most() {
    const AT_ONCE: usize = 8;
    const EACH: usize = 150;
    let volume = Volume::new("Bearer 0");
    let downstream = format!("rate = '500/s'\nconcurrency = {AT_ONCE}");
    let (site, keeper) = guarded("dropped", &downstream, &volume.token()).await;
    keeper.take_after(&["Bearer 0"], || ());
    let replica = site.replica().await;
    site.publish(Job::many("job-0", EACH)).await;
    site.api.wait_for(EACH / 2, LONG).await;
    for n in 1..=3 {
        let (new, before) = (format!("Bearer {n}"), keeper.refused());
        keeper.take_after(&[&new], || volume.put(&new, &format!("..{}", n + 1)));
        site.publish(Job::many(&format!("job-{n}"), EACH)).await;
        eventually("the new token is used", LONG, || is_used(&site.api, &new)).await;
        eventually("half of the jobs are taken", LONG, || keeper.taken() > EACH * n + EACH / 2).await;
        // Those that were under way when the first one was refused: it has the file read before it is sent again.
        let refused = keeper.refused() - before;
        assert!(refused <= AT_ONCE, "{refused} refused");
    }
    finished(&site, &replica, EACH * 4, || keeper.taken()).await;
    assert!(keeper.refused() <= 3 * AT_ONCE, "{} refused", keeper.refused());
    // The first that is refused has the file read, so that the others need not wait.
    assert!(!replica.log().iter().any(|line| line.contains("refuses the credentials")));
}

#[tokio::test]
async fn a_file_that_holds_no_secret_for_a_while_changes_nothing_and_is_reported_once() {
    let volume = Volume::new("Bearer 0");
    let (site, keeper) = guarded("unusable", "rate = '200/s'", &volume.token()).await;
    keeper.take_after(&["Bearer 0", "Bearer 1"], || ());
    let replica = Paced::hasty(&site.config(), HASTE).await;
    volume.put("s3cret\nof two lines", "..2");
    let warning = "secrets cannot be read again";
    replica.wait_line(warning, LONG).await;
    site.publish(Job::many("job", 300)).await;
    site.api.wait_for(100, LONG).await;
    volume.put("Bearer 1", "..3");
    replica.wait_line("secrets read again", LONG).await;
    finished(&site, &replica, 300, || keeper.taken()).await;
    assert_eq!(keeper.refused(), 0);
    let log = replica.log();
    assert_eq!(log.iter().filter(|line| line.contains(warning)).count(), 1, "{}", log.join("\n"));
    assert!(
        !log.iter().any(|line| line.contains("s3cret") || line.contains("Bearer")),
        "no secret in the log"
    );
}

#[tokio::test]
async fn headers_in_the_configuration_change_with_a_reload() {
    let mut site = Site::shared("headers", "rate = '200/s'").await;
    site.http = "headers = { authorization = 'Bearer 0' }".to_owned();
    let keeper = Gatekeeper::default();
    keeper.guard(&site.api);
    keeper.take_after(&["Bearer 0", "Bearer 1"], || ());
    let replica = site.replica().await;
    site.publish(Job::many("a", 10)).await;
    site.api.wait_for(10, LONG).await;
    site.http = "headers = { authorization = 'Bearer 1', x-client = 'paced' }".to_owned();
    fs::write(replica.config_file(), site.config()).unwrap();
    replica.hangup();
    let line = replica.wait_line("configuration reloaded", LONG).await;
    assert!(line.contains("downstreams.billing.http.headers.authorization"), "{line}");
    keeper.take_after(&["Bearer 1"], || ());
    site.publish(Job::many("b", 10)).await;
    let arrivals = site.api.wait_for(20, LONG).await;
    assert!(arrivals[10..].iter().all(|arrival| arrival.header("x-client") == Some("paced")));
    assert_eq!((replica.stop().await, keeper.refused()), (0, 0));
}

#[tokio::test]
async fn files_may_be_named_in_the_directory_of_credentials_that_systemd_makes() {
    let credentials = TempDir::new().unwrap();
    fs::write(credentials.path().join("paced_token"), "Bearer 0").unwrap();
    let file = Path::new("$CREDENTIALS_DIRECTORY/paced_token");
    let (site, keeper) = guarded("credentials", "rate = '200/s'", file).await;
    keeper.take_after(&["Bearer 0"], || ());
    let folder = credentials.path().to_str().unwrap();
    let replica = Paced::start(&site.config(), &[], &[("CREDENTIALS_DIRECTORY", folder)]).await;
    replica.wait_ready().await;
    site.publish(Job::many("job", 20)).await;
    finished(&site, &replica, 20, || keeper.taken()).await;
    assert_eq!(keeper.refused(), 0);
}
