//! Tests of the test support: servers start, stop and start again, and leave nothing behind; the log and the counts are
//! right.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use paced::Rate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::api::{Answer, Api, Arrival, Gate};
use super::support::client::Client;
use super::support::daemon::{Paced, message, run_cli};
use super::support::publish::{self, Job};
use super::support::servers::{Rabbit, Redis};
use super::support::{blocking, count, eventually, servers, unique};

mod prometheus;
mod proxy;

const SOON: Duration = Duration::from_secs(120);

#[tokio::test]
async fn shared_servers_are_up_and_are_the_same_for_all() {
    let (redis, again) = (servers::redis().await, servers::redis().await);
    assert_eq!(redis.port(), again.port());
    let key = unique("key");
    assert_eq!(redis.cli(&["SET", &key, "1"]).await.trim(), "OK");
    assert_eq!(again.cli(&["GET", &key]).await.trim(), "1");
}

/// `tests/support/test-servers.sh` reads this output.
#[tokio::test]
async fn servers_say_what_they_are() {
    let (redis, rabbit) = (servers::redis().await, servers::rabbit().await);
    let info = ["INFO", "server"];
    let redis = match redis.info_value(&info, "valkey_version").await {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", redis.info_value(&info, "redis_version").await.unwrap()),
    };
    let rabbit = format!("RabbitMQ {}", rabbit.version().await);
    println!("server: {rabbit}\nserver: {redis}");
    for stated in [redis, rabbit] {
        let (name, version) = stated.split_once(' ').unwrap();
        if servers::root::is_set() {
            // The programs are those of the root folder, not this machine's.
            let installed = servers::root::package_version(&format!("{}-server", name.to_lowercase()));
            assert!(installed.contains(version), "{name} {version} is {installed}");
        } else {
            assert!(version.chars().next().is_some_and(|digit| digit.is_ascii_digit()), "{version}");
        }
    }
}

#[tokio::test]
async fn redis_keeps_its_data_over_a_kill_and_loses_them_when_wiped() {
    let redis = Redis::dedicated().await;
    redis.cli(&["SET", "a", "1"]).await;
    redis.kill().await;
    assert!(TcpStream::connect(("127.0.0.1", redis.port())).await.is_err(), "nobody listens");
    redis.start().await;
    assert_eq!(redis.cli(&["GET", "a"]).await.trim(), "1");
    redis.stop().await;
    redis.wipe().await;
    redis.start().await;
    assert_eq!(redis.cli(&["GET", "a"]).await.trim(), "");
}

#[tokio::test]
async fn a_frozen_redis_answers_once_it_is_thawed() {
    let redis = Redis::dedicated().await;
    redis.freeze();
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).await.unwrap();
    stream.write_all(b"PING\r\n").await.unwrap();
    let mut answer = [0; 7];
    let early = tokio::time::timeout(Duration::from_millis(200), stream.read_exact(&mut answer)).await;
    assert!(early.is_err(), "a frozen server does not answer");
    redis.thaw();
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[tokio::test]
async fn rabbit_takes_messages_and_gives_them_back_with_their_headers() {
    let rabbit = servers::rabbit().await;
    let queue = unique("queue");
    let (connection, channel) = publish::open(&rabbit.url()).await;
    let durable = lapin::options::QueueDeclareOptions::durable();
    channel.queue_declare(queue.as_str().into(), durable, Default::default()).await.unwrap();
    assert_eq!(publish::depth(&rabbit.url(), &queue).await, Some(0));
    let mut jobs = Job::many("job", 700);
    jobs[3] = Job::new("special").body("text").header("paced-lane", "blue").priority(7);
    publish::publish_to(&rabbit.url(), "", &queue, jobs).await;
    assert_eq!(publish::depth(&rabbit.url(), &queue).await, Some(700));
    let taken = publish::drain(&rabbit.url(), &queue).await;
    assert_eq!(taken.len(), 700);
    assert_eq!((taken[2].id(), taken[3].id(), taken[699].id()), ("job-2", "special", "job-699"));
    assert_eq!(taken[3].headers["paced-lane"], "blue");
    assert_eq!((taken[3].body.as_slice(), *taken[3].properties.priority()), (&b"text"[..], Some(7)));
    assert_eq!(publish::depth(&rabbit.url(), &unique("none")).await, None);
    connection.close(200, "done".into()).await.unwrap();
}

