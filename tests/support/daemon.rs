//! The real `paced` binary, as a process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::client::Client;
use super::guardian::Guardian;
use super::prometheus::Scrape;
use super::{LONG, apart, blocking, poll, real_now};

/// How long `paced run` may take to attach all consumers.
const READY: Duration = Duration::from_secs(120);
/// How long a command may run.
const COMMAND: Duration = Duration::from_secs(180);

/// The path of the binary: cargo's for tests; for the demo, the one beside it.
pub fn binary() -> PathBuf {
    match option_env!("CARGO_BIN_EXE_paced") {
        Some(path) => PathBuf::from(path),
        None => {
            let own = std::env::current_exe().expect("the path of this program");
            own.parent().expect("target/PROFILE").join("paced")
        }
    }
}

/// A folder for configurations, which goes with this process, also on SIGKILL.
pub fn scratch() -> Result<&'static Path, String> {
    static GUARDIAN: LazyLock<Result<Guardian, String>> = LazyLock::new(Guardian::new);
    GUARDIAN.as_ref().map(Guardian::folder).map_err(Clone::clone)
}

/// A `paced run`. It is killed when dropped, and when this process dies.
#[derive(Debug)]
pub struct Paced {
    child: Mutex<Child>,
    pid: u32,
    log: Arc<Lines>,
    folder: TempDir,
}

#[derive(Debug, Default)]
struct Lines {
    lines: Mutex<Vec<String>>,
    /// Whether it has written all of its log.
    complete: AtomicBool,
}

impl Paced {
    /// Runs with this configuration and waits until it says that it is ready.
    pub async fn spawn(config: &str) -> Self {
        let paced = Self::start(config, &[], &[]).await;
        paced.wait_ready().await;
        paced
    }

