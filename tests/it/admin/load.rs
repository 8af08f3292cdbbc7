//! The admin server under load: probes are answered, for any clients and any number of them.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::eventually;

/// Connects from this address on loopback, which counts as a client of its own.
pub(super) async fn connect(from: &str, to: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    socket.connect(to.parse().unwrap()).await.unwrap()
}

/// Sends a request with these header lines, and does not wait for its answer.
async fn send(from: &str, to: &str, request: &str, lines: &str) -> TcpStream {
    let mut stream = connect(from, to).await;
    let head = format!("{request} HTTP/1.1\r\nhost: {to}\r\n{lines}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// The beginning of the answer to a request for this path.
async fn ask(from: &str, to: &str, path: &str) -> (TcpStream, String) {
    let stream = send(from, to, &format!("GET {path}"), "").await;
    answer(stream).await
}

/// Waits for the beginning of an answer.
async fn answer(mut stream: TcpStream) -> (TcpStream, String) {
    let mut first = vec![0; 512];
    let count = timeout(LONG, stream.read(&mut first)).await.unwrap().unwrap();
    (stream, String::from_utf8_lossy(&first[..count]).into_owned())
}

/// Probes the daemon some times; each must be answered.
async fn probe(to: &str, times: usize) {
    for _ in 0..times {
        let (_, answer) = ask("127.0.0.1", to, "/livez").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn probes_are_answered_beside_idle_and_busy_connections() {
    let site = Site::shared("adminload", "rate = '100/s'").await;
    let watched = Watched::start(&site).await;
    watched.readyz(200).await;
    let to = watched.address.as_str();

    let mut idle = Vec::new();
    for _ in 0..64 {
        let mut stream = connect("127.0.0.2", to).await;
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost").await.unwrap();
        idle.push(stream);
    }
    // Streams of events last; each is a request in progress.
    let (mut busy, mut refused) = (Vec::new(), 0);
    for number in 0..64 {
        let (stream, answer) = ask(&format!("127.0.0.{}", 3 + number % 4), to, "/api/v1/events").await;
        match answer.starts_with("HTTP/1.1 200") {
            true => busy.push(stream),
            false => {
                assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 1"), "{answer}");
                refused += 1;
            }
        }
    }
    assert_eq!((busy.len(), refused), (32, 32));
    // Some ask for metrics, and read nothing of them.
    let mut slow = Vec::new();
    for number in 0..32 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(2048).unwrap();
        socket.bind(SocketAddr::new([127, 0, 0, 7 + number % 4].into(), 0)).unwrap();
        let mut stream = socket.connect(to.parse().unwrap()).await.unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {to}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    probe(to, 20).await;
    until("metrics are answered beside clients that do not read them", LONG, async || {
        ask("127.0.0.1", to, "/metrics").await.1.starts_with("HTTP/1.1 200")
    })
    .await;
    // A busy store may be too late for a probe.
    until("it is ready", LONG, async || ask("127.0.0.1", to, "/readyz").await.1.starts_with("HTTP/1.1 200"))
        .await;

    // Places of one kind are not those of another, and come back.
    let (_, answer) = ask("127.0.0.3", to, "/api/v1/status").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(busy);
    let mut last = String::new();
    until("a stream finds a place", LONG, async || {
        last = ask("127.0.0.3", to, "/api/v1/events").await.1;
        last.starts_with("HTTP/1.1 200")
    })
    .await;
    assert_eq!(watched.paced.stop().await, 0);
}

#[tokio::test]
async fn probes_are_answered_while_64_requests_are_in_progress() {
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "adminbusy", "rate = '100/s'");
    let replica = AdminReplica::with_token(&site).await;
    let to = replica.base.strip_prefix("http://").unwrap();
    // Looks wait for a store that is frozen, changes for bodies that do not come, and streams of events continue.
    redis.freeze();
    let change =
        format!("authorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n");
    until("64 requests are in progress from before the probes until after them", LONG, async || {
        let (mut idle, mut streams, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..32 {
            let (stream, answer) = ask(&format!("127.0.0.{}", 3 + number % 2), to, "/api/v1/events").await;
            if !answer.starts_with("HTTP/1.1 200") {
                return false;
            }
            streams.push(stream);
        }
        for _ in 0..16 {
            waiting.push(send("127.0.0.5", to, "POST /api/v1/downstreams/billing/pause", &change).await);
        }
        for _ in 0..16 {
            waiting.push(send("127.0.0.6", to, "GET /api/v1/downstreams/billing", "").await);
        }
        // A head may take two seconds, which is the least that these have.
        for _ in 0..64 {
            let mut stream = connect("127.0.0.2", to).await;
            stream.write_all(b"GET /livez HTTP/1.1\r\nhost").await.unwrap();
            idle.push(stream);
        }
        probe(to, 5).await;
        let is_silent = |stream: &TcpStream| {
            stream.try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        let has_ended = |stream: &TcpStream| loop {
            match stream.try_read(&mut [0; 4096]) {
                Ok(1..) => {}
                Ok(0) => return true,
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        };
        waiting.iter().chain(&idle).all(is_silent) && !streams.iter().any(has_ended)
    })
    .await;
    redis.thaw();
    replica.paced.wait_ready().await;
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn probes_are_answered_beside_64_clients_who_ask_without_a_pause() {
    let site = Site::shared("adminasking", "rate = '100/s'").await;
    let watched = Watched::start(&site).await;
    watched.readyz(200).await;
    let to = watched.address.as_str();
    let asked = Cell::new(0);
    let clients = (0..64).map(|number| {
        let path = ["/metrics", "/api/v1/downstreams", "/api/v1/downstreams/billing", "/"][number % 4];
        let (from, asked) = (format!("127.0.0.{}", 2 + number / 4), &asked);
        async move {
            loop {
                let stream = send(&from, to, &format!("GET {path}"), "connection: close\r\n").await;
                let (mut stream, answer) = answer(stream).await;
                let is_done = answer.starts_with("HTTP/1.1 200");
                // On a busy machine the store may exceed its time-out. Such an answer does not count.
                let is_late = path.ends_with("/billing")
                    && answer.starts_with("HTTP/1.1 503")
                    && !answer.contains("retry-after");
                assert!(is_done || is_late, "{path}: {answer}");
                timeout(LONG, stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
                asked.set(asked.get() + usize::from(is_done));
            }
        }
    });
    let probes = async {
        until("they have begun", LONG, async || asked.get() >= 256).await;
        let mut before_it = Vec::new();
        for _ in 0..21 {
            let before = asked.get();
            probe(to, 1).await;
            before_it.push(asked.get() - before);
        }
        before_it.sort_unstable();
        println!("answers before that of a probe: {before_it:?}");
        assert!(before_it[10] <= 128, "a probe waits for more than a few of each client: {before_it:?}");
    };
    tokio::select! {
        _ = futures_util::future::join_all(clients) => unreachable!("they ask without an end"),
        () = probes => {}
    }
    assert_eq!(watched.paced.stop().await, 0);
}

#[tokio::test]
async fn thousands_of_connections_keep_nobody_out_and_are_bounded() {
    let site = Site::shared("adminflood", "rate = '100/s'").await;
    let watched = Watched::start(&site).await;
    watched.readyz(200).await;
    let to = watched.address.as_str();
    let sockets = || {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", watched.paced.pid())).unwrap();
        folder.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).count()
    };
    let before = sockets();
    // One client has many, and many clients have one each, or two.
    let mut flood = Vec::new();
    for number in 0..400 {
        flood.push(connect("127.0.0.2", to).await);
        flood.push(connect(&format!("127.0.1.{}", number % 200 + 1), to).await);
    }
    probe(to, 20).await;
    eventually("the descriptors are bounded", LONG, || sockets() <= before + 300).await;
    let (_, answer) = ask("127.0.0.1", to, "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(flood);
    assert_eq!(watched.paced.stop().await, 0);
}

/// Those who ask for the list at once, and how often each does.
const CALLERS: usize = 8;
const LISTS: usize = 150;

/// The calls that a Redis server has executed, those in scripts too.
async fn calls(redis: &Redis) -> u64 {
    let answer = redis.command(&["INFO", "commandstats"]).await.unwrap();
    let of_line = |line: &str| {
        let (_, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        figures.split(',').next()?.parse::<u64>().ok()
    };
    answer.lines().filter_map(of_line).sum()
}

/// Has all callers ask for the list, and returns how many calls the server has executed meanwhile.
async fn calls_of_lists(redis: &Redis, address: &str) -> u64 {
    let before = calls(redis).await;
    let callers = (0..CALLERS).map(|_| async {
        let client = Client::new();
        let url = format!("http://{address}/api/v1/downstreams");
        for _ in 0..LISTS {
            assert_eq!(client.get(&url).await.unwrap().status, 200);
        }
    });
    futures_util::future::join_all(callers).await;
    calls(redis).await - before
}

#[tokio::test]
async fn a_list_tells_of_a_pause_that_another_replica_was_asked_for() {
    let site = Site::shared("adminlistpause", "rate = '100/s'").await;
    let config = format!("{}{ADMIN}token = '{TOKEN}'\n", site.config());
    let [one, other] = [AdminReplica::hasty(&config, 5).await, AdminReplica::hasty(&config, 5).await];
    let listed = async || -> Value {
        let reply = one.client.get(&format!("{}/api/v1/downstreams", one.base)).await.unwrap();
        let list: Value = serde_json::from_str(&reply.text).unwrap();
        list["downstreams"][0].clone()
    };
    until("the list is answered", LONG, async || {
        listed().await["pause"] == Value::Null && listed().await.is_object()
    })
    .await;
    let (status, answer) = other.send(Method::POST, "/pause", &[], r#"{"reason": "they asked"}"#).await;
    assert_eq!(status, 200, "{answer}");
    // Far below the time for which a record that is not read again would count.
    until("the list has it", Duration::from_secs(30), async || {
        listed().await["pause"]["reason"] == "they asked"
    })
    .await;
    let output = one.tool(TOKEN, &["resume", "billing"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(listed().await["pause"], Value::Null, "its own change shows at once");
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}

#[tokio::test]
async fn a_list_of_downstreams_asks_the_store_no_more_however_many_want_it() {
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "adminlist", "rate = '100/s'");
    let watched = Watched::start(&site).await;
    watched.readyz(200).await;
    let get = async |path: &str| -> Value {
        let (status, text) = watched.get(path).await;
        if status == 200 { serde_json::from_str(&text).unwrap() } else { Value::Null }
    };
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<String>>();
    until("the list has what the store has", LONG, async || {
        let list = get("/api/v1/downstreams").await;
        let one = get("/api/v1/downstreams/billing").await;
        let listed = &list["downstreams"][0];
        listed.is_object() && listed["limits"] == one["limits"] && keys(listed) == keys(&one)
    })
    .await;

    // Many ask at once and again and again: had each of them asked the store, there would be a call for each at least. The
    // daemon makes some calls of its own, more where the lists take long.
    until("fewer calls than lists", LONG, async || {
        let made = calls_of_lists(&redis, &watched.address).await;
        println!("{made} calls for {} lists", CALLERS * LISTS);
        made < (CALLERS * LISTS / 6) as u64
    })
    .await;

    // A store that does not answer delays no list: those that wait for it would take 1.5 s each.
    let limits = get("/api/v1/downstreams").await["downstreams"][0]["limits"].clone();
    assert!(limits.is_array(), "{limits}");
    redis.freeze();
    let lists = async {
        for _ in 0..60 {
            assert_eq!(get("/api/v1/downstreams").await["downstreams"][0]["limits"], limits);
        }
    };
    timeout(Duration::from_secs(60), lists).await.unwrap();
    redis.thaw();
    watched.readyz(200).await;
    assert_eq!(watched.paced.stop().await, 0);
}