#[tokio::test]
async fn rabbit_keeps_confirmed_messages_over_a_kill() {
    let rabbit = Rabbit::dedicated().await;
    let (connection, channel) = publish::open(&rabbit.url()).await;
    let mut quorum = lapin::types::FieldTable::default();
    quorum.insert("x-queue-type".into(), lapin::types::AMQPValue::LongString("quorum".into()));
    let durable = lapin::options::QueueDeclareOptions::durable();
    channel.queue_declare("kept".into(), durable, quorum).await.unwrap();
    publish::publish_to(&rabbit.url(), "", "kept", Job::many("job", 10)).await;
    rabbit.kill().await;
    eventually("the connection sees it", SOON, || !connection.status().connected()).await;
    rabbit.start().await;
    let kept = publish::drain(&rabbit.url(), "kept").await;
    assert_eq!(kept.len(), 10);
    assert_eq!(publish::depth(&rabbit.url(), "kept").await, Some(0));
}

#[tokio::test]
async fn servers_end_with_their_owner_even_by_sigkill() {
    if std::env::var_os("PACED_TEST_OWNER").is_some() {
        return own_servers().await;
    }
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "support_selftest::servers_end_with_their_owner_even_by_sigkill", "--nocapture"])
        .env("PACED_TEST_OWNER", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = owner.stdout.take().unwrap();
    let lines = blocking(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.take_while(|line| line != "all up").collect::<Vec<_>>()
    });
    let guardians: Vec<(u32, String)> = lines
        .await
        .iter()
        .filter_map(|line| line.split_once("guardian ")?.1.split_once(' '))
        .map(|(pid, folder)| (pid.parse().unwrap(), folder.to_owned()))
        .collect();
    let mut processes = Vec::new();
    for (pid, folder) in &guardians {
        assert!(Path::new(folder).exists());
        processes.extend(family(*pid));
    }
    let names: Vec<&str> = processes.iter().map(|process| process.name.as_str()).collect();
    for name in ["sh", servers::root::redis_server(), "epmd", "beam.smp"] {
        assert!(names.contains(&name), "{name} is one of {names:?}");
    }
    owner.kill().unwrap();
    owner.wait().unwrap();
    for (_, folder) in &guardians {
        eventually(&format!("{folder} is gone"), SOON, || !Path::new(folder).exists()).await;
    }
    for process in &processes {
        eventually(&format!("{process:?} is gone"), SOON, || !process.is_up()).await;
    }
}

/// The owner, a second run of this program: it prints where its servers are, and waits to be killed.
async fn own_servers() {
    let (redis, rabbit) = (servers::redis().await, servers::rabbit().await);
    for guardian in [redis.guardian(), rabbit.guardian()] {
        println!("guardian {} {}", guardian.pid(), guardian.folder().display());
    }
    println!("all up");
    std::future::pending::<()>().await;
}

/// A process, which its start time distinguishes from a later one of the same pid.
#[derive(Debug)]
struct Process {
    pid: u32,
    parent: u32,
    name: String,
    started: String,
}

impl Process {
    /// The process of this pid, or `None`; a zombie does not count.
    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let name = stat[stat.find('(')? + 1..stat.rfind(')')?].to_owned();
        let fields: Vec<&str> = stat[stat.rfind(')')? + 2..].split(' ').collect();
        (fields[0] != "Z").then(|| {
            let (parent, started) = (fields[1].parse().unwrap(), fields[19].to_owned());
            Self { pid, parent, name, started }
        })
    }

    fn is_up(&self) -> bool {
        Self::of(self.pid).is_some_and(|now| now.started == self.started)
    }
}

/// A process and its descendants.
fn family(root: u32) -> Vec<Process> {
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let mut others: Vec<Process> = pids.filter_map(Process::of).collect();
    let mut members = Vec::new();
    let mut parents = vec![root];
    members.extend(Process::of(root));
    while let Some(parent) = parents.pop() {
        let (children, rest) = others.into_iter().partition(|process| process.parent == parent);
        others = rest;
        let children: Vec<Process> = children;
        parents.extend(children.iter().map(|child| child.pid));
        members.extend(children);
    }
    members
}

