//! Tokens of OAuth2's client credentials, of a token server that fails at times.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::support::api::{Answer, Api, Arrival, Gate};
use crate::support::daemon::{Paced, run_cli_in};
use crate::support::publish::{self, Job};
use crate::support::site::Site;
use crate::support::{LONG, eventually, real_now, until};

/// `paced:old` and `paced:new`, as HTTP Basic authentication has them.
const OLD: &str = "Basic cGFjZWQ6b2xk";
const NEW: &str = "Basic cGFjZWQ6bmV3";

/// How long the API takes a token after its end, so that a slow machine makes no difference.
const GRACE: Duration = Duration::from_secs(60);

/// The tokens that were issued, each with its end, and the jobs that came with a good one.
#[derive(Clone, Default)]
struct Issued {
    ends: Arc<Mutex<BTreeMap<String, Instant>>>,
    taken: Arc<Mutex<BTreeSet<String>>>,
}

impl Issued {
    /// The answer with a new token that lives for so long.
    fn issue(&self, life: Duration) -> Answer {
        let mut all = self.ends.lock().unwrap();
        let token = format!("t0ken-{}", all.len());
        all.insert(format!("Bearer {token}"), real_now() + life + GRACE);
        let answer = json!({ "access_token": token, "token_type": "Bearer", "expires_in": life.as_secs() });
        Answer::ok().header("content-type", "application/json").body(answer.to_string())
    }

    fn is_good(&self, arrival: &Arrival) -> bool {
        let all = self.ends.lock().unwrap();
        let end = arrival.header("authorization").and_then(|token| all.get(token));
        end.is_some_and(|end| real_now() < *end)
    }

    fn revoke(&self) {
        let now = real_now();
        self.ends.lock().unwrap().values_mut().for_each(|end| *end = now);
    }

    /// The API takes good tokens alone.
    fn guard(&self, api: &Api) {
        let gate = Gate::closed();
        gate.open();
        self.guard_at(api, &gate);
    }

    /// As [`Issued::guard`]; refusals wait at the gate.
    fn guard_at(&self, api: &Api, gate: &Gate) {
        let (issued, gate) = (self.clone(), gate.clone());
        api.rule(move |arrival| {
            if !issued.is_good(arrival) {
                return Answer::status(401).gated(&gate);
            }
            issued.taken.lock().unwrap().insert(arrival.id().to_owned());
            Answer::ok()
        });
    }

    fn taken(&self) -> usize {
        self.taken.lock().unwrap().len()
    }
}

fn client(server: &Api, folder: &Path, timeout: &str) -> String {
    let secret = folder.join("client");
    fs::write(&secret, "old\n").unwrap();
    format!(
        "oauth2 = {{ token_url = '{}token', client_id = 'paced', client_secret_file = '{}', scopes = ['a', 'b'], params = {{ \
         audience = 'orders' }}, timeout = '{timeout}' }}",
        server.url(),
        secret.display()
    )
}

/// The configuration of the site and of another downstream that names the same client.
fn with_other(site: &Site, client: &str) -> String {
    format!(
        "{}\n[downstreams.other]\nrate = '100/s'\n[downstreams.other.http]\nbase_url = '{}other/'\n{client}\n",
        site.config(),
        site.api.url(),
    )
}

