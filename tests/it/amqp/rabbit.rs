//! A private RabbitMQ node, which ends with the test process.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lapin::{Connection, ConnectionProperties};
use rustix::process::{Pid, Signal, kill_process};

const BIN: &str = "/usr/lib/rabbitmq/bin";

/// Ends what it started at the end of its input, which is the end of the test process at the latest.
const GUARDIAN: &str = r#"
epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 >/dev/null 2>&1 </dev/null & epmd=$!
/usr/lib/rabbitmq/bin/rabbitmq-server >"$HOME/node.log" 2>&1 </dev/null & node=$!
echo $node
read -r command
[ "$command" = stop ] && kill $node || kill -9 $node
wait $node; kill $epmd; wait $epmd
"#;

pub struct Rabbit {
    home: tempfile::TempDir,
    port: u16,
    dist_port: u16,
    epmd_port: u16,
    node: Option<(Child, Pid)>,
}

impl Rabbit {
    /// Starts a node and waits until it takes connections.
    pub async fn start() -> Self {
        let [port, dist_port, epmd_port] = free_ports();
        let home = tempfile::tempdir().unwrap();
        let mut rabbit = Self { home, port, dist_port, epmd_port, node: None };
        rabbit.up().await;
        rabbit
    }

    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}", self.port)
    }

    pub async fn connect(&self) -> Connection {
        Connection::connect(&format!("{}/%2f", self.url()), ConnectionProperties::default()).await.unwrap()
    }

    /// Starts the node that is down, on the same port and with the same data.
    pub async fn up(&mut self) {
        assert!(self.node.is_none(), "up already");
        let mut guardian = self
            .env(&mut Command::new("sh"))
            .args(["-c", GUARDIAN])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(guardian.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        self.node = Some((guardian, pid));
        let url = format!("{}/%2f", self.url());
        for _ in 0..600 {
            if let Ok(connection) = Connection::connect(&url, ConnectionProperties::default()).await {
                connection.close(200, "OK".into()).await.unwrap();
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("RabbitMQ is not up: {}", std::fs::read_to_string(self.home.path().join("node.log")).unwrap());
    }

    /// Ends the node in good order. (One that is killed sometimes comes back without a leader for a
    /// queue, rabbitmq-server issue 10070.)
    pub fn down(&mut self) {
        let (mut guardian, _) = self.node.take().expect("down already");
        writeln!(guardian.stdin.take().unwrap(), "stop").unwrap();
        guardian.wait().unwrap();
    }

    /// Stops the node in its tracks: its sockets stay open, and nobody answers.
    pub fn freeze(&self) {
        kill_process(self.node.as_ref().unwrap().1, Signal::STOP).unwrap();
    }

    pub fn thaw(&self) {
        kill_process(self.node.as_ref().unwrap().1, Signal::CONT).unwrap();
    }

    /// Runs rabbitmqctl; its output.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let output =
            self.env(&mut Command::new(format!("{BIN}/rabbitmqctl"))).args(arguments).output().unwrap();
        assert!(output.status.success(), "rabbitmqctl {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn env<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let home = self.home.path();
        let file = |name: &str| -> PathBuf { home.join(name) };
        command
            .env("HOME", home)
            .env("RABBITMQ_NODENAME", format!("t{}@localhost", self.port))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.dist_port.to_string())
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_MNESIA_BASE", file("data"))
            .env("RABBITMQ_LOG_BASE", file("log"))
            .env("RABBITMQ_PID_FILE", file("pid"))
            .env("RABBITMQ_CONFIG_FILE", file("none"))
            .env("RABBITMQ_CONF_ENV_FILE", file("none.env"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", file("plugins"))
            .env("RUNNING_UNDER_SYSTEMD", "true")
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        if let Some((mut guardian, _)) = self.node.take() {
            drop(guardian.stdin.take());
            let _ = guardian.wait();
        }
    }
}

fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