#[tokio::test]
async fn the_api_keeps_a_log_and_answers_as_it_is_set() {
    let api = Api::start();
    api.script("/busy", [Answer::status(503).header("retry-after", 2), Answer::hang_up()]);
    let client = Client::new();
    let url = api.url();
    let send = async |path: &str| {
        client.send(Method::POST, &format!("{url}{path}"), &[("idempotency-key", path)], "b").await
    };
    let busy = send("busy").await.unwrap();
    assert_eq!((busy.status, &busy.headers["retry-after"]), (503, &"2".parse().unwrap()));
    assert!(send("busy").await.is_err(), "it hung up");
    assert_eq!(send("busy").await.unwrap().status, 200);
    api.rule(|arrival| Answer::status(if arrival.path == "/gone?a=1" { 410 } else { 200 }).body("answered"));
    let gone = send("gone?a=1").await.unwrap();
    assert_eq!((gone.status, gone.text.as_str()), (410, "answered"));
    let log = api.wait_for(4, SOON).await;
    assert_eq!(log.len(), 4);
    let last = &log[3];
    assert_eq!((last.method.as_str(), last.id(), &last.body), ("POST", "gone?a=1", &Bytes::from("b")));
    assert!(log.windows(2).all(|pair| pair[0].at < pair[1].at && pair[0].wall <= pair[1].wall));
}

#[tokio::test]
async fn a_gate_holds_answers_until_it_lets_them_through() {
    let (api, gate) = (Api::start(), Gate::closed());
    let held = gate.clone();
    api.rule(move |_| Answer::ok().gated(&held));
    let client = Client::new();
    let mut sends = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (client, url) = (client.clone(), api.url());
        sends.spawn(async move { client.get(&url).await });
    }
    gate.wait_for(3, SOON).await;
    assert_eq!((api.in_flight(), api.peak_in_flight()), (3, 3));
    gate.let_through(1);
    assert_eq!(sends.join_next().await.unwrap().unwrap().unwrap().status, 200);
    eventually("one is through", SOON, || gate.waiting() == 2 && api.in_flight() == 2).await;
    gate.open();
    while let Some(sent) = sends.join_next().await {
        assert_eq!(sent.unwrap().unwrap().status, 200);
    }
    assert_eq!(api.peak_in_flight(), 3);
}

#[tokio::test]
async fn an_api_that_is_dropped_refuses_connections_and_can_come_back() {
    let port = servers::free_port();
    drop(Api::try_start(port).unwrap());
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    let again = Api::try_start(port).unwrap();
    assert!(TcpStream::connect(("127.0.0.1", again.port())).await.is_ok());
}

#[tokio::test]
async fn the_daemon_is_started_watched_and_ended() {
    let (redis, rabbit, api) = (servers::redis().await, servers::rabbit().await, Api::start());
    let prefix = unique("selftest");
    let config = format!(
        "[amqp]\nurl = \"{}\"\nprefix = \"{prefix}\"\n[store]\nurl = \"{}\"\nkey_prefix = \"{prefix}\"\n\
         [downstreams.demo]\nrate = \"100/s\"\nhttp.base_url = \"{}\"\n",
        rabbit.url(),
        redis.url(),
        api.url()
    );
    let paced = Paced::spawn(&config).await;
    assert!(Path::new(&format!("/proc/{}", paced.pid())).exists());
    let jobs = Job::many("job", 20);
    publish::publish(&rabbit.url(), &prefix, "demo", jobs.clone()).await;
    let log = api.wait_for(20, SOON).await;
    let tally = count::tally(jobs.iter().filter_map(|job| job.id.as_deref()), log.iter().map(Arrival::id));
    assert!(tally.is_clean(), "{tally:?}");
    assert_eq!(paced.exited(), None);
    assert_eq!(paced.stop().await, 0);
    assert_eq!(paced.exited(), Some(0));
    assert!(paced.log().iter().any(|line| message(line).as_deref() == Some("stopped")));

    let killed = Paced::spawn(&config).await;
    killed.kill9();
    assert_eq!(killed.wait_exit(SOON).await, -9);
    let wrong = Paced::start("[amqp]\nurll = \"\"\n", &[], &[]).await;
    assert_eq!(wrong.wait_exit(SOON).await, 78);
}

