//! Tokens by the grant of client credentials (RFC 6749, section 4.4), shared by all sinks of one client.
//!
//! A token is requested when it is needed for the first time, and renewed in the background well before it ends. For
//! a token server, client, scopes and parameters a process makes one request at a time. Without a token, sends wait
//! or fail as if the downstream could not be reached. Tokens are kept in memory alone, and never shown.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::{HttpError, SECOND, guard};
use crate::files::ReadSecret;
use crate::tls::Tls;

mod ask;
mod token;

use ask::Asker;
pub(super) use token::Token;

/// The waits after requests in a row that failed: the first one, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// The longest wait that a token server may ask for.
const LONGEST_AFTER: Duration = Duration::from_secs(60);

/// The least times between two tokens that are fetched because one was refused: at first, and at most, while each one
/// that is fetched is refused too. Jobs that the API refuses for another reason must not cause requests for tokens
/// all the time, since all users of the client wait for these.
const BETWEEN_REFUSALS: (Duration, Duration) = (SECOND.saturating_mul(10), SECOND.saturating_mul(160));

/// How often sends that wait for a token check whether they may use the old one.
const LOOK: Duration = Duration::from_secs(1);

/// A client of a token server.
#[derive(Clone)]
pub struct OAuth2Options {
    /// `https://` or `http://`, without credentials, query and fragment.
    pub token_url: String,
    /// The name of the client.
    pub client_id: String,
    /// Its secret.
    pub client_secret: String,
    /// Reads the secret again before each request, where it has a file. If that fails, the secret that was read last is
    /// used.
    pub read_secret: Option<ReadSecret>,
    /// The scopes of a token; it may be empty.
    pub scopes: Vec<String>,
    /// Further parameters of each request for a token, by name, such as `audience`.
    pub params: BTreeMap<String, String>,
    /// How the secret is shown.
    pub client_auth: ClientAuth,
    /// The time-out for one token, of at most a minute.
    pub timeout: Duration,
    /// The trusted authorities for `https`, made by [`Tls::load_for_http`]; by default the system's.
    pub tls: Option<Tls>,
    /// `http://[USER:PASSWORD@]HOST:PORT`, by which the token server is reached.
    pub proxy: Option<String>,
    /// Reads the proxy again before each request, where it has a file; without a `proxy` it is not used. If it fails,
    /// the proxy that was read last is used. While it returns a text that is no proxy, there is no token.
    pub read_proxy: Option<ReadSecret>,
}

/// How a client shows its secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// By HTTP Basic authentication.
    #[default]
    Basic,
    /// In the body, for servers that take nothing else.
    Post,
}

/// Why there is no token. It contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum TokenError {
    #[error("the token server cannot be reached: {0}")]
    Unreachable(String),
    #[error("the token server does not answer within {0:?}")]
    TooLate(Duration),
    #[error("the token server answers {answer}")]
    Refused { answer: String, after: Option<Duration> },
    #[error("the token server answers no token: {0}")]
    Unreadable(&'static str),
    #[error("the token server answers a token that has ended by the time it is there")]
    Ended,
    #[error("{0} cannot be sent")]
    Unsendable(&'static str),
    #[error("the runtime is shutting down")]
    BrokenOff,
}

/// Whether `text` can be the URL of a token server.
///
/// # Errors
/// [`HttpError`], which does not repeat it.
pub fn check_token_url(text: &str) -> Result<(), HttpError> {
    ask::parse(text).map(drop)
}

/// A client of a token server, and its token. It is cheap to clone: all clones share the token.
#[derive(Clone)]
pub struct OAuth2Client(Arc<Shared>);

struct Shared {
    asker: Asker,
    /// The last token, which may have expired.
    token: RwLock<Option<Arc<Token>>>,
    state: Mutex<State>,
    /// Changes at the end of each request.
    ended: watch::Sender<u64>,
}

/// | `is_asking` | `next_ask` | what it does |
/// |---|---|---|
/// | false | none, or over | nothing; the next one that finds no token, or one that is due, begins a request |
/// | true | any | a request is under way |
/// | false | in the future | it backs off, since requests failed |
#[derive(Default)]
struct State {
    is_asking: bool,
    next_ask: Option<Instant>,
    /// The requests in a row that failed, and the error of the last one.
    failures: u32,
    error: Option<TokenError>,
    /// When a token was last given up because it was refused, and how long after that no other one is given up.
    refused: Option<(Instant, Duration)>,
}

/// The result of replacing a token that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replacement {
    /// There is another one.
    Done,
    /// There is no other one: the token server fails.
    Failed,
    /// Another token was refused a moment ago, so a new one would not help.
    Useless,
}

