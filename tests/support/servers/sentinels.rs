//! A master and two replicas, watched by three sentinels.

use std::time::Duration;

use super::super::until;
use super::Redis;

/// How long discovery may take on a machine that compiles at the same time.
const FORMING: Duration = Duration::from_secs(60);

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
                let link = replica.told(&["INFO", "replication"], "master_link_status").await;
                link.as_deref() == Some("up")
            };
            until("a replica follows its master", FORMING, follows).await;
        }
        let lines = format!(
            "sentinel monitor {NAME} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {NAME} 1000\n\
             sentinel failover-timeout {NAME} 2000\n\
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
            until("a sentinel knows the replicas and the others", FORMING, knows).await;
        }
        set
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
