//! Answers in JSON.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use paced::StoreError;
use paced::api::Problem;
use paced::terms::{ChangeError, TermsError};
use serde::Serialize;

/// The reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    text: String,
    /// The seconds after which trying again may help.
    retry_after: Option<u64>,
    /// Whether it is not known if the change was made.
    is_unknown: bool,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), retry_after: None, is_unknown: false }
    }

    /// A refusal of a request that may be sent again after `seconds` seconds.
    pub(crate) fn later(status: StatusCode, text: impl Into<String>, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..Self::new(status, text) }
    }

    /// A refusal of a malformed request.
    pub(crate) fn wrong(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(crate) fn unauthorized(text: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, text)
    }

    /// The same for a change that may have been made nevertheless.
    pub(super) fn or_made(self) -> Self {
        let text = format!("{}; it may have been changed: check whether it was", self.text);
        Self { text, is_unknown: true, ..self }
    }

    /// Whether it is not known if the change was made.
    pub(super) const fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
impl Refusal {
    pub(crate) const fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let status = match error {
            StoreError::Invalid(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl From<TermsError> for Refusal {
    fn from(error: TermsError) -> Self {
        let status = match error {
            TermsError::NoSuchLimit { .. } | TermsError::WhichLimit { .. } | TermsError::Rate { .. } => {
                StatusCode::BAD_REQUEST
            }
            // The value in the store was written by another program, and is not overwritten.
            _ => StatusCode::CONFLICT,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Terms(error) => error.into(),
            ChangeError::Store(error) => error.into(),
            error => Self::new(StatusCode::CONFLICT, error.to_string()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json_text(self.status, sorted(&Problem { error: self.text }));
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The answer to a request that was carried out.
pub(super) fn answer(body: &impl Serialize) -> Response {
    json_text(StatusCode::OK, sorted(body))
}

/// The JSON of a body, with the keys of each object in order.
fn sorted(body: &impl Serialize) -> String {
    // The types of the API have texts as keys, so that there is no error.
    serde_json::to_value(body).unwrap_or_default().to_string()
}

/// A response with this JSON.
pub(super) fn json_text(status: StatusCode, body: String) -> Response {
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, body + "\n").into_response()
}
