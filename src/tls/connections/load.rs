//! Makes TLS configurations from the files of certificates and keys.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::error::{TlsError, TlsProblem};
use super::pinned::Pinned;
use super::trusted::Trusted;
use super::validity::Validity;
use crate::tls::{ServerTlsOptions, TlsOptions};

/// The longest file: a system's whole bundle of authorities has some 200 KiB.
const LONGEST: u64 = 4 << 20;

const CA_FILE: &str = "ca_file";
const CERT_FILE: &str = "cert_file";
const KEY_FILE: &str = "key_file";
const SERVER_NAME: &str = "server_name";
const CLIENT_CA_FILE: &str = "client_ca_file";
const PINNED_FILE: &str = "pinned_file";

/// Returns the configuration of a client for these options, and when the certificate that it shows is valid, if it
/// shows one. Blocks while it reads the files.
pub(super) fn client_config(
    options: &TlsOptions,
    alpn: &[&[u8]],
) -> Result<(ClientConfig, Option<Validity>), TlsError> {
    if let Some(name) = &options.server_name
        && server_name(name).is_none()
    {
        return Err(TlsError::new(SERVER_NAME, None, TlsProblem::Name));
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(CA_FILE, None, &error))?;
    let builder = match (&options.pinned_file, &options.ca_file) {
        (Some(file), _) => {
            let mut chain = certificates(PINNED_FILE, file)?;
            // There is at least one, and the server's own comes first.
            let pinned = Arc::new(Pinned::new(chain.swap_remove(0), provider));
            builder.dangerous().with_custom_certificate_verifier(pinned)
        }
        (None, Some(file)) => {
            let certificates = certificates(CA_FILE, file)?;
            let roots = roots(CA_FILE, file, &certificates)?;
            let trusted = Trusted::new(certificates, roots, provider);
            let trusted = trusted.map_err(|error| unusable(CA_FILE, Some(file), &error))?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(trusted))
        }
        (None, None) => builder.with_root_certificates(system()?),
    };
    let (mut config, validity) = match (&options.cert_file, &options.key_file) {
        (None, None) => (builder.with_no_client_auth(), None),
        (Some(file), None) => return Err(TlsError::new(CERT_FILE, Some(file), TlsProblem::WithoutKey)),
        (None, Some(file)) => {
            return Err(TlsError::new(KEY_FILE, Some(file), TlsProblem::WithoutCertificate));
        }
        (Some(cert_file), Some(key_file)) => {
            let (chain, key) = (certificates(CERT_FILE, cert_file)?, private_key(key_file)?);
            let validity = Validity::of(&chain);
            let config = builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| unusable_pair(error, cert_file, key_file))?;
            (config, validity)
        }
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok((config, validity))
}

/// Returns the configuration of a server of HTTP/1.1 for these options, and when its certificate is valid, if that is
/// known. Blocks while it reads the files.
pub(super) fn server_config(
    options: &ServerTlsOptions,
) -> Result<(ServerConfig, Option<Validity>), TlsError> {
    let ServerTlsOptions { cert_file, key_file, client_ca_file } = options;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(CERT_FILE, None, &error))?;
    let builder = match client_ca_file {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let certificates = certificates(CLIENT_CA_FILE, file)?;
            let roots = Arc::new(roots(CLIENT_CA_FILE, file, &certificates)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            let verifier = verifier.build().map_err(|error| unusable(CLIENT_CA_FILE, Some(file), &error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let (chain, key) = (certificates(CERT_FILE, cert_file)?, private_key(key_file)?);
    let validity = Validity::of(&chain);
    let mut config =
        builder.with_single_cert(chain, key).map_err(|error| unusable_pair(error, cert_file, key_file))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((config, validity))
}

fn unusable(key: &'static str, file: Option<&Path>, error: &impl ToString) -> TlsError {
    TlsError::new(key, file, TlsProblem::Unusable(error.to_string()))
}

/// Why a certificate and its key cannot be used.
fn unusable_pair(error: rustls::Error, cert_file: &Path, key_file: &Path) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => TlsError::new(KEY_FILE, Some(key_file), TlsProblem::OtherKey),
        rustls::Error::InvalidCertificate(error) => {
            TlsError::new(CERT_FILE, Some(cert_file), TlsProblem::Malformed(format!("{error:?}")))
        }
        other => TlsError::new(KEY_FILE, Some(key_file), TlsProblem::UnusableKey(other.to_string())),
    }
}

/// The name as a certificate has it; an IPv6 address may be in brackets.
pub(super) fn server_name(name: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(name.trim_matches(['[', ']']).to_owned()).ok()
}

/// Makes a list of authorities of the certificates in this file.
fn roots(
    key: &'static str,
    file: &Path,
    certificates: &[CertificateDer<'static>],
) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate.clone())
            .map_err(|error| TlsError::new(key, Some(file), TlsProblem::Malformed(error.to_string())))?;
    }
    Ok(roots)
}

/// The system's authorities, read once: they are some hundred, and all connections share them.
fn system() -> Result<Arc<RootCertStore>, TlsError> {
    static SHARED: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = SHARED.get() {
        return Ok(Arc::clone(roots));
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let why = found.errors.first().map_or_else(|| "none was found".to_owned(), ToString::to_string);
        return Err(TlsError::new(CA_FILE, None, TlsProblem::NoAuthorities(why)));
    }
    Ok(Arc::clone(SHARED.get_or_init(|| Arc::new(roots))))
}

/// The certificates in a file; there is at least one.
fn certificates(key: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |problem| TlsError::new(key, Some(file), problem);
    let text = read(file).map_err(wrong)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| wrong(TlsProblem::Malformed(error.to_string())))?;
    if all.is_empty() { Err(wrong(TlsProblem::NoCertificate)) } else { Ok(all) }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let wrong = |problem| TlsError::new(KEY_FILE, Some(file), problem);
    let text = read(file).map_err(wrong)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let is_encrypted = |line: &[u8]| line.starts_with(b"-----BEGIN ENCRYPTED PRIVATE KEY");
        wrong(match error {
            pem::Error::NoItemsFound if text.split(|byte| *byte == b'\n').any(is_encrypted) => {
                TlsProblem::EncryptedKey
            }
            pem::Error::NoItemsFound => TlsProblem::NoKey,
            // The text of the error repeats no part of the key. It may repeat a line that should begin or end a
            // section.
            pem::Error::Base64Decode(_) => TlsProblem::UnusableKey("its Base64 is malformed".to_owned()),
            _ => TlsProblem::UnusableKey("it is malformed".to_owned()),
        })
    })
}

fn read(file: &Path) -> Result<Vec<u8>, TlsProblem> {
    let unreadable = |error: std::io::Error| {
        let text = error.to_string();
        TlsProblem::Unreadable(text.split(" (os error").next().unwrap_or_default().to_owned())
    };
    let mut text = Vec::new();
    // Only a regular file is read: a pipe without a writer would block.
    if !std::fs::metadata(file).map_err(unreadable)?.is_file() {
        return Err(TlsProblem::Unreadable("it is no file".to_owned()));
    }
    File::open(file).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut text)).map_err(unreadable)?;
    if text.len() as u64 > LONGEST { Err(TlsProblem::TooLong) } else { Ok(text) }
}
