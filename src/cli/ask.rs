//! Requests to a daemon's admin API.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use paced::api::find::Found;
use paced::api::state::State;
use paced::api::{Endpoint, FIND, Problem, STATUS};
use paced::config::{self, Secret};
use paced::dispatch::Question;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;
use url::Url;

use super::exit::Exit;
use super::{Global, out, parts};
use address::Address;
use exchange::{TransportError, connect, exchange, explain, is_local, names_this_machine};
use token::Token;

mod address;
mod exchange;
mod token;

/// The time-out for an answer of the daemon, and for one that needs answers of the other replicas.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const OTHERS_TIMEOUT: Duration = Duration::from_secs(20);
/// The header of the name that the user claims.
const CLAIMED: &str = "paced-as";
/// What the user is asked where nothing answers.
const IS_IT_THERE: &str = "does paced run there with admin.listen set?";

/// A client of a daemon's admin API.
pub(super) struct Daemon {
    address: Address,
    /// The token of requests that change something; no other carries it.
    token: Token,
    /// The token of requests that only read.
    read_token: Token,
    /// The name that the user claims.
    claimed: Option<HeaderValue>,
    /// Whether the user was warned of tokens in clear text, or need not be.
    has_warned: AtomicBool,
}

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
        out::fail(self.exit, self.text)
    }
}

impl Daemon {
    /// The daemon that the arguments name, or else the one of the configuration.
    pub(super) fn of(global: &Global) -> Result<Self, Exit> {
        let admin = config::load_admin(&parts::sources(global)).map_err(|errors| {
            out::say(&errors);
            Exit::Config
        })?;
        let address = Address::of(global, &admin)?;
        let (token, read_token) = (Token::new(admin.token), Token::new(admin.read_token));
        let (claimed, has_warned) = (global.claimed.clone(), AtomicBool::new(false));
        Ok(Self { address, token, read_token, claimed, has_warned })
    }

    /// Sends a request about a downstream and returns the answer. Errors are printed to stderr.
    ///
    /// Not cancel safe: after a dropped future it is unknown whether the request was carried out.
    pub(super) async fn ask<B: Serialize, A: DeserializeOwned>(
        &self,
        endpoint: &Endpoint<B, A>,
        downstream: &str,
        body: &B,
    ) -> Result<A, Exit> {
        self.try_ask(endpoint, downstream, body).await.map_err(Failure::say)
    }

    /// The daemon's state, over all replicas. Errors are printed to stderr. Cancel safe.
    pub(super) async fn state(&self) -> Result<State, Exit> {
        self.try_state().await.map_err(Failure::say)
    }

    /// As [`Daemon::state`], for commands that show errors themselves. Cancel safe.
    pub(super) async fn try_state(&self) -> Result<State, Failure> {
        self.try_ask(&STATUS, "", &()).await
    }

    /// As [`Daemon::ask`], for commands that show errors themselves.
    pub(super) async fn try_ask<B: Serialize, A: DeserializeOwned>(
        &self,
        Endpoint { method, path, .. }: &Endpoint<B, A>,
        downstream: &str,
        body: &B,
    ) -> Result<A, Failure> {
        let body = (method != Method::GET).then(|| json!(body));
        self.try_at(method, (&self.url(path, downstream), ANSWER_TIMEOUT), body.as_ref()).await
    }

    /// Asks where jobs are: the replica that answers, or also the others. Cancel safe.
    pub(super) async fn try_find(
        &self,
        downstream: &str,
        question: &Question,
        others: bool,
    ) -> Result<Found, Failure> {
        let Endpoint { method, path, .. } = FIND;
        let (name, value) = match question {
            Question::Id(id) => ("id", id),
            Question::Lane(lane) => ("lane", lane),
        };
        let mut url = self.url(path, downstream);
        url.query_pairs_mut().append_pair(name, value).append_pair("others", &others.to_string());
        let within = if others { OTHERS_TIMEOUT } else { ANSWER_TIMEOUT };
        self.try_at(&method, (&url, within), None).await
    }

