//! Reads a table of TLS, and checks what is in its files.

use std::path::PathBuf;

use super::document::quote;
use super::key::{Key, keys};
use super::reader::{IN_QUOTES, Reader, Table};
use super::secret::Secret;
#[cfg(feature = "tls")]
use crate::tls::{ServerTls, Tls, TlsError, Validity};
use crate::tls::{ServerTlsOptions, TlsOptions};

keys! {
    /// For a URL with TLS (amqps://, rediss://, https://): the authorities that are trusted and the certificate of this
    /// process (docs/tls.md). Paths start at the directory of this file. The files are read again when they change, and
    /// on SIGHUP.
    TLS = "tls";
    /// The authorities that may have signed the server's certificate (PEM), instead of the system's.
    CA_FILE = "ca_file".example("certs/ca.pem");
    /// The certificate for a server that asks for one, and the intermediate ones up to its authority (PEM). It needs a
    /// `key_file`.
    CERT_FILE = "cert_file".example("certs/client.pem");
    /// The private key of `cert_file`, unencrypted (PEM).
    KEY_FILE = "key_file".example("certs/client-key.pem");
    /// The name that the server's certificate must have. Unset: the host in the URL.
    SERVER_NAME = "server_name".matches(r"^[A-Za-z0-9._:\[\]-]+$").example("server.internal");
}

const KEYS: [Key<'static>; 4] = [CA_FILE, CERT_FILE, KEY_FILE, SERVER_NAME];

keys! {
    /// TLS of the address in `listen`, which then speaks only TLS (docs/tls.md). Paths start at the directory of
    /// this file. The files are read again when they change.
    ADMIN_TLS = "tls";
    /// The certificate of this server, and the intermediate ones up to its authority (PEM).
    ADMIN_CERT_FILE = "cert_file".example("certs/admin.pem");
    /// The private key of `cert_file`, unencrypted (PEM).
    ADMIN_KEY_FILE = "key_file".example("certs/admin-key.pem");
    /// The authorities (PEM) of client certificates. One of them must have signed the certificate of each client, also of
    /// probes and scrapers. The audit log has the name in that certificate. Unset: clients need no certificate.
    CLIENT_CA_FILE = "client_ca_file".example("certs/ca.pem");
}

const ADMIN_KEYS: [Key<'static>; 3] = [ADMIN_CERT_FILE, ADMIN_KEY_FILE, CLIENT_CA_FILE];

/// The table `tls` for the connections to `url`; `None` if nothing is set in it, or the reader has noted a mistake.
/// `right` is what a URL with TLS looks like.
pub(super) fn tls<'v>(
    reader: &mut Reader<'v>,
    parent: &Table<'v>,
    url: Option<&Secret>,
    right: &str,
) -> Option<TlsOptions> {
    let table = reader.section(parent, &TLS);
    let [ca_file, cert_file, key_file] = [CA_FILE, CERT_FILE, KEY_FILE].map(|key| reader.path(&table, &key));
    let server_name = reader.parsed(&table, &SERVER_NAME, name);
    let given = [ca_file.is_some(), cert_file.is_some(), key_file.is_some(), server_name.is_some()];
    let options = TlsOptions { ca_file, cert_file, key_file, server_name, ..TlsOptions::default() };
    if KEYS.iter().zip(given).any(|(key, is_read)| table.has(key.name) != is_read) {
        // What is read of the table is not all of it.
        return None;
    }
    let first = KEYS.map(|key| key.name).into_iter().find(|key| table.has(key))?;
    if let Some(url) = url
        && let Some(scheme) = without_tls(url)
    {
        let problem = format!(
            "would not be used, since the URL is {scheme} and has no TLS; write {right}, or remove it"
        );
        reader.wrong_value(&table, first, problem);
        return None;
    }
    #[cfg(feature = "tls")]
    if !are_usable(reader, &table, first, Tls::load(options.clone()).map(|tls| tls.validity())) {
        return None;
    }
    Some(options)
}

/// The table `tls` of a server; `None` if nothing is set in it, or the reader has noted a mistake.
pub(super) fn server_tls<'v>(reader: &mut Reader<'v>, parent: &Table<'v>) -> Option<ServerTlsOptions> {
    let table = reader.section(parent, &ADMIN_TLS);
    let [cert_file, key_file, client_ca_file] = ADMIN_KEYS.map(|key| reader.path(&table, &key));
    let given = [cert_file.is_some(), key_file.is_some(), client_ca_file.is_some()];
    if ADMIN_KEYS.iter().zip(given).any(|(key, is_read)| table.has(key.name) != is_read) {
        // What is read of the table is not all of it.
        return None;
    }
    let (at, problem) = match (cert_file, key_file) {
        (Some(cert_file), Some(key_file)) => {
            let options = ServerTlsOptions { cert_file, key_file, client_ca_file };
            #[cfg(feature = "tls")]
            if !reader.is_for_tools {
                let loaded = ServerTls::load(options.clone()).map(|tls| tls.validity());
                return are_usable(reader, &table, ADMIN_CERT_FILE.name, loaded).then_some(options);
            }
            return Some(options);
        }
        (Some(_), None) => (
            "cert_file",
            "needs key_file, the private key of the certificate, as well; give both, or neither",
        ),
        (None, Some(_)) => {
            ("key_file", "needs cert_file, the certificate of the key, as well; give both, or neither")
        }
        (None, None) => (
            "client_ca_file",
            "needs cert_file and key_file, the certificate of this server, as well; give all three, or remove it",
        ),
    };
    reader.wrong_value(&table, at, problem);
    None
}

