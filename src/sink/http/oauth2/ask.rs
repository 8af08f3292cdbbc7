//! Asks a token server for a token: one request, and one answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT,
};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};
use url::form_urlencoded::{Serializer, byte_serialize};
use url::{Position, Url};

use super::token::Token;
use super::{ClientAuth, OAuth2Options, TokenError};
use crate::files::FreshSecret;
use crate::sink::http::AGENT;
use crate::sink::http::connect::{Connector, Route, address};
use crate::sink::http::connection::Outgoing;
use crate::sink::http::guard::{self, Lookup};
use crate::sink::http::proxy::Proxy;
use crate::sink::http::upload::Payload;
use crate::sink::http::{HttpError, chain, throttling};

/// The longest answer, in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// The life of a token if the server does not say how long it lives.
const DEFAULT_LIFE: Duration = Duration::from_secs(300);

/// The longest time-out.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);

const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// This process makes one request at a time for each of these: token server, client, scopes, other parameters.
type Identity = (String, String, Vec<String>, BTreeMap<String, String>);
type Turn = tokio::sync::Mutex<()>;
static TURNS: Mutex<BTreeMap<Identity, Weak<Turn>>> = Mutex::new(BTreeMap::new());

/// The parts of a client that make its requests.
pub(super) struct Asker {
    url: Url,
    host: HeaderValue,
    lookup: Lookup,
    options: OAuth2Options,
    /// How the token server is reached, as of the last request.
    route: Mutex<Arc<TokenRoute>>,
    /// The proxy, where it has a file.
    proxy: Option<FreshSecret>,
    /// The secret, where it has a file.
    secret: Option<FreshSecret>,
    turn: Arc<Turn>,
}

/// An answer with a token.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<Value>,
}

/// An answer without one.
#[derive(Deserialize)]
struct Refused {
    error: String,
}

impl Asker {
    pub(super) fn new(options: OAuth2Options, lookup: Lookup) -> Result<Self, HttpError> {
        let url = parse(&options.token_url)?;
        let host = HeaderValue::from_str(&url[Position::BeforeHost..Position::AfterPort])
            .map_err(|_| HttpError::TokenUrl("has a host that no request can name"))?;
        let route = TokenRoute::new(&url, options.proxy.clone(), &options, lookup)?;
        let OAuth2Options { token_url, client_id, scopes, params, .. } = options.clone();
        let turn = turn((token_url, client_id, scopes, params));
        let fresh = |read| FreshSecret::new("client_secret of OAuth2", options.client_secret.clone(), read);
        let secret = options.read_secret.clone().map(fresh);
        let read_proxy = options.proxy.clone().zip(options.read_proxy.clone());
        let proxy = read_proxy.map(|(proxy, read)| FreshSecret::new("proxy", proxy, read));
        Ok(Self { url, host, lookup, options, route: Mutex::new(Arc::new(route)), proxy, secret, turn })
    }

    /// The URL of the token server, which has nothing secret in it.
    pub(super) fn url(&self) -> &str {
        self.url.as_str()
    }

    /// The `HOST:PORT` of the token server.
    pub(super) fn address(&self) -> String {
        address(&self.url)
    }

    /// Asks for a token; waits until no other request of this client is under way in this process.
    ///
    /// Cancel safe: the connection is closed.
    pub(super) async fn ask(&self) -> Result<Token, TokenError> {
        let _turn = self.turn.lock().await;
        let time = self.options.timeout.min(LONGEST_TIMEOUT);
        let asking = async {
            let secret = match &self.secret {
                // What is left of the time-out is for the request.
                Some(secret) => secret.current(time / 4).await,
                None => self.options.client_secret.clone(),
            };
            let route = self.route(time / 4).await?;
            let asked = Instant::now();
            let (answer, body) = route.exchange(self.request(&secret, &route)?).await?;
            granted(&answer, &body, asked)
        };
        timeout(time, asking).await.map_err(|_| TokenError::TooLate(time))?
    }

    /// How the token server is reached now.
    async fn route(&self, patience: Duration) -> Result<Arc<TokenRoute>, TokenError> {
        let last = Arc::clone(&self.route.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(proxy) = &self.proxy else { return Ok(last) };
        let proxy_url = Some(proxy.current(patience).await);
        if proxy_url == last.proxy_url {
            return Ok(last);
        }
        let route = TokenRoute::new(&self.url, proxy_url, &self.options, self.lookup);
        let route = Arc::new(route.map_err(|error| TokenError::Unreachable(error.to_string()))?);
        *self.route.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&route);
        Ok(route)
    }

