//! The loops that paced is compared with: this program, started anew with another first argument.

pub mod child;
pub mod http;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{apart, blocking};

/// The first argument that makes this program a loop.
pub const WORD: &str = "loop";

/// A running loop; it is killed when dropped, and when this process dies.
#[derive(Debug)]
pub struct Loop(Child);

impl Loop {
    /// Starts one, and waits until it consumes. With `redis` it makes one script call per job, for
    /// slots this far apart.
    pub async fn start(
        amqp: &str,
        queue: &str,
        url: &str,
        in_flight: usize,
        redis: Option<(&str, Duration)>,
    ) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(own).arg(WORD);
        command.args(["--amqp", amqp, "--queue", queue, "--url", url]);
        command.args(["--in-flight", &in_flight.to_string()]);
        if let Some((url, interval)) = redis {
            command.args(["--redis", url, "--interval", &interval.as_micros().to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // The signal comes when the spawning *thread* ends, and this one never does.
        let child = apart(async move { command.spawn() }).await;
        let mut started = Self(child.map_err(|error| format!("cannot start a loop: {error}"))?);
        let output = started.0.stdout.take().ok_or("a loop without output")?;
        let first_line = blocking(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).map(|_| line)
        });
        match first_line.await {
            Ok(line) if line == "ready\n" => Ok(started),
            _ => Err("a loop ended before it was ready; what it wrote is above".to_owned()),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
