//! Reads `[downstreams.NAME.http]`.

use super::all;
use super::oauth2::oauth2;
use crate::config::key::keys;
use crate::config::reader::{Reader, Table};
use crate::config::secret::Secret;
use crate::config::settings::Http;
use crate::config::{url, value, warnings};

keys! {
    /// The requests to the API.
    HTTP = "http".default("{}");
    /// The URL of the API. A job without a path goes to this URL; a path is appended behind one slash. A query stays, and
    /// the job's query comes after it. Keep a query with a secret in a file. Without credentials. No default.
    BASE_URL = "base_url".required("say where jobs go, such as base_url = \"https://api.example.com/v1/\"")
        .matches(r"^https?://[^/\s@?#]+(/[^\s@?#]*)?(\?[^\s@#]*)?$")
        .example("https://api.example.com/v1/").file("secrets/billing-url").followed();
    /// The longest time for one request, including the connection. It must be below the broker's consumer_timeout (30 minutes
    /// unless set): after that the broker takes a job back while its request still runs.
    TIMEOUT = "timeout".default("30s").within("1us", "365d");
    /// The age from which a connection takes no more requests, or up to a fifth less, so that a changed DNS answer is
    /// used. "0s": paced uses it until either side closes it.
    MAX_CONNECTION_AGE = "max_connection_age".default("90s");
    /// The longest body of a job.
    MAX_BODY = "max_body".default("1MiB").within("1B", "128MiB");
    /// Request headers that a job may set (as http-NAME).
    ALLOW_HEADERS = "allow_headers".default("[]").matches(value::HEADER).example("[\"x-request-id\"]");
    /// The methods that a job may have (as paced-method). A job without one is a POST.
    METHODS = "methods".default(r#"["POST", "PUT", "PATCH", "DELETE", "GET", "HEAD"]"#)
        .matches("^(POST|PUT|PATCH|DELETE|GET|HEAD)$").example(r#"["POST"]"#);
    /// Whether a job's path may have an encoded slash (%2F), as the names of GitLab's projects need. The check of paths
    /// treats it as a slash.
    ENCODED_SLASH = "encoded_slash".default("false");
    /// Whether a dead letter keeps the first KiB of the answer that caused it (paced-response), where
    /// everyone who may read dead letters sees it. false: for an API whose answers show secrets, such as the request's
    /// credentials.
    KEEP_RESPONSE = "keep_response".default("true");
    /// An HTTP proxy for the requests, with credentials if it needs any. For http it sees the requests; for https it sees
    /// only a tunnel (CONNECT). Unset: paced connects directly, and takes no proxy from the environment.
    PROXY = "proxy".matches("^http://.").example("http://USER:PASSWORD@proxy.internal:3128")
        .file("secrets/proxy-url").followed();
    /// Headers of every request. They replace headers of a job that have the same name. Keep a secret in a file (NAME_file). Such files,
    /// and those of base_url and proxy, are read again when they change.
    HEADERS = "headers".reload().matches(value::HEADER)
        .example("{ authorization_file = \"secrets/billing-token\", x-client = \"paced\" }");
    /// The value of the header; under NAME_file the file that has it in it.
    FIXED_HEADER = "NAME".file("secrets/billing-token").reload();
}

pub(super) fn http<'v>(reader: &mut Reader<'v>, downstream: &Table<'v>) -> Option<Http> {
    let table = reader.section(downstream, &HTTP);
    let base_url = reader.secret(&table, &BASE_URL, url::base);
    let timeout = reader.duration(&table, &TIMEOUT);
    let max_connection_age = reader.duration(&table, &MAX_CONNECTION_AGE);
    let max_body = reader.size(&table, &MAX_BODY);
    let allow_headers = reader.texts(&table, &ALLOW_HEADERS, value::allowed_header);
    let methods = reader.texts(&table, &METHODS, value::method);
    if methods.as_ref().is_some_and(Vec::is_empty) {
        reader.wrong_value(
            &table,
            METHODS.name,
            "has no method, so that every job would be refused; name one",
        );
    }
    let encoded_slash = reader.boolean(&table, &ENCODED_SLASH);
    let keep_response = reader.boolean(&table, &KEEP_RESPONSE);
    let proxy = reader.secret(&table, &PROXY, url::proxy);
    // They come last, since they are tables of their own.
    let headers = headers(reader, &table);
    let names: Vec<&str> = headers.iter().flatten().map(|(name, _)| name.as_str()).collect();
    let oauth2 = oauth2(reader, &table, &names);
    let has_tokens = matches!(oauth2, Some(Some(_)));
    if let Some(url) = &base_url
        && let Some(what) = secret_of(url, headers.as_deref().unwrap_or_default(), has_tokens)
    {
        warnings::clear_text(reader, &table, &BASE_URL, url, &what, "write https://");
    }
    let right = "use a proxy on this machine, or in a network that you trust";
    warnings::password(reader, &table, &PROXY, proxy.as_ref(), right);
    Some(Http {
        base_url: base_url?,
        timeout: timeout?,
        max_connection_age: max_connection_age?,
        max_body: max_body?,
        allow_headers: allow_headers?,
        methods: methods.filter(|methods| !methods.is_empty())?,
        encoded_slash: encoded_slash?,
        keep_response: keep_response?,
        proxy,
        oauth2: oauth2?,
        headers: headers?,
    })
}

/// What is secret of every request, for people, if anything is.
fn secret_of(base_url: &Secret, headers: &[(String, Secret)], has_tokens: bool) -> Option<String> {
    if has_tokens {
        return Some("the token".to_owned());
    }
    let from_file = headers.iter().find(|(_, value)| value.file().is_some());
    let named = from_file.map(|(name, _)| format!("the header `{name}`"));
    named
        .or_else(|| url::secret_of_requests(base_url.expose(), headers.iter().map(|(name, _)| name.as_str())))
}

fn headers<'v>(reader: &mut Reader<'v>, http: &Table<'v>) -> Option<Vec<(String, Secret)>> {
    let table = reader.names(http, &HEADERS, &[]);
    let stem = |key: &str| key.strip_suffix("_file").unwrap_or(key).to_ascii_lowercase();
    all(Reader::spellings(&table, stem).into_iter().map(|(name, spellings)| {
        let named = value::fixed_header(&name);
        if let Err(problem) = &named {
            spellings.iter().for_each(|key| reader.wrong_key(&table, key, problem));
        }
        let secret = reader.secret_under(&table, &spellings, &FIXED_HEADER.under(&name), value::header_value);
        Some((named.ok()?, secret?))
    }))
}
