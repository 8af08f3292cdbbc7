//! Reads `[downstreams.NAME.http.oauth2]`.

use std::collections::BTreeMap;

use super::all;
use crate::config::key::keys;
use crate::config::reader::{Reader, Table};
use crate::config::secret::Secret;
use crate::config::settings::{ClientAuth, OAuth2};
use crate::config::tls::tls;
use crate::config::{url, value, warnings};
use crate::tls::TlsOptions;

keys! {
    /// OAuth2 tokens by client credentials: every request has one (Authorization: Bearer). docs/secrets.md says how
    /// they are renewed, and what happens while the token server fails. Unless it has its own `tls`, the client
    /// trusts the authorities of [downstreams.NAME.tls].
    OAUTH2 = "oauth2";
    /// The URL of the token server: https:// or http://, without credentials and query.
    TOKEN_URL = "token_url"
        .required("name the token server, such as token_url = \"https://login.example.com/token\"")
        .matches(r"^https?://[^/\s@?#]+(/[^\s@?#]*)?$").example("https://login.example.com/oauth2/token");
    /// The name of the client.
    CLIENT_ID = "client_id".required("name the client, such as client_id = \"paced\"")
        .up_to(256, "^[ -~]+$").example("paced");
    /// Its secret. A file is read again for each token.
    CLIENT_SECRET = "client_secret"
        .required("name its file, such as client_secret_file = \"secrets/client\"")
        .matches("^[!-~]([ -~]*[!-~])?$").example("...").file("secrets/billing-client").followed();
    /// The rights that a token needs. Unset: those that the server gives.
    SCOPES = "scopes".default("[]").matches(r"^[!#-\[\]-~]+$").example("[\"orders.write\"]");
    /// How the secret is sent: basic (HTTP Basic authentication) or post (in the body).
    CLIENT_AUTH = "client_auth".default("basic");
    /// The longest time for one token, including the connection.
    TIMEOUT = "timeout".default("10s").within("100ms", "1m");
    /// Further parameters of a request for a token, such as the API that the token is for. They are masked where the
    /// configuration is shown; keep a secret in a file (NAME_file).
    PARAMS = "params".matches("^[A-Za-z0-9._-]+$").example("{ audience = \"https://api.example.com/\" }");
    /// The value of the parameter; under NAME_file the file that has it in it.
    PARAM = "NAME".up_to(1024, r"^[^\x00-\x1f\x7f-\x9f]+$").file("secrets/billing-token-param");
}

const CLIENT_AUTHS: [(&str, ClientAuth); 2] = [("basic", ClientAuth::Basic), ("post", ClientAuth::Post)];

/// The client that gets the downstream's tokens; `Some(None)` where none is configured, and `None` where there is a
/// mistake, which the reader has noted. `headers` are the names of the headers of every request.
pub(super) fn oauth2<'v>(
    reader: &mut Reader<'v>,
    http: &Table<'v>,
    headers: &[&str],
) -> Option<Option<OAuth2>> {
    let table = reader.section(http, &OAUTH2);
    let token_url = reader.parsed(&table, &TOKEN_URL, url::token);
    let client_id = reader.parsed(&table, &CLIENT_ID, value::client_id);
    let client_secret = reader.secret(&table, &CLIENT_SECRET, value::client_secret);
    let scopes = reader.texts(&table, &SCOPES, value::scope);
    let client_auth = reader.choice(&table, &CLIENT_AUTH, "no way to show a secret", &CLIENT_AUTHS);
    let timeout = reader.duration(&table, &TIMEOUT);
    let params = params(reader, &table);
    let shown = token_url.as_deref().map(Secret::new);
    let tls = tls(reader, &table, shown.as_ref(), "https://");
    if !table.is_there() {
        return Some(None);
    }
    if headers.contains(&"authorization") {
        reader.wrong_name(&table, "sets authorization, which `headers` sets too; remove one of them");
        return None;
    }
    if let Some(url) = &shown {
        warnings::clear_text(reader, &table, &TOKEN_URL, url, "the client's secret", "write https://");
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
fn params<'v>(reader: &mut Reader<'v>, client: &Table<'v>) -> Option<BTreeMap<String, Secret>> {
    let table = reader.names(client, &PARAMS, &value::OWN_TOKEN_PARAMS);
    let stem = |key: &str| key.strip_suffix("_file").unwrap_or(key).to_owned();
    all(Reader::spellings(&table, stem).into_iter().map(|(name, spellings)| {
        let value = reader.secret_under(&table, &spellings, &PARAM.under(&name), value::token_param);
        let named = value::token_param_name(&name);
        if let Err(problem) = &named {
            spellings.iter().for_each(|key| reader.wrong_key(&table, key, problem));
        }
        named.ok()?;
        Some((name, value?))
    }))
}

/// Lets the client trust the authorities of the downstream, unless it has a file of its own.
pub(super) fn inherit(client: &mut OAuth2, downstream: Option<&TlsOptions>) {
    let ca_file = downstream.and_then(|tls| tls.ca_file.clone());
    if client.tls.is_none() && ca_file.is_some() && client.token_url.starts_with("https:") {
        client.tls = Some(TlsOptions { ca_file, ..TlsOptions::default() });
    }
}
