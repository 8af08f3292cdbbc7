//! Private Redis and RabbitMQ servers on loopback, shared by the process or dedicated to a test.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::daemon::wait_stopped;
use super::guardian::Guardian;
use super::{apart, blocking, poll, random};

mod cluster;
mod rabbit;
mod redis;
pub mod root;
mod sentinels;

pub use cluster::Cluster;
pub use rabbit::Rabbit;
pub use redis::Redis;
pub use sentinels::Sentinels;

static REDIS: OnceCell<Redis> = OnceCell::const_new();
static RABBIT: OnceCell<Rabbit> = OnceCell::const_new();
static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();

/// The Redis that all tests of this process share; never stop it, use [`super::unique`] keys.
pub async fn redis() -> &'static Redis {
    REDIS.get_or_init(Redis::dedicated).await
}

/// The RabbitMQ that all tests of this process share; never stop it, use [`super::unique`] prefixes.
pub async fn rabbit() -> &'static Rabbit {
    RABBIT.get_or_init(Rabbit::dedicated).await
}

/// The cluster that all tests of this process share; never end a node of it.
pub async fn cluster() -> &'static Cluster {
    CLUSTER.get_or_init(Cluster::dedicated).await
}

#[derive(Debug)]
struct Server {
    guardian: Guardian,
    name: &'static str,
    port: u16,
    script: String,
    pid: AtomicU32,
    /// The bytes that probe whether it is up, and the beginning of the answer.
    hello: (&'static [u8], &'static [u8]),
    /// The text that it logs when it has started completely; RabbitMQ answers a little before.
    complete: &'static str,
    /// The length of its output when it was started.
    written: AtomicUsize,
    patience: Duration,
}

impl Server {
    fn folder(&self) -> &Path {
        self.guardian.folder()
    }

    fn spawn(&self) -> Result<(), String> {
        self.written.store(self.guardian.log(self.name).len(), Ordering::SeqCst);
        self.pid.store(self.guardian.start(self.name, &self.script)?, Ordering::SeqCst);
        Ok(())
    }

    async fn end(self: Arc<Self>, how: &'static str) {
        let work = move || match how {
            "kill" => self.guardian.kill(self.name),
            _ => self.guardian.stop(self.name),
        };
        blocking(work).await.unwrap_or_else(|error| panic!("{error}"));
    }

    async fn again(self: Arc<Self>) {
        let ready = async move {
            self.spawn()?;
            self.ready().await
        };
        apart(ready).await.unwrap_or_else(|error| panic!("{error}"));
    }

    fn signal(&self, signal: Signal) {
        // Until the guardian has waited for it, the pid is no other process's.
        let pid = i32::try_from(self.pid.load(Ordering::SeqCst)).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a pid"), signal).expect("the server runs");
        if signal == Signal::STOP {
            wait_stopped(self.pid.load(Ordering::SeqCst));
        }
    }

    fn is_complete(&self) -> bool {
        let log = self.guardian.log(self.name);
        log.get(self.written.load(Ordering::SeqCst)..).is_some_and(|new| new.contains(self.complete))
    }

    /// Waits until it answers, or ends.
    async fn ready(&self) -> Result<(), String> {
        let pid = self.pid.load(Ordering::SeqCst);
        let probe = async || match answers(self.port, self.hello.0, self.hello.1).await {
            Ok(true) if self.is_complete() => Some(Ok(())),
            _ if is_gone(pid) => Some(Err("ended")),
            _ => None,
        };
        let why = match poll(self.patience, probe).await {
            Some(Ok(())) => return Ok(()),
            Some(Err(why)) => why,
            None => "does not answer",
        };
        let log = self.guardian.log_tail(self.name);
        Err(format!("{} on port {} {why}; it wrote:\n{log}", self.name, self.port))
    }
}

/// Creates a server and starts it, with retries, as another process may have taken its port.
async fn launch<F>(make: F) -> Result<Server, String>
where
    F: Fn() -> Result<Server, String> + Clone + Send + Sync + 'static,
{
    let attempt = async move || {
        let server = blocking(make.clone()).await?;
        server.spawn()?;
        server.ready().await.map(|()| server)
    };
    apart(async move {
        let mut failed = String::new();
        for _ in 0..3 {
            match attempt().await {
                Ok(server) => return Ok(server),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    })
    .await
}

/// Whether the server on `port` answers `hello` with something that begins with `expected`.
async fn answers(port: u16, hello: &[u8], expected: &[u8]) -> io::Result<bool> {
    let dialogue = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(hello).await?;
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).await?;
        Ok(answer == expected)
    };
    timeout(Duration::from_secs(10), dialogue).await?
}

/// Whether the process has ended (a zombie until the guardian waits for it).
fn is_gone(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// A port that nobody listens on, below the range of outgoing connections: a client that keeps
/// dialling a server that is down could otherwise be given the server's port, and reach itself. None is given twice:
/// a server that is down keeps its port.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = 10_000 + (random() % 20_000) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() && GIVEN.lock().unwrap().insert(port) {
            return port;
        }
    }
}

fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir(path).map_err(|error| format!("cannot create {}: {error}", path.display()))
}

async fn output(mut command: Command) -> String {
    let done = blocking(move || command.output()).await.expect("the tool runs");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{}\n{out}{err}", done.status);
    out.into_owned()
}
