//! RabbitMQ over TLS.

use paced::amqp::{Amqp, Downstream, Error, Options, check_online};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::*;
use crate::support::daemon::run_cli;
use crate::support::servers::{Rabbit, free_port};
use crate::support::unique;

/// A node that listens with TLS on the port too, and wants certificates of its clients; the files are its own.
pub(super) struct Node {
    pub(super) files: Files,
    pub(super) rabbit: Rabbit,
    pub(super) port: u16,
}

impl Node {
    /// The node, which all tests share, each alone and with new files.
    pub(super) async fn alone() -> MutexGuard<'static, Self> {
        static NODE: OnceCell<Mutex<Node>> = OnceCell::const_new();
        let start = async || {
            let files = Files::new();
            let (rabbit, port) = rabbit(&files).await;
            Mutex::new(Self { files, rabbit, port })
        };
        let node = NODE.get_or_init(start).await.lock().await;
        node.files.put_all();
        node.reads_files().await;
        node
    }

    /// Has the node read its files again, for the connections that it accepts from then on.
    pub(super) async fn reads_files(&self) {
        self.rabbit.eval("ssl:clear_pem_cache()").await;
    }
}

async fn rabbit(files: &Files) -> (Rabbit, u16) {
    let port = free_port();
    let path = |name: &str| files.path(name).display().to_string();
    let lines = format!(
        "listeners.ssl.local = 127.0.0.1:{port}\n\
         ssl_options.cacertfile = {}\n\
         ssl_options.certfile = {}\n\
         ssl_options.keyfile = {}\n\
         ssl_options.verify = verify_peer\n\
         ssl_options.fail_if_no_peer_cert = true\n",
        path("ca.pem"),
        path("server.pem"),
        path("server-key.pem")
    );
    (Rabbit::with(lines).await, port)
}

pub(super) fn options(host: &str, port: u16, tls: Tls) -> Options {
    let address: paced::amqp::Address = format!("amqps://{host}:{port}").parse().unwrap();
    Options {
        address: address.with_tls(tls),
        prefix: unique("tls"),
        declare: true,
        window_bytes: 256 << 20,
        rung_unit: paced::amqp::RUNG_UNIT,
        haste: 1,
        downstreams: vec![Downstream {
            name: "billing".into(),
            queue: None,
            prefetch: 100,
            max_length: None,
            prefetch_bytes: 64 << 20,
        }],
    }
}

#[tokio::test]
async fn a_broker_with_a_private_authority_and_certificates_on_both_sides() {
    let node = Node::alone().await;
    let (files, port) = (&node.files, node.port);
    let known = || files.tls("ca.pem", Some("client"));
    let findings = check_online(&options("localhost", port, known())).await;
    assert!(findings.errors.is_empty(), "{:?}", findings.errors);
    assert_eq!(findings.server.unwrap().product, "RabbitMQ", "the greeting is read over TLS too");
    Amqp::publishing(options("localhost", port, known())).await.unwrap();

    let refused =
        async |host: &str, port: u16, tls: Tls| match Amqp::publishing(options(host, port, tls)).await {
            Err(Error::Unreachable { detail, .. }) => detail,
            other => panic!("{other:?}"),
        };
    for (host, tls, expected) in [
        (
            "localhost",
            files.tls("theirs.pem", Some("client")),
            "signed by an authority that is not in ca_file",
        ),
        ("127.0.0.1", known(), "is for localhost, not for 127.0.0.1"),
        ("localhost", files.tls("ca.pem", None), "requires a client certificate; set cert_file and key_file"),
        (
            "localhost",
            files.tls("ca.pem", Some("stranger")),
            "does not trust the authority of the client certificate in cert_file",
        ),
        ("localhost", files.tls("ca.pem", Some("late")), "the client certificate in cert_file has expired"),
    ] {
        let detail = refused(host, port, tls).await;
        assert!(detail.contains(expected), "{expected}: {detail}");
    }
    let detail = refused("localhost", node.rabbit.port(), known()).await;
    assert!(detail.contains("TLS"), "{detail}");

    files.ours.issue_expired(&["localhost"]).put(files.folder.path(), "server");
    node.reads_files().await;
    let detail = refused("localhost", port, known()).await;
    assert!(detail.contains("the server's certificate expired at 2021-01-01T00:00:00Z"), "{detail}");
}

#[tokio::test]
async fn the_check_tells_what_is_wrong_with_tls() {
    let files = Files::new();
    let config = files.path("paced.toml");
    let rabbit = crate::support::servers::rabbit().await;
    let front = crate::support::tls::Front::start_with(
        rabbit.port(),
        files.theirs.issue(&["localhost"]).server(None, rustls::ALL_VERSIONS),
    )
    .await;
    let text = format!(
        "[amqp]\nurl = 'amqps://localhost:{}/%2f'\nprefix = '{}'\n[amqp.tls]\n{}\
         [downstreams.a]\nrate = '1/s'\nhttp.base_url = 'http://127.0.0.1:1/'\n",
        front.port(),
        unique("check"),
        files.lines()
    );
    std::fs::write(&config, &text).unwrap();
    let file = config.to_str().unwrap();
    let output = run_cli(&["-c", file, "check", "--online"], b"").await;
    assert_eq!(output.code, 69, "{}", output.stderr);
    assert!(output.stderr.contains("signed by an authority that is not in ca_file"), "{}", output.stderr);

    std::fs::write(&config, text.replace("ca.pem", "theirs.pem")).unwrap();
    let output = run_cli(&["-c", file, "check", "--online"], b"").await;
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(output.stdout.contains("broker ok: amqps://localhost:"), "{}", output.stdout);
}