    fn request(&self, secret: &str, route: &TokenRoute) -> Result<Outgoing, TokenError> {
        let forwarding_proxy = route.proxy.as_ref().filter(|_| self.url.scheme() == "http");
        let OAuth2Options { client_id, scopes, params, client_auth, .. } = &self.options;
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        if !scopes.is_empty() {
            form.append_pair("scope", &scopes.join(" "));
        }
        form.extend_pairs(params);
        if *client_auth == ClientAuth::Post {
            form.append_pair("client_id", client_id).append_pair("client_secret", secret);
        }
        let mut request = Request::new(Payload::new(Bytes::from(form.finish())));
        *request.method_mut() = Method::POST;
        // A proxy needs the whole URL in the request, unless it opens a tunnel.
        let from = forwarding_proxy.map_or(Position::BeforePath, |_| Position::BeforeScheme);
        *request.uri_mut() = self.url[from..].parse().map_err(|_| TokenError::Unsendable("token_url"))?;
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, FORM);
        headers.insert(ACCEPT, JSON);
        headers.insert(USER_AGENT, AGENT);
        if *client_auth == ClientAuth::Basic {
            headers.insert(AUTHORIZATION, basic(client_id, secret)?);
        }
        if let Some(value) = forwarding_proxy.and_then(Proxy::authorization) {
            headers.insert(PROXY_AUTHORIZATION, value.clone());
        }
        Ok(request)
    }
}

/// How a token server is reached.
struct TokenRoute {
    connector: Connector,
    proxy: Option<Proxy>,
    /// The proxy as it was given.
    proxy_url: Option<String>,
}

impl TokenRoute {
    fn new(
        url: &Url,
        proxy_url: Option<String>,
        options: &OAuth2Options,
        lookup: Lookup,
    ) -> Result<Self, HttpError> {
        let proxy = proxy_url.as_deref().map(Proxy::parse).transpose()?;
        let route = Route { tls: options.tls.clone(), proxy: proxy.clone() };
        let connector = Connector::new(url, options.timeout.min(LONGEST_TIMEOUT), lookup, route)?;
        Ok(Self { connector, proxy, proxy_url })
    }

