//! TLS before a server that has none.

use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::apart;

/// The authority that signed the certificate. No other program trusts it, and its key is gone.
pub const CA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/tls/ca.pem");
/// The certificate for `localhost` and 127.0.0.1.
const CERTIFICATE: &[u8] = include_bytes!("tls/cert.pem");
const KEY: &[u8] = include_bytes!("tls/key.pem");

/// Accepts TLS connections and forwards them as plain ones; it ends when dropped.
#[derive(Debug)]
pub struct Front {
    port: u16,
    task: JoinHandle<()>,
}

impl Front {
    /// Starts it before the server on this port.
    pub async fn start(server: u16) -> Self {
        let chain = CertificateDer::pem_slice_iter(CERTIFICATE).collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (port, task) = apart(async move {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            (port, tokio::spawn(accept(listener, acceptor, server)))
        })
        .await;
        Self { port, task }
    }

    /// The port that it listens on.
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, server: u16) {
    while let Ok((client, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        // An error ends that connection, which the client notices.
        tokio::spawn(async move {
            let mut client = acceptor.accept(client).await?;
            let mut server = TcpStream::connect(("127.0.0.1", server)).await?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await
        });
    }
}