    /// The address of this path of the API, for a downstream.
    fn url(&self, path: &str, downstream: &str) -> Url {
        let mut url = self.address.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            let parts = path.split('/').skip(1).map(|part| if part == "{name}" { downstream } else { part });
            segments.pop_if_empty().extend(parts);
        }
        url
    }

    /// Sends a request, with the token that it needs, and waits this long for the answer.
    ///
    /// Not cancel safe if it changes something: after a dropped future it is unknown whether it was carried out.
    async fn try_at<A: DeserializeOwned>(
        &self,
        method: &Method,
        (url, within): (&Url, Duration),
        body: Option<&Value>,
    ) -> Result<A, Failure> {
        let reads = method == Method::GET;
        let kept = if reads { &self.read_token } else { &self.token };
        let token = kept.get();
        let (mut status, mut answer) = self.send(method, (url, within), token.as_ref(), body).await?;
        // The file of the token may have been replaced since it was read, as the daemon's was. A refused request was
        // not carried out, so it may be sent again.
        if status == StatusCode::UNAUTHORIZED
            && let Some(refused) = &token
            && let Some(newer) = kept.read_again(refused).await
        {
            (status, answer) = self.send(method, (url, within), Some(&newer), body).await?;
        }
        let parsed = parse_answer(status, &answer);
        if reads && status == StatusCode::UNAUTHORIZED {
            return parsed.map_err(|failure| self.hint(failure));
        }
        parsed
    }

    /// Sends a request once, with this token.
    ///
    /// Not cancel safe: after a dropped future it is unknown whether the request was carried out.
    async fn send(
        &self,
        method: &Method,
        (url, within): (&Url, Duration),
        token: Option<&Secret>,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let base = &self.address.base;
        let mut is_connected = false;
        let asked = async {
            let stream = connect(url).await?;
            is_connected = true;
            if token.is_some() {
                self.warn_of_clear_text(is_local(&stream));
            }
            let mut request = request(method, url, token, body)?;
            if let Some(claimed) = &self.claimed {
                request.headers_mut().insert(CLAIMED, claimed.clone());
            }
            exchange(stream, self.address.tls.as_ref(), url, request).await
        };
        let answered = timeout(within, asked).await;
        let (exit, trouble) = match answered {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => explain(&error, base),
            Err(_) if is_connected => {
                let text = format!(
                    "it accepted the connection, but sent no answer within {within:?}: it hangs, or is too busy; see its log, \
                     or ask another replica (--admin URL)"
                );
                (Exit::Unavailable, text)
            }
            Err(_) => {
                let text = format!("no connection within {within:?}; {IS_IT_THERE}");
                (Exit::Unavailable, text)
            }
        };
        Err(Failure::new(exit, format!("no answer from {base}: {trouble}")))
    }

    /// The same failure, and what to do if reads need a token and none was sent.
    fn hint(&self, mut failure: Failure) -> Failure {
        if self.read_token.get().is_none() {
            failure.text += "; tools need it as admin.read_token (PACED_ADMIN__READ_TOKEN), because admin.token is sent \
                             only with changes";
        }
        failure
    }

    /// Warns, once, of a token that is about to be sent in clear to another machine.
    fn warn_of_clear_text(&self, is_local: bool) {
        if self.address.tls.is_some() || is_local || self.has_warned.swap(true, Ordering::Relaxed) {
            return;
        }
        out::say(format_args!(
            "paced: warning: the token goes to {} in clear: the network can read it; give the daemon \
             admin.tls and write --admin https://HOST:PORT, or use a tunnel",
            self.address.base
        ));
    }

    /// Warns now, and not with the first request, of a token that will be sent in clear: for commands that take the whole
    /// terminal.
    pub(super) async fn warn_early(&self) {
        let base = &self.address.base;
        let sends_none = self.read_token.get().is_none() && self.token.get().is_none();
        if sends_none || self.address.tls.is_some() || names_this_machine(base) {
            return;
        }
        let connected = timeout(ANSWER_TIMEOUT, connect(base)).await;
        // The warning comes even if nothing answers now: later there is no place on the screen for it.
        self.warn_of_clear_text(connected.is_ok_and(|stream| stream.is_ok_and(|stream| is_local(&stream))));
    }
}

fn request(
    method: &Method,
    url: &Url,
    token: Option<&Secret>,
    body: Option<&Value>,
) -> Result<Request<Full<Bytes>>, TransportError> {
    use url::Position::{AfterPort, AfterQuery, BeforeHost, BeforePath};

    let (host, target) = (&url[BeforeHost..AfterPort], &url[BeforePath..AfterQuery]);
    let mut request = Request::builder().method(method).uri(target).header(HOST, host);
    if let Some(token) = token {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let body = body.map(Value::to_string).unwrap_or_default();
    Ok(request.body(Full::new(body.into()))?)
}

/// Parses the daemon's answer.
fn parse_answer<A: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<A, Failure> {
    if status.is_success() {
        match serde_json::from_slice(body) {
            Ok(answer) => return Ok(answer),
            Err(error) if error.is_data() => {
                let text = format!(
                    "the daemon answers {status}, but its answer is not understood: {error}; is it of another version?"
                );
                return Err(Failure::new(Exit::Failed, text));
            }
            Err(_) => {}
        }
    }
    let problem = serde_json::from_slice(body).ok();
    let is_known = problem.is_some();
    let text = problem.map_or_else(
        || format!("the answer is not that of a paced daemon (status {status}); see --admin"),
        |Problem { error }| error,
    );
    let exit = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST => {
            Exit::Unauthorized
        }
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Exit::Unavailable,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND if is_known => Exit::Usage,
        _ => Exit::Failed,
    };
    Err(Failure::new(exit, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_to_end() {
        let exit = |status: u16, body: &str| {
            parse_answer::<Problem>(StatusCode::from_u16(status).unwrap(), body.as_bytes())
        };
        assert_eq!(exit(200, r#"{"error": "x", "later": 1}"#).unwrap().error, "x");
        assert!(exit(200, r#"{"a": 1}"#).unwrap_err().text.contains("is it of another version?"));
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
