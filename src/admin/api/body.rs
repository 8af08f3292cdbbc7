//! The bodies of requests: small JSON, read within a time-out.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use paced::Amount;
use paced::store::LONGEST_TOMBSTONE;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::reply::Refusal;

/// The longest body, in bytes.
const LONGEST: usize = 16 * 1024;
/// The longest body with ids of jobs, in bytes: as many as one call takes, each as long as may be, and escaped.
const LONGEST_WITH_IDS: usize = 600 * 1024;
/// The time-out for a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest reason, in characters.
const LONGEST_REASON: usize = 200;

/// `POST .../pause`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pause {
    #[serde(rename = "for")]
    span: Option<String>,
    reason: Option<String>,
}

/// `POST .../resume`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resume {
    reason: Option<String>,
}

/// `PUT .../rate`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SetRate {
    rate: String,
    limit: Option<String>,
    #[serde(rename = "for")]
    span: Option<String>,
    reason: Option<String>,
}

/// `DELETE .../rate`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnsetRate {
    limit: Option<String>,
    reason: Option<String>,
}

/// `POST .../reset`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reset {
    limit: Option<String>,
    reason: Option<String>,
}

/// `POST .../cancel`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cancel {
    ids: Vec<String>,
    #[serde(rename = "for")]
    span: Option<String>,
    #[serde(default)]
    undo: bool,
    reason: Option<String>,
}

/// A body of a known form, which is no longer than it needs to be.
pub(super) trait Form: DeserializeOwned {
    /// The longest body of this form, in bytes.
    const LONGEST: usize = LONGEST;
}

impl Form for Pause {}
impl Form for Resume {}
impl Form for SetRate {}
impl Form for UnsetRate {}
impl Form for Reset {}
impl Form for Cancel {
    const LONGEST: usize = LONGEST_WITH_IDS;
}

/// The change that a request orders, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Pause { span: Option<Duration> },
    Resume,
    SetRate { rate: Amount, limit: Option<String>, span: Option<Duration>, reason: Option<String> },
    UnsetRate { limit: Option<String> },
    Reset { limit: Option<String> },
    Cancel { ids: Vec<Arc<str>>, span: Duration },
    Undo { ids: Vec<Arc<str>> },
}

/// An order, with the operator's reason for it.
pub(super) type OrderWithReason = (Order, Option<String>);

impl TryFrom<Pause> for OrderWithReason {
    type Error = Refusal;

    fn try_from(Pause { span, reason }: Pause) -> Result<Self, Refusal> {
        Ok((Order::Pause { span: of(span.as_deref())? }, checked(reason)?))
    }
}

impl TryFrom<Resume> for OrderWithReason {
    type Error = Refusal;

    fn try_from(Resume { reason }: Resume) -> Result<Self, Refusal> {
        Ok((Order::Resume, checked(reason)?))
    }
}

impl TryFrom<SetRate> for OrderWithReason {
    type Error = Refusal;

    fn try_from(SetRate { rate, limit, span, reason }: SetRate) -> Result<Self, Refusal> {
        let rate =
            rate.parse().map_err(|error: paced::RateError| Refusal::wrong(format!("rate: {error}")))?;
        let (span, reason) = (of(span.as_deref())?, checked(reason)?);
        Ok((Order::SetRate { rate, limit, span, reason: reason.clone() }, reason))
    }
}

impl TryFrom<UnsetRate> for OrderWithReason {
    type Error = Refusal;

    fn try_from(UnsetRate { limit, reason }: UnsetRate) -> Result<Self, Refusal> {
        Ok((Order::UnsetRate { limit }, checked(reason)?))
    }
}

impl TryFrom<Reset> for OrderWithReason {
    type Error = Refusal;

    fn try_from(Reset { limit, reason }: Reset) -> Result<Self, Refusal> {
        Ok((Order::Reset { limit }, checked(reason)?))
    }
}

