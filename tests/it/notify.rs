//! What the daemon reports to its service manager, read from the socket as systemd does.

use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};

use crate::support::daemon::Paced;
use crate::support::site::Site;
use crate::support::{LONG, blocking, eventually};

/// The manager's end of the socket, and all that came over it.
struct Manager {
    folder: tempfile::TempDir,
    messages: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Manager {
    fn listen() -> Self {
        let folder = tempfile::TempDir::new().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        let messages: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
        let received = Arc::clone(&messages);
        // It ends with the test program.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let text = std::str::from_utf8(&buffer[..length]).unwrap();
                received.lock().unwrap().push(text.lines().map(str::to_owned).collect());
            }
        });
        Self { folder, messages }
    }

    /// Starts a daemon that reports what it does, and must give a sign of life every 0.4 s.
    async fn start(&self, config: &str) -> Paced {
        let socket = self.folder.path().join("notify");
        let envs = [("NOTIFY_SOCKET", socket.to_str().unwrap()), ("WATCHDOG_USEC", "400000")];
        Paced::start(config, &[], &envs).await
    }

    /// All lines so far, in their order.
    fn lines(&self) -> Vec<String> {
        self.messages.lock().unwrap().concat()
    }

    fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|other| *other == line).count()
    }

    /// Waits until this line was reported this often.
    async fn wait(&self, line: &str, times: usize) {
        eventually(line, LONG, || self.count(line) >= times).await;
    }
}

/// The number after the name, in the lines of one message.
fn number(message: &[String], name: &str) -> Option<u64> {
    let line = message.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    Some(line.parse().unwrap())
}

#[tokio::test]
async fn it_reports_readiness_life_reloads_and_its_end() {
    let site = Site::shared("notify", "rate = '100/s'").await;
    let manager = Manager::listen();
    let paced = manager.start(&site.config()).await;
    manager.wait("READY=1", 1).await;
    paced.wait_ready().await;
    let beats = manager.count("WATCHDOG=1");
    manager.wait("WATCHDOG=1", beats + 2).await;
    manager.wait("STATUS=consumes jobs; downstreams: 1", 1).await;

    let before = clock();
    paced.hangup();
    manager.wait("RELOADING=1", 1).await;
    manager.wait("READY=1", 2).await;
    let messages = manager.messages.lock().unwrap().clone();
    let reloading = messages.iter().position(|message| message.contains(&"RELOADING=1".to_owned())).unwrap();
    let since = number(&messages[reloading], "MONOTONIC_USEC").unwrap();
    assert!((before..=clock()).contains(&since), "{since} is not after {before}");
    let ready = messages.iter().rposition(|message| message.contains(&"READY=1".to_owned())).unwrap();
    assert!(ready > reloading, "{messages:?}");

    assert_eq!(paced.stop().await, 0);
    manager.wait("STOPPING=1", 1).await;
    let messages = manager.messages.lock().unwrap().clone();
    let last = messages.iter().find(|message| message.contains(&"STOPPING=1".to_owned())).unwrap();
    // The drain and what follows it: a longer `drain_timeout` needs no other unit.
    assert!(number(last, "EXTEND_TIMEOUT_USEC").unwrap() > 25_000_000, "{last:?}");
}

#[tokio::test]
async fn without_a_broker_it_asks_for_more_time_and_is_not_ready() {
    let mut site = Site::shared("notifyaway", "rate = '100/s'").await;
    "amqp://127.0.0.1:1/%2f".clone_into(&mut site.amqp);
    let manager = Manager::listen();
    let paced = manager.start(&site.config()).await;
    manager.wait("EXTEND_TIMEOUT_USEC=800000", 3).await;
    manager.wait("WATCHDOG=1", 3).await;
    // A reload meanwhile must not report that it is ready.
    paced.hangup();
    paced.wait_line("configuration reloaded", LONG).await;
    let beats = manager.count("WATCHDOG=1");
    manager.wait("WATCHDOG=1", beats + 2).await;
    assert!(
        manager.lines().iter().any(|line| line.starts_with("STATUS=waits for RabbitMQ")),
        "{:?}",
        manager.lines()
    );
    assert_eq!(manager.count("READY=1"), 0);
    assert_eq!(manager.count("RELOADING=1"), 0);
    paced.term();
    paced.wait_exit(LONG).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_yet_holds_up_no_signal() {
    let site = Site::shared("notifyhung", "rate = '100/s'").await;
    let manager = Manager::listen();
    let paced = manager.start(&site.config()).await;
    manager.wait("READY=1", 1).await;
    // Who opens a pipe waits until somebody writes to it, as for a file system that is away.
    let file = paced.config_file();
    std::fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    let answer = async || {
        let (file, text) = (file.clone(), site.config());
        blocking(move || std::fs::write(file, text)).await.unwrap();
    };
    paced.hangup();
    manager.wait("RELOADING=1", 1).await;
    // These come during that read: they cause one more.
    paced.hangup();
    paced.hangup();
    let beats = manager.count("WATCHDOG=1");
    manager.wait("WATCHDOG=1", beats + 2).await;
    assert_eq!(manager.count("RELOADING=1"), 1);
    answer().await;
    manager.wait("RELOADING=1", 2).await;
    assert_eq!(manager.count("READY=1"), 2);
    answer().await;
    manager.wait("READY=1", 3).await;
    let beats = manager.count("WATCHDOG=1");
    manager.wait("WATCHDOG=1", beats + 2).await;
    assert_eq!(manager.count("RELOADING=1"), 2);

    paced.hangup();
    manager.wait("RELOADING=1", 3).await;
    assert_eq!(paced.stop().await, 0);
    manager.wait("STOPPING=1", 1).await;
    assert_eq!(manager.count("READY=1"), 3, "the last one has not ended");
}

#[tokio::test]
async fn a_wrong_configuration_ends_with_78_and_is_never_ready() {
    let manager = Manager::listen();
    let paced = manager.start("[downstreams.a]\nrate = 'fast'\n").await;
    assert_eq!(paced.wait_exit(LONG).await, 78);
    assert_eq!(manager.lines(), Vec::<String>::new());
}

/// The monotonic clock in µs, as in MONOTONIC_USEC.
fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000 + u64::try_from(now.tv_nsec).unwrap() / 1000
}
