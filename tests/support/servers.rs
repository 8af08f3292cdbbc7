//! Private Redis and RabbitMQ servers on loopback, shared by the process or dedicated to a test.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::guardian::Guardian;
use super::{apart, blocking, eventually, poll, random};

/// Where Debian keeps the scripts that run as any user; those in the path switch the user.
const RABBITMQ: &str = "/usr/lib/rabbitmq/bin";
/// Long enough for a machine that compiles at the same time.
const REDIS_START: Duration = Duration::from_secs(20);
const RABBIT_START: Duration = Duration::from_secs(120);

static REDIS: OnceCell<Redis> = OnceCell::const_new();
static RABBIT: OnceCell<Rabbit> = OnceCell::const_new();

/// The Redis that all tests of this process share; never stop it, use [`super::unique`] keys.
pub async fn redis() -> &'static Redis {
    REDIS.get_or_init(Redis::dedicated).await
}

/// The RabbitMQ that all tests of this process share; never stop it, use [`super::unique`] prefixes.
pub async fn rabbit() -> &'static Rabbit {
    RABBIT.get_or_init(Rabbit::dedicated).await
}

/// A Redis server: append-only file on, so that its data outlives a kill.
#[derive(Clone, Debug)]
pub struct Redis(Arc<Server>);

/// A RabbitMQ node without plugins, and its own epmd.
#[derive(Clone, Debug)]
pub struct Rabbit(Arc<Server>);

#[derive(Debug)]
struct Server {
    guardian: Guardian,
    name: &'static str,
    port: u16,
    script: String,
    pid: AtomicU32,
    /// What is sent to see whether it is up, and how its answer begins.
    hello: (&'static [u8], &'static [u8]),
    /// What it writes when it has started in full; RabbitMQ answers a little before.
    complete: &'static str,
    /// How long its output was when it was started.
    written: AtomicUsize,
    patience: Duration,
}

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
}

