//! The audit log: each change leaves its line, for any requests of strangers and any end of the client.

use futures_util::{StreamExt as _, stream};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::eventually;
use crate::support::proxy::Proxy;
use crate::support::servers::redis;

/// The lines of this replica's log whose message begins so.
fn lines(replica: &AdminReplica, message: &str) -> Vec<Value> {
    let lines = replica.paced.log().into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    lines.filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with(message))).collect()
}

#[tokio::test]
async fn strangers_roll_no_change_away() {
    const REQUESTS: usize = 10_000;
    let site = Site::shared("auditflood", "rate = '100/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    let (long, host) = ("x".repeat(10_000), "y".repeat(4_000));
    let url = format!("{}/api/v1/downstreams/{long}/pause", replica.base);
    let stranger = async |number: usize| {
        let headers: &[(&str, &str)] = match number % 3 {
            0 => &[("content-type", "application/json")],
            1 => &[("host", &host)],
            _ => &[("origin", &host)],
        };
        let reply = replica.client.send(Method::POST, &url, headers, "").await.unwrap();
        assert!([401, 403, 421].contains(&reply.status), "{reply:?}");
        if number.is_multiple_of(500) {
            let body = format!(r#"{{"for": "1h", "reason": "change {number}"}}"#);
            assert_eq!(replica.send(Method::POST, "/pause", &[], &body).await.0, 200);
        }
    };
    stream::iter(0..REQUESTS).map(stranger).buffer_unordered(8).collect::<Vec<()>>().await;
    let changed = replica.audit("admin: changed", REQUESTS / 500).await;
    let mut reasons: Vec<&str> = changed.iter().map(|line| line["reason"].as_str().unwrap()).collect();
    reasons.sort_by_key(|reason| reason.rsplit(' ').next().unwrap().parse::<usize>().unwrap());
    assert_eq!(reasons, (0..REQUESTS / 500).map(|n| format!("change {}", n * 500)).collect::<Vec<_>>());
    let refused = lines(&replica, "admin: refused");
    assert!((1..=100).contains(&refused.len()), "{} lines", refused.len());
    let longest = replica.paced.log().iter().map(String::len).max();
    assert!(longest < Some(2_000), "{longest:?}");
    assert_eq!(replica.paced.stop().await, 0);
}

/// Whether the end of a connection that listens at `server` is open, to this port of its client.
fn is_open(server: u16, client: u16) -> bool {
    let ends = format!(":{server:04X} 0100007F:{client:04X} ");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // 01 is established, 08 has an end of the client's that was not read yet.
    table.lines().any(|line| line.contains(&format!("{ends}01")) || line.contains(&format!("{ends}08")))
}

#[tokio::test]
async fn a_change_whose_client_hangs_up_is_made_and_logged() {
    let mut site = Site::shared("audithangup", "rate = '100/s'").await;
    let proxy = Proxy::start(redis().await.port(), Duration::ZERO).unwrap();
    site.store = format!("redis://127.0.0.1:{}", proxy.port());
    let replica = AdminReplica::with_token(&site).await;
    let address = replica.base.strip_prefix("http://").unwrap();
    let body = r#"{"reason": "in a hurry"}"#;
    let request = format!(
        "POST /api/v1/downstreams/billing/pause HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // The store answers only once the client has gone.
    proxy.silence();
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    replica.audit("admin: changing", 1).await;
    let (server, port) = (client.peer_addr().unwrap().port(), client.local_addr().unwrap().port());
    assert!(is_open(server, port));
    drop(client);
    // The daemon has noticed that once it has closed the connection on its side as well.
    eventually("the connection is closed", LONG, || !is_open(server, port)).await;
    proxy.restore();
    eventually("the end of the change is logged", LONG, || {
        lines(&replica, "admin: ").iter().any(|line| {
            let message = line["message"].as_str().unwrap();
            message.ends_with("changed") && line["reason"] == "in a hurry"
        })
    })
    .await;
    let is_paused = replica.get().await["paused"] == true;
    let count = |message: &str| lines(&replica, message).len();
    match (count("admin: changed"), count("admin: not changed"), count("admin: unknown whether changed")) {
        (1, 0, 0) => assert!(is_paused),
        (0, 1, 0) => assert!(!is_paused),
        (0, 0, 1) => {}
        other => panic!("{other:?}"),
    }
    let numbers: Vec<Value> = lines(&replica, "admin: ").iter().map(|line| line["order"].clone()).collect();
    assert_eq!(numbers[0], numbers[1], "both lines are of one change");
    assert_eq!(replica.paced.stop().await, 0);
}

/// With `-q` the log has warnings alone, and with them the changes that were made.
#[tokio::test]
async fn a_quiet_daemon_logs_each_change() {
    let site = Site::shared("auditquiet", "rate = '100/s'").await;
    let address = format!("127.0.0.1:{}", free_port());
    let config = format!("{}[admin]\nlisten = '{address}'\ntoken = '{TOKEN}'\n", site.config());
    let paced = Paced::start(&config, &["-q"], &[]).await;
    let replica = AdminReplica { paced, base: format!("http://{address}"), client: Client::new() };
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let url = format!("{}/api/v1/downstreams/billing/pause", replica.base);
    // It does not say when it listens.
    until("the pause", LONG, async || {
        let sent = replica.client.send(Method::POST, &url, &headers, r#"{"reason": "quiet"}"#).await;
        sent.is_ok_and(|reply| reply.status == 200)
    })
    .await;
    let changed = replica.audit("admin: changed", 1).await;
    assert_eq!(changed[0]["reason"], "quiet");
    let log: Vec<Value> =
        replica.paced.log().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_changes = ["admin: changing", "admin: changed"];
    let mut others = log.iter().filter(|line| of_changes.iter().all(|message| line["message"] != *message));
    assert!(others.all(|line| line["level"] != "INFO"), "{log:?}");
    assert_eq!(replica.paced.stop().await, 0);
}
