//! The names and values of HTTP headers that a job brings.

use super::{Reason, Rejection, Rules, Value, value};

/// Headers that no job may set, even if the allow list contains them: they frame the message, name the host, carry
/// credentials, or are set from the job's id.
pub const NEVER: [&str; 14] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "host",
    "idempotency-key",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The longest `traceparent` or `tracestate` that is passed on.
const MAX_TRACE: usize = 1024;

/// One `http-<name>` header: its name in lower case, and its value.
pub(super) fn request(name: &str, value: &Value, rules: &Rules) -> Result<(String, String), Rejection> {
    let lower = name.to_ascii_lowercase();
    let refused = |why: &str| {
        let shown = super::shown(lower.as_bytes(), 60);
        Rejection::new(Reason::HeaderNotAllowed, format!("`http-{shown}` {why}"))
    };
    if is_never_a_jobs(&lower) {
        return Err(refused("is never a job's to set; leave it out"));
    }
    if !is_token(&lower) || !rules.allows_header(&lower) {
        return Err(refused("is not in `http.allow_headers`; add it there, or leave it out"));
    }
    let text = match value {
        Value::Text(bytes) if is_field_value(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Text(_) => {
            return Err(Rejection::malformed(format!(
                "`http-{lower}` has a character that no header may have; send visible text in UTF-8, spaces and tabs"
            )));
        }
        other => {
            let kind = value::kind(other);
            return Err(Rejection::malformed(format!("`http-{lower}` is {kind}; send a string")));
        }
    };
    Ok((lower, text))
}

/// Whether no job may set the header `name`, in lower case, even if the allow list contains it.
pub(crate) fn is_never_a_jobs(name: &str) -> bool {
    NEVER.contains(&name)
}

/// A property that becomes a header: absent when empty.
pub(super) fn property(name: &str, value: Option<&str>) -> Result<Option<String>, Rejection> {
    match value {
        None | Some("") => Ok(None),
        Some(text) if is_field_value(text.as_bytes()) => Ok(Some(text.to_owned())),
        Some(_) => Err(Rejection::malformed(format!(
            "`{name}` has a character that no header may have; send visible text in UTF-8"
        ))),
    }
}

/// `traceparent` or `tracestate`, if it can be passed on. Malformed trace context is dropped, and does not cost the
/// job.
pub(super) fn trace(value: &Value) -> Option<String> {
    let Value::Text(bytes) = value else { return None };
    let fits = (1..=MAX_TRACE).contains(&bytes.len()) && bytes.is_ascii() && is_field_value(bytes);
    fits.then(|| String::from_utf8_lossy(bytes).into_owned())
}

/// RFC 9110 `field-value`, where what lies beyond ASCII is UTF-8, and no control character.
fn is_field_value(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_ok_and(|text| text.chars().all(|c| c == '\t' || !c.is_control()))
}

/// The content codings that are registered (RFC 9110, section 8.4.1, and IANA). `identity` is left out: it stands for
/// no coding, and should not be in the header.
const CODINGS: [&str; 11] =
    ["aes128gcm", "br", "compress", "dcb", "dcz", "deflate", "exi", "gzip", "x-compress", "x-gzip", "zstd"];

/// The `Content-Encoding` of a message: its property, if that names content codings. Some clients put other texts
/// there, such as the charset (`UTF-8`) or `binary`, which do not change the request.
pub(super) fn codings(property: Option<&str>) -> Option<String> {
    let text = property.filter(|text| !text.is_empty())?;
    let is_coding = |name: &str| CODINGS.iter().any(|coding| coding.eq_ignore_ascii_case(name.trim()));
    text.split(',').all(is_coding).then(|| text.to_owned())
}

/// RFC 9110 `token`.
fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}