    /// Runs with this configuration, more arguments and environment variables; does not wait.
    pub async fn start(config: &str, args: &[&str], envs: &[(&str, &str)]) -> Self {
        Self::try_start(config, args, envs).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Paced::spawn`]; its polling intervals (never its time limits) are divided by `haste`.
    pub async fn hasty(config: &str, haste: u32) -> Self {
        let paced = Self::start(config, &[], &[("PACED_TEST_HASTE", &haste.to_string())]).await;
        paced.wait_ready().await;
        paced
    }

    /// As [`Paced::start`], for callers that report errors themselves.
    pub async fn try_start(config: &str, args: &[&str], envs: &[(&str, &str)]) -> Result<Self, String> {
        Self::try_start_binary(&binary(), config, args, envs).await
    }

    /// As [`Paced::try_start`], with another build of it.
    pub async fn try_start_binary(
        binary: &Path,
        config: &str,
        args: &[&str],
        envs: &[(&str, &str)],
    ) -> Result<Self, String> {
        Self::launch(binary, config, args, envs, None).await
    }

    async fn launch(
        binary: &Path,
        config: &str,
        args: &[&str],
        envs: &[(&str, &str)],
        stderr: Option<Stdio>,
    ) -> Result<Self, String> {
        let folder = TempDir::new_in(scratch()?).map_err(|error| error.to_string())?;
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, config).map_err(|error| error.to_string())?;
        // The daemon dies with this process, also on SIGKILL.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(binary);
        command.args(["--log-format", "json", "-c"]).arg(&file).arg("run").args(args);
        prepare(&mut command);
        command.envs(envs.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(stderr.unwrap_or_else(Stdio::piped));
        // The signal comes when the spawning *thread* ends, and this one never does.
        let mut child = apart(async move { command.spawn() })
            .await
            .map_err(|error| format!("cannot start {}: {error}", binary.display()))?;
        let log = Arc::new(Lines::default());
        match child.stderr.take() {
            Some(stderr) => {
                let log = log.clone();
                std::thread::spawn(move || log.follow(stderr));
            }
            None => log.complete.store(true, Ordering::SeqCst),
        }
        Ok(Self { pid: child.id(), child: Mutex::new(child), log, folder })
    }

    /// Its configuration file, which it reads again on SIGHUP.
    pub fn config_file(&self) -> PathBuf {
        self.folder.path().join("paced.toml")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its own ports of the TCP sockets that are connected to this port. Those that listen are connected to port 0.
    pub fn ports_to(&self, port: u16) -> Vec<u16> {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).expect("its open files");
        let links = folder.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let inode =
            |link: &Path| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
        let inodes: Vec<String> = links.filter_map(|link| inode(&link)).collect();
        let tables = ["tcp", "tcp6"].map(|kind| {
            std::fs::read_to_string(format!("/proc/{}/net/{kind}", self.pid)).unwrap_or_default()
        });
        let lines = tables.iter().flat_map(|table| table.lines().skip(1));
        let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
        let number = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
        words
            .filter(|words| number(words[2]) == Some(port) && inodes.iter().any(|inode| inode == words[9]))
            .filter_map(|words| number(words[1]))
            .collect()
    }

    /// The lines that it has logged so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    /// The metrics that it serves; its configuration must have `admin.listen`.
    pub async fn metrics(&self) -> String {
        let line = self.wait_line("probes and metrics are served", READY).await;
        let line: Value = serde_json::from_str(&line).expect("a line of JSON");
        let address = line["address"].as_str().expect("an address").to_owned();
        Client::new().get(&format!("http://{address}/metrics")).await.expect("metrics").text
    }

    /// The number of slots that it was granted and did not use: a busy machine misses some.
    pub async fn slots_missed(&self) -> usize {
        let missed = Scrape::read(&self.metrics().await).sum("paced_slots_abandoned_total");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
        let missed = missed.unwrap_or_default() as usize;
        missed
    }

    /// Waits until it says that it is ready; panics with its log if it ends or is too slow.
    pub async fn wait_ready(&self) {
        self.try_ready().await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// As [`Paced::wait_ready`], for callers that report errors themselves.
    pub async fn try_ready(&self) -> Result<(), String> {
        self.line(READY, |line| message(line).as_deref() == Some("ready")).await.map(drop)
    }

    /// Waits for a line that contains `text`; panics with its log if it ends or is too slow.
    pub async fn wait_line(&self, text: &str, within: Duration) -> String {
        self.line(within, |line| line.contains(text)).await.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Runs with this configuration, and writes its log to `stderr` instead of to the test. The arrival of its jobs
    /// shows that it is up, as there is no log to wait for.
    pub async fn mute(config: &str, stderr: Stdio) -> Self {
        Self::launch(&binary(), config, &[], &[], Some(stderr))
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    async fn line(&self, within: Duration, wanted: impl Fn(&str) -> bool) -> Result<String, String> {
        // There may be thousands of lines, each of which is read once.
        let mut read = 0;
        let found = poll(within, || {
            // This comes before the log is read, which then contains its last lines.
            let ended = self.exited();
            let log = self.log.lock();
            let hit = log[read..].iter().find(|line| wanted(line)).cloned();
            read = log.len();
            async move { hit.map(Ok).or_else(|| ended.map(Err)) }
        });
        let why = match found.await {
            Some(Ok(line)) => return Ok(line),
            Some(Err(code)) => format!("paced ended with {code}"),
            None => format!("paced did not say so within {within:?}"),
        };
        Err(format!("{why}; its log:\n{}", self.log().join("\n")))
    }

    /// Sends SIGTERM.
    pub fn term(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGKILL.
    pub fn kill9(&self) {
        self.signal(Signal::KILL);
    }

    /// Sends SIGHUP, on which it reads the configuration again.
    pub fn hangup(&self) {
        self.signal(Signal::HUP);
    }

    /// Sends SIGSTOP, and waits until the process stands still.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        wait_stopped(self.pid);
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends any signal; does nothing if it has ended.
    pub fn signal(&self, signal: Signal) {
        if self.exited().is_none()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            // Nothing else waits for the process, so the pid is still its own.
            let _ = kill_process(pid, signal);
        }
    }

    /// Its exit code, or minus the signal that ended it; `None` while it runs.
    pub fn exited(&self) -> Option<i32> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.try_wait().expect("a child").map(code)
    }

    /// Waits for its end; panics with its log after `within`.
    pub async fn wait_exit(&self, within: Duration) -> i32 {
        // The log is complete only after the end of the process.
        let exit = poll(within, || {
            let complete = self.log.complete.load(Ordering::SeqCst);
            std::future::ready(self.exited().filter(|_| complete))
        });
        let exit = exit.await;
        exit.unwrap_or_else(|| panic!("still running after {within:?}; its log:\n{}", self.log().join("\n")))
    }

    /// Sends SIGTERM; returns the exit code.
    pub async fn stop(&self) -> i32 {
        self.term();
        self.wait_exit(Duration::from_secs(120)).await
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self, stderr: ChildStderr) {
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            self.lock().push(line);
        }
        self.complete.store(true, Ordering::SeqCst);
    }
}

/// Waits until SIGSTOP has reached all threads of the process.
pub fn wait_stopped(pid: u32) {
    let is_stopped = |folder: PathBuf| {
        let stat = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with(['R', 'S', 'D']))
    };
    let begun = real_now();
    loop {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        if threads.map(|thread| thread.path()).all(is_stopped) {
            return;
        }
        assert!(begun.elapsed() < LONG, "process {pid} does not stop");
        std::thread::yield_now();
    }
}

/// The result of a command.
#[derive(Clone, Debug)]
pub struct Output {
    /// The exit code, or minus the signal.
    pub code: i32,
    /// The data on stdout.
    pub stdout: String,
    /// The messages on stderr.
    pub stderr: String,
}

/// Runs `paced` with these arguments and this standard input, for at most three minutes.
pub async fn run_cli(args: &[&str], stdin: &[u8]) -> Output {
    let folder = std::env::temp_dir();
    run_cli_in(&folder, args, stdin).await
}

/// As [`run_cli`], in this folder.
pub async fn run_cli_in(folder: &Path, args: &[&str], stdin: &[u8]) -> Output {
    run_cli_with(folder, args, stdin, &[]).await
}

/// As [`run_cli_in`], with more environment variables.
pub async fn run_cli_with(folder: &Path, args: &[&str], stdin: &[u8], envs: &[(&str, &str)]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", &COMMAND.as_secs().to_string()]).arg(binary()).args(args);
    prepare(&mut command);
    command
        .envs(envs.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let input = stdin.to_vec();
    let done = blocking(move || {
        let mut child = command.spawn()?;
        let mut pipe = child.stdin.take().expect("a pipe");
        // A command may end without reading all of its input.
        let writer = std::thread::spawn(move || drop(pipe.write_all(&input)));
        let done = child.wait_with_output();
        let _ = writer.join();
        done
    })
    .await
    .expect("paced runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: code(done.status), stdout: text(&done.stdout), stderr: text(&done.stderr) }
}

/// Runs a line of the shell on a terminal of its own, types this, and returns the exit code and all that was shown.
pub async fn on_a_terminal(folder: &Path, line: &str, typed: &'static [u8]) -> (Option<i32>, String) {
    // In the foreground: a process group in the background is stopped when it reads the terminal.
    let line = format!("timeout --foreground 180 {line}");
    // It is part of Debian's base system.
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &line, "/dev/null"]).env("SHELL", "/bin/sh").current_dir(folder);
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let output = blocking(move || {
        let mut child = script.spawn().unwrap();
        let mut keys = child.stdin.take().unwrap();
        keys.write_all(typed).unwrap();
        let output = child.wait_with_output().unwrap();
        drop(keys);
        output
    })
    .await;
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The message of a line of the JSON log.
pub fn message(line: &str) -> Option<String> {
    let value: Value = serde_json::from_str(line).ok()?;
    let message = value.get("message").or_else(|| value.get("fields")?.get("message"))?;
    message.as_str().map(str::to_owned)
}

fn code(status: std::process::ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| -signal)).unwrap_or(i32::MIN)
}

/// Removes the configuration in the caller's environment.
fn prepare(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PACED_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").env("NO_COLOR", "1");
}
