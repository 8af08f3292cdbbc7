//! Errors of the options of TLS and of their files.

use std::path::{Path, PathBuf};

/// An option of TLS that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}{}: {problem}", shown(.file.as_deref()))]
pub struct TlsError {
    key: &'static str,
    file: Option<PathBuf>,
    problem: TlsProblem,
}

/// What is wrong with an option, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsProblem {
    /// The file is missing, or may not be read.
    #[error("cannot be read ({0}); give the path of a file in PEM format that this process may read")]
    Unreadable(String),
    /// The file is too long for what it should be.
    #[error("is longer than 4 MiB; give a file in PEM format with certificates or a key and nothing else")]
    TooLong,
    /// There is no certificate in the file.
    #[error(
        "has no certificate in it; give a file in PEM format, which has a line -----BEGIN CERTIFICATE-----"
    )]
    NoCertificate,
    /// A section of the file is marked as a certificate, but cannot be parsed.
    #[error("has a certificate in it that cannot be parsed ({0}); export it again, in PEM format")]
    Malformed(String),
    /// There is no private key in the file.
    #[error(
        "has no private key in it; give a file in PEM format, which has a line -----BEGIN PRIVATE KEY-----"
    )]
    NoKey,
    /// The private key is encrypted.
    #[error("has an encrypted private key in it, and paced asks for no passphrase; give the key without one")]
    EncryptedKey,
    /// The private key is of a kind that paced does not use for TLS.
    #[error("has a private key in it that cannot be used ({0}); use an RSA, ECDSA or Ed25519 key")]
    UnusableKey(String),
    /// The key is that of another certificate.
    #[error(
        "has a private key in it that does not fit the certificate in cert_file; give the two of one pair"
    )]
    OtherKey,
    /// The certificate was given without its key.
    #[error("needs key_file, the private key of the certificate, as well; give both, or neither")]
    WithoutKey,
    /// The key was given without its certificate.
    #[error("needs cert_file, the certificate of the key, as well; give both, or neither")]
    WithoutCertificate,
    /// No certificate can have this name.
    #[error("is no name that a certificate can have; write a host name, or an address without a port")]
    Name,
    /// The system has no authorities.
    #[error(
        "is unset, and the system has no certificate authorities ({0}); install ca-certificates, or set it"
    )]
    NoAuthorities(String),
    /// The library for TLS refuses the options.
    #[error("cannot be used: {0}; check what is in it")]
    Unusable(String),
}

impl TlsError {
    pub(super) fn new(key: &'static str, file: Option<&Path>, problem: TlsProblem) -> Self {
        Self { key, file: file.map(Path::to_owned), problem }
    }

    /// The option: `ca_file`, `cert_file`, `key_file`, `server_name` or `client_ca_file`; or `pinned_file`, where that is used.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        self.key
    }

    /// What is wrong with it.
    #[must_use]
    pub const fn problem(&self) -> &TlsProblem {
        &self.problem
    }
}

fn shown(file: Option<&Path>) -> String {
    file.map(|file| format!(" {}", file.display())).unwrap_or_default()
}
