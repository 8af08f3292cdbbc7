//! Formats the outcome for a reply. It has no I/O.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::sink::Response;

/// `{"status", "headers", "body"}`: headers that come more than once are joined by `, `; a body that
/// is not UTF-8 becomes `{"base64": "..."}`.
pub(super) fn body(response: &Response) -> Bytes {
    let mut headers = Map::new();
    for (name, value) in &response.headers {
        match headers.get_mut(name) {
            Some(Value::String(all)) => {
                all.push_str(", ");
                all.push_str(value);
            }
            _ => {
                headers.insert(name.clone(), Value::from(value.as_str()));
            }
        }
    }
    let body = match std::str::from_utf8(&response.body) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "base64": BASE64_STANDARD.encode(&response.body) }),
    };
    Bytes::from(json!({ "status": response.status, "headers": headers, "body": body }).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(response: &Response) -> Value {
        serde_json::from_slice(&body(response)).unwrap()
    }

    #[test]
    fn a_reply_carries_status_headers_and_body() {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let response = Response {
            status: 201,
            headers: vec![header("x-a", "1"), header("x-b", "2"), header("x-a", "3")],
            body: Bytes::from("ok\n"),
            // It is for the dead letter.
            excerpt: Bytes::from_static(b"kept"),
        };
        let expected = json!({ "status": 201, "headers": { "x-a": "1, 3", "x-b": "2" }, "body": "ok\n" });
        assert_eq!(read(&response), expected);
    }

    #[test]
    fn a_body_that_is_no_text_is_base64() {
        let response = Response { body: Bytes::from_static(&[0xff, 0xfe]), ..Response::default() };
        assert_eq!(read(&response)["body"], json!({ "base64": "//4=" }));
    }
}
