use hyper::header::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::sink::{BodyMatch, HeaderMatch, Statuses};

const S: Duration = Duration::from_secs(1);

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    fields.iter().map(field).collect()
}

fn rule(is: Meaning) -> AnswerRule {
    AnswerRule { statuses: None, header: None, body: None, is, wait: None }
}

fn policy(rules: impl IntoIterator<Item = AnswerRule>) -> AnswerPolicy {
    AnswerPolicy { rules: rules.into_iter().collect(), ..AnswerPolicy::default() }
}

fn decided(
    policy: &AnswerPolicy,
    status: u16,
    fields: &[(&str, &str)],
    body: &str,
) -> (Meaning, Option<Duration>, By) {
    let (status, headers) = (StatusCode::from_u16(status).unwrap(), headers(fields));
    let Decision { is, wait, by } = decide(policy, &Answered::new(status, &headers, Some(body.as_bytes())));
    (is, wait, by)
}

#[test]
fn the_first_rule_that_matches_decides() {
    let at_400 = Some(Statuses::NONE.with(400, 400));
    let busy = BodyMatch::new("/code", vec!["busy".into(), 7.into()]);
    let by_header = |equals: Option<&str>| {
        Some(HeaderMatch { name: "x-error".to_owned(), equals: equals.map(str::to_owned) })
    };
    let policy = policy([
        AnswerRule {
            statuses: at_400,
            body: Some(busy),
            wait: Some(RuleWait::Fixed(5 * S)),
            ..rule(Meaning::Throttled)
        },
        AnswerRule { header: by_header(Some("later")), ..rule(Meaning::Retry) },
        AnswerRule { header: by_header(None), ..rule(Meaning::Delivered) },
        AnswerRule { statuses: at_400, ..rule(Meaning::Unauthorized) },
    ]);
    let of = |status, fields: &[(&str, &str)], body| decided(&policy, status, fields, body);
    assert_eq!(of(400, &[], r#"{"code": "busy"}"#), (Meaning::Throttled, Some(5 * S), By::Rule(1)));
    assert_eq!(of(400, &[], r#"{"code": 7.0}"#), (Meaning::Throttled, Some(5 * S), By::Rule(1)));
    assert_eq!(of(200, &[], r#"{"code": "busy"}"#), (Meaning::Delivered, None, By::Success));
    assert_eq!(of(200, &[("x-error", "later")], ""), (Meaning::Retry, None, By::Rule(2)));
    assert_eq!(of(200, &[("X-Error", "now"), ("x-error", "later")], ""), (Meaning::Retry, None, By::Rule(2)));
    assert_eq!(of(500, &[("x-error", "now")], ""), (Meaning::Delivered, None, By::Rule(3)));
    assert_eq!(of(400, &[], "no JSON"), (Meaning::Unauthorized, None, By::Rule(4)));
    assert_eq!(of(404, &[], ""), (Meaning::Dead, None, By::Nothing));
}

#[test]
fn a_wait_is_the_rules_or_else_the_answers_own() {
    let throttled = |wait: Option<RuleWait>| policy([AnswerRule { wait, ..rule(Meaning::Throttled) }]);
    let wait = |wait, fields: &[(&str, &str)], body| decided(&throttled(wait), 418, fields, body).1;
    let (header, body) = (RuleWait::Header("x-wait".to_owned()), RuleWait::Body("/wait".to_owned()));
    assert_eq!(wait(Some(header.clone()), &[("x-wait", "6m0s"), ("retry-after", "1")], ""), Some(360 * S));
    assert_eq!(
        wait(Some(header.clone()), &[("x-wait", "soon"), ("retry-after", "2.5")], ""),
        Some(5 * S / 2)
    );
    assert_eq!(
        wait(Some(RuleWait::Header("x-wait-ms".to_owned())), &[("x-wait-ms", "1500")], ""),
        Some(3 * S / 2)
    );
    assert_eq!(wait(Some(body.clone()), &[], r#"{"wait": 14}"#), Some(14 * S));
    assert_eq!(wait(Some(body.clone()), &[], r#"{"wait": "42s"}"#), Some(42 * S));
    assert_eq!(wait(Some(body), &[("ratelimit-reset", "9")], r#"{"wait": [1]}"#), Some(9 * S));
    assert_eq!(wait(None, &[("retry-after", "0")], ""), None, "it names none");
    assert_eq!(wait(None, &[("retry-after-ms", "1")], ""), Some(LEAST));
    let dead = policy([AnswerRule { wait: Some(header), ..rule(Meaning::Dead) }]);
    assert_eq!(decided(&dead, 418, &[("x-wait", "7")], "").1, None);
}

#[test]
fn the_order_behind_the_rules() {
    let policy = AnswerPolicy {
        never: "429".parse().unwrap(),
        on: "403".parse().unwrap(),
        on_unauthorized: "401".parse().unwrap(),
        ..AnswerPolicy::default()
    };
    let of = |status, fields: &[(&str, &str)]| decided(&policy, status, fields, "");
    assert_eq!(of(429, &[("retry-after", "3")]), (Meaning::Dead, Some(3 * S), By::Never), "others wait");
    assert_eq!(of(403, &[("retry-after", "3")]), (Meaning::Throttled, Some(3 * S), By::Throttling));
    assert_eq!(of(403, &[]), (Meaning::Retry, None, By::On));
    assert_eq!(of(401, &[("retry-after", "3")]), (Meaning::Unauthorized, None, By::OnUnauthorized));
    assert_eq!(of(503, &[]), (Meaning::Dead, None, By::Nothing));
    let of_retry = decided(&AnswerPolicy::default(), 500, &[("retry-after", "3")], "");
    assert_eq!(of_retry, (Meaning::Retry, Some(3 * S), By::On), "its own wait");
}

#[test]
fn an_answer_that_the_work_is_under_way_is_no_refusal_after_a_time_out() {
    let (policy, headers) = (AnswerPolicy::default(), headers(&[]));
    for (status, is) in
        [(409, Meaning::Retry), (423, Meaning::Retry), (425, Meaning::Retry), (422, Meaning::Dead)]
    {
        let status = StatusCode::from_u16(status).unwrap();
        let answer = Answered::new(status, &headers, None).repeating(true);
        assert_eq!(decide(&policy, &answer).is, is, "{status}");
    }
    assert_eq!(decided(&policy, 409, &[], "").0, Meaning::Dead);
}

#[test]
fn a_success_without_a_rest_pauses_if_that_is_heeded() {
    let rest = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")];
    assert_eq!(decided(&AnswerPolicy::default(), 200, &rest, "").1, None);
    let heeds = AnswerPolicy { heeds_remaining: true, ..AnswerPolicy::default() };
    assert_eq!(decided(&heeds, 200, &rest, ""), (Meaning::Delivered, Some(30 * S), By::Success));
    assert_eq!(
        decided(&heeds, 200, &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "30")], "").1,
        None
    );
}

#[test]
fn a_body_is_read_where_a_rule_may_need_it() {
    let (at_200, at_400) = (Some(Statuses::NONE.with(200, 200)), Some(Statuses::NONE.with(400, 400)));
    let body = || Some(BodyMatch::new("/a", vec![1.into()]));
    let policy = policy([
        AnswerRule { statuses: at_400, ..rule(Meaning::Dead) },
        AnswerRule { statuses: at_400, body: body(), ..rule(Meaning::Retry) },
        AnswerRule { statuses: at_200, body: body(), ..rule(Meaning::Retry) },
    ]);
    let needs = |status| needs_body(&policy, StatusCode::from_u16(status).unwrap(), &HeaderMap::new());
    assert_eq!([200, 400, 500].map(needs), [true, false, false]);
}

fn meanings() -> impl Strategy<Value = Meaning> {
    prop::sample::select(Meaning::ALL.to_vec()).prop_map(|(_, is)| is)
}

fn rules() -> impl Strategy<Value = Vec<AnswerRule>> {
    let statuses = prop::option::of(
        (200_u16..600, 200_u16..600).prop_map(|(a, b)| Statuses::NONE.with(a.min(b), a.max(b))),
    );
    let header = prop::option::of(Just(HeaderMatch { name: "retry-after".to_owned(), equals: None }));
    let body = prop::option::of(Just(BodyMatch::new("/a", vec![1.into(), "x".into()])));
    let wait = prop::option::of(prop_oneof![
        (0_u64..100_000_000).prop_map(|millis| RuleWait::Fixed(Duration::from_millis(millis))),
        Just(RuleWait::Header("x-ratelimit-reset".to_owned())),
        Just(RuleWait::Header("retry-after-ms".to_owned())),
        Just(RuleWait::Body("/a".to_owned())),
    ]);
    let rule = (statuses, header, body, meanings(), wait)
        .prop_map(|(statuses, header, body, is, wait)| AnswerRule { statuses, header, body, is, wait });
    prop::collection::vec(rule, 0..4)
}

proptest! {
    /// Any answer has a meaning, under any rules; no wait is shorter than the least or longer than a day, which is all that is
    /// believed, or than the rule's own; and a rule of a body sees the body.
    #[test]
    fn any_answer_has_a_meaning(
        rules in rules(),
        status in 200_u16..600,
        fields in prop::collection::vec(
            (
                "retry-after(-ms)?|(x-)?rate-?limit(-remaining|-reset|-reset-after)?|date",
                "[ -~]{0,30}|[0-9]{1,20}(\\.[0-9]{0,9})?|[0-9hms.]{0,12}",
            ),
            0..6,
        ),
        body in prop_oneof!["\\PC{0,40}", Just("{\"a\": 1}".to_owned()), "\\{\"a\": [0-9]{1,30}\\}", "\\{\"a\": \"[0-9hms]{0,9}\"\\}"],
        repeats_unanswered: bool,
        heeds_remaining: bool,
    ) {
        let policy = AnswerPolicy { heeds_remaining, ..policy(rules) };
        let fields = fields.into_iter().filter_map(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?))
        });
        let (status, headers): (_, HeaderMap) = (StatusCode::from_u16(status).unwrap(), fields.collect());
        let read = needs_body(&policy, status, &headers);
        let answer = |body| Answered::new(status, &headers, body).repeating(repeats_unanswered);
        let decision = decide(&policy, &answer(Some(body.as_bytes())));
        prop_assert!(decision.wait.is_none_or(|wait| wait >= LEAST && wait <= 100_000 * S));
        if !read {
            prop_assert_eq!(decision, decide(&policy, &answer(None)));
        }
    }
}
