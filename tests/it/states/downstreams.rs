//! One daemon that serves a downstream in each of many states, all at once.

use jiff::{SignedDuration, Timestamp};
use lapin::types::AMQPValue;
use tempfile::TempDir;

use super::*;
use crate::authority::Authority;
use crate::support::api::{Answer, Gate};
use crate::support::publish::{self, Job};
use crate::support::servers::free_port;
use crate::support::site::Site;
use crate::support::{apart, eventually};

/// The states that are those of the process, or of no downstream that there is.
const NO_DOWNSTREAM: [&str; 2] = ["reload", "unroutable"];

/// An hour in us.
const HOUR: i64 = 3_600_000_000;

/// The key that makes a lane of each tenant.
const LANES: &str = "lanes.by = { tenant = 'header:paced-lane' }";

/// What all downstreams share.
struct Scene {
    site: Site,
    /// Holds back what an API answers that is slow.
    gate: Gate,
    /// Nothing listens there.
    closed: u16,
    /// The files of a secret and of certificates.
    folder: TempDir,
}

impl Scene {
    async fn new() -> Self {
        let (site, gate) = (Site::shared("states", "").await, Gate::closed());
        let held = gate.clone();
        site.api.rule(move |arrival| answer(arrival.path.split('/').nth(1).unwrap_or_default(), &held));
        let scene = Self { site, gate, closed: free_port(), folder: TempDir::new().unwrap() };
        let (folder, authority) = (scene.folder.path(), Authority::new("ours"));
        fs::write(folder.join("secret"), "Bearer s").unwrap();
        fs::write(folder.join("client"), "s").unwrap();
        let soon = Timestamp::from_microsecond(wall_now().0).unwrap() + SignedDuration::from_hours(5 * 24);
        let soon = soon.to_zoned(jiff::tz::TimeZone::UTC).date();
        let until = (soon.year().into(), soon.month().unsigned_abs(), soon.day().unsigned_abs());
        authority.issue_between(&["paced"], (2020, 1, 1), until).put(folder, "certificate-ends");
        authority.issue_expired(&["paced"]).put(folder, "certificate-ended");
        scene
    }

    /// The host and port that a downstream has its API at, and its token server.
    fn host(&self, id: &str) -> String {
        let is_down = matches!(id, "refused" | "token-server");
        let port = if is_down { self.closed } else { self.site.api.port() };
        format!("127.0.0.1:{port}")
    }

    /// A queue that somebody else has declared.
    fn queue(&self) -> String {
        format!("{}.theirs", self.site.prefix)
    }

    fn config(&self, states: &[State]) -> String {
        let Site { amqp, store, prefix, .. } = &self.site;
        let head = format!(
            "[amqp]\nurl = '{amqp}'\nprefix = '{prefix}'\n[store]\nurl = '{store}'\nkey_prefix = '{prefix}'\n{}\
             [plans.free]\nlimits = [{{ algorithm = 'fixed-window', rate = '1/30d' }}]\n",
            admin()
        );
        let ids = states.iter().map(|state| state.id.as_str()).filter(|id| !NO_DOWNSTREAM.contains(id));
        let downstream = |id: &str| {
            let (scheme, host) = if id.starts_with("certificate") {
                ("https", "localhost:1".to_owned())
            } else {
                ("http", self.host(id))
            };
            format!("[downstreams.{id}]\nhttp.base_url = '{scheme}://{host}/{id}/'\n{}\n", self.options(id))
        };
        ids.map(downstream).fold(head, |text, more| text + &more)
    }

    /// The limits and other options of a downstream.
    fn options(&self, id: &str) -> String {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        match id {
            "backlog" => "rate = '1/s'".to_owned(),
            "pace" => "rate = '100/m'\nlimits = [{ algorithm = 'quota', rate = '5000/day' }]".to_owned(),
            "burst" => "limits = [{ algorithm = 'token-bucket', rate = '6/m', capacity = 5 }]".to_owned(),
            "window" => "rate = '100/s'\nlimits = [{ algorithm = 'sliding-log', rate = '3/m' }]".to_owned(),
            "quota" => "rate = '100/s'\nlimits = [{ algorithm = 'quota', rate = '3/month' }]".to_owned(),
            "throttled" | "cooling" => "rate = '2/s'".to_owned(),
            "slow" | "late" => "rate = '100/s'\nconcurrency = 1\nhttp.timeout = '300s'".to_owned(),
            "timing-out" => {
                "rate = '20/s'\nhttp.timeout = '200ms'\nretry.max_attempts = 1000\nretry.max_backoff = '1s'"
                    .to_owned()
            }
            "failing" => "rate = '20/s'\nretry.max_attempts = 1000\nretry.max_backoff = '1s'".to_owned(),
            "not-due" => "rate = '100/s'\nretry.min_backoff = '50s'\nretry.max_backoff = '50s'".to_owned(),
            "parked-retry" => "rate = '100/s'\nretry.min_backoff = '1h'\nretry.max_backoff = '1h'".to_owned(),
            "lane-limited" => {
                format!("rate = '100/s'\nhold_max = '10m'\n{LANES}\nlanes.limits = [{{ rate = '1/m' }}]")
            }
            "lane-paused" => format!("rate = '100/s'\n{LANES}"),
            "lane-throttled" => format!("rate = '20/s'\n{LANES}\nlanes.pause_per = ['tenant']"),
            "lane-unnamed" => format!("rate = '1/s'\n{LANES}"),
            "missing" => format!("rate = '100/s'\nqueue.name = '{}'", self.queue()),
            "token-server" => format!(
                "rate = '100/s'\nhttp.oauth2 = {{ token_url = 'http://{}/token', client_id = 'paced', \
                 client_secret_file = '{}' }}",
                self.host(id),
                file("client")
            ),
            "secret" => {
                format!("rate = '100/s'\nhttp.headers = {{ authorization_file = '{}' }}", file("secret"))
            }
            "certificate-ends" | "certificate-ended" => {
                let [certificate, key] = [".pem", "-key.pem"].map(|end| file(&format!("{id}{end}")));
                format!("rate = '1/s'\ntls.cert_file = '{certificate}'\ntls.key_file = '{key}'")
            }
            "rest" | "override" | "paused" | "parked-time" | "parked-plan" | "refused" | "unauthorized"
            | "dead" | "lane-unused" => "rate = '100/s'".to_owned(),
            other => panic!("nothing makes the state {other}"),
        }
    }

