use proptest::prelude::*;

use super::*;
use crate::job::{CostBound, JobLanes, METHODS, MaxCost, PlanRules, ReplyRules, Rules, decode};

fn line(text: &str) -> Line {
    parse(text.as_bytes()).expect(text)
}

fn error(text: &str) -> LineError {
    parse(text.as_bytes()).expect_err(text)
}

fn header<'a>(line: &'a Line, name: &str) -> &'a Value {
    &line.message.headers.iter().find(|(other, _)| other == name).expect("the header").1
}

fn text(value: &str) -> Value {
    Value::Text(Bytes::copy_from_slice(value.as_bytes()))
}

#[test]
fn every_key_has_its_place() {
    let line = line(
        r#" {"id": "i1", "downstream": "billing", "body": "hi", "lane": "acme", "method": "put", "path": "/a?b",
            "headers": {"X-Tag": "t", "x-n": 5}, "cost": 3, "priority": 12, "not_before": 1700000000123,
            "deadline": "2030-01-31T08:00:00Z", "plan": "pro"} "#,
    );
    assert_eq!(line.downstream.as_deref(), Some("billing"));
    assert_eq!(line.message.message_id.as_deref(), Some("i1"));
    assert_eq!(
        (&line.message.content.body[..], line.message.content.content_type.as_deref()),
        (&b"hi"[..], None)
    );
    assert_eq!(line.message.priority, Some(12));
    assert_eq!(header(&line, "http-x-tag"), &text("t"));
    assert_eq!(header(&line, "http-x-n"), &Value::Integer(5));
    assert_eq!(header(&line, "paced-not-before"), &Value::Integer(1_700_000_000_123));
    let rules = Rules {
        max_body: 10,
        allow_headers: vec!["x-tag".to_owned(), "x-n".to_owned()],
        methods: METHODS.map(str::to_owned).to_vec(),
        encoded_slash: false,
        max_cost: most(1),
        costs: Vec::new(),
        plans: vec![PlanRules { name: "pro".to_owned(), max_cost: most(3) }],
        lanes: JobLanes::default(),
        reply: ReplyRules::default(),
    };
    let job = decode(&line.message, &rules).expect("a job");
    assert_eq!((job.id.as_str(), job.lane.name.as_str(), job.request.method), ("i1", "acme", "PUT"));
    assert_eq!((job.request.path.as_str(), job.cost.units, job.priority), ("a?b", 3, 9));
    assert_eq!(job.times.not_before.map(|at| at.0), Some(1_700_000_000_123_000));
    assert!(job.times.deadline.is_some());
    assert_eq!(job.plan, Some(0));
}

#[test]
fn nothing_is_needed_and_null_is_absent() {
    let nulls = KEYS.map(|key| format!("{key:?}: null")).join(", ");
    for text in ["{}".to_owned(), format!("{{{nulls}}}")] {
        assert_eq!(line(&text), Line::default());
    }
}