impl OAuth2Client {
    /// Whether there are other clones of it, such as those of sinks.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// A client. Nothing is connected or asked for yet.
    ///
    /// # Errors
    /// [`HttpError`] when an option is wrong.
    pub fn new(options: OAuth2Options) -> Result<Self, HttpError> {
        let asker = Asker::new(options, guard::system)?;
        let (token, state, ended) = (RwLock::default(), Mutex::default(), watch::Sender::new(0));
        Ok(Self(Arc::new(Shared { asker, token, state, ended })))
    }

    /// The token for a request, if there is one that can be used. When the next one is due, it is requested in the
    /// background.
    pub(super) fn current(&self) -> Option<Arc<Token>> {
        let (now, token) = (Instant::now(), self.0.token());
        if token.as_ref().is_some_and(|token| !token.is_due(now)) {
            return token;
        }
        let is_coming = self.0.ask_unless_replaced(token.as_ref(), now);
        self.0.token().filter(|token| token.is_usable(now, is_coming))
    }

    /// As [`OAuth2Client::current`], but waits for a request that is under way; while it backs off, the error of the last
    /// one is returned at once. It is for people.
    ///
    /// Cancel safe.
    pub(super) async fn wait(&self) -> Result<Arc<Token>, String> {
        self.wait_or(false).await
    }

    /// The `HOST:PORT` of the token server.
    pub(super) fn address(&self) -> Arc<str> {
        self.0.asker.address().into()
    }

    /// Finds out whether the token server gives a token: waits for the backoff and for one request. The error is for
    /// people, without any secret.
    ///
    /// Cancel safe.
    pub async fn check(&self) -> Result<(), String> {
        self.wait_or(true).await.map(drop)
    }

