//! Credentials in URLs.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::header::HeaderValue;
use percent_encoding::percent_decode_str;
use url::Url;

/// The header value for the user information of a URL; `None` if it is not UTF-8.
pub(super) fn basic(url: &Url) -> Option<HeaderValue> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(String::from).ok();
    let pair = format!("{}:{}", decoded(url.username())?, decoded(url.password().unwrap_or_default())?);
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}