impl TryFrom<Cancel> for OrderWithReason {
    type Error = Refusal;

    fn try_from(Cancel { ids, span, undo, reason }: Cancel) -> Result<Self, Refusal> {
        if ids.is_empty() {
            return Err(Refusal::wrong("ids: there are none; name the jobs to cancel"));
        }
        let ids = ids.into_iter().map(Arc::from).collect();
        let span = of(span.as_deref())?;
        let order = match (undo, span) {
            (true, Some(_)) => {
                return Err(Refusal::wrong("for: not with `undo`, which ends it at once; leave one out"));
            }
            (true, None) => Order::Undo { ids },
            (false, span) => Order::Cancel { ids, span: span.unwrap_or(LONGEST_TOMBSTONE) },
        };
        Ok((order, checked(reason)?))
    }
}

fn of(span: Option<&str>) -> Result<Option<Duration>, Refusal> {
    let Some(text) = span else { return Ok(None) };
    match paced::config::duration(text) {
        Ok(Duration::ZERO) => Err(Refusal::wrong("for: no time at all; use at least 1us")),
        Ok(span) => Ok(Some(span)),
        Err(problem) => Err(Refusal::wrong(format!("for: {problem}"))),
    }
}

/// A reason for people, checked.
pub(super) fn checked(reason: Option<String>) -> Result<Option<String>, Refusal> {
    let Some(reason) = reason.filter(|reason| !reason.trim().is_empty()) else { return Ok(None) };
    if reason.chars().count() > LONGEST_REASON || reason.contains(char::is_control) {
        let text = format!("reason: use up to {LONGEST_REASON} characters on one line");
        return Err(Refusal::wrong(text));
    }
    Ok(Some(reason))
}

/// Parses the order in a body of this form. An empty body counts as `{}`.
///
/// Cancel safe.
pub(super) async fn read<T>(body: Body) -> Result<OrderWithReason, Refusal>
where
    T: Form,
    OrderWithReason: TryFrom<T, Error = Refusal>,
{
    form::<T>(body).await?.try_into()
}

