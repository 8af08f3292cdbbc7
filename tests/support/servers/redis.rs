//! Redis.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::guardian::Guardian;
use super::super::{apart, blocking};
use super::{Server, free_port, launch, make_folder, output, root};

/// Long enough for a machine that compiles at the same time.
const REDIS_START: Duration = Duration::from_secs(120);

/// The file that contains the offset of the clock.
const CLOCK: &str = "clock";

/// The library that steps a server's clock, below the folder of the machine's libraries.
const FAKETIME: &str = "faketime/libfaketime.so.1";

/// A Redis server with an append-only file, so that its data survive a kill.
#[derive(Clone, Debug)]
pub struct Redis(Arc<Server>);

impl Redis {
    /// A server for the caller alone; it ends with the last clone.
    pub async fn dedicated() -> Self {
        Self::try_dedicated().await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Redis::dedicated`], for callers that report errors themselves.
    pub async fn try_dedicated() -> Result<Self, String> {
        Self::try_with(String::new).await
    }

    /// A server with more options, which are computed for each attempt to start it: ports may be taken.
    pub async fn with(options: impl Fn() -> String + Clone + Send + Sync + 'static) -> Self {
        Self::try_with(options).await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn try_with(options: impl Fn() -> String + Clone + Send + Sync + 'static) -> Result<Self, String> {
        let server = launch(move || Self::server(&options())).await?;
        Ok(Self(Arc::new(server)))
    }

    /// A sentinel with these lines in its configuration, which it writes to.
    pub async fn sentinel(lines: String) -> Self {
        let server = launch(move || Self::sentinel_server(&lines)).await;
        Self(Arc::new(server.unwrap_or_else(|error| panic!("{error}"))))
    }

    fn sentinel_server(lines: &str) -> Result<Server, String> {
        let guardian = Guardian::new()?;
        let (port, folder) = (free_port(), guardian.folder().display().to_string());
        let file = guardian.folder().join("sentinel.conf");
        let text = format!("port {port}\nbind 127.0.0.1\ndir {folder}\n{lines}\n");
        fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let server = root::shell(root::redis_server());
        let script = format!("exec {server} '{}' --sentinel\n", file.display());
        Ok(Self::process(guardian, "sentinel", port, script, "+monitor master"))
    }

    /// A server that runs no scripts: Valkey without its module for Lua, Redis without the commands.
    pub async fn without_scripts() -> Self {
        if root::redis_server() == "valkey-server" {
            let redis = Self::with(|| "--enable-module-command yes".to_owned()).await;
            redis.command(&["MODULE", "UNLOAD", "lua"]).await.unwrap();
            return redis;
        }
        Self::with(|| "--rename-command SCRIPT '' --rename-command EVALSHA ''".to_owned()).await
    }

    /// As [`Redis::dedicated`], on a clock of its own, which [`Redis::set_clock`] steps: with
    /// libfaketime (`install-servers.sh chaos`).
    ///
    /// `None`, with a word, in a root folder: Debian's Redis 8.0 and Valkey 9.1 end where the libc's malloc stands
    /// in front of jemalloc's, and libfaketime needs that.
    pub async fn with_own_clock() -> Option<Self> {
        if root::is_set() {
            eprintln!("skipped: newer servers cannot run on libfaketime");
            return None;
        }
        let server = launch(Self::faked).await.unwrap_or_else(|error| panic!("{error}"));
        Some(Self(Arc::new(server)))
    }

    fn server(options: &str) -> Result<Server, String> {
        Self::after(options, |_| Ok(String::new()))
    }

    fn faked() -> Result<Server, String> {
        Self::after("", |guardian| {
            let found = fs::read_dir(root::path("/usr/lib")).into_iter().flatten().flatten();
            let mut found = found.filter(|entry| entry.path().join(FAKETIME).exists());
            let library =
                found.next().ok_or("no libfaketime; run `tests/support/install-servers.sh chaos`")?;
            let library = format!("/usr/lib/{}/{FAKETIME}", library.file_name().display());
            let clock = guardian.folder().join(CLOCK);
            fs::write(&clock, "+0\n")
                .map_err(|error| format!("cannot write {}: {error}", clock.display()))?;
            // The libc's malloc, before jemalloc's: jemalloc reads the time when it starts, libfaketime allocates
            // memory when the time is first read, and each would wait for the other.
            Ok(format!(
                "env LD_PRELOAD='{library} libc.so.6' FAKETIME_TIMESTAMP_FILE='{}' FAKETIME_NO_CACHE=1 \
                 FAKETIME_DONT_FAKE_MONOTONIC=1 ",
                clock.display()
            ))
        })
    }

    /// A server that a shell starts with these words before its command. It never waits for the disk: what it has
    /// written still survives a kill, since only the machine's own end loses pages that are not on disk yet.
    fn after(
        options: &str,
        words: impl FnOnce(&Guardian) -> Result<String, String>,
    ) -> Result<Server, String> {
        let guardian = Guardian::new()?;
        let server = root::shell(&format!("{}{}", words(&guardian)?, root::redis_server()));
        let port = free_port();
        let data = guardian.folder().join("data");
        make_folder(&data)?;
        let script = format!(
            "exec {server} --port {port} --bind 127.0.0.1 --dir '{}' --save '' --appendonly yes \
             --appendfsync no --auto-aof-rewrite-percentage 0 --daemonize no \
             --maxmemory-policy noeviction {options}\n",
            data.display()
        );
        Ok(Self::process(guardian, "redis", port, script, "Ready to accept connections"))
    }

    fn process(
        guardian: Guardian,
        name: &'static str,
        port: u16,
        script: String,
        complete: &'static str,
    ) -> Server {
        let hello: (&[u8], &[u8]) = (b"PING\r\n", b"+PONG");
        Server {
            guardian,
            name,
            port,
            script,
            pid: 0.into(),
            hello,
            complete,
            written: 0.into(),
            patience: REDIS_START,
        }
    }

    /// The value of a line `NAME:VALUE` in the answer of a command such as INFO.
    pub async fn info_value(&self, question: &[&str], name: &str) -> Option<String> {
        let answer = self.command(question).await.ok()?;
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::to_owned)
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.0.port)
    }

    /// Its port, which stays over restarts.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// Sends SIGKILL. Data persist.
    pub async fn kill(&self) {
        self.0.clone().end("kill").await;
    }

    /// Sends SIGTERM, which ends it cleanly. Data persist.
    pub async fn stop(&self) {
        self.0.clone().end("stop").await;
    }

    /// Starts it again on the same port with its data, and waits until it answers.
    pub async fn start(&self) {
        self.0.clone().again().await;
    }

    /// Deletes all data; only while it is down.
    pub async fn wipe(&self) {
        let data = self.0.guardian.folder().join("data");
        blocking(move || fs::remove_dir_all(&data).and_then(|()| fs::create_dir(&data))).await.unwrap();
    }

    /// Sends SIGSTOP: connections stay open, nothing is answered.
    pub fn freeze(&self) {
        self.0.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.0.signal(Signal::CONT);
    }

    /// Sets its clock to this many seconds ahead of the machine's from now on, or behind.
    pub async fn set_clock(&self, ahead: i32) {
        let folder = self.0.guardian.folder().to_owned();
        // The step is atomic: the file is read whenever the server reads the time.
        let step = move || {
            fs::write(folder.join("next"), format!("{ahead:+}\n"))?;
            fs::rename(folder.join("next"), folder.join(CLOCK))
        };
        blocking(step).await.unwrap();
    }

    /// The guardian that owns it.
    pub fn guardian(&self) -> &Guardian {
        &self.0.guardian
    }

    /// Runs `redis-cli`, or Valkey's, with these arguments and returns what it prints.
    pub async fn cli(&self, args: &[&str]) -> String {
        let mut command = root::command(root::redis_cli());
        command.args(["-h", "127.0.0.1", "-p", &self.0.port.to_string()]).args(args);
        output(command).await
    }

    /// Sends one command on a connection of its own; returns the raw answer, or the error in it.
    pub async fn command(&self, words: &[&str]) -> io::Result<String> {
        // The answer of a sentinel to QUIT; it closes the connection when the client does.
        const NO_QUIT: &str = "-ERR unknown command 'QUIT', with args beginning with: \r\n";
        const GOODBYE: &str = "*1\r\n$4\r\nQUIT\r\n";
        let farewell = if self.0.name == "sentinel" { NO_QUIT } else { "+OK\r\n" };
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            write!(request, "${}\r\n{word}\r\n", word.len()).map_err(io::Error::other)?;
        }
        let port = self.0.port;
        apart(async move {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            stream.write_all((request + GOODBYE).as_bytes()).await?;
            if farewell == NO_QUIT {
                stream.shutdown().await?;
            }
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            match answer.strip_suffix(farewell) {
                Some(answer) if !answer.is_empty() && !answer.starts_with('-') => Ok(answer.to_owned()),
                _ => Err(io::Error::other(answer)),
            }
        })
        .await
    }
}
