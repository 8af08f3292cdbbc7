//! A private redis-server on a free loopback port, ended when the guard is dropped.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

pub struct Redis {
    port: u16,
    /// Write every change to disk before answering, so that a restart finds it.
    durable: bool,
    dir: TempDir,
    child: Option<Child>,
}

impl Redis {
    /// Empty after every restart.
    pub async fn start() -> Self {
        Self::with(false).await
    }

    /// Finds its data again after a restart.
    pub async fn start_durable() -> Self {
        Self::with(true).await
    }

    async fn with(durable: bool) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut redis = Self { port, durable, dir: TempDir::new().unwrap(), child: None };
        redis.up().await;
        redis
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Starts the server, on the same port as ever, and waits until it answers.
    pub async fn up(&mut self) {
        let (append, port) = (if self.durable { "yes" } else { "no" }, self.port.to_string());
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", append])
            .args(["--appendfsync", "always", "--enable-debug-command", "yes", "--dir"])
            .arg(self.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        self.child = Some(child);
        for _ in 0..500 {
            if self.command(&["PING"]).await.is_ok() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("redis-server on port {port} does not answer");
    }

    /// Ends the server.
    pub fn down(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Sends one command on a connection of its own; the answer as far as it came in one piece.
    pub async fn command(&self, words: &[&str]) -> std::io::Result<String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        stream.write_all(request.as_bytes()).await?;
        let mut answer = vec![0; 65_536];
        let length = stream.read(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        if length == 0 || answer.starts_with('-') {
            return Err(std::io::Error::other(answer));
        }
        Ok(answer)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.down();
    }
}
