//! The bodies of requests: small JSON, read within a time-out.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::admin::reply::Refusal;

/// The longest body, in bytes.
const LONGEST: usize = 16 * 1024;
/// The longest body with ids of jobs, in bytes: as many as one call takes, each as long as may be, and escaped.
pub(super) const LONGEST_WITH_IDS: usize = 600 * 1024;
/// The time-out for a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// A body of a known form, which is no longer than it needs to be.
pub(super) trait Form: DeserializeOwned {
    /// The longest body of this form, in bytes.
    const LONGEST: usize = LONGEST;
}

/// Parses a body of this form. An empty body counts as `{}`.
///
/// Cancel safe.
pub(super) async fn read<T: Form>(body: Body) -> Result<T, Refusal> {
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
    serde_json::from_slice(bytes).map_err(|error| match error.line() {
        // The form is right, and the error names the field whose value is wrong.
        0 => Refusal::wrong(error.to_string()),
        _ => Refusal::wrong(format!("body: {error}")),
    })
}

/// A reason for people, checked.
pub(super) fn reason(reason: Option<String>) -> Result<Option<String>, Refusal> {
    paced::api::order::reason(reason).map_err(Refusal::wrong)
}

#[cfg(test)]
mod tests {
    use paced::api::order::{Cancel, Pause, Reset, Resume, SetRate, Span, UnsetRate};

    use super::*;

    async fn text<T: Form>(body: &str) -> Result<T, String> {
        read::<T>(Body::from(body.to_owned())).await.map_err(|refusal| refusal.text().to_owned())
    }

    #[tokio::test]
    async fn orders_are_read() {
        const TEN: Duration = Duration::from_secs(600);
        let because = Some("because".to_owned());
        assert_eq!(text::<Pause>("").await, Ok(Pause::default()));
        let pause = text::<Pause>(r#"{"for": "10m", "reason": "because"}"#).await.unwrap();
        assert_eq!((pause.span.as_ref().map(Span::duration), &pause.reason), (Some(TEN), &because));
        let blank = text::<Resume>(r#"{"reason": "  "}"#).await.unwrap();
        assert_eq!(reason(blank.reason), Ok(None));
        let body = r#"{"rate": "20/s", "limit": "a", "for": "10m", "reason": "because"}"#;
        let set = text::<SetRate>(body).await.unwrap();
        assert_eq!((set.rate, set.limit.as_deref()), ("20/s".parse().unwrap(), Some("a")));
        assert_eq!((set.span.as_ref().map(Span::duration), &set.reason), (Some(TEN), &because));
        assert_eq!(text::<UnsetRate>("{}").await, Ok(UnsetRate::default()));
        assert_eq!(text::<Reset>("").await, Ok(Reset::default()));
        let reset = Reset { limit: Some("daily".to_owned()), reason: because.clone() };
        assert_eq!(text::<Reset>(r#"{"limit": "daily", "reason": "because"}"#).await, Ok(reset));
        let ids = vec!["a".to_owned(), "b".to_owned()];
        let cancel = Cancel { ids, span: None, undo: false, reason: None };
        assert_eq!(text::<Cancel>(r#"{"ids": ["a", "b"]}"#).await, Ok(cancel.clone()));
        let lasting = Cancel { span: Some("10m".parse().unwrap()), ..cancel.clone() };
        assert_eq!(text::<Cancel>(r#"{"ids": ["a", "b"], "for": "10m"}"#).await, Ok(lasting));
        let body = r#"{"ids": ["a", "b"], "undo": true, "reason": "because"}"#;
        assert_eq!(text::<Cancel>(body).await, Ok(Cancel { undo: true, reason: because, ..cancel }));
    }

    /// The tools send what the daemon reads.
    #[tokio::test]
    async fn orders_are_read_as_they_are_sent() {
        let set = SetRate {
            rate: "1000 per 5 minutes".parse().unwrap(),
            limit: None,
            span: Some("90m".parse().unwrap()),
            reason: None,
        };
        let sent = serde_json::json!(set).to_string();
        assert_eq!(sent, r#"{"for":"90m","limit":null,"rate":"1000/5m","reason":null}"#);
        assert_eq!(text::<SetRate>(&sent).await, Ok(set));
        let pause = serde_json::json!(Pause::default()).to_string();
        assert_eq!(pause, r#"{"for":null,"reason":null}"#);
        let cancel = Cancel { ids: vec!["a".to_owned()], span: None, undo: false, reason: None };
        let sent = serde_json::json!(cancel).to_string();
        assert_eq!(sent, r#"{"for":null,"ids":["a"],"reason":null,"undo":false}"#);
        assert_eq!(text::<Cancel>(&sent).await, Ok(cancel));
    }

    #[test]
    fn a_reason_is_short_and_on_one_line() {
        for wrong in ["x".repeat(201), "a\nb".to_owned()] {
            let refusal = reason(Some(wrong)).unwrap_err();
            assert_eq!(refusal.text(), "reason: use up to 200 characters on one line");
        }
        assert!(reason(Some("ä".repeat(200))).is_ok());
    }

    async fn wrong<T: Form>(body: &str) -> String {
        text::<T>(body).await.map(drop).unwrap_err()
    }

    #[tokio::test]
    async fn a_body_that_is_no_order_is_refused_with_its_mistake() {
        for (text, expected) in [
            (wrong::<Pause>("x").await, "body: expected value"),
            (wrong::<Pause>("[1]").await, "body: "),
            (wrong::<Pause>(r#"{"until": 5}"#).await, "unknown field `until`, expected `for` or `reason`"),
            (wrong::<Pause>(r#"{"for": 10}"#).await, "body: invalid type"),
            (
                wrong::<Pause>(r#"{"for": "10 min"}"#).await,
                "for: `10 min` is no duration; write an integer and",
            ),
            (wrong::<Pause>(r#"{"for": "0s"}"#).await, "for: no time at all"),
            (wrong::<Resume>(r#"{"for": "1s"}"#).await, "unknown field `for`"),
            (wrong::<Reset>(r#"{"limits": ["a"]}"#).await, "unknown field `limits`"),
            (wrong::<Cancel>("").await, "missing field `ids`"),
            (wrong::<Cancel>(r#"{"ids": []}"#).await, "ids: there are none"),
            (wrong::<Cancel>(r#"{"ids": [1]}"#).await, "body: invalid type"),
            (wrong::<Cancel>(r#"{"ids": ["a"], "for": "1s", "undo": true}"#).await, "leave one out"),
            (wrong::<SetRate>("").await, "missing field `rate`"),
            (wrong::<SetRate>(r#"{"rate": "20r/s"}"#).await, "rate: `20r/s` is no rate; write 20/s"),
            (wrong::<SetRate>(r#"{"rate": "0/s"}"#).await, "rate: a rate of zero"),
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_too_long_or_too_slow_is_refused() {
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
