use bytes::Bytes;
use proptest::prelude::*;

use super::super::{JobLanes, ReplyRules};
use super::*;

mod costs;
mod headers;

fn rules() -> Rules {
    Rules {
        max_body: 16,
        allow_headers: [
            "accept",
            "x-request-id",
            "x-tag",
            "authorization",
            "cookie",
            "host",
            "te",
            "traceparent",
        ]
        .map(str::to_owned)
        .to_vec(),
        methods: METHODS.map(str::to_owned).to_vec(),
        encoded_slash: false,
        max_cost: held(100, "gcra-0"),
        costs: Vec::new(),
        plans: [("free", 2), ("pro", 1000)].map(|(name, cost)| plan_rules(name, cost)).to_vec(),
        lanes: JobLanes::default(),
        reply: ReplyRules { own: Some("paced.".to_owned()), ..ReplyRules::default() },
    }
}

fn held(units: u32, limit: &str) -> MaxCost {
    MaxCost { units, bound: CostBound::Held(limit.to_owned()), given: None }
}

#[test]
fn a_reply_to_that_is_not_allowed_makes_it_no_job() {
    let with =
        |queue: &str| decode(&Message { reply_to: Some(queue.to_owned()), ..Message::default() }, &rules());
    assert_eq!(with("replies").unwrap().reply.unwrap().queue, "replies");
    assert_eq!(with("").unwrap().reply, None);
    let refused = with("paced.jobs.other").unwrap_err();
    assert_eq!(refused.reason, Reason::MalformedHeader);
    assert!(refused.detail.contains("reply_to is `paced.jobs.other`"), "{refused}");
}

fn plan_rules(name: &str, cost: u32) -> PlanRules {
    PlanRules { name: name.to_owned(), max_cost: held(cost, &format!("plan.{name}.quota-0")) }
}

fn text(value: &str) -> Value {
    Value::Text(Bytes::copy_from_slice(value.as_bytes()))
}

fn with(name: &str, value: Value) -> Message {
    Message { headers: vec![(name.to_owned(), value)], ..Message::default() }
}

fn job(message: &Message) -> Job {
    decode(message, &rules()).expect("a job")
}

fn reason(message: &Message) -> Reason {
    let rejection = decode(message, &rules()).expect_err("no job");
    assert!(rejection.reason.is_rejection(), "{rejection}");
    rejection.reason
}

fn detail(message: &Message) -> String {
    decode(message, &rules()).expect_err("no job").detail
}

#[test]
fn an_empty_message_is_a_post_of_nothing() {
    let job = job(&Message::default());
    assert_eq!((job.request.method, job.request.path.as_str(), job.lane.name.as_str()), ("POST", "", ""));
    assert_eq!((job.cost.units, job.priority), (1, 0));
    assert_eq!((job.times.not_before, job.times.deadline, job.reply), (None, None, None));
    assert!(job.request.headers.is_empty() && job.content.body.is_empty());
    assert_eq!(job.content.content_type.or(job.content.content_encoding), None);
    let id = Uuid::parse_str(&job.id).expect("a UUID");
    assert_eq!(id.get_version_num(), 7);
}

#[test]
fn properties_become_fields() {
    let job = job(&Message {
        content: Content {
            body: Bytes::from_static(b"{}"),
            content_type: Some("application/json; charset=utf-8".to_owned()),
            content_encoding: Some("gzip".to_owned()),
        },
        message_id: Some("invoice-1".to_owned()),
        priority: Some(7),
        correlation_id: Some("c1".to_owned()),
        reply_to: Some("replies".to_owned()),
        ..Message::default()
    });
    assert_eq!((job.id.as_str(), job.priority, &job.content.body[..]), ("invoice-1", 7, &b"{}"[..]));
    assert_eq!(job.content.content_type.as_deref(), Some("application/json; charset=utf-8"));
    assert_eq!(job.content.content_encoding.as_deref(), Some("gzip"));
    let queue = "replies".to_owned();
    assert_eq!(job.reply, Some(ReplyTo { queue, correlation_id: Some("c1".to_owned()) }));
}

