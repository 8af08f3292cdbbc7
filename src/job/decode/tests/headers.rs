//! Headers: those that a job may set, and those that it may not.

use super::*;

#[test]
fn request_headers_of_the_allow_list() {
    let sent = |name: &str, value| job(&with(name, value)).request.headers;
    assert_eq!(sent("http-Accept", text("text/*")), [("accept".to_owned(), "text/*".to_owned())]);
    assert_eq!(sent("http-x-tag", Value::Integer(-42)), [("x-tag".to_owned(), "-42".to_owned())]);
    assert_eq!(sent("http-x-tag", text("a\tb")), [("x-tag".to_owned(), "a\tb".to_owned())]);
    assert_eq!(sent("http-x-tag", text("")), [("x-tag".to_owned(), String::new())]);
    for name in ["http-x-other", "http-", "http-accept ", "http-x:y", "http-x-tag\r\n", "http-é"] {
        assert_eq!(reason(&with(name, text("x"))), Reason::HeaderNotAllowed, "{name}");
    }
    assert_eq!(sent("http-x-tag", text("Büro 東京")), [("x-tag".to_owned(), "Büro 東京".to_owned())]);
    for value in ["a\r\nX: y", "a\n", "\0", "\u{7f}", "a\u{85}b"] {
        assert_eq!(reason(&with("http-x-tag", text(value))), Reason::MalformedHeader, "{value:?}");
    }
    let latin1 = Value::Text(Bytes::from_static(b"caf\xe9"));
    assert_eq!(reason(&with("http-x-tag", latin1)), Reason::MalformedHeader);
    for value in [Value::Float(1.0), Value::Bool(true), Value::Timestamp(1), Value::Other("table")] {
        assert_eq!(reason(&with("http-x-tag", value)), Reason::MalformedHeader);
    }
    let secret = detail(&with("http-x-tag", text("s3cret\n")));
    assert!(!secret.contains("s3cret"), "{secret}");
}

#[test]
fn headers_that_are_never_a_jobs() {
    for name in [
        "Authorization",
        "cookie",
        "host",
        "HOST",
        "content-length",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "proxy-authorization",
        "proxy-authenticate",
        "proxy-connection",
        "idempotency-key",
    ] {
        let allow = Rules { allow_headers: vec![name.to_ascii_lowercase()], ..rules() };
        let message = with(&format!("http-{name}"), text("x"));
        let rejection = decode(&message, &allow).expect_err(name);
        assert_eq!(rejection.reason, Reason::HeaderNotAllowed, "{name}");
    }
}

#[test]
fn trace_context_passes_on_and_never_fails() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let message = Message {
        headers: vec![("tracestate".to_owned(), text("a=1, b=2")), ("traceparent".to_owned(), text(parent))],
        ..Message::default()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(job(&message).request.headers, [pair("traceparent", parent), pair("tracestate", "a=1, b=2")]);
    for value in [
        text("a\r\nb"),
        text("é"),
        text(""),
        text(&"x".repeat(1025)),
        Value::Integer(1),
        Value::Other("void"),
    ] {
        assert!(job(&with("traceparent", value)).request.headers.is_empty());
    }
    let mut both = message;
    both.headers.push(("http-traceparent".to_owned(), text("mine")));
    assert_eq!(job(&both).request.headers, [pair("traceparent", "mine"), pair("tracestate", "a=1, b=2")]);
}

#[test]
fn unknown_headers_name_the_nearest() {
    for (name, near) in [
        ("paced-Lane", "`paced-lane`"),
        ("paced-not_before", "`paced-not-before`"),
        ("paced-methd", "`paced-method`"),
        ("paced-", "paced-lane, paced-plan, paced-method"),
        ("paced-zzzzzzzzzz", "paced-lane, paced-plan, paced-method"),
    ] {
        let message = with(name, text("x"));
        assert_eq!(reason(&message), Reason::UnknownHeader, "{name}");
        assert!(detail(&message).contains(near), "{}", detail(&message));
    }
    assert!(detail(&with(&format!("paced-{}", "x\n".repeat(9000)), text(""))).len() < 400);
}

#[test]
fn what_dead_letters_carry_is_stripped() {
    let names = ["reason", "detail", "status", "attempts", "routing-key", "dead-at", "response"];
    let headers = names.map(|name| (format!("paced-{name}"), Value::Other("void"))).to_vec();
    assert!(job(&Message { headers, ..Message::default() }).request.headers.is_empty());
}

#[test]
fn headers_of_others_are_ignored() {
    assert!(job(&with("x-death", Value::Other("array"))).request.headers.is_empty());
}

#[test]
fn a_header_given_twice_is_refused() {
    for (first, second) in [("paced-lane", "paced-lane"), ("http-x-tag", "http-X-Tag")] {
        let headers = vec![(first.to_owned(), text("a")), (second.to_owned(), text("a"))];
        assert_eq!(reason(&Message { headers, ..Message::default() }), Reason::MalformedHeader);
    }
}
