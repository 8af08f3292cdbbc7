//! A shell process that owns servers, and cleans up when this process is gone: statics are not
//! dropped at exit, and nothing is dropped on SIGKILL.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Servers under one folder. When it is dropped, it ends them and waits until all is removed.
#[derive(Debug)]
pub struct Guardian {
    folder: PathBuf,
    child: Child,
    pipes: Mutex<Option<Pipes>>,
}

#[derive(Debug)]
struct Pipes {
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Guardian {
    /// Starts the shell, in a session of its own: a Ctrl-C in the terminal must not end it before
    /// it has cleaned up.
    pub fn new() -> Result<Self, String> {
        let mut child = Command::new("setsid")
            .args(["sh", "-c", include_str!("guardian.sh"), "paced-guardian"])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start `setsid sh`: {error}"))?;
        let (Some(commands), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the guardian has no pipes".to_owned());
        };
        let mut pipes = Pipes { commands, answers: BufReader::new(answers) };
        let folder = PathBuf::from(pipes.answer()?);
        Ok(Self { folder, child, pipes: Mutex::new(Some(pipes)) })
    }

    /// The folder, which is removed with the guardian.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The pid of the shell, whose children the servers are.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs `script` as `name`; a server in it must replace the shell (`exec`). The pid is its own.
    pub fn start(&self, name: &str, script: &str) -> Result<u32, String> {
        let file = self.folder.join(format!("{name}.sh"));
        fs::write(&file, script).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let answer = self.ask(&format!("start {name}"))?;
        answer.parse().map_err(|_| format!("the guardian answered `{answer}` instead of a pid"))
    }

    /// Sends SIGKILL; returns when the process is gone.
    pub fn kill(&self, name: &str) -> Result<(), String> {
        self.ask(&format!("kill {name}")).map(drop)
    }

    /// Sends SIGTERM, and SIGKILL after a minute; returns when the process is gone.
    pub fn stop(&self, name: &str) -> Result<(), String> {
        self.ask(&format!("stop {name}")).map(drop)
    }

    /// The output of `name`.
    pub fn log(&self, name: &str) -> String {
        let text = fs::read(self.folder.join(format!("{name}.log"))).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The last lines that `name` wrote.
    pub fn log_tail(&self, name: &str) -> String {
        let text = self.log(name);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn ask(&self, command: &str) -> Result<String, String> {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let pipes = pipes.as_mut().ok_or("the guardian has ended")?;
        writeln!(pipes.commands, "{command}").map_err(|error| format!("the guardian is gone: {error}"))?;
        pipes.answer()
    }
}

impl Pipes {
    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err("the guardian is gone".to_owned()),
            Ok(_) => Ok(line.trim().to_owned()),
            Err(error) => Err(format!("the guardian does not answer: {error}")),
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // Closing the pipe is the signal to clean up.
        *self.pipes.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = self.child.wait();
    }
}