    async fn wait_or(&self, mut sits_out: bool) -> Result<Arc<Token>, String> {
        let mut ended = self.0.ended.subscribe();
        loop {
            if let Some(token) = self.current() {
                return Ok(token);
            }
            let (is_asking, next_ask) = {
                let state = self.0.state();
                (state.is_asking, state.next_ask)
            };
            match next_ask {
                _ if is_asking => {
                    sits_out = false;
                    let _ = timeout(LOOK, ended.changed()).await;
                }
                Some(next) if sits_out => {
                    sits_out = false;
                    sleep_until(next).await;
                }
                Some(_) => return Err(self.0.why()),
                // A request has just ended, and there is a token.
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Records that a request with this token was refused, and replaces the token, unless that was done a moment ago.
    /// Requests wait for the new one for a moment.
    ///
    /// Cancel safe.
    pub(super) async fn replace(&self, token: &Arc<Token>) -> Replacement {
        let mut ended = self.0.ended.subscribe();
        if self.0.has_replaced(token) {
            return Replacement::Done;
        }
        if !self.0.give_up(token, Instant::now()) {
            return Replacement::Useless;
        }
        while self.0.ask_unless_replaced(Some(token), Instant::now()) && !self.0.has_replaced(token) {
            let _ = ended.changed().await;
        }
        if self.0.has_replaced(token) { Replacement::Done } else { Replacement::Failed }
    }

    /// Replaces the token, as [`OAuth2Client::replace`] does; returns whether there is another one. The error is for
    /// people, without any secret.
    ///
    /// Cancel safe.
    pub(super) async fn renew(&self) -> Result<bool, String> {
        let Some(token) = self.0.token() else { return self.check().await.map(|()| true) };
        match self.replace(&token).await {
            Replacement::Done => Ok(true),
            Replacement::Useless => Ok(false),
            Replacement::Failed => Err(self.0.why()),
        }
    }
}

impl Shared {
    fn token(&self) -> Option<Arc<Token>> {
        self.token.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn has_replaced(&self, token: &Arc<Token>) -> bool {
        self.token().is_none_or(|now| !Arc::ptr_eq(&now, token))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the token was refused; returns false if another one was refused a moment ago.
    fn give_up(&self, token: &Token, now: Instant) -> bool {
        let mut state = self.state();
        if token.is_refused() {
            return true;
        }
        let (first, most) = BETWEEN_REFUSALS;
        let between = match state.refused {
            Some((at, between)) if now < at + between => return false,
            Some((at, between)) if now < at + between * 2 => (between * 2).min(most),
            _ => first,
        };
        state.refused = Some((now, between));
        token.refuse(now);
        true
    }

    /// Why there is no token, for people.
    fn why(&self) -> String {
        let error = self.state().error.clone().unwrap_or(TokenError::BrokenOff);
        format!("no OAuth2 token: {error}")
    }

    /// Begins a request to replace this token, unless a request is in progress, or has replaced the token meanwhile,
    /// or the client backs off. Returns whether a request is in progress.
    fn ask_unless_replaced(self: &Arc<Self>, token: Option<&Arc<Token>>, now: Instant) -> bool {
        let mut state = self.state();
        if state.is_asking {
            return true;
        }
        let is_same = match (self.token(), token) {
            (Some(now), Some(token)) => Arc::ptr_eq(&now, token),
            (None, None) => true,
            _ => false,
        };
        let backs_off = state.next_ask.is_some_and(|next| now < next);
        // Without a runtime no job can be sent either.
        if !is_same || backs_off || Handle::try_current().is_err() {
            return false;
        }
        state.is_asking = true;
        // A runtime that shuts down drops the request at once, which records its end.
        drop(state);
        tokio::spawn(Asking { shared: Arc::clone(self), answer: None }.run());
        true
    }

    /// Records the end of a request.
    fn answered(&self, answer: Result<Token, TokenError>) {
        let (now, url) = (Instant::now(), self.asker.url());
        let mut state = self.state();
        state.is_asking = false;
        let in_time = |token: &Token| token.is_usable(now, false);
        match answer.and_then(|token| if in_time(&token) { Ok(token) } else { Err(TokenError::Ended) }) {
            Ok(token) => {
                if state.failures > 0 {
                    tracing::info!(token_url = url, "there are OAuth2 tokens again");
                }
                *state = State { refused: state.refused, ..State::default() };
                *self.token.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(token));
            }
            Err(error) => {
                state.failures = state.failures.saturating_add(1);
                state.next_ask = Some(now + backoff(state.failures, &error, fastrand::f64()));
                if state.failures == 1 {
                    let has_token = self.token().is_some_and(|token| in_time(&token));
                    let then =
                        if has_token { "the present one is used until it ends" } else { "jobs wait for one" };
                    tracing::warn!(token_url = url, %error, "no new OAuth2 token: {then}; trying again");
                }
                state.error = Some(error);
            }
        }
        drop(state);
        self.ended.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// The wait after this many requests in a row that failed. `chance`, from 0 to 1, spreads the requests of replicas.
fn backoff(failures: u32, error: &TokenError, chance: f64) -> Duration {
    let (first, most) = BACKOFF;
    let ceiling = first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(most);
    let wait = ceiling.mul_f64(0.5 + 0.5 * chance);
    match error {
        TokenError::Refused { after: Some(after), .. } => wait.max((*after).min(LONGEST_AFTER)),
        _ => wait,
    }
}

/// A request in progress. Its end is recorded in every case.
struct Asking {
    shared: Arc<Shared>,
    answer: Option<Result<Token, TokenError>>,
}

impl Asking {
    async fn run(mut self) {
        self.answer = Some(self.shared.asker.ask().await);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let answer = self.answer.take().unwrap_or(Err(TokenError::BrokenOff));
        self.shared.answered(answer);
    }
}

impl fmt::Debug for OAuth2Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("OAuth2Options");
        shown.field("token_url", &self.token_url).field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

impl fmt::Debug for OAuth2Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OAuth2Client").field(&self.0.asker.url()).finish()
    }
}

#[cfg(test)]
mod tests;
