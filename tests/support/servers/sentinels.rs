//! A master and two replicas, watched by three sentinels.

use super::super::{LONG, until};
use super::Redis;

/// The name under which the sentinels monitor the master.
const NAME: &str = "pace-master";

/// The master first, then its replicas; and the sentinels.
#[derive(Clone, Debug)]
pub struct Sentinels {
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Redis>,
}

impl Sentinels {
    /// A set for the caller alone; it ends with the last clone.
    pub async fn dedicated() -> Self {
        let master = Redis::with(|| "--repl-diskless-sync-delay 0".to_owned()).await;
        let port = master.port();
        let replica =
            move || Redis::with(move || format!("--repl-diskless-sync-delay 0 --replicaof 127.0.0.1 {port}"));
        let (one, two) = tokio::join!(replica(), replica());
        let servers = vec![master, one, two];
        for replica in &servers[1..] {
            let follows = async || {
                let link = replica.info_value(&["INFO", "replication"], "master_link_status").await;
                link.as_deref() == Some("up")
            };
            until("a replica follows its master", LONG, follows).await;
        }
        let lines = format!(
            "sentinel monitor {NAME} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {NAME} 30000\n\
             sentinel failover-timeout {NAME} 10000\n\
             sentinel parallel-syncs {NAME} 2"
        );
        let sentinel = || Redis::sentinel(lines.clone());
        let (a, b, c) = tokio::join!(sentinel(), sentinel(), sentinel());
        let set = Self { servers, sentinels: vec![a, b, c] };
        for sentinel in &set.sentinels {
            let knows = async || {
                let master = sentinel.command(&["SENTINEL", "MASTER", NAME]).await.unwrap_or_default();
                let words: Vec<&str> = master.lines().collect();
                let number = |name: &str| {
                    let at = words.iter().position(|word| *word == name)?;
                    words.get(at + 2).copied()
                };
                (number("num-slaves"), number("num-other-sentinels")) == (Some("2"), Some("2"))
            };
            until("a sentinel knows the replicas and the others", LONG, knows).await;
        }
        set
    }

    /// Kills the master, and has the sentinels take it for failed soon.
    pub async fn kill_master(&self) {
        self.servers[0].kill().await;
        self.fail_after("500").await;
    }

    /// Has the sentinels take a server for failed after this many ms without an answer.
    pub async fn fail_after(&self, millis: &str) {
        for sentinel in &self.sentinels {
            let soon = ["SENTINEL", "SET", NAME, "down-after-milliseconds", millis];
            sentinel.command(&soon).await.unwrap();
        }
    }

    /// Has a sentinel replace the master, which answers and becomes a replica.
    pub async fn replace_master(&self) {
        let begin = async || self.sentinels[1].command(&["SENTINEL", "FAILOVER", NAME]).await.is_ok();
        until("a failover begins", LONG, begin).await;
        until("another server is the master", LONG, async || self.master().await != 0).await;
        self.demote().await;
    }

    /// Makes the first server a replica of the master, as sentinels would themselves after eight seconds.
    pub async fn demote(&self) {
        let port = self.servers[self.master().await].port().to_string();
        self.servers[0].command(&["REPLICAOF", "127.0.0.1", &port]).await.unwrap();
    }

    /// The index of the master in `servers`, as a sentinel reports that answers.
    pub async fn master(&self) -> usize {
        for sentinel in &self.sentinels {
            let Ok(answer) = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).await else {
                continue;
            };
            let port: u16 = answer.lines().last().unwrap().parse().unwrap();
            return self.servers.iter().position(|server| server.port() == port).unwrap();
        }
        panic!("no sentinel answers")
    }

    /// `redis+sentinel://` with all sentinels.
    pub fn url(&self) -> String {
        self.url_for(NAME)
    }

    /// `redis+sentinel://` with all sentinels, and this name of a master.
    pub fn url_for(&self, name: &str) -> String {
        let hosts = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port()));
        format!("redis+sentinel://{}/{name}", hosts.collect::<Vec<_>>().join(","))
    }
}
