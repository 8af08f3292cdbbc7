//! The handle by which connections are accepted, and the replacement of what it read.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::error::TlsError;
use super::load;
use super::replaced::{self, Read};
use super::validity::Validity;
use crate::files::Reloaded;
use crate::tls::ServerTlsOptions;

/// What connections over TLS are accepted with. It is cheap to clone, and all clones use the same files.
///
/// [`ServerTls::refresh`] reads the files again if one of them was replaced or rewritten; connections that are accepted
/// from then on use what it read. While what they hold cannot be used, what was read before stays in use.
#[derive(Clone)]
pub struct ServerTls {
    options: Arc<ServerTlsOptions>,
    current: Reloaded<Read<ServerConfig>>,
}

impl ServerTls {
    /// Reads the files, for HTTP/1.1. It blocks while it does.
    ///
    /// # Errors
    /// [`TlsError`] where a file cannot be read or used.
    pub fn load(options: ServerTlsOptions) -> Result<Self, TlsError> {
        let files = [&options.cert_file, &options.key_file].into_iter().chain(&options.client_ca_file);
        let files = files.cloned().collect();
        let options = Arc::new(options);
        let theirs = Arc::clone(&options);
        let current = replaced::load(files, move || load::server_config(&theirs))?;
        Ok(Self { options, current })
    }

    /// The options that it was made with.
    #[must_use]
    pub fn options(&self) -> &ServerTlsOptions {
        &self.options
    }

    /// When the certificate in use is valid, and those with it that lead to its authority; `None` if that is not known.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        self.current.current().validity
    }

    /// Whether the files cannot be used, so the old contents stay in use.
    pub fn is_failing(&self) -> bool {
        self.current.is_failing()
    }

    /// Checks the files, reads them again if one has changed, and logs the result. It blocks meanwhile.
    pub fn refresh(&self) {
        self.current.try_refresh();
    }

    /// Does the handshake with a client that has connected. It has no time-out.
    ///
    /// Cancel safe: a dropped future closes the connection.
    ///
    /// # Errors
    /// The connection ends, or one side refuses the other.
    pub async fn accept<S>(&self, io: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(Arc::clone(&self.current.current().config)).accept(io).await
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerTls").field(&self.options).finish()
    }
}
