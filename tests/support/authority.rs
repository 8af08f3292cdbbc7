//! Certificate authorities for tests, and certificates that they sign.

#![allow(dead_code, reason = "each module that includes this uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

/// An authority, whose key lives as long as this.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, in PEM format.
    pub pem: String,
}

/// A certificate and its key, in PEM format.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    /// An authority of this name.
    pub fn new(name: &str) -> Self {
        let mut params = params(&[], name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for these names, for servers and for clients.
    pub fn issue(&self, names: &[&str]) -> Issued {
        self.sign(params(names, "leaf"))
    }

    /// A certificate with this common name, for servers and for clients.
    pub fn issue_to(&self, common_name: &str) -> Issued {
        self.sign(params(&[], common_name))
    }

    /// A certificate for these names that was valid until 2021.
    pub fn issue_expired(&self, names: &[&str]) -> Issued {
        self.issue_between(names, (2020, 1, 1), (2021, 1, 1))
    }

    /// A certificate for these names that is valid between these dates: year, month and day.
    pub fn issue_between(&self, names: &[&str], from: (i32, u8, u8), until: (i32, u8, u8)) -> Issued {
        let mut params = params(names, "leaf");
        params.not_before = date_time_ymd(from.0, from.1, from.2);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Issued {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Issued { certificate, key: key.serialize_pem() }
    }
}

/// A certificate for these names that has signed itself and is one of an authority (CA:TRUE), as `openssl req -x509` makes
/// them; it is valid until this date.
pub fn self_signed(names: &[&str], key: &KeyPair, until: (i32, u8, u8)) -> Issued {
    let mut params = params(names, "self-signed");
    params.not_after = date_time_ymd(until.0, until.1, until.2);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(key).unwrap().pem();
    Issued { certificate, key: key.serialize_pem() }
}

fn params(names: &[&str], common_name: &str) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2049, 1, 1));
    params
}

/// Puts a file in place all at once, as certificates are to be replaced; returns its path.
pub fn put(folder: &Path, name: &str, text: &str) -> PathBuf {
    let (next, path) = (folder.join(format!("{name}.next")), folder.join(name));
    fs::write(&next, text).unwrap();
    fs::rename(&next, &path).unwrap();
    path
}

impl Issued {
    /// A server with this certificate, that speaks these versions of TLS, and wants a certificate of a client if there is
    /// an authority for these.
    pub fn server(
        &self,
        clients: Option<&Authority>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ServerConfig> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_protocol_versions(versions).unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let mut config = builder.with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// Puts both files in place: `NAME.pem` and `NAME-key.pem`.
    pub fn put(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        (
            put(folder, &format!("{name}.pem"), &self.certificate),
            put(folder, &format!("{name}-key.pem"), &self.key),
        )
    }
}