    /// Makes what the configuration alone does not.
    async fn make(&self, replica: &AdminReplica) {
        let Site { amqp, prefix, api, .. } = &self.site;
        for change in [
            &["pause", "paused", "--reason", "maintenance"][..],
            &["lane", "pause", "lane-paused", "acme", "--reason", "maintenance"],
            &["rate", "set", "override", "50/s"],
        ] {
            let done = replica.tool(TOKEN, change).await;
            assert_eq!(done.code, 0, "{done:?}");
        }
        publish::publish_all(amqp, &format!("{prefix}.jobs"), jobs()).await;
        delete_queue(amqp, &self.queue()).await;
        fs::remove_file(self.folder.path().join("secret")).unwrap();
        // Only what came since it began to look is counted.
        replica.paced.wait_line("messages for no downstream", LONG).await;
        publish::publish(amqp, prefix, "unknown", vec![Job::new("later")]).await;
        eventually("the first job waits for its answer", LONG, || {
            api.arrivals().iter().any(|arrival| arrival.path.starts_with("/late"))
        })
        .await;
        // As a job that was parked comes home.
        let now = wall_now().0;
        let old = Job::new("old")
            .header("paced-parked-for", "limit")
            .header_value("paced-parked", AMQPValue::LongLongInt(now / 1000))
            .header_value("paced-first-seen", AMQPValue::LongLongInt(now - 2 * HOUR));
        publish::publish_to(amqp, "", &format!("{prefix}.home.late"), vec![old]).await;
        fs::write(replica.paced.config_file(), "[downstreams.rest]\nrate = 'fast'\n").unwrap();
        replica.paced.hangup();
    }
}

/// What the API of a downstream answers.
fn answer(id: &str, gate: &Gate) -> Answer {
    match id {
        "slow" | "late" | "timing-out" => Answer::ok().gated(gate),
        "failing" | "not-due" | "parked-retry" => Answer::status(500),
        // Below hold_max, so that the jobs stay.
        "throttled" | "lane-throttled" => Answer::status(429).header("retry-after", "50"),
        "cooling" => Answer::status(429),
        "unauthorized" => Answer::status(401),
        "dead" => Answer::status(404),
        _ => Answer::ok(),
    }
}

/// The jobs of all downstreams, with their routing keys.
fn jobs() -> Vec<(String, Job)> {
    let tomorrow = AMQPValue::LongLongInt(wall_now().0 / 1000 + 24 * HOUR / 1000);
    let counts: [(&'static str, usize); 26] = [
        ("backlog", 200),
        ("pace", 400),
        ("burst", 60),
        ("window", 30),
        ("quota", 10),
        ("paused", 5),
        ("not-due", 1),
        ("parked-time", 3),
        ("parked-plan", 3),
        ("parked-retry", 3),
        ("late", 1),
        ("slow", 5),
        ("timing-out", 20),
        ("failing", 20),
        ("refused", 20),
        ("throttled", 30),
        ("cooling", 30),
        ("unauthorized", 20),
        ("token-server", 20),
        ("lane-limited", 5),
        ("lane-paused", 5),
        ("lane-throttled", 30),
        ("lane-unnamed", 200),
        ("lane-unused", 2),
        ("dead", 1),
        ("unknown", 1),
    ];
    let of = |(id, count): (&'static str, usize)| {
        let tomorrow = tomorrow.clone();
        let job = move |job: Job| match id {
            "parked-time" => job.header_value("paced-not-before", tomorrow.clone()),
            "parked-plan" => job.header("paced-plan", "free"),
            "lane-limited" | "lane-paused" | "lane-throttled" | "lane-unused" => {
                job.header("paced-lane", "acme")
            }
            _ => job,
        };
        Job::many(id, count).into_iter().map(move |each| (id.to_owned(), job(each)))
    };
    counts.into_iter().flat_map(of).collect()
}

async fn delete_queue(url: &str, queue: &str) {
    let (url, queue) = (url.to_owned(), queue.to_owned());
    apart(async move {
        let (connection, channel) = publish::open(&url).await;
        channel.queue_delete(queue.as_str().into(), Default::default()).await.unwrap();
        connection.close(200, "done".into()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_becomes_of_a_downstream_is_shown() {
    let (states, scene) = (of("downstreams"), Scene::new().await);
    publish::declare_quorum(&scene.site.amqp, &scene.queue()).await;
    let replica = AdminReplica::hasty(&scene.config(&states), 10).await;
    scene.make(&replica).await;
    let made = states.iter().map(|state| Made::new(state, &state.id, scene.host(&state.id)));
    are_shown(&replica, 0, made.collect()).await;
    scene.gate.open();
    assert_eq!(replica.paced.stop().await, 0);
}
