//! Requests to a daemon's admin API.

use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use paced::config::{self, Admin, Secret};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

use super::exit::Exit;
use super::{Global, out, parts};
use crate::status::State;

/// The time-out for an answer of the daemon.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer, in bytes.
const LONGEST: usize = 16 << 20;

/// A client of a daemon's admin API.
pub(super) struct Daemon {
    base: Url,
    token: Option<Secret>,
}

/// An error between this program and the daemon.
type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// A request that was not carried out: what to tell the user, and how to end.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) exit: Exit,
    pub(super) text: String,
}

impl Failure {
    fn new(exit: Exit, text: impl Display) -> Self {
        Self { exit, text: text.to_string() }
    }

    /// Prints the text to stderr and returns the exit code.
    pub(super) fn say(self) -> Exit {
        out::say(format_args!("paced: {}", self.text));
        self.exit
    }
}

impl Daemon {
    /// The daemon that the arguments name, or else the one of the configuration.
    pub(super) fn of(global: &Global) -> Result<Self, Exit> {
        let admin = config::load_admin(&parts::sources(global)).map_err(|errors| {
            out::say(&errors);
            Exit::Config
        })?;
        let base = match &global.admin {
            Some(url) => named(url).map_err(|problem| {
                out::say(format_args!("paced: --admin: {problem}"));
                Exit::Usage
            })?,
            None => configured(&admin).map_err(|problem| {
                out::say(format_args!("paced: {problem}"));
                Exit::Config
            })?,
        };
        Ok(Self { base, token: admin.token.or(admin.read_token) })
    }

    /// Sends a request about a downstream and returns the answer. Errors are printed to stderr.
    ///
    /// Not cancel safe: after a dropped future it is unknown whether the request was carried out.
    pub(super) async fn ask(
        &self,
        method: Method,
        downstream: &str,
        what: &str,
        body: Option<Value>,
    ) -> Result<Value, Exit> {
        let mut path = vec!["downstreams", downstream];
        path.extend((!what.is_empty()).then_some(what));
        self.request_json(method, &path, body).await.map_err(Failure::say)
    }

    /// The daemon's state, over all replicas. Errors are printed to stderr. Cancel safe.
    pub(super) async fn state(&self) -> Result<State, Exit> {
        self.try_state().await.map_err(Failure::say)
    }

    /// As [`Daemon::state`], for commands that show errors themselves. Cancel safe.
    pub(super) async fn try_state(&self) -> Result<State, Failure> {
        let told = self.request_json(Method::GET, &["status"], None).await?;
        serde_json::from_value(told).map_err(|error| {
            let text = format!("the daemon's state is not understood: {error}; is it of another version?");
            Failure::new(Exit::Failed, text)
        })
    }

    async fn request_json(
        &self,
        method: Method,
        path: &[&str],
        body: Option<Value>,
    ) -> Result<Value, Failure> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        }
        let asked = async {
            let request = self.request(method, &url, body)?;
            send(&url, request).await
        };
        let trouble = match timeout(ANSWER_TIMEOUT, asked).await {
            Ok(Ok((status, body))) => return parse_answer(status, &body),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {ANSWER_TIMEOUT:?}"),
        };
        let base = &self.base;
        let text = format!("no answer from {base}: {trouble}; does paced run there with admin.listen set?");
        Err(Failure::new(Exit::Unavailable, text))
    }

    fn request(
        &self,
        method: Method,
        url: &Url,
        body: Option<Value>,
    ) -> Result<Request<Full<Bytes>>, Trouble> {
        let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
        let mut request = Request::builder().method(method).uri(url.path()).header(HOST, host);
        if let Some(token) = &self.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        Ok(request.body(Full::new(body.into()))?)
    }
}

/// Parses the URL that `--admin` names.
fn named(text: &str) -> Result<Url, String> {
    const RIGHT: &str = "write http://HOST:PORT, such as http://127.0.0.1:9750";
    let url: Url = text.parse().map_err(|error| format!("no URL ({error}); {RIGHT}"))?;
    if url.scheme() != "http" || url.host_str().is_none_or(str::is_empty) {
        return Err(format!("no http URL; {RIGHT}"));
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(format!("credentials and queries do not belong in it; {RIGHT}"));
    }
    Ok(url)
}

