//! TLS of the admin server.

use std::io;
use std::sync::Arc;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, HandshakeKind, RootCertStore};

use super::*;
use crate::authority::{Authority, Issued};
use crate::support::eventually;

/// A token without a name.
const TOKEN: &str = "correct-horse-battery";

/// A daemon that speaks TLS, with the certificate `server` in `folder`.
struct Scene {
    paced: Paced,
    address: String,
}

impl Scene {
    /// Starts a daemon with the files in this folder, and `more` keys of its table.
    async fn start(name: &str, folder: &TempDir, more: &str) -> Self {
        let site = Site::shared(name, "rate = '100/s'").await;
        let path = folder.path().display();
        let tls = format!(
            "token = '{TOKEN}'\n[admin.tls]\ncert_file = '{path}/server.pem'\nkey_file = '{path}/server-key.pem'\n{more}"
        );
        let config = format!("{}{ADMIN}{tls}", site.config());
        let paced = Paced::start(&config, &[], &[("PACED_TEST_HASTE", "5")]).await;
        let line = paced.wait_line("probes and metrics are served", LONG).await;
        paced.wait_ready().await;
        let line: Value = serde_json::from_str(&line).unwrap();
        Self { address: line["address"].as_str().unwrap().to_owned(), paced }
    }

    /// The answer to a request over TLS, on a connection of its own, and whether that resumed the session of another one.
    async fn send(&self, client: &Arc<ClientConfig>, head: &str, body: &str) -> io::Result<(String, bool)> {
        let length = body.len();
        let request =
            format!("{head}host: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        let asked = async {
            let stream = TcpStream::connect(&self.address).await?;
            let name = ServerName::try_from("localhost").unwrap();
            let mut stream = TlsConnector::from(Arc::clone(client)).connect(name, stream).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok((answer, stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed)))
        };
        timeout(LONG, asked).await.unwrap()
    }

    /// The answer to a probe over TLS.
    async fn probe(&self, client: &Arc<ClientConfig>) -> io::Result<String> {
        Ok(self.send(client, "GET /livez HTTP/1.1\r\n", "").await?.0)
    }

    /// Does this to the downstream with this token; the downstream after it, and whether the connection resumed a session.
    async fn change(&self, client: &Arc<ClientConfig>, what: &str, token: &str, body: &str) -> (Value, bool) {
        let head = format!(
            "POST /api/v1/downstreams/billing/{what} HTTP/1.1\r\ncontent-type: application/json\r\n\
             authorization: Bearer {token}\r\n"
        );
        let (answer, is_resumed) = self.send(client, &head, body).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        (serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap(), is_resumed)
    }

    async fn is_answered(&self, client: &Arc<ClientConfig>) -> bool {
        self.probe(client).await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }
}

/// A client that trusts this authority, and shows this certificate.
fn client(authority: &Authority, issued: Option<&Issued>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match issued {
        Some(Issued { certificate, key }) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

#[tokio::test]
async fn with_a_certificate_nothing_else_is_spoken() {
    let (folder, ours, theirs) = (TempDir::new().unwrap(), Authority::new("ours"), Authority::new("theirs"));
    ours.issue(&["localhost"]).put(folder.path(), "server");
    let scene = Scene::start("admintls", &folder, "").await;
    let trusting = client(&ours, None);
    assert!(scene.is_answered(&trusting).await);
    assert!(scene.probe(&client(&theirs, None)).await.is_err());

    // A request without TLS gets no answer in HTTP, but the end of the connection.
    let mut plain = TcpStream::connect(&scene.address).await.unwrap();
    plain.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // A reset also ends the connection.
    let _ = timeout(LONG, plain.read_to_end(&mut answer)).await.unwrap();
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "{answer:?}");
    scene.paced.wait_line("no TLS with this client", LONG).await;

    // Clients that begin no handshake keep nobody out.
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(&scene.address).await.unwrap());
    }
    assert!(scene.is_answered(&trusting).await);
    drop(silent);
    assert_eq!(scene.paced.stop().await, 0);
}

#[tokio::test]
async fn with_an_authority_for_clients_each_must_have_its_certificate() {
    let (folder, ours, theirs) = (TempDir::new().unwrap(), Authority::new("ours"), Authority::new("theirs"));
    ours.issue(&["localhost"]).put(folder.path(), "server");
    crate::authority::put(folder.path(), "ca.pem", &ours.pem);
    let more = format!("client_ca_file = '{}'\n", folder.path().join("ca.pem").display());
    let scene = Scene::start("adminmtls", &folder, &more).await;
    assert!(scene.is_answered(&client(&ours, Some(&ours.issue(&["prometheus"])))).await);
    for wrong in [None, Some(theirs.issue(&["prometheus"])), Some(ours.issue_expired(&["prometheus"]))] {
        let answer = scene.probe(&client(&ours, wrong.as_ref())).await;
        assert!(answer.is_err(), "{wrong:?} {answer:?}");
    }
    assert_eq!(scene.paced.stop().await, 0);
}