    /// Sends the request on a connection of its own, and reads the whole answer.
    async fn exchange(&self, request: Outgoing) -> Result<(Response<()>, BytesMut), TokenError> {
        let connection = self.connector.open().await;
        let mut connection = connection.map_err(|error| TokenError::Unreachable(error.detail))?;
        let sent = connection.send(request).await;
        let answer = sent.map_err(|error| TokenError::Unreachable(chain(&error.into_error())))?;
        let (head, mut incoming) = answer.into_parts();
        let mut body = BytesMut::new();
        while let Some(Ok(chunk)) = connection.chunk(&mut incoming).await {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(TokenError::Unreadable("the answer has more than 64 KiB"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((Response::from_parts(head, ()), body))
    }
}

/// The URL of a token server.
pub(super) fn parse(text: &str) -> Result<Url, HttpError> {
    let url = Url::parse(text).map_err(|_| HttpError::TokenUrl("is none"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(HttpError::TokenUrl("is neither http nor https"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(HttpError::TokenUrl("has credentials in it"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(HttpError::TokenUrl("has a query or a fragment"));
    }
    guard::check_host(&url)?;
    Ok(url)
}

/// The turn of all clients of this identity.
fn turn(identity: Identity) -> Arc<Turn> {
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    turns.retain(|_, turn| turn.strong_count() > 0);
    if let Some(turn) = turns.get(&identity).and_then(Weak::upgrade) {
        return turn;
    }
    let turn = Arc::default();
    turns.insert(identity, Arc::downgrade(&turn));
    turn
}

/// The credentials of the client (RFC 6749, section 2.3.1): each part is encoded as in a form first.
fn basic(client_id: &str, secret: &str) -> Result<HeaderValue, TokenError> {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let pair = format!("{}:{}", encoded(client_id), encoded(secret));
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(pair)))
        .map_err(|_| TokenError::Unsendable("client_secret"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The token in an answer.
fn granted(answer: &Response<()>, body: &[u8], asked: Instant) -> Result<Token, TokenError> {
    let status = answer.status();
    if !status.is_success() {
        return Err(refused(status, answer, body));
    }
    // What the parser says of a text may show a part of it.
    let granted: Granted = serde_json::from_slice(body)
        .map_err(|_| TokenError::Unreadable("the answer is no JSON with an access_token"))?;
    if granted.token_type.is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
        return Err(TokenError::Unreadable(
            "the token is not of the type Bearer, the only one that can be sent",
        ));
    }
    let text = &granted.access_token;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(TokenError::Unreadable("the token is empty, or no text that a header can hold"));
    }
    let mut header = HeaderValue::try_from(format!("Bearer {text}"))
        .map_err(|_| TokenError::Unreadable("the token is longer than any header"))?;
    header.set_sensitive(true);
    let life =
        life(granted.expires_in.as_ref()).ok_or(TokenError::Unreadable("expires_in is no time to live"))?;
    Ok(Token::new(header, asked, life, fastrand::f64()))
}

/// How long a token lives; some servers say so as text.
fn life(expires_in: Option<&Value>) -> Option<Duration> {
    let seconds = match expires_in {
        None | Some(Value::Null) => return Some(DEFAULT_LIFE),
        Some(Value::Number(number)) => number.as_f64()?,
        Some(Value::String(text)) => text.trim().parse().ok()?,
        Some(_) => return None,
    };
    (seconds >= 1.0).then(|| Duration::from_secs_f64(seconds.min(1e9)))
}

/// Why there is no token. Of the body only the code of the error is shown, as the rest may repeat what was sent.
fn refused(status: StatusCode, answer: &Response<()>, body: &[u8]) -> TokenError {
    let code = serde_json::from_slice::<Refused>(body).ok().map(|refused| refused.error);
    let is_code = |code: &String| {
        (1..=40).contains(&code.len())
            && code.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
    };
    let code = code.filter(is_code);
    let hint = match code.as_deref() {
        Some("invalid_client") => "; check client_id, client_secret and client_auth",
        Some("invalid_scope") => "; check scopes",
        Some("unauthorized_client" | "unsupported_grant_type") => {
            "; let the client use the grant client_credentials there"
        }
        _ if status.is_redirection() => "; redirects are not followed, set token_url to their target",
        _ if status == StatusCode::NOT_FOUND => "; check token_url",
        _ => "",
    };
    let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
    TokenError::Refused {
        answer: format!("{status}{code}{hint}"),
        after: throttling::asked(answer.headers()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16) -> Response<()> {
        Response::builder().status(status).body(()).unwrap()
    }

    fn read(status: u16, body: &str) -> Result<String, String> {
        let granted = granted(&answer(status), body.as_bytes(), Instant::now());
        granted.map(|token| token.header.to_str().unwrap().to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_read() {
        for body in [
            r#"{"access_token":"hunter2","token_type":"Bearer","expires_in":3600}"#,
            r#"{"access_token":"hunter2","token_type":"bearer","expires_in":"3599","scope":"x"}"#,
            r#"{"access_token":"hunter2","expires_in":null}"#,
            r#"{"access_token":"hunter2"}"#,
        ] {
            assert_eq!(read(200, body).as_deref(), Ok("Bearer hunter2"), "{body}");
        }
    }

    #[test]
    fn an_answer_without_a_token_is_reported_without_its_text() {
        for (status, body, part) in [
            (200, "", "no JSON"),
            (200, "<html>hunter2", "no JSON"),
            (200, r#"{"token":"hunter2"}"#, "no JSON with an access_token"),
            (200, r#"{"access_token":"hunter2","token_type":"mac"}"#, "not of the type Bearer"),
            (200, r#"{"access_token":"hunter2\n"}"#, "no text that a header can hold"),
            (200, r#"{"access_token":""}"#, "empty"),
            (200, r#"{"access_token":"hunter2","expires_in":0}"#, "no time to live"),
            (200, r#"{"access_token":"hunter2","expires_in":-1}"#, "no time to live"),
            (200, r#"{"access_token":"hunter2","expires_in":"soon"}"#, "no time to live"),
            (200, r#"{"access_token":"hunter2","expires_in":[]}"#, "no time to live"),
            (
                401,
                r#"{"error":"invalid_client","error_description":"hunter2"}"#,
                "(invalid_client); check client_id",
            ),
            (400, r#"{"error":"invalid_scope"}"#, "check scopes"),
            (400, r#"{"error":"hunter2 is no secret"}"#, "400 Bad Request"),
            (500, "hunter2", "500 Internal Server Error"),
            (302, "", "redirects are not followed"),
        ] {
            let error = read(status, body).unwrap_err();
            assert!(error.contains(part) && !error.contains("hunter2"), "{body}: {error}");
        }
    }

    #[test]
    fn credentials_are_encoded_as_in_a_form_first() {
        // "my+client%3A1:p%40ss+w%2Frd"
        let value = basic("my client:1", "p@ss w/rd").unwrap();
        let text = value.to_str().unwrap().strip_prefix("Basic ").unwrap();
        assert_eq!(BASE64_STANDARD.decode(text).unwrap(), b"my+client%3A1:p%40ss+w%2Frd");
        assert!(value.is_sensitive());
    }

    #[test]
    fn where_tokens_are_had() {
        assert!(parse("https://login.example.com/oauth2/token").is_ok());
        for text in [
            "",
            "login.example.com",
            "ftp://x/",
            "https://u:hunter2@x/",
            "https://x/?hunter2",
            "https://x/#y",
            "http://169.254.169.254/token",
            "http://[fd00:ec2::254]/token",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{text}: {error}");
        }
    }
}