/// Parses a body of this form. An empty body counts as `{}`.
///
/// Cancel safe.
pub(super) async fn form<T: Form>(body: Body) -> Result<T, Refusal> {
    let longest = T::LONGEST;
    let Ok(read) = timeout(BODY_TIMEOUT, to_bytes(body, longest)).await else {
        return Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not come in time; send it at once",
        ));
    };
    let bytes = read.map_err(|_| {
        let text = format!("the body is over {longest} bytes or broke off; send a shorter one");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    })?;
    let bytes = if bytes.is_empty() { b"{}" } else { &bytes[..] };
    serde_json::from_slice(bytes).map_err(|error| Refusal::wrong(format!("body: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text<T>(body: &str) -> Result<OrderWithReason, String>
    where
        T: Form,
        OrderWithReason: TryFrom<T, Error = Refusal>,
    {
        read::<T>(Body::from(body.to_owned())).await.map_err(|refusal| refusal.text().to_owned())
    }

    #[tokio::test]
    async fn orders_are_read() {
        const TEN: Duration = Duration::from_secs(600);
        let because = Some("because".to_owned());
        assert_eq!(text::<Pause>("").await, Ok((Order::Pause { span: None }, None)));
        assert_eq!(
            text::<Pause>(r#"{"for": "10m", "reason": "because"}"#).await,
            Ok((Order::Pause { span: Some(TEN) }, because.clone()))
        );
        assert_eq!(text::<Resume>(r#"{"reason": "  "}"#).await, Ok((Order::Resume, None)));
        let order = Order::SetRate {
            rate: "20/s".parse().unwrap(),
            limit: Some("a".to_owned()),
            span: Some(TEN),
            reason: because.clone(),
        };
        let body = r#"{"rate": "20/s", "limit": "a", "for": "10m", "reason": "because"}"#;
        assert_eq!(text::<SetRate>(body).await, Ok((order, because)));
        assert_eq!(text::<UnsetRate>("{}").await, Ok((Order::UnsetRate { limit: None }, None)));
        assert_eq!(text::<Reset>("").await, Ok((Order::Reset { limit: None }, None)));
        let order = Order::Reset { limit: Some("daily".to_owned()) };
        let body = r#"{"limit": "daily", "reason": "because"}"#;
        assert_eq!(text::<Reset>(body).await, Ok((order, Some("because".to_owned()))));
        let ids = vec![Arc::from("a"), Arc::from("b")];
        let order = Order::Cancel { ids: ids.clone(), span: LONGEST_TOMBSTONE };
        assert_eq!(text::<Cancel>(r#"{"ids": ["a", "b"]}"#).await, Ok((order, None)));
        let order = Order::Cancel { ids: ids.clone(), span: TEN };
        assert_eq!(text::<Cancel>(r#"{"ids": ["a", "b"], "for": "10m"}"#).await, Ok((order, None)));
        let order = Order::Undo { ids };
        let body = r#"{"ids": ["a", "b"], "undo": true, "reason": "because"}"#;
        assert_eq!(text::<Cancel>(body).await, Ok((order, Some("because".to_owned()))));
    }

    #[tokio::test]
    async fn what_is_no_order_is_told() {
        let long = format!(r#"{{"reason": "{}"}}"#, "x".repeat(201));
        for (told, expected) in [
            (text::<Pause>("x").await, "body: expected value"),
            (text::<Pause>("[1]").await, "body: "),
            (text::<Pause>(r#"{"until": 5}"#).await, "unknown field `until`, expected `for` or `reason`"),
            (text::<Pause>(r#"{"for": 10}"#).await, "body: invalid type"),
            (
                text::<Pause>(r#"{"for": "10 min"}"#).await,
                "for: `10 min` is no duration; write an integer and",
            ),
            (text::<Pause>(r#"{"for": "0s"}"#).await, "for: no time at all"),
            (text::<Resume>(r#"{"for": "1s"}"#).await, "unknown field `for`"),
            (text::<Reset>(r#"{"limits": ["a"]}"#).await, "unknown field `limits`"),
            (text::<Resume>(&long).await, "reason: use up to 200"),
            (text::<Resume>(r#"{"reason": "a\nb"}"#).await, "on one line"),
            (text::<Cancel>("").await, "missing field `ids`"),
            (text::<Cancel>(r#"{"ids": []}"#).await, "ids: there are none"),
            (text::<Cancel>(r#"{"ids": [1]}"#).await, "body: invalid type"),
            (text::<Cancel>(r#"{"ids": ["a"], "for": "1s", "undo": true}"#).await, "leave one out"),
            (text::<SetRate>("").await, "missing field `rate`"),
            (text::<SetRate>(r#"{"rate": "20r/s"}"#).await, "rate: `20r/s` is no rate; write 20/s"),
            (text::<SetRate>(r#"{"rate": "0/s"}"#).await, "rate: a rate of zero"),
        ] {
            let told = told.unwrap_err();
            assert!(told.contains(expected), "{told}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_long_or_too_slow_is_let_go() {
        let long = read::<Pause>(Body::from("x".repeat(LONGEST + 1))).await.unwrap_err();
        assert_eq!(long.status(), 413);
        let ids = format!(r#"{{"ids": ["{}"]}}"#, vec!["x".repeat(255); 1000].join(r#"", ""#));
        assert!(read::<Cancel>(Body::from(ids)).await.is_ok(), "as many as one call takes");
        let long = read::<Cancel>(Body::from("x".repeat(LONGEST_WITH_IDS + 1))).await.unwrap_err();
        assert_eq!(long.status(), 413);
        let never = futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
        let slow = read::<Pause>(Body::from_stream(never)).await.unwrap_err();
        assert_eq!(slow.status(), 408);
    }
}