/// The URL of the daemon that this configuration belongs to, on this machine.
fn configured(admin: &Admin) -> Result<Url, String> {
    let Some(listen) = &admin.listen else {
        return Err("admin.listen is not set; set it, or name the daemon with --admin URL".to_owned());
    };
    // A server that listens on every address listens on this machine's own too.
    let host = listen.rsplit_once(':').map_or(listen.as_str(), |(host, _)| host);
    let port = listen.rsplit_once(':').map_or("", |(_, port)| port);
    if port.parse() == Ok(0_u16) {
        return Err("admin.listen has port 0, which is any; name the daemon with --admin URL".to_owned());
    }
    let host = match host {
        "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        host => host,
    };
    named(&format!("http://{host}:{port}"))
}

async fn send(url: &Url, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), Trouble> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, url.port_or_known_default().unwrap_or(80))).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok((head.status, Limited::new(body, LONGEST).collect().await?.to_bytes()))
    };
    let mut exchange = std::pin::pin!(exchange);
    // The connection is polled together with the request; its own end is reported by the answer.
    tokio::select! {
        answer = &mut exchange => answer,
        _ = connection => exchange.await,
    }
}

/// Parses the daemon's answer.
fn parse_answer(status: StatusCode, body: &[u8]) -> Result<Value, Failure> {
    let answer: Option<Value> = serde_json::from_slice(body).ok();
    if let Some(answer) = answer.as_ref().filter(|_| status.is_success()) {
        return Ok(answer.clone());
    }
    let text = match answer.as_ref().and_then(|answer| answer["error"].as_str()) {
        Some(error) => error.to_owned(),
        None => format!("the answer is not that of a paced daemon (status {status}); see --admin"),
    };
    let exit = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST => {
            Exit::Unauthorized
        }
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Exit::Unavailable,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND if answer.is_some() => Exit::Usage,
        _ => Exit::Failed,
    };
    Err(Failure::new(exit, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_daemon_is_asked() {
        let admin = |listen: Option<&str>| {
            let admin = Admin {
                listen: listen.map(str::to_owned),
                token: None,
                read_token: None,
                allow_hosts: Vec::new(),
                tls: None,
            };
            configured(&admin).map(String::from)
        };
        for (listen, expected) in [
            ("127.0.0.1:9750", "http://127.0.0.1:9750/"),
            ("0.0.0.0:9750", "http://127.0.0.1:9750/"),
            ("[::]:80", "http://[::1]/"),
            ("[::1]:9750", "http://[::1]:9750/"),
            ("paced.internal:9750", "http://paced.internal:9750/"),
        ] {
            assert_eq!(admin(Some(listen)).as_deref(), Ok(expected), "{listen}");
        }
        assert!(admin(None).unwrap_err().contains("--admin URL"));
        assert!(admin(Some("127.0.0.1:0")).unwrap_err().contains("--admin URL"));
        assert_eq!(named("http://a:1/x/").unwrap().as_str(), "http://a:1/x/");
        for text in ["", "127.0.0.1:9750", "https://a", "http://", "http://u:p@a", "http://a/?x", "file:///a"]
        {
            assert!(named(text).unwrap_err().contains("write http://HOST:PORT"), "{text}");
        }
    }

    #[test]
    fn how_to_end() {
        let exit =
            |status: u16, body: &str| parse_answer(StatusCode::from_u16(status).unwrap(), body.as_bytes());
        assert_eq!(exit(200, r#"{"a": 1}"#).unwrap()["a"], 1);
        for (status, body, expected) in [
            (400, r#"{"error": "x"}"#, Exit::Usage),
            (404, r#"{"error": "x"}"#, Exit::Usage),
            (404, "not found", Exit::Failed),
            (401, r#"{"error": "x"}"#, Exit::Unauthorized),
            (403, r#"{"error": "x"}"#, Exit::Unauthorized),
            (421, r#"{"error": "x"}"#, Exit::Unauthorized),
            (409, r#"{"error": "x"}"#, Exit::Failed),
            (503, r#"{"error": "x"}"#, Exit::Unavailable),
            (200, "<html>", Exit::Failed),
        ] {
            assert_eq!(exit(status, body).unwrap_err().exit, expected, "{status} {body}");
        }
    }
}
