//! RabbitMQ.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::guardian::Guardian;
use super::super::{apart, eventually, poll, random};
use super::{Server, free_port, launch, make_folder, root};

/// Where Debian keeps the scripts that run as any user; those in the path switch the user.
const RABBITMQ: &str = "/usr/lib/rabbitmq/bin";
/// Long enough for a machine that compiles at the same time.
const RABBIT_START: Duration = Duration::from_secs(120);

/// The protocol header; the answer is a method frame, Connection.Start, on channel 0.
const HELLO: (&[u8], &[u8]) = (b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00");

/// A RabbitMQ node without plugins, and its own epmd.
#[derive(Clone, Debug)]
pub struct Rabbit(Arc<Server>);

impl Rabbit {
    /// A node for the caller alone; it ends with the last clone.
    pub async fn dedicated() -> Self {
        Self::try_dedicated().await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Rabbit::dedicated`], for callers that report errors themselves.
    pub async fn try_dedicated() -> Result<Self, String> {
        Self::try_with(String::new()).await
    }

    /// A node for the caller alone, with more lines in its `rabbitmq.conf`.
    pub async fn with(lines: String) -> Self {
        Self::try_with(lines).await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn try_with(lines: String) -> Result<Self, String> {
        let server = launch(move || Self::server(&lines, None)).await?;
        Ok(Self(Arc::new(server)))
    }

    /// Another node of the same cluster. It needs this one's epmd, so drop it first.
    pub async fn beside(&self) -> Self {
        let first = First {
            name: self.eval("node()").await.trim_matches('\'').to_owned(),
            cookie: self.eval("erlang:get_cookie()").await.trim_matches('\'').to_owned(),
            epmd: self.eval("list_to_integer(os:getenv(\"ERL_EPMD_PORT\"))").await.parse().unwrap(),
        };
        let server = launch(move || Self::server("", Some(&first))).await;
        Self(Arc::new(server.unwrap_or_else(|error| panic!("{error}"))))
    }

    fn server(lines: &str, first: Option<&First>) -> Result<Server, String> {
        let server = format!("{RABBITMQ}/rabbitmq-server");
        if !root::path(&server).exists() {
            return Err(format!("there is no {server}; install Debian's package rabbitmq-server"));
        }
        let guardian = Guardian::new()?;
        let (port, dist, epmd) = (free_port(), free_port(), first.map_or_else(free_port, |first| first.epmd));
        let folder = guardian.folder();
        let home = folder.join("home");
        make_folder(&home)?;
        let put = |file: &str, text: &str| {
            let file = folder.join(file);
            fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
        };
        put("enabled_plugins", "[].\n")?;
        put("empty.conf", "")?;
        let joins = first.map_or_else(String::new, |first| first.conf(dist));
        put("rabbitmq.conf", &(rabbitmq_conf(port) + &joins + lines))?;
        put("env.sh", &rabbitmq_env(folder, dist, epmd))?;
        put("eval.erl", include_str!("eval.erl"))?;
        // A node that finds no epmd starts one that nobody ends; this one is the guardian's.
        let daemon = root::shell("epmd");
        if first.is_none() {
            guardian.start("epmd", &format!("exec {daemon} -port {epmd} -address 127.0.0.1\n"))?;
        }
        let server = root::shell(&server);
        let cookie = first.map_or_else(|| format!("paced-{:x}", random()), |first| first.cookie.clone());
        let script = format!(
            ". '{}/env.sh'\n\
             [ -f \"$HOME/.erlang.cookie\" ] || {{ umask 077; echo {cookie} >\"$HOME/.erlang.cookie\"; }}\n\
             umask 022\n\
             tries=1200\n\
             until {daemon} -port {epmd} -names >/dev/null 2>&1 || [ $tries = 0 ]; do\n\
             sleep 0.05; tries=$((tries - 1)); done\n\
             exec {server}\n",
            folder.display(),
        );
        Ok(Server {
            guardian,
            name: "rabbit",
            port,
            script,
            pid: 0.into(),
            hello: HELLO,
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

    /// The version that the node reports in the first frame of a connection.
    pub async fn version(&self) -> String {
        const NAME: &[u8] = b"\x07versionS";
        let port = self.0.port;
        apart(async move {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            stream.write_all(HELLO.0).await.unwrap();
            let mut head = [0; 7];
            stream.read_exact(&mut head).await.unwrap();
            let [_, _, _, size @ ..] = head;
            let mut frame = vec![0; u32::from_be_bytes(size) as usize];
            stream.read_exact(&mut frame).await.unwrap();
            // The fields are the name, the type of the value, and the value: its length in four bytes, and the text.
            let at = frame.windows(NAME.len()).position(|part| part == NAME).unwrap() + NAME.len();
            let (size, text) = frame[at..].split_first_chunk::<4>().unwrap();
            String::from_utf8_lossy(&text[..u32::from_be_bytes(*size) as usize]).into_owned()
        })
        .await
    }

    /// Sends SIGKILL. Confirmed messages persist.
    ///
    /// RabbitMQ 3.10 writes the list of its quorum queues down twice a second, and one that is not
    /// on it never comes up again; so this waits until all of them are.
    pub async fn kill(&self) {
        let data = self.0.folder().join("data");
        eventually("quorum queues are on disk", Duration::from_secs(60), || are_listed(&data)).await;
        self.0.clone().end("kill").await;
    }

    /// Sends SIGTERM, which ends it cleanly: connections are closed with 320 first.
    pub async fn stop(&self) {
        self.0.clone().end("stop").await;
    }

    /// Starts it again on the same port with its data, and waits until it answers.
    pub async fn start(&self) {
        self.0.clone().again().await;
    }

    /// Sends SIGSTOP: connections stay open, nothing is answered.
    pub fn freeze(&self) {
        self.0.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.0.signal(Signal::CONT);
    }

    /// The guardian that owns it.
    pub fn guardian(&self) -> &Guardian {
        &self.0.guardian
    }

    /// Evaluates Erlang expressions in the node, and returns the value as Erlang writes it; panics with the error.
    ///
    /// What `rabbitmqctl` does, a second of processor time each, are calls of the node's functions.
    pub async fn eval(&self, expressions: &str) -> String {
        let (file, text) = (self.0.folder().join("eval.erl.port"), format!("{expressions}."));
        let answer = apart(async move {
            // The node listens a little after it has reported that it is up, and its file has a whole line then.
            let connect = || async {
                let port: u16 = fs::read_to_string(&file).ok()?.strip_suffix('\n')?.parse().ok()?;
                TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()
            };
            let mut stream = poll(RABBIT_START, connect).await.expect("the node evaluates");
            let length = u32::try_from(text.len()).unwrap().to_be_bytes();
            stream.write_all(&[&length, text.as_bytes()].concat()).await.unwrap();
            let length = stream.read_u32().await.unwrap();
            let mut answer = vec![0; length as usize];
            stream.read_exact(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer).into_owned()
        })
        .await;
        answer.strip_prefix("ok ").unwrap_or_else(|| panic!("{expressions}: {answer}")).to_owned()
    }

    /// Adds a user, with these rights (to configure, write and read) in the virtual host `/`.
    pub async fn add_user(&self, user: &str, password: &str, rights: [&str; 3]) {
        self.eval(&format!(
            "rabbit_auth_backend_internal:add_user(<<\"{user}\">>, <<\"{password}\">>, <<\"test\">>)"
        ))
        .await;
        self.set_rights("/", user, rights).await;
    }

    /// Sets the rights of a user (to configure, write and read) in a virtual host.
    pub async fn set_rights(&self, vhost: &str, user: &str, rights: [&str; 3]) {
        let [configure, write, read] = rights.map(erlang);
        self.eval(&format!(
            "rabbit_auth_backend_internal:set_permissions(<<\"{user}\">>, <<\"{vhost}\">>, {configure}, {write}, {read}, <<\"test\">>)"
        ))
        .await;
    }

    /// Limits a user to this many connections.
    pub async fn bound_connections(&self, user: &str, most: u32) {
        let (call, limit) =
            ("rabbit_auth_backend_internal:set_user_limits", format!(r#"{{\"max-connections\":{most}}}"#));
        self.eval(&format!("{call}(<<\"{user}\">>, <<\"{limit}\">>, <<\"test\">>)")).await;
    }

    /// Gives a user another password.
    pub async fn set_password(&self, user: &str, password: &str) {
        let call = "rabbit_auth_backend_internal:change_password";
        self.eval(&format!("{call}(<<\"{user}\">>, <<\"{password}\">>, <<\"test\">>)")).await;
    }

    /// Adds a virtual host, in which the guest may do everything.
    pub async fn add_vhost(&self, vhost: &str) {
        self.eval(&format!("rabbit_vhost:add(<<\"{vhost}\">>, <<\"test\">>)")).await;
        self.set_rights(vhost, "guest", [".*"; 3]).await;
    }

    /// Closes all connections of a virtual host with 320, as an operator does.
    pub async fn close_connections(&self, vhost: &str) {
        self.eval(&format!(
            "[rabbit_networking:close_connection(Pid, \"test\") || \
             [{{pid, Pid}}, {{vhost, <<\"{vhost}\">>}}] <- rabbit_networking:connection_info_all([pid, vhost])]"
        ))
        .await;
    }

    /// Closes all connections of a user with 320, and returns how many there were.
    pub async fn close_connections_of(&self, user: &str) -> usize {
        let close = format!(
            "length([rabbit_networking:close_connection(Pid, \"test\") || \
             [{{pid, Pid}}, {{user, <<\"{user}\">>}}] <- rabbit_networking:connection_info_all([pid, user])])"
        );
        self.eval(&close).await.parse().unwrap()
    }

    /// Stops the only member of a quorum queue in the virtual host `/`, which has no leader then; returns what
    /// [`Rabbit::restart_member`] starts again.
    pub async fn stop_member(&self, queue: &str) -> Member {
        let member = self.member(queue).await;
        let stopped = self.eval(&format!("ra:stop_server(quorum_queues, {})", member.erlang())).await;
        assert_eq!(stopped, "ok", "{queue}");
        member
    }

    async fn member(&self, queue: &str) -> Member {
        let find = format!("rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, {}))", erlang(queue));
        let member =
            self.eval(&format!("{{ok, Q}} = {find}, {{N, _}} = amqqueue:get_pid(Q), atom_to_list(N)")).await;
        Member(member.trim_matches('"').to_owned())
    }

    /// Starts a member of a quorum queue again.
    pub async fn restart_member(&self, member: &Member) {
        let started = self.eval(&format!("ra:restart_server(quorum_queues, {})", member.erlang())).await;
        assert_eq!(started, "ok");
    }

    /// Has the only member of a quorum queue in the virtual host `/` answer nothing until [`Rabbit::resume_member`].
    pub async fn suspend_member(&self, queue: &str) -> Member {
        let member = self.member(queue).await;
        assert_eq!(self.eval(&format!("sys:suspend({})", member.erlang())).await, "ok", "{queue}");
        member
    }

    /// Has a member that was suspended do what it was asked meanwhile.
    pub async fn resume_member(&self, member: &Member) {
        assert_eq!(self.eval(&format!("sys:resume({})", member.erlang())).await, "ok");
    }

    /// Whether somebody waits for a suspended member, to consume its queue.
    pub async fn is_to_be_consumed(&self, member: &Member) -> bool {
        let Member(name) = member;
        let messages = format!("{{messages, M}} = process_info(whereis(list_to_atom(\"{name}\")), messages)");
        let find = r#"string:find(lists:flatten(io_lib:format("~p", [M])), "checkout") =/= nomatch"#;
        self.eval(&format!("{messages}, {find}")).await == "true"
    }
}

/// The node of a cluster that another one joins.
#[derive(Clone)]
struct First {
    name: String,
    cookie: String,
    epmd: u16,
}

impl First {
    /// Has a node that listens for others at this port join. Both must be in the list.
    fn conf(&self, dist: u16) -> String {
        let nodes = "cluster_formation.classic_config.nodes";
        format!(
            "cluster_formation.peer_discovery_backend = classic_config\n\
             {nodes}.1 = {}\n\
             {nodes}.2 = {}\n",
            self.name,
            node_name(dist)
        )
    }
}

fn node_name(dist: u16) -> String {
    format!("paced-{dist}@localhost")
}

/// The member of a quorum queue.
pub struct Member(String);

impl Member {
    fn erlang(&self) -> String {
        format!("{{list_to_atom(\"{}\"), node()}}", self.0)
    }
}

/// A binary of Erlang.
fn erlang(text: &str) -> String {
    format!("<<\"{}\">>", text.replace('\\', "\\\\").replace('"', "\\\""))
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

fn rabbitmq_conf(port: u16) -> String {
    format!(
        "listeners.tcp.local = 127.0.0.1:{port}\n\
         disk_free_limit.absolute = 1MB\n\
         raft.wal_max_size_bytes = 67108864\n\
         log.console = false\n\
         log.file.level = warning\n"
    )
}

/// The variables of the node.
fn rabbitmq_env(folder: &Path, dist: u16, epmd: u16) -> String {
    let (folder, node) = (folder.display(), node_name(dist));
    let local = "-kernel inet_dist_use_interface {127,0,0,1}";
    format!(
        "unset NOTIFY_SOCKET\n\
         export HOME='{folder}/home'\n\
         export ERL_EPMD_PORT={epmd} ERL_EPMD_ADDRESS=127.0.0.1\n\
         export RABBITMQ_NODENAME={node}\n\
         export RABBITMQ_DIST_PORT={dist}\n\
         export RABBITMQ_CONF_ENV_FILE='{folder}/empty.conf'\n\
         export RABBITMQ_CONFIG_FILE='{folder}/rabbitmq.conf'\n\
         export RABBITMQ_ENABLED_PLUGINS_FILE='{folder}/enabled_plugins'\n\
         export RABBITMQ_MNESIA_BASE='{folder}/data'\n\
         export RABBITMQ_LOG_BASE='{folder}/log'\n\
         export PACED_TEST_EVAL='{folder}/eval.erl'\n\
         rm -f '{folder}/eval.erl.port'\n\
         export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='+S 1:1 +sbwt none {local} -eval file:eval(os:getenv(\"PACED_TEST_EVAL\"))'\n\
         # Then the node replaces the shell, and the pid is the node's.\n\
         export RUNNING_UNDER_SYSTEMD=true\n"
    )
}
