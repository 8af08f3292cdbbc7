//! The example `worker`, a program that embeds paced, as a process.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::LONG;
use super::site::{NAME, Site};

/// A process of the example `worker`, which uses the site's configuration.
pub struct Worker {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Worker {
    /// Starts a worker that makes this number of calls.
    pub fn start(site: &Site, (how, name): (&str, &str), calls: usize) -> Self {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, site.config()).unwrap();
        let mut path = std::env::current_exe().unwrap();
        path.pop();
        path.pop();
        path.push(format!("examples/worker{}", std::env::consts::EXE_SUFFIX));
        assert!(path.exists(), "{} is missing: run `cargo build --example worker` first", path.display());
        let mut command = Command::new(path);
        command.arg(file).arg(NAME).arg(site.api.url()).arg(calls.to_string()).args([how, name]);
        let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        Self { child, _folder: folder }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the worker has made its calls.
    pub async fn end(&mut self) {
        let ended = tokio::time::timeout(LONG, self.child.wait()).await.expect("it ends").unwrap();
        assert!(ended.success(), "{ended}");
    }

    /// Kills the worker. It must not have ended before: it ends when a call fails, or all are made.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        let ended = self.child.wait().await.unwrap();
        assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()), "{ended}");
    }
}