#[tokio::test]
async fn a_token_server_that_fails_at_times_costs_no_job() {
    const JOBS: usize = 300;
    let folder = TempDir::new().unwrap();
    let (server, issued) = (Api::start(), Issued::default());
    let mut site = Site::shared("tokens", "rate = '100/s'").await;
    site.http = client(&server, folder.path(), "1s");
    issued.guard(&site.api);
    let (issuer, asked) = (issued.clone(), Mutex::new(0));
    server.rule(move |_| {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        match *asked % 5 {
            1 => issuer.issue(Duration::from_secs(2)),
            2 => Answer::status(500).body("t0ken"),
            3 => Answer::ok().body("<html>t0ken"),
            // Longer than the time-out.
            4 => Answer::ok().after(Duration::from_secs(20)),
            _ => Answer::hang_up(),
        }
    });
    let config = with_other(&site, &client(&server, folder.path(), "1s"));
    let replica = Paced::spawn(&config).await;
    site.publish(Job::many("job", JOBS)).await;
    publish::publish(&site.amqp, &site.prefix, "other", Job::many("other", JOBS)).await;
    super::finished(&site, &replica, 2 * JOBS, || issued.taken()).await;
    site.depth(&site.queue().replace("billing", "other"), 0, LONG).await;
    site.depth(&site.dead_queue().replace("billing", "other"), 0, LONG).await;

    println!("{} token requests, of which {} issued one", server.count(), issued.ends.lock().unwrap().len());
    assert!(server.count() >= 6, "it failed in each way between two tokens");
    let tokens = |other: bool| -> BTreeSet<String> {
        let arrivals = site.api.arrivals();
        let of = arrivals.iter().filter(|arrival| arrival.path.starts_with("/other/") == other);
        of.filter_map(|arrival| arrival.header("authorization").map(str::to_owned)).collect()
    };
    assert!(tokens(true).intersection(&tokens(false)).next().is_some(), "both use one token");
    for request in server.arrivals() {
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/token"));
        assert_eq!(request.header("authorization"), Some(OLD));
        assert_eq!(request.header("content-type"), Some("application/x-www-form-urlencoded"));
        assert_eq!(request.body, "grant_type=client_credentials&scope=a+b&audience=orders");
    }
    let log = replica.log().join("\n");
    assert!(!log.contains("t0ken") && !log.contains("cGFjZWQ"), "no secret in the log: {log}");
}

/// Every answer of the token server is held until the test has seen that more jobs want a token.
#[tokio::test]
async fn however_many_jobs_want_a_token_one_request_is_under_way() {
    const EACH: usize = 60;
    let folder = TempDir::new().unwrap();
    let (server, issued) = (Api::start(), Issued::default());
    let mut site = Site::shared("single", "rate = '100/s'").await;
    site.http = client(&server, folder.path(), "1m");
    issued.guard(&site.api);
    let gate = Gate::closed();
    let (issuer, asked, held) = (issued.clone(), Mutex::new(0), gate.clone());
    server.rule(move |_| {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        let answer = match *asked {
            1 => Answer::status(500).body("t0ken"),
            2 => Answer::ok().body("<html>t0ken"),
            3 => Answer::hang_up(),
            _ => issuer.issue(Duration::from_secs(3600)),
        };
        answer.gated(&held)
    });
    let config =
        format!("admin.listen = '127.0.0.1:0'\n{}", with_other(&site, &client(&server, folder.path(), "1m")));
    let replica = Paced::spawn(&config).await;
    let publish = async |stems: [&str; 2]| {
        site.publish(Job::many(stems[0], EACH)).await;
        publish::publish(&site.amqp, &site.prefix, "other", Job::many(stems[1], EACH)).await;
    };
    publish(["a", "b"]).await;
    gate.wait_for(1, LONG).await;
    until("jobs of both downstreams wait for the token", LONG, async || {
        let metrics = replica.metrics().await;
        ["billing", "other"].iter().all(|name| {
            let series = format!("paced_jobs_in_flight{{downstream=\"{name}\",state=\"sending\"}} ");
            let sending = metrics.lines().find_map(|line| line.strip_prefix(&series));
            sending.is_some_and(|count| count.parse::<f64>().unwrap() >= 5.0)
        })
    })
    .await;
    for number in 1..=4 {
        gate.wait_for(1, LONG).await;
        assert_eq!((server.count(), gate.waiting()), (number, 1), "one request, and none beside it");
        gate.let_through(1);
        eventually("the next request, or a token", LONG, || server.count() > number || issued.taken() > 0)
            .await;
    }
    eventually("the jobs are taken", LONG, || issued.taken() == 2 * EACH).await;
    assert_eq!(server.count(), 4);

    // The API refuses the token, which many jobs have.
    let before = site.api.count();
    issued.revoke();
    publish(["c", "d"]).await;
    gate.wait_for(1, LONG).await;
    site.api.wait_for(before + 10, LONG).await;
    assert_eq!((server.count(), gate.waiting()), (5, 1), "one request, and none beside it");
    gate.open();
    eventually("the jobs are taken", LONG, || issued.taken() == 4 * EACH).await;
    assert_eq!(replica.stop().await, 0);
    assert_eq!(server.count(), 5, "one more token, however many jobs were refused");
}