#[test]
fn ids() {
    let message = |id: &str| Message { message_id: Some(id.to_owned()), ..Message::default() };
    for id in ["a", "!~", "\"quoted\\\"", &"x".repeat(255)] {
        assert_eq!(job(&message(id)).id, id);
    }
    for id in ["", "a b", " ", "a\n", "a\r\nX: y", "a\0", "é", "\u{7f}", &"x".repeat(256)] {
        assert_eq!(reason(&message(id)), Reason::BadId, "{id:?}");
    }
    let detail = detail(&message(&"\n".repeat(5000)));
    assert!(detail.contains("\\n") && !detail.contains('\n') && detail.len() < 400, "{detail}");
}

#[test]
fn priorities_over_nine_count_as_nine() {
    for (given, counts) in [(0, 0), (9, 9), (10, 9), (255, 9)] {
        assert_eq!(job(&Message { priority: Some(given), ..Message::default() }).priority, counts);
    }
}

#[test]
fn lanes() {
    for lane in ["", "acme", "tenant-42", "Zürich", &"x".repeat(128)] {
        assert_eq!(job(&with("paced-lane", text(lane))).lane.name, lane);
    }
    for lane in ["x".repeat(129), "é".repeat(65)] {
        assert_eq!(reason(&with("paced-lane", text(&lane))), Reason::MalformedHeader);
    }
    for value in [Value::Text(Bytes::from_static(b"\xff")), Value::Integer(1), Value::Other("table")] {
        assert_eq!(reason(&with("paced-lane", value)), Reason::MalformedHeader);
    }
}

#[test]
fn methods_in_any_case() {
    for method in METHODS {
        assert_eq!(job(&with("paced-method", text(method))).request.method, method);
        assert_eq!(job(&with("paced-method", text(&method.to_lowercase()))).request.method, method);
    }
    assert_eq!(job(&with("paced-method", text("pAtCh"))).request.method, "PATCH");
    for method in ["", "CONNECT", "TRACE", "OPTIONS", "GET ", "GÉT", "GET\r\n"] {
        assert_eq!(reason(&with("paced-method", text(method))), Reason::MalformedHeader, "{method}");
    }
    assert_eq!(reason(&with("paced-method", Value::Bool(true))), Reason::MalformedHeader);
    assert!(detail(&with("paced-method", text("FETCH"))).contains("GET, HEAD"));
}

#[test]
fn methods_that_the_downstream_does_not_take_make_it_no_job() {
    let only =
        |methods: &[&str]| Rules { methods: methods.iter().map(|&m| m.to_owned()).collect(), ..rules() };
    let decoded = |message: &Message, methods: &[&str]| decode(message, &only(methods));
    let put = with("paced-method", text("put"));
    assert_eq!(decoded(&put, &["GET", "PUT"]).unwrap().request.method, "PUT");
    let refused = decoded(&put, &["POST", "GET"]).unwrap_err();
    assert_eq!(refused.reason, Reason::MalformedHeader);
    assert!(refused.detail.ends_with("`http.methods`; send one of POST, GET"), "{refused}");
    // A job without a method is a POST.
    assert_eq!(decoded(&Message::default(), &["POST"]).unwrap().request.method, "POST");
    let refused = decoded(&Message::default(), &["GET"]).unwrap_err();
    assert!(refused.detail.starts_with("`paced-method` is absent"), "{refused}");
}

#[test]
fn paths_are_checked() {
    assert_eq!(job(&with("paced-path", text("/v2/x?y=1"))).request.path, "v2/x?y=1");
    assert_eq!(reason(&with("paced-path", text("../x"))), Reason::ForbiddenPath);
    assert_eq!(reason(&with("paced-path", Value::Integer(1))), Reason::MalformedHeader);
}

