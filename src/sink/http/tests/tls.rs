//! https, with an authority, a server certificate for `localhost` and 127.0.0.1, and its key, that are
//! for these tests alone.

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::*;

const AUTHORITY: &[u8] = include_bytes!("tls/authority.der");
const CERTIFICATE: &[u8] = include_bytes!("tls/server.der");
const KEY: &[u8] = include_bytes!("tls/server-key.der");

async fn server() -> Server {
    install_crypto_provider();
    let key = PrivateKeyDer::try_from(KEY).expect("a key");
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(CERTIFICATE)], key)
        .expect("a certificate and its key");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Server::start_with(Some(TlsAcceptor::from(Arc::new(config))), |_| future::ready(empty(200))).await
}

fn trusting() -> Result<Arc<ClientConfig>, HttpError> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(AUTHORITY)).expect("an authority");
    Ok(Arc::new(connect::trusting(roots)))
}

fn trusting_nobody() -> Result<Arc<ClientConfig>, HttpError> {
    Ok(Arc::new(connect::trusting(RootCertStore::empty())))
}

fn here(_: &str) -> std::io::Result<Vec<SocketAddr>> {
    Ok(vec![SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0)])
}

#[tokio::test]
async fn a_spare_has_done_its_handshake_and_is_used() {
    let server = server().await;
    for base in [server.base.clone(), server.base.replace("127.0.0.1", "localhost")] {
        let before = server.connections();
        let sink = HttpSink::with(options(&base), here, trusting).expect("a sink");
        sink.warm(1);
        until(|| sink.pool.counts() == (1, 0)).await;
        let job = Job { body: Bytes::from(vec![b'x'; 200_000]), ..job() };
        for _ in 0..3 {
            delivered(sink.send(&job).await);
        }
        assert_eq!((sink.pool.counts(), server.connections() - before), ((1, 0), 1));
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
    let server = server().await;
    let other_name = server.base.replace("127.0.0.1", "api.example");
    for (base, tls) in [(&server.base, trusting_nobody as connect::Tls), (&other_name, trusting)] {
        let sink = HttpSink::with(options(base), here, tls).expect("a sink");
        let detail = unreachable(sink.send(&job()).await);
        assert!(detail.contains("certificate"), "{detail}");
    }
    assert_eq!(server.seen().len(), 0);
}