#[tokio::test]
async fn commands_get_their_input_and_their_output_is_kept() {
    let version = run_cli(&["--version"], b"").await;
    assert_eq!(version.code, 0);
    assert_eq!(version.stdout.trim(), format!("paced {}", env!("CARGO_PKG_VERSION")));
    let api = Api::start();
    let piped =
        run_cli(&["pipe", "--rate", "1000/s", "--to", &api.url()], b"{\"id\": \"a\"}\nno job\n").await;
    assert_eq!((piped.code, api.arrivals()[0].id()), (1, "a"));
    assert!(piped.stdout.contains("\"delivered\"") && !piped.stderr.is_empty(), "{piped:?}");
}

const MS: u64 = 1_000_000;

#[test]
fn the_busiest_window_is_half_open_and_slides() {
    let paced: Vec<u64> = (0..500).map(|n| n * 10 * MS).collect();
    assert_eq!(count::busiest(&paced, Duration::from_secs(1)), 100);
    assert_eq!(count::busiest(&paced, Duration::from_millis(100)), 10);
    // 60 stamps are late in one calendar second and 60 early in the next: no bucket of a second contains 120.
    let edge: Vec<u64> = (0..120).map(|n| (400 + n * 10) * MS).collect();
    assert_eq!(count::busiest(&edge, Duration::from_secs(2)), 120);
    let burst = [0, 990 * MS, 991 * MS, 999 * MS, 1000 * MS, 1990 * MS];
    assert_eq!(count::busiest(&burst, Duration::from_secs(1)), 4);
    assert_eq!(count::busiest(&[], Duration::from_secs(1)), 0);
}

#[test]
fn what_a_window_may_see_is_its_slots_and_the_late_ones() {
    let second = Duration::from_secs(1);
    for (rate, window, most) in [
        ("100/s", second, 101),
        ("100/s", second / 10, 11),
        ("1000/s", second, 1005),
        ("10/s", second, 11),
        ("1/3s", second, 2),
    ] {
        assert_eq!(count::allowed(rate.parse::<Rate>().unwrap(), window), most, "{rate} in {window:?}");
    }
}

#[test]
fn spacing_and_rate_are_those_of_the_intervals() {
    let paced: Vec<u64> = (0..101).map(|n| n * 10 * MS).collect();
    assert_eq!(count::span(&paced), Duration::from_secs(1));
    assert!((count::effective_rate(&paced) - 100.0).abs() < 1e-9);
    assert!(count::variation(&paced) < 1e-9);
    // Intervals of 0 and 20 ms alternate, so the deviation equals the mean.
    let pairs: Vec<u64> = (0..101).map(|n| n / 2 * 20 * MS).collect();
    assert!((count::variation(&pairs) - 1.0).abs() < 1e-9);
    assert_eq!(count::quantile(&count::gaps(&pairs), 0.5), 0);
    assert_eq!(count::quantile(&[1, 2, 3, 4], 0.99), 4);
    assert_eq!(count::histogram(&[5 * MS, 6 * MS, 27 * MS], Duration::from_millis(10)), [2, 0, 1]);
    assert_eq!((count::effective_rate(&[1]), count::span(&[])), (0.0, Duration::ZERO));
}

#[test]
fn a_tally_names_the_lost_the_doubled_and_the_strange() {
    let tally = count::tally(["a", "b", "c"], ["c", "a", "c", "x"]);
    assert_eq!(
        (tally.lost.as_slice(), tally.strange.as_slice()),
        (&["b".to_owned()][..], &["x".to_owned()][..])
    );
    assert_eq!(tally.doubled, [("c".to_owned(), 2)]);
    assert!(!tally.is_clean());
    assert!(count::tally(["a", "b"], ["b", "a"]).is_clean());
}