#[test]
fn instants_of_every_type() {
    let at = Some(Micros(1_700_000_000_000_000));
    for value in [
        Value::Integer(1_700_000_000),
        Value::Integer(1_700_000_000_000),
        Value::Timestamp(1_700_000_000),
        Value::Float(1_700_000_000.0),
        text("1700000000000"),
        text("2023-11-14T23:13:20+01:00"),
    ] {
        assert_eq!(job(&with("paced-not-before", value.clone())).times.not_before, at, "{value:?}");
        assert_eq!(job(&with("paced-deadline", value.clone())).times.deadline, at, "{value:?}");
    }
    for name in ["paced-not-before", "paced-deadline"] {
        for value in [text("tomorrow"), Value::Bool(true), Value::Integer(3600)] {
            assert_eq!(reason(&with(name, value.clone())), Reason::MalformedHeader, "{value:?}");
        }
    }
    let far = job(&with("paced-deadline", text("9999-12-31T23:59:59Z"))).times.deadline;
    assert_eq!(far, Some(Micros::MAX));
}

#[test]
fn a_timestamp_of_the_message_may_be_in_milliseconds_and_0_is_none() {
    let made_at = |timestamp| job(&Message { timestamp, ..Message::default() }).times.made_at;
    let at = Some(Micros(1_700_000_000_000_000));
    assert_eq!((made_at(Some(1_700_000_000)), made_at(Some(1_700_000_000_000))), (at, at));
    assert_eq!((made_at(Some(0)), made_at(Some(u64::MAX))), (None, Some(Micros::MAX)));
}

#[test]
fn costs_of_every_type() {
    for (value, cost) in [
        (Value::Integer(1), 1),
        (Value::Integer(100), 100),
        (Value::Float(7.0), 7),
        (text("7"), 7),
        (text("+7"), 7),
        (text("7.0"), 7),
    ] {
        assert_eq!(job(&with("paced-cost", value)).cost.units, cost);
    }
    for value in [
        Value::Integer(0),
        Value::Integer(-5),
        Value::Float(1.5),
        text(""),
        text("1.5"),
        text("one"),
        Value::Bool(true),
        Value::Other("array"),
    ] {
        assert_eq!(reason(&with("paced-cost", value.clone())), Reason::MalformedHeader, "{value:?}");
    }
    for value in [Value::Integer(101), Value::Integer(1 << 40), Value::Float(1e15), text("101")] {
        assert_eq!(reason(&with("paced-cost", value.clone())), Reason::CostTooLarge, "{value:?}");
    }
}

#[test]
fn plans_are_those_that_are_configured() {
    assert_eq!(job(&Message::default()).plan, None);
    assert_eq!(job(&with("paced-plan", text("pro"))).plan, Some(1));
    for value in [text("Pro"), text(""), text("enterprise"), Value::Integer(1)] {
        let message = with("paced-plan", value);
        assert_eq!(reason(&message), Reason::MalformedHeader);
    }
    let detail = detail(&with("paced-plan", text("gold")));
    assert_eq!(detail, "`paced-plan` is `gold`, which is no plan; send one of free, pro");
    let none = Rules { plans: Vec::new(), ..rules() };
    let detail = decode(&with("paced-plan", text("pro")), &none).expect_err("no plan").detail;
    assert_eq!(detail, "`paced-plan` is `pro`, but no plan is configured; leave it out");
    let default = Rules { lanes: JobLanes { default_plan: Some(0), ..JobLanes::default() }, ..rules() };
    let plan = |message: &Message| decode(message, &default).expect("a job").plan;
    assert_eq!((plan(&Message::default()), plan(&with("paced-plan", text("pro")))), (Some(0), Some(1)));
}

#[test]
fn a_cost_must_fit_the_limits_of_its_plan() {
    let costing = |plan: &str, cost: i128| {
        let mut message = with("paced-cost", Value::Integer(cost));
        // The position before or after the cost makes no difference.
        message.headers.insert(usize::from(cost % 2 == 0), ("paced-plan".to_owned(), text(plan)));
        message
    };
    assert_eq!(job(&costing("free", 2)).cost.units, 2);
    assert_eq!((job(&costing("pro", 999)).cost.units, job(&costing("pro", 1000)).cost.units), (999, 1000));
    for (plan, cost) in [("free", 3), ("pro", 1001), ("pro", 1002)] {
        assert_eq!(reason(&costing(plan, cost)), Reason::CostTooLarge);
    }
    assert_eq!(
        detail(&costing("free", 3)),
        "`paced-cost` is 3; `max_cost` is 2, what the limit `plan.free.quota-0` holds: split the job"
    );
    assert_eq!(
        detail(&with("paced-cost", Value::Integer(101))),
        "`paced-cost` is 101; `max_cost` is 100, what the limit `gcra-0` holds: split the job"
    );
}