#[tokio::test]
async fn a_change_is_told_with_the_name_in_the_certificate_of_the_client() {
    let (folder, ours) = (TempDir::new().unwrap(), Authority::new("ours"));
    ours.issue(&["localhost"]).put(folder.path(), "server");
    crate::authority::put(folder.path(), "ca.pem", &ours.pem);
    let more = format!(
        "client_ca_file = '{}'\n[admin.tokens.ci]\ntoken = 'token-of-ci-1234567'\nrole = 'admin'\n",
        folder.path().join("ca.pem").display()
    );
    let scene = Scene::start("admincert", &folder, &more).await;
    let (ana, nobody) =
        (client(&ours, Some(&ours.issue_to("ana"))), client(&ours, Some(&ours.issue_to("\u{1b}[2J"))));
    let pause = r#"{"for": "10m", "reason": "they asked"}"#;
    let (body, _) = scene.change(&ana, "pause", TOKEN, pause).await;
    assert_eq!(body["pause"]["by"], "ana", "{body}");
    // The session of before is known by its certificate too, which is not shown again.
    let (_, is_resumed) = scene.change(&ana, "resume", TOKEN, "{}").await;
    assert!(is_resumed);
    let (body, _) = scene.change(&ana, "pause", "token-of-ci-1234567", pause).await;
    assert_eq!(body["pause"]["by"], "ci", "the name of a token comes first: {body}");
    scene.change(&nobody, "resume", TOKEN, "{}").await;

    let head = "GET /api/v1/downstreams/billing/changes HTTP/1.1\r\n";
    let (answer, _) = scene.send(&ana, head, "").await.unwrap();
    let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let names = |all: &[Value]| -> Vec<(Value, Value)> {
        all.iter().map(|one| (one["by"].clone(), one["certificate"].clone())).collect()
    };
    let expected = [("ana", "ana"), ("ana", "ana"), ("ci", "ana"), ("\\u{1b}[2J", "\\u{1b}[2J")];
    let expected = expected.map(|(by, certificate)| (by.into(), certificate.into()));
    assert_eq!(names(body["changes"].as_array().unwrap()), expected, "{body}");
    for message in ["admin: changing", "admin: changed"] {
        let lines = || -> Vec<Value> {
            let log = scene.paced.log().into_iter();
            let lines = log.map(|line| serde_json::from_str::<Value>(&line).unwrap());
            lines.filter(|line| line["message"] == message).collect()
        };
        eventually(message, LONG, || lines().len() >= expected.len()).await;
        assert_eq!(names(&lines()), expected, "{message}: {:?}", lines());
    }
    // Who is refused is named too.
    let head = "POST /api/v1/downstreams/billing/pause HTTP/1.1\r\nauthorization: Bearer wrong\r\n";
    assert!(scene.send(&ana, head, "").await.unwrap().0.starts_with("HTTP/1.1 401"));
    let line: Value = serde_json::from_str(&scene.paced.wait_line("admin: refused", LONG).await).unwrap();
    assert_eq!(line["certificate"], "ana", "{line}");
    assert_eq!(scene.paced.stop().await, 0);
}

#[tokio::test]
async fn a_certificate_that_is_replaced_is_shown_to_new_connections() {
    let (folder, before, after) =
        (TempDir::new().unwrap(), Authority::new("before"), Authority::new("after"));
    before.issue(&["localhost"]).put(folder.path(), "server");
    let scene = Scene::start("admintlsnew", &folder, "").await;
    let (old, new) = (client(&before, None), client(&after, None));
    assert!(scene.is_answered(&old).await && !scene.is_answered(&new).await);

    // One of the pair alone cannot be used.
    let next = after.issue(&["localhost"]);
    crate::authority::put(folder.path(), "server.pem", &next.certificate);
    let line = scene.paced.wait_line("certificates cannot be read again", LONG).await;
    assert!(line.contains("key_file") && line.contains("does not fit"), "{line}");
    assert!(scene.is_answered(&old).await);

    next.put(folder.path(), "server");
    until("the new one is shown", LONG, async || scene.is_answered(&new).await).await;
    assert!(!scene.is_answered(&old).await);
    assert_eq!(scene.paced.stop().await, 0);
}

#[tokio::test]
async fn a_start_with_files_that_cannot_be_used_says_why() {
    let (folder, ours) = (TempDir::new().unwrap(), Authority::new("ours"));
    ours.issue(&["localhost"]).put(folder.path(), "server");
    std::fs::remove_file(folder.path().join("server-key.pem")).unwrap();
    let site = Site::shared("admintlsbad", "rate = '100/s'").await;
    let path = folder.path().display();
    let tls = format!("[admin.tls]\ncert_file = '{path}/server.pem'\nkey_file = '{path}/server-key.pem'\n");
    let paced = Paced::start(&format!("{}{ADMIN}{tls}", site.config()), &[], &[]).await;
    assert_eq!(paced.wait_exit(LONG).await, 78);
    let log = paced.log().join("\n");
    assert!(log.contains("admin.tls.key_file: cannot be read"), "{log}");
}
