//! https, with an authority of the test's own.

use rustls::ALL_VERSIONS;
use tempfile::{TempDir, tempdir};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::tls::authority::{Authority, Issued, put};
use crate::tls::{Tls, TlsOptions};

/// A server with this certificate, that wants one of a client if there is an authority for these.
pub(super) async fn server(issued: &Issued, clients: Option<&Authority>) -> Server {
    let acceptor = TlsAcceptor::from(issued.server(clients, ALL_VERSIONS));
    Server::start_with(Some(acceptor), |_| future::ready(empty(200))).await
}

/// TLS that trusts the authority, and shows this certificate; the files are in the folder.
pub(super) fn trusting(authority: &Authority, client: Option<&Issued>) -> (TempDir, Tls) {
    let folder = tempdir().expect("a folder");
    let mut options = TlsOptions::default().with_ca_file(put(folder.path(), "ca.pem", &authority.pem));
    if let Some(client) = client {
        let (certificate, key) = client.put(folder.path(), "client");
        options = options.with_certificate(certificate, key);
    }
    let tls = Tls::load_for_http(options).expect("good files");
    (folder, tls)
}

fn here(_: &str) -> std::io::Result<Vec<SocketAddr>> {
    Ok(vec![SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0)])
}

fn sink_with(base: &str, tls: &Tls) -> HttpSink {
    HttpSink::with(HttpOptions { tls: Some(tls.clone()), ..options(base) }, here).expect("a sink")
}

#[tokio::test]
async fn a_spare_has_done_its_handshake_and_is_used() {
    let authority = Authority::new("ours");
    let (_folder, tls) = trusting(&authority, None);
    let server = server(&authority.issue(&["localhost", "127.0.0.1"]), None).await;
    for base in [server.base.clone(), server.base.replace("127.0.0.1", "localhost")] {
        let before = server.connections();
        let sink = sink_with(&base, &tls);
        sink.warm(soon(1));
        until(|| sink.target.current().pool.counts() == (1, 0)).await;
        let job = Job { content: Bytes::from(vec![b'x'; 200_000]).into(), ..job() };
        for _ in 0..3 {
            delivered(sink.send(&job).await);
        }
        assert_eq!((sink.target.current().pool.counts(), server.connections() - before), ((1, 0), 1));
        let last = server.seen().pop().expect("a request");
        assert_eq!((last.target.as_str(), last.body.len()), ("/", 200_000));
        assert_eq!(last.header("host"), Some(base.trim_start_matches("https://").trim_end_matches('/')));
        server.hang_up().await;
        delivered(sink.send(&job).await);
        assert_eq!(server.connections() - before, 2);
    }
    assert_eq!(server.seen().len(), 8);
}

#[tokio::test]
async fn nothing_is_sent_to_a_server_that_cannot_prove_its_name() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let server = server(&ours.issue(&["127.0.0.1"]), None).await;
    let other_name = server.base.replace("127.0.0.1", "api.example");
    for (base, authority, expected) in [
        (&server.base, &theirs, "signed by an authority that is not in ca_file"),
        (&other_name, &ours, "is for 127.0.0.1, not for api.example"),
    ] {
        let (_folder, tls) = trusting(authority, None);
        let detail = unreachable(sink_with(base, &tls).send(&job()).await);
        assert!(detail.contains(expected), "{detail}");
    }
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn a_client_shows_its_certificate_or_is_refused_before_it_has_sent_a_job() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let server = server(&ours.issue(&["127.0.0.1"]), Some(&ours)).await;
    let (_folder, tls) = trusting(&ours, Some(&ours.issue(&["paced"])));
    delivered(sink_with(&server.base, &tls).send(&job()).await);
    for (client, expected) in [
        (None, "requires a client certificate; set cert_file and key_file"),
        (Some(theirs.issue(&["paced"])), "does not trust the authority of the client certificate"),
        (Some(ours.issue_expired(&["paced"])), "client certificate in cert_file has expired"),
    ] {
        let (_folder, tls) = trusting(&ours, client.as_ref());
        // In TLS 1.3 this comes back when the request is under way: nothing of it was taken.
        let detail = unreachable(sink_with(&server.base, &tls).send(&job()).await);
        assert!(detail.contains(expected), "{detail}");
    }
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn tls_for_a_url_without_it_is_a_mistake() {
    let (_folder, tls) = trusting(&Authority::new("ours"), None);
    let options = HttpOptions { tls: Some(tls), ..options("http://127.0.0.1/") };
    assert!(matches!(HttpSink::new(options), Err(HttpError::BaseUrl(_))));
}