#[test]
fn bodies_have_a_bound() {
    let message = |bytes| Message { content: Bytes::from(vec![b'x'; bytes]).into(), ..Message::default() };
    assert_eq!(job(&message(16)).content.body.len(), 16);
    assert_eq!(reason(&message(17)), Reason::BodyTooLarge);
}

#[test]
fn properties_that_are_no_header_values() {
    for bad in ["a\r\nb", "a\u{85}", "\0"] {
        let content = Content { content_type: Some(bad.to_owned()), ..Content::default() };
        assert_eq!(reason(&Message { content, ..Message::default() }), Reason::MalformedHeader);
    }
    // Some clients set every property to an empty text.
    let empty = || Some(String::new());
    let content = Content { content_type: empty(), content_encoding: empty(), ..Content::default() };
    let job = job(&Message { content, reply_to: empty(), ..Message::default() });
    assert_eq!((job.content, job.reply), (Content::default(), None));
}

/// What Spring AMQP, Celery and others put there is the charset, or how a text transports bytes.
#[test]
fn only_content_codings_become_content_encoding() {
    let sent = |text: &str| {
        let content = Content { content_encoding: Some(text.to_owned()), ..Content::default() };
        job(&Message { content, ..Message::default() }).content.content_encoding
    };
    for codings in ["gzip", "GZIP", "br", "zstd", "deflate", "x-gzip", "gzip, br"] {
        assert_eq!(sent(codings).as_deref(), Some(codings));
    }
    for other in ["UTF-8", "utf-8", "binary", "base64", "identity", "gzip, utf-8", "a\r\nb: c", "é", "gzip,"]
    {
        assert_eq!(sent(other), None, "{other}");
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i128>().prop_map(Value::Integer),
        (-10_i128..200).prop_map(Value::Integer),
        any::<f64>().prop_map(Value::Float),
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(|bytes| Value::Text(bytes.into())),
        r"[ -~]{0,20}".prop_map(|text| Value::Text(text.into())),
        any::<bool>().prop_map(Value::Bool),
        any::<u64>().prop_map(Value::Timestamp),
        Just(Value::Other("table")),
    ]
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::sample::select(KNOWN.to_vec()).prop_map(|name| format!("paced-{name}")),
        proptest::sample::select(vec!["http-accept", "http-x-tag", "traceparent", "tracestate"])
            .prop_map(str::to_owned),
        r"(paced-|http-)?\PC{0,8}",
        any::<String>(),
    ]
}

proptest! {
    #[test]
    fn any_message_is_a_job_or_a_rejection(
        headers in proptest::collection::vec((any_name(), any_value()), 0..4),
        message_id in proptest::option::of(any::<String>()),
        content_type in proptest::option::of(any::<String>()),
        priority in any::<Option<u8>>(),
        body in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let content = Content { body: body.into(), content_type, ..Content::default() };
        let message = Message { headers, message_id, priority, content, ..Message::default() };
        match decode(&message, &rules()) {
            Ok(job) => {
                prop_assert!(job.priority <= 9 && (1..=100).contains(&job.cost.units) && job.content.body.len() <= 16);
                prop_assert!(job.lane.name.len() <= 128 && (1..=255).contains(&job.id.len()));
                for (name, value) in &job.request.headers {
                    prop_assert!(!value.contains(['\r', '\n', '\0']), "{name}");
                    prop_assert_eq!(name, &name.to_ascii_lowercase());
                }
            }
            Err(Rejection { reason, detail }) => {
                prop_assert!(reason.is_rejection());
                prop_assert!(detail.chars().count() <= 302 && !detail.chars().any(char::is_control), "{detail}");
            }
        }
    }
}