#[tokio::test]
async fn a_token_that_the_api_does_not_take_any_more_is_replaced_at_once() {
    const EACH: usize = 100;
    let folder = TempDir::new().unwrap();
    let (server, issued) = (Api::start(), Issued::default());
    let mut site = Site::shared("revoked", "rate = '200/s'").await;
    site.http = client(&server, folder.path(), "30s");
    let gate = Gate::closed();
    issued.guard_at(&site.api, &gate);
    let issuer = issued.clone();
    server.rule(move |_| issuer.issue(Duration::from_secs(3600)));
    let replica = site.replica().await;
    site.publish(Job::many("a", EACH)).await;
    eventually("the jobs are taken", LONG, || issued.taken() == EACH).await;
    assert_eq!(server.count(), 1);
    issued.revoke();
    site.publish(Job::many("b", EACH)).await;
    gate.wait_for(4, LONG).await;
    gate.open();
    super::finished(&site, &replica, 2 * EACH, || issued.taken()).await;
    assert_eq!(server.count(), 2, "one more token, however many requests were refused");
    assert!(!replica.log().iter().any(|line| line.contains("refuses the credentials")));
}

#[tokio::test]
async fn the_secret_of_the_client_may_be_replaced_too() {
    const EACH: usize = 50;
    let folder = TempDir::new().unwrap();
    let (server, issued) = (Api::start(), Issued::default());
    let mut site = Site::shared("clients", "rate = '200/s'").await;
    site.http = client(&server, folder.path(), "30s");
    issued.guard(&site.api);
    let (issuer, good) = (issued.clone(), Arc::new(Mutex::new(OLD)));
    let wanted = Arc::clone(&good);
    server.rule(move |arrival| match arrival.header("authorization") {
        given if given == Some(*wanted.lock().unwrap()) => issuer.issue(Duration::from_secs(3600)),
        _ => Answer::status(401).body("{\"error\":\"invalid_client\"}"),
    });
    let replica = site.replica().await;
    site.publish(Job::many("a", EACH)).await;
    eventually("the jobs are taken", LONG, || issued.taken() == EACH).await;
    fs::write(folder.path().join("client"), "new\n").unwrap();
    *good.lock().unwrap() = NEW;
    issued.revoke();
    site.publish(Job::many("b", EACH)).await;
    super::finished(&site, &replica, 2 * EACH, || issued.taken()).await;
    assert!(server.arrivals().iter().any(|request| request.header("authorization") == Some(NEW)));
}

#[tokio::test]
async fn the_check_asks_for_a_token_and_the_configuration_hides_the_secret() {
    let folder = TempDir::new().unwrap();
    let (server, issued) = (Api::start(), Issued::default());
    let mut site = Site::shared("checked", "rate = '100/s'").await;
    site.http = client(&server, folder.path(), "30s");
    let file = folder.path().join("paced.toml");
    fs::write(&file, site.config()).unwrap();
    let run = async |args: &[&str]| run_cli_in(folder.path(), args, b"").await;
    let shown = run(&["config", "show"]).await;
    assert!(shown.stdout.contains("client_secret = \"***\""), "{}", shown.stdout);
    assert!(shown.stdout.contains("scopes = [\"a\", \"b\"]"), "{}", shown.stdout);
    assert!(shown.stdout.contains("audience = \"***\""), "{}", shown.stdout);

    server.rule(move |_| issued.issue(Duration::from_secs(60)));
    let good = run(&["check", "--online"]).await;
    assert_eq!(good.code, 0, "{}", good.stderr);
    assert!(
        good.stdout.contains(&format!("token ok: {}token (client paced)", server.url())),
        "{}",
        good.stdout
    );
    server.rule(|_| Answer::status(401).body("{\"error\":\"invalid_client\"}"));
    let bad = run(&["check", "--online"]).await;
    assert_eq!(bad.code, 69, "{}", bad.stderr);
    assert!(bad.stderr.contains("401 Unauthorized (invalid_client); check client_id"), "{}", bad.stderr);
}
