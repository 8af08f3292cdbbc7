//! Reads `[downstreams.NAME.http.oauth2]`.

use std::collections::BTreeMap;

use super::reader::{Absent, Reader, Table};
use super::settings::{OAuth2, Secret};
use super::tls::tls;
use super::{url, value};
use crate::tls::TlsOptions;

const KEYS: [&str; 7] =
    ["token_url", "client_id", "client_secret", "client_secret_file", "scopes", "client_auth", "timeout"];

/// The client by which the downstream's tokens are had; `Some(None)` where there is none, and `None` where there is a
/// mistake, which the reader has noted. `headers` are the names of the headers of every request.
pub(super) fn oauth2<'v>(
    reader: &mut Reader<'v>,
    http: &Table<'v>,
    headers: &[&str],
) -> Option<Option<OAuth2>> {
    let table = reader.table(http, "oauth2");
    if !table.is_there() {
        // The search for unknown keys is to know them all the same.
        for key in KEYS {
            reader.given(&table, key);
        }
        reader.table(&table, "params");
        let _ = tls(reader, &table, None, "https://");
        return Some(None);
    }
    let hint =
        Absent::Mistake("say where tokens are had, such as token_url = \"https://login.example.com/token\"");
    let token_url = reader.parsed(&table, "token_url", hint, url::token);
    let hint = Absent::Mistake("name the client, such as client_id = \"paced\"");
    let client_id = reader.parsed(&table, "client_id", hint, value::client_id);
    let hint = Absent::Mistake("name its file, such as client_secret_file = \"secrets/client\"");
    let client_secret = reader.secret(&table, "client_secret", hint, value::client_secret);
    let scopes = reader.texts(&table, "scopes", &[], "[\"orders.write\"]", value::scope);
    let params = params(reader, &table);
    let client_auth = reader.parsed(&table, "client_auth", Absent::Default("basic"), value::client_auth);
    let timeout = |text: &str| value::duration_within(text, "100ms", "1m");
    let timeout = reader.parsed(&table, "timeout", Absent::Default("10s"), timeout);
    let shown = token_url.as_deref().map(Secret::new);
    let tls = tls(reader, &table, shown.as_ref(), "https://");
    if headers.contains(&"authorization") {
        reader.wrong_name(&table, "sets authorization, which `headers` sets too; remove one of them");
        return None;
    }
    if let Some(url) = token_url.as_deref().filter(|url| url::is_open_to_eavesdroppers(url)) {
        let host = url.split('/').nth(2).unwrap_or_default();
        let problem = format!("the client's secret goes to {host} without TLS; write https://");
        reader.warn_of_key(&table, "token_url", &problem);
    }
    Some(Some(OAuth2 {
        token_url: token_url?,
        client_id: client_id?,
        client_secret: client_secret?,
        scopes: scopes?,
        params: params?,
        client_auth: client_auth?,
        timeout: timeout?,
        tls,
    }))
}

/// What else each request for a token says. `None` where there is a mistake, which the reader has noted.
fn params<'v>(reader: &mut Reader<'v>, client: &Table<'v>) -> Option<BTreeMap<String, String>> {
    let table = reader.table(client, "params");
    let mut params = Some(BTreeMap::new());
    for name in table.keys() {
        let value = reader.parsed(&table, &name, Absent::Unset, value::token_param);
        let named = value::token_param_name(&name);
        if let Err(problem) = &named {
            reader.wrong_key(&table, &name, problem);
        }
        match (&mut params, named, value) {
            (Some(params), Ok(()), Some(value)) => drop(params.insert(name, value)),
            _ => params = None,
        }
    }
    params
}

/// Lets the client trust the authorities of the downstream, unless it has some of its own.
pub(super) fn inherit(client: &mut OAuth2, downstream: Option<&TlsOptions>) {
    let ca_file = downstream.and_then(|tls| tls.ca_file.clone());
    if client.tls.is_none() && ca_file.is_some() && client.token_url.starts_with("https:") {
        client.tls = Some(TlsOptions { ca_file, ..TlsOptions::default() });
    }
}
