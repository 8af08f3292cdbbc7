//! Reads a table of TLS, and checks what is in its files.

use std::path::PathBuf;

use super::document::quote;
use super::reader::{Absent, IN_QUOTES, Reader, Table};
use super::settings::Secret;
use crate::tls::{ServerTlsOptions, TlsOptions};

const KEYS: [&str; 4] = ["ca_file", "cert_file", "key_file", "server_name"];
const SERVER_KEYS: [&str; 3] = ["cert_file", "key_file", "client_ca_file"];

/// The table `tls` for the connections to `url`; `None` if nothing is set in it, or the reader has noted a mistake.
/// `right` is what a URL with TLS looks like.
pub(super) fn tls<'v>(
    reader: &mut Reader<'v>,
    parent: &Table<'v>,
    url: Option<&Secret>,
    right: &str,
) -> Option<TlsOptions> {
    let table = reader.table(parent, "tls");
    let [ca_file, cert_file, key_file] =
        ["ca_file", "cert_file", "key_file"].map(|key| reader.path(&table, key));
    let server_name = reader.parsed(&table, "server_name", Absent::Unset, name);
    let given = [ca_file.is_some(), cert_file.is_some(), key_file.is_some(), server_name.is_some()];
    let options = TlsOptions { ca_file, cert_file, key_file, server_name, ..TlsOptions::default() };
    if KEYS.iter().zip(given).any(|(key, is_read)| table.has(key) != is_read) {
        // What is read of the table is not all of it.
        return None;
    }
    let first = KEYS.into_iter().find(|key| table.has(key))?;
    if let Some(url) = url
        && let Some(scheme) = without_tls(url)
        && let Some(found) = reader.given(&table, first)
    {
        let problem = format!(
            "would not be used, since the URL is {scheme} and has no TLS; write {right}, or remove it"
        );
        reader.wrong(&found, problem);
        return None;
    }
    check(reader, &table, first, options)
}

/// The table `tls` of a server; `None` if nothing is set in it, or the reader has noted a mistake.
pub(super) fn server_tls<'v>(reader: &mut Reader<'v>, parent: &Table<'v>) -> Option<ServerTlsOptions> {
    let table = reader.table(parent, "tls");
    let [cert_file, key_file, client_ca_file] = SERVER_KEYS.map(|key| reader.path(&table, key));
    let given = [cert_file.is_some(), key_file.is_some(), client_ca_file.is_some()];
    if SERVER_KEYS.iter().zip(given).any(|(key, is_read)| table.has(key) != is_read) {
        // What is read of the table is not all of it.
        return None;
    }
    let (at, problem) = match (cert_file, key_file) {
        (Some(cert_file), Some(key_file)) => {
            let options = ServerTlsOptions { cert_file, key_file, client_ca_file };
            return check_server(reader, &table, options);
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
    let found = reader.given(&table, at)?;
    reader.wrong(&found, problem);
    None
}

/// The scheme of a URL that has no TLS.
fn without_tls(url: &Secret) -> Option<&str> {
    let scheme = url.expose().split_once(':').map_or("memory", |(scheme, _)| scheme);
    let has_tls = ["amqps", "rediss", "rediss+sentinel", "rediss+cluster", "https"].contains(&scheme);
    (!has_tls).then_some(scheme)
}

/// Whether the files can be used: it is told here rather than by the first connection.
#[cfg(feature = "tls")]
fn check<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    first: &str,
    options: TlsOptions,
) -> Option<TlsOptions> {
    match crate::tls::Tls::load(options.clone()) {
        Ok(tls) => {
            warn_of(reader, table, tls.validity());
            return Some(options);
        }
        Err(error) => tell(reader, table, first, &error),
    }
    None
}

/// As [`check`], for a server.
#[cfg(feature = "tls")]
fn check_server<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    options: ServerTlsOptions,
) -> Option<ServerTlsOptions> {
    if reader.is_for_tools {
        return Some(options);
    }
    match crate::tls::ServerTls::load(options.clone()) {
        Ok(tls) => {
            warn_of(reader, table, tls.validity());
            return Some(options);
        }
        Err(error) => tell(reader, table, SERVER_KEYS[0], &error),
    }
    None
}

#[cfg(not(feature = "tls"))]
fn check_server<'v>(
    _: &mut Reader<'v>,
    _: &Table<'v>,
    options: ServerTlsOptions,
) -> Option<ServerTlsOptions> {
    Some(options)
}

/// Warns of a certificate that is not valid, or not for long.
#[cfg(feature = "tls")]
fn warn_of<'v>(reader: &mut Reader<'v>, table: &Table<'v>, validity: Option<crate::tls::Validity>) {
    let concern = validity.and_then(|validity| validity.concern(crate::time::wall_now()));
    if let Some(concern) = concern
        && let Some(found) = reader.given(table, "cert_file")
    {
        reader.warn(&found, &concern.to_string());
    }
}

/// Notes what is wrong with a key, or with one that is not given, at `first`.
#[cfg(feature = "tls")]
fn tell<'v>(reader: &mut Reader<'v>, table: &Table<'v>, first: &str, error: &crate::tls::TlsError) {
    let key = if table.has(error.key()) { error.key() } else { first };
    if let Some(found) = reader.given(table, key) {
        let about = if key == error.key() { String::new() } else { format!("{} ", error.key()) };
        reader.wrong(&found, format!("{about}{}", error.problem()));
    }
}

#[cfg(not(feature = "tls"))]
fn check<'v>(_: &mut Reader<'v>, _: &Table<'v>, _: &str, options: TlsOptions) -> Option<TlsOptions> {
    Some(options)
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
    fn path(&mut self, table: &Table<'v>, key: &str) -> Option<PathBuf> {
        let found = self.find(table, key)?;
        let text = self.text(&found, IN_QUOTES)?;
        if text.is_empty() {
            self.wrong(&found, "empty; give the path of a file in PEM format, or remove it");
            return None;
        }
        self.note(table, key, quote(&text), Some(&found));
        self.file(&found, &text)
    }
}