#[test]
fn bodies() {
    for (body, bytes, content_type) in [
        (r#""""#, "", None),
        (r#""a\n\u00e9""#, "a\né", None),
        (
            r#"{"b": 1,  "a": [1.50, 12345678901234567890123]}"#,
            r#"{"b": 1,  "a": [1.50, 12345678901234567890123]}"#,
            JSON,
        ),
        ("[]", "[]", JSON),
        ("17", "17", JSON),
        ("false", "false", JSON),
        ("null", "", None),
    ] {
        let mut content = line(&format!(r#"{{"body": {body} }}"#)).message.content;
        content.name_json();
        assert_eq!((&content.body[..], content.content_type.as_deref()), (bytes.as_bytes(), content_type));
    }
}

const JSON: Option<&str> = Some("application/json");

#[test]
fn a_content_type_among_the_headers_wins() {
    for text in [
        r#"{"headers": {"Content-Type": "application/xml", "content-encoding": "br"}, "body": {}}"#,
        r#"{"body": {}, "headers": {"Content-Type": "application/xml", "content-encoding": "br"}}"#,
    ] {
        let message = line(text).message;
        assert_eq!(message.content.content_type.as_deref(), Some("application/xml"));
        assert_eq!(message.content.content_encoding.as_deref(), Some("br"));
        assert!(message.headers.is_empty());
    }
}

#[test]
fn costs_and_instants_of_any_number_type() {
    for (number, value) in [("2", Value::Integer(2)), ("2.0", Value::Float(2.0)), (r#""2""#, text("2"))] {
        assert_eq!(header(&line(&format!(r#"{{"cost": {number}}}"#)), "paced-cost"), &value);
    }
}

#[test]
fn costs_of_single_limits_are_headers_of_their_own() {
    let line = line(r#"{"cost": 2, "costs": {"tokens": 1500, "images": "3"}}"#);
    assert_eq!(header(&line, "paced-cost-tokens"), &Value::Integer(1500));
    assert_eq!(header(&line, "paced-cost-images"), &text("3"));
    let rendered = render(&line.message).unwrap();
    assert_eq!(
        serde_json::Value::from(rendered.job).to_string(),
        r#"{"cost":2,"costs":{"images":"3","tokens":1500}}"#
    );
    for wrong in [r#"{"costs": 3}"#, r#"{"costs": {"tokens": []}}"#] {
        assert!(matches!(error(wrong), LineError::Type { .. }), "{wrong}");
    }
}

#[test]
fn unknown_keys_name_the_nearest() {
    for (key, hint) in [
        ("lnae", "`lane`"),
        ("notBefore", "`not_before`"),
        ("header", "`headers`"),
        ("xyzzy", "known are id"),
    ] {
        let error = error(&format!(r#"{{"id": "a", "{key}": 1}}"#));
        assert!(matches!(&error, LineError::UnknownKey { key: found, .. } if found == key), "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[test]
fn wrong_types() {
    for (text, key) in [
        (r#"{"id": 7}"#, "id"),
        (r#"{"downstream": []}"#, "downstream"),
        (r#"{"lane": 7}"#, "lane"),
        (r#"{"plan": 7}"#, "plan"),
        (r#"{"method": false}"#, "method"),
        (r#"{"path": {}}"#, "path"),
        (r#"{"headers": []}"#, "headers"),
        (r#"{"headers": {"a": null}}"#, "headers.a"),
        (r#"{"headers": {"a": ["b"]}}"#, "headers.a"),
        (r#"{"cost": true}"#, "cost"),
        (r#"{"priority": -1}"#, "priority"),
        (r#"{"priority": 256}"#, "priority"),
        (r#"{"priority": 1.5}"#, "priority"),
        (r#"{"priority": "1"}"#, "priority"),
        (r#"{"not_before": {}}"#, "not_before"),
        (r#"{"deadline": []}"#, "deadline"),
        (r#"{"body": "\ud800"}"#, "body"),
    ] {
        let error = error(text);
        assert!(matches!(&error, LineError::Type { key: found, .. } if found == key), "{text}: {error}");
    }
}

#[test]
fn what_is_no_object() {
    for text in ["[]", "1", "null", r#""a""#, " true"] {
        assert_eq!(error(text), LineError::NoObject, "{text}");
    }
    for text in ["", "{", "{}}", "{} {}", r#"{"a" 1}"#, "{'a': 1}", "nope", "\u{feff}{}", r#"{"body": 01}"#] {
        assert!(matches!(error(text), LineError::Syntax { .. }), "{text}");
    }
    assert!(matches!(parse(b"{\"body\": \"\xff\"}"), Err(LineError::Syntax { .. })));
    assert!(matches!(parse(b"{\"body\": [\"\xff\"]}"), Err(LineError::Syntax { .. })));
    let LineError::Syntax { column, .. } = error(r#"{"id": "a", oops}"#) else { panic!("no syntax error") };
    assert_eq!(column, 13);
}

#[test]
fn a_key_given_twice() {
    assert_eq!(error(r#"{"id": "a", "id": "b"}"#), LineError::Twice("id".to_owned()));
    assert_eq!(error(r#"{"headers": {"A": "1", "a": "2"}}"#), LineError::Twice("headers.a".to_owned()));
}

#[test]
fn errors_do_not_repeat_the_line() {
    for text in
        [r#"{"body": "s3cret", oops"#, r#"{"headers": {"authorization": ["s3cret"]}}"#, r#"["s3cret"]"#]
    {
        let error = error(text).to_string();
        assert!(!error.contains("s3cret") && !error.contains('\n'), "{error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_line_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn a_text_body_arrives_as_it_is(body in any::<String>(), lane in any::<String>()) {
        let text = serde_json::json!({ "body": body, "lane": lane }).to_string();
        let line = parse(text.as_bytes()).unwrap();
        prop_assert_eq!(&line.message.content.body[..], body.as_bytes());
        prop_assert_eq!(header(&line, "paced-lane"), &Value::Text(lane.into()));
    }
}

fn most(units: u32) -> MaxCost {
    MaxCost { units, bound: CostBound::Given, given: Some(units) }
}