impl Rabbit {
    /// One for the caller alone; it ends with the last clone.
    pub async fn dedicated() -> Self {
        Self::try_dedicated().await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Rabbit::dedicated`], for those who report errors themselves.
    pub async fn try_dedicated() -> Result<Self, String> {
        let server = launch(Self::server).await?;
        Ok(Self(Arc::new(server)))
    }

    fn server() -> Result<Server, String> {
        let server = format!("{RABBITMQ}/rabbitmq-server");
        if !Path::new(&server).exists() {
            return Err(format!("there is no {server}; install Debian's package rabbitmq-server"));
        }
        let guardian = Guardian::new()?;
        let (port, dist, epmd) = (free_port(), free_port(), free_port());
        let folder = guardian.folder();
        let home = folder.join("home");
        make_folder(&home)?;
        let put = |file: &str, text: &str| {
            let file = folder.join(file);
            fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
        };
        put("enabled_plugins", "[].\n")?;
        put("empty.conf", "")?;
        put("rabbitmq.conf", &rabbitmq_conf(port))?;
        put("env.sh", &rabbitmq_env(folder, dist, epmd))?;
        // A node that finds no epmd starts one that nobody ends: this one is the guardian's.
        guardian.start("epmd", &format!("exec epmd -port {epmd} -address 127.0.0.1\n"))?;
        let script = format!(
            ". '{}/env.sh'\n\
             [ -f \"$HOME/.erlang.cookie\" ] || {{ umask 077; echo paced-{:x} >\"$HOME/.erlang.cookie\"; }}\n\
             umask 022\n\
             tries=100\n\
             until epmd -port {epmd} -names >/dev/null 2>&1 || [ $tries = 0 ]; do\n\
             sleep 0.05; tries=$((tries - 1)); done\n\
             exec {server}\n",
            folder.display(),
            random()
        );
        // The protocol header; the answer is a method frame, Connection.Start, on channel 0.
        let hello: (&[u8], &[u8]) = (b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00");
        Ok(Server {
            guardian,
            name: "rabbit",
            port,
            script,
            pid: 0.into(),
            hello,
            complete: "completed with",
            written: 0.into(),
            patience: RABBIT_START,
        })
    }

    /// `amqp://127.0.0.1:PORT/%2f`, as the guest user.
    pub fn url(&self) -> String {
        format!("amqp://127.0.0.1:{}/%2f", self.0.port)
    }

    /// Its port, which stays over restarts.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// SIGKILL. What it has confirmed stays.
    ///
    /// RabbitMQ 3.10 writes the list of its quorum queues down twice a second, and one that is not
    /// on it never comes up again; so this waits until all of them are.
    pub async fn kill(&self) {
        let data = self.0.folder().join("data");
        eventually("quorum queues are on disk", Duration::from_secs(10), || are_listed(&data)).await;
        self.0.clone().end("kill").await;
    }

    /// SIGTERM, a clean end: connections are closed with 320 first.
    pub async fn stop(&self) {
        self.0.clone().end("stop").await;
    }

    /// Starts it again on the same port with its data, and waits until it answers.
    pub async fn start(&self) {
        self.0.clone().again().await;
    }

    /// A clean end and a new start.
    pub async fn restart(&self) {
        self.stop().await;
        self.start().await;
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

    /// Runs `rabbitmqctl` with these arguments (1-3 s) and returns what it prints.
    pub async fn ctl(&self, args: &[&str]) -> String {
        let mut command = Command::new("sh");
        let script = format!(". '{}/env.sh'; exec {RABBITMQ}/rabbitmqctl \"$@\"", self.0.folder().display());
        command.args(["-c", &script, "rabbitmqctl"]).args(args);
        output(command).await
    }
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
        // Until the guardian has waited for it, the pid is no one else's.
        let pid = i32::try_from(self.pid.load(Ordering::SeqCst)).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a pid"), signal).expect("the server runs");
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

/// Makes a server and starts it; another process may have taken its port, so more than once.
async fn launch(make: fn() -> Result<Server, String>) -> Result<Server, String> {
    let attempt = async move || {
        let server = blocking(make).await?;
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

/// Whether what listens on `port` answers `hello` with something that begins with `expected`.
async fn answers(port: u16, hello: &[u8], expected: &[u8]) -> io::Result<bool> {
    let dialogue = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(hello).await?;
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).await?;
        Ok(answer == expected)
    };
    timeout(Duration::from_secs(2), dialogue).await?
}

/// Whether the list of quorum queues on disk names each that has a folder.
fn are_listed(data: &Path) -> bool {
    let nodes =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    nodes(data.to_owned()).flat_map(|node| nodes(node.join("quorum"))).all(|system| {
        let list = fs::read(system.join("names.dets")).unwrap_or_default();
        let has = |name: &str| list.windows(name.len()).any(|part| part == name.as_bytes());
        let queues = nodes(system).filter(|path| path.is_dir());
        queues.filter_map(|path| path.file_name()?.to_str().map(has)).all(|listed| listed)
    })
}

/// Whether the process has ended (a zombie until the guardian waits for it).
fn is_gone(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// A port that nobody listens on, below the range of outgoing connections: a client that keeps
/// dialling a server that is down could otherwise be given the server's port, and reach itself.
pub fn free_port() -> u16 {
    loop {
        let port = 10_000 + (random() % 20_000) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
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

fn rabbitmq_conf(port: u16) -> String {
    format!(
        "listeners.tcp.local = 127.0.0.1:{port}\n\
         disk_free_limit.absolute = 1MB\n\
         raft.wal_max_size_bytes = 67108864\n\
         log.console = false\n\
         log.file.level = warning\n"
    )
}

/// The variables of the node and of `rabbitmqctl`.
fn rabbitmq_env(folder: &Path, dist: u16, epmd: u16) -> String {
    let folder = folder.display();
    let local = "-kernel inet_dist_use_interface {127,0,0,1}";
    format!(
        "unset NOTIFY_SOCKET\n\
         export HOME='{folder}/home'\n\
         export ERL_EPMD_PORT={epmd} ERL_EPMD_ADDRESS=127.0.0.1\n\
         export RABBITMQ_NODENAME=paced-{dist}@localhost\n\
         export RABBITMQ_DIST_PORT={dist}\n\
         export RABBITMQ_CONF_ENV_FILE='{folder}/empty.conf'\n\
         export RABBITMQ_CONFIG_FILE='{folder}/rabbitmq.conf'\n\
         export RABBITMQ_ENABLED_PLUGINS_FILE='{folder}/enabled_plugins'\n\
         export RABBITMQ_MNESIA_BASE='{folder}/data'\n\
         export RABBITMQ_LOG_BASE='{folder}/log'\n\
         export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='+S 1:1 {local}'\n\
         export RABBITMQ_CTL_ERL_ARGS='{local}'\n\
         # Then the node replaces the shell, and the pid is the node's.\n\
         export RUNNING_UNDER_SYSTEMD=true\n"
    )
}
