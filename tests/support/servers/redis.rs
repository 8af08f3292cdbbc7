//! Redis.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::guardian::Guardian;
use super::super::{apart, blocking};
use super::{Server, free_port, launch, make_folder, output};

/// Long enough for a machine that compiles at the same time.
const REDIS_START: Duration = Duration::from_secs(20);

/// A Redis server: append-only file on, so that its data outlive a kill.
#[derive(Clone, Debug)]
pub struct Redis(Arc<Server>);

impl Redis {
    /// One for the caller alone; it ends with the last clone.
    pub async fn dedicated() -> Self {
        Self::try_dedicated().await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Redis::dedicated`], for those who report errors themselves.
    pub async fn try_dedicated() -> Result<Self, String> {
        let server = launch(Self::server).await?;
        Ok(Self(Arc::new(server)))
    }

    fn server() -> Result<Server, String> {
        let guardian = Guardian::new()?;
        let port = free_port();
        let data = guardian.folder().join("data");
        make_folder(&data)?;
        let script = format!(
            "exec redis-server --port {port} --bind 127.0.0.1 --dir '{}' --save '' --appendonly yes \
             --daemonize no --maxmemory-policy noeviction\n",
            data.display()
        );
        let hello: (&[u8], &[u8]) = (b"PING\r\n", b"+PONG");
        Ok(Server {
            guardian,
            name: "redis",
            port,
            script,
            pid: 0.into(),
            hello,
            complete: "Ready to accept connections",
            written: 0.into(),
            patience: REDIS_START,
        })
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.0.port)
    }

    /// Its port, which stays over restarts.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// SIGKILL. Data stay.
    pub async fn kill(&self) {
        self.0.clone().end("kill").await;
    }

    /// SIGTERM, a clean end. Data stay.
    pub async fn stop(&self) {
        self.0.clone().end("stop").await;
    }

    /// Starts it again on the same port with its data, and waits until it answers.
    pub async fn start(&self) {
        self.0.clone().again().await;
    }

    /// Forgets all data; only while it is down.
    pub async fn wipe(&self) {
        let data = self.0.guardian.folder().join("data");
        blocking(move || fs::remove_dir_all(&data).and_then(|()| fs::create_dir(&data))).await.unwrap();
    }

    /// SIGSTOP: connections stay, nothing is answered.
    pub fn freeze(&self) {
        self.0.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.0.signal(Signal::CONT);
    }

    /// Who ends it, and where it lives.
    pub fn guardian(&self) -> &Guardian {
        &self.0.guardian
    }

    /// Runs `redis-cli` with these arguments and returns what it prints.
    pub async fn cli(&self, args: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.0.port.to_string()]).args(args);
        output(command).await
    }

    /// Sends one command on a connection of its own; the answer as it came, or the error in it.
    pub async fn command(&self, words: &[&str]) -> io::Result<String> {
        const GOODBYE: &str = "*1\r\n$4\r\nQUIT\r\n";
        const FAREWELL: &str = "+OK\r\n";
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            write!(request, "${}\r\n{word}\r\n", word.len()).map_err(io::Error::other)?;
        }
        let port = self.0.port;
        apart(async move {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            stream.write_all((request + GOODBYE).as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            match answer.strip_suffix(FAREWELL) {
                Some(answer) if !answer.is_empty() && !answer.starts_with('-') => Ok(answer.to_owned()),
                _ => Err(io::Error::other(answer)),
            }
        })
        .await
    }
}
