//! Bodies by which a downstream throttles although it answers a success.

use serde_json::Value;

/// A value in the JSON body of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct BodyMatch {
    pointer: String,
    equals: Value,
}

impl BodyMatch {
    /// The value that lies where this JSON pointer (RFC 6901) says; see [`BodyMatch::is_pointer`].
    pub fn new(pointer: &str, equals: Value) -> Self {
        Self { pointer: pointer.to_owned(), equals }
    }

    /// Whether the text is a JSON pointer, such as `/error/code`.
    pub fn is_pointer(text: &str) -> bool {
        let is_escaped = |rest: &str| rest.starts_with('0') || rest.starts_with('1');
        (text.is_empty() || text.starts_with('/')) && text.split('~').skip(1).all(is_escaped)
    }

    /// Whether the body has that value in that place. A body that is no whole JSON text has none.
    pub fn is_in(&self, body: &[u8]) -> bool {
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return false };
        body.pointer(&self.pointer).is_some_and(|found| is_same(found, &self.equals))
    }
}

/// Whether both are the same; numbers are the same if their values are, however they are written.
fn is_same(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().zip(other.as_f64()).is_some_and(|(one, other)| one.total_cmp(&other).is_eq())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_in_one_place_decides() {
        let code = BodyMatch::new("/error/code", "rate_limited".into());
        assert!(code.is_in(br#" {"error": {"code": "rate_limited", "more": [1]}} "#));
        for other in [
            r#"{"error": {"code": "Rate_limited"}}"#,
            r#"{"error": "rate_limited"}"#,
            r#"["rate_limited"]"#,
            r#"{"error": {"code": "rate_limited""#,
            "",
            "rate_limited",
        ] {
            assert!(!code.is_in(other.as_bytes()), "{other}");
        }
        assert!(BodyMatch::new("/a~1b/0", 429.into()).is_in(br#"{"a/b": [429.0]}"#));
        assert!(!BodyMatch::new("/ok", false.into()).is_in(br#"{"ok": 0}"#));
        assert!(BodyMatch::new("", "slow down".into()).is_in(br#""slow down""#), "the whole body");
    }

    #[test]
    fn pointers() {
        for right in ["", "/", "/error/code", "/a~0b~1c/0"] {
            assert!(BodyMatch::is_pointer(right), "{right}");
        }
        for wrong in ["error", "error/code", "$.error", "/a~", "/a~2"] {
            assert!(!BodyMatch::is_pointer(wrong), "{wrong}");
        }
    }
}