/// The scheme of a URL that has no TLS.
fn without_tls(url: &Secret) -> Option<&str> {
    let scheme = url.expose().split_once(':').map_or("memory", |(scheme, _)| scheme);
    let has_tls = ["amqps", "rediss", "rediss+sentinel", "rediss+cluster", "https"].contains(&scheme);
    (!has_tls).then_some(scheme)
}

/// Whether certificates can be used: what is wrong is noted at its key, or at `first` where that is not given. Of one that
/// is not valid, or not for long, the reader warns.
#[cfg(feature = "tls")]
fn are_usable<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    first: &str,
    loaded: Result<Option<Validity>, TlsError>,
) -> bool {
    match &loaded {
        Ok(validity) => {
            let concern = validity.and_then(|validity| validity.concern(crate::time::wall_now()));
            if let Some(concern) = concern
                && let Some(found) = reader.given(table, "cert_file")
            {
                reader.warn(&found, &concern.to_string());
            }
        }
        Err(error) if table.has(error.key()) => {
            reader.wrong_value(table, error.key(), error.problem().to_string())
        }
        Err(error) => reader.wrong_value(table, first, format!("{} {}", error.key(), error.problem())),
    }
    loaded.is_ok()
}

/// A name that a certificate may have.
fn name(text: &str) -> Result<String, String> {
    const RIGHT: &str = "write a host name, or an address without a port, such as api.internal";
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    if text.is_empty() || !text.chars().all(is_plain) {
        return Err(format!("no name that a certificate can have; {RIGHT}"));
    }
    Ok(text.to_owned())
}

impl<'v> Reader<'v> {
    /// The path under `key`, which starts at the directory of its source.
    fn path(&mut self, table: &Table<'v>, key: &Key) -> Option<PathBuf> {
        self.declare(table, key, || key.string());
        let found = self.find(table, key.name)?;
        let text = self.text(&found, IN_QUOTES)?;
        if text.is_empty() {
            self.wrong(&found, "empty; give the path of a file in PEM format, or remove it");
            return None;
        }
        self.note(table, key, quote(&text), Some(&found));
        self.file(&found, &text)
    }
}
