//! The options of TLS for clients and servers.

#[cfg(feature = "tls")]
use std::path::Path;
use std::path::PathBuf;

/// The authorities that this process trusts, and the certificate that it shows. By default it trusts servers whose
/// certificates the system's authorities have signed, and shows no certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TlsOptions {
    /// The certificates of the authorities that may sign servers' certificates, in a file in PEM format. They are
    /// trusted instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate that this process shows to a server that asks for one, and then those that lead to its
    /// authority, in a file in PEM format. It needs a `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The private key of the certificate, unencrypted, in a file in PEM format (PKCS #8, PKCS #1 or SEC1).
    pub key_file: Option<PathBuf>,
    /// The name that the server's certificate must have, and that this process sends (SNI), instead of the host in
    /// the URL.
    pub server_name: Option<String>,
    /// The certificate that the server must show, in a file in PEM format: that one alone is trusted, and no authority.
    pub(crate) pinned_file: Option<PathBuf>,
}

impl TlsOptions {
    /// The same options, with the authorities in this file instead of the system's.
    #[must_use]
    pub fn with_ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// The same options, with a certificate to show, and its key.
    #[must_use]
    pub fn with_certificate(mut self, cert_file: impl Into<PathBuf>, key_file: impl Into<PathBuf>) -> Self {
        (self.cert_file, self.key_file) = (Some(cert_file.into()), Some(key_file.into()));
        self
    }

    /// The same options, with the name that the server's certificate must have.
    #[must_use]
    pub fn with_server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// The same options, where the server must show exactly the (first) certificate in this file, with any name and any
    /// authority: for a caller that has the server's own file.
    #[doc(hidden)]
    #[must_use]
    pub fn with_pinned_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.pinned_file = Some(file.into());
        self
    }

    /// All files, in a fixed order.
    #[cfg(feature = "tls")]
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let all = [&self.ca_file, &self.cert_file, &self.key_file, &self.pinned_file];
        all.into_iter().flatten().map(PathBuf::as_path)
    }
}

/// The certificate that a server shows, and the authorities of the clients that it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsOptions {
    /// The certificate that clients are shown, and then those that lead to its authority, in a file in PEM format.
    pub cert_file: PathBuf,
    /// The private key of the certificate, unencrypted, in a file in PEM format (PKCS #8, PKCS #1 or SEC1).
    pub key_file: PathBuf,
    /// The certificates of the authorities that may sign clients' certificates, in a file in PEM format. With this
    /// file every client must show a certificate; without it clients need none.
    pub client_ca_file: Option<PathBuf>,
}
