//! TLS before a server that has none.

use std::sync::{Arc, Mutex};

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
    shown: Arc<Mutex<Shown>>,
    task: JoinHandle<()>,
}

/// What it shows to clients and wants of them, and how many it has accepted with each that it has had.
#[derive(Debug)]
struct Shown {
    config: Arc<ServerConfig>,
    accepted: Vec<usize>,
}

impl Front {
    /// Starts it before the server on this port, with the certificate for `localhost`.
    pub async fn start(server: u16) -> Self {
        let chain = CertificateDer::pem_slice_iter(CERTIFICATE).collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Self::start_with(server, Arc::new(config)).await
    }

    /// Starts it before the server on this port.
    pub async fn start_with(server: u16, config: Arc<ServerConfig>) -> Self {
        let shown = Arc::new(Mutex::new(Shown { config, accepted: vec![0] }));
        let shared = Arc::clone(&shown);
        let (port, task) = apart(async move {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            (port, tokio::spawn(accept(listener, shared, server)))
        })
        .await;
        Self { port, shown, task }
    }

    /// Shows another certificate to new connections, and wants something else of them.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        let mut shown = self.shown.lock().unwrap();
        shown.config = config;
        shown.accepted.push(0);
    }

    /// How many connections it has accepted with each configuration that it has had.
    pub fn accepted(&self) -> Vec<usize> {
        self.shown.lock().unwrap().accepted.clone()
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

async fn accept(listener: TcpListener, shown: Arc<Mutex<Shown>>, server: u16) {
    while let Ok((client, _)) = listener.accept().await {
        let shown = Arc::clone(&shown);
        // An error ends that connection, which the client notices.
        tokio::spawn(async move {
            let (config, number) = {
                let shown = shown.lock().unwrap();
                (Arc::clone(&shown.config), shown.accepted.len() - 1)
            };
            let mut client = TlsAcceptor::from(config).accept(client).await?;
            shown.lock().unwrap().accepted[number] += 1;
            let mut server = TcpStream::connect(("127.0.0.1", server)).await?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await
        });
    }
}
