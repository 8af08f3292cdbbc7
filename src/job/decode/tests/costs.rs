//! What jobs cost single limits.

use super::*;

/// Requests and tokens: a limit of one a job, and one by a header or else 100.
fn costing_rules() -> Rules {
    let rule = |limit: &str, plan, source, default, most: u32| CostRule {
        limit: limit.into(),
        plan,
        source,
        default,
        max_cost: held(most, limit),
    };
    let header = |name: &str| CostSource::Header(name.to_owned());
    let costs = vec![
        rule("requests", None, CostSource::Fixed(1), None, 500),
        rule("tokens", None, header("tokens"), Some(100), 30_000),
        rule("plan.pro.images", Some(1), header("images"), None, 10),
    ];
    Rules { costs, ..rules() }
}

fn decoded(headers: &[(&str, Value)]) -> Result<Cost, Rejection> {
    let header = |(name, value): &(&str, Value)| ((*name).to_owned(), value.clone());
    let message = Message { headers: headers.iter().map(header).collect(), ..Message::default() };
    decode(&message, &costing_rules()).map(|job| job.cost)
}

fn refused(headers: &[(&str, Value)]) -> (Reason, String) {
    let rejection = decoded(headers).expect_err("no job");
    (rejection.reason, rejection.detail)
}

#[test]
fn each_limit_has_its_own_cost() {
    let own = |costs: &[(&str, u32)]| {
        costs.iter().map(|(limit, cost)| ((*limit).into(), *cost)).collect::<Vec<_>>()
    };
    let cost = |units, costs: &[(&str, u32)]| Ok(Cost { units, own: own(costs) });
    assert_eq!(decoded(&[]), cost(1, &[("requests", 1), ("tokens", 100)]));
    let tokens = ("tokens", Value::Integer(1500));
    assert_eq!(decoded(std::slice::from_ref(&tokens)), cost(1, &[("requests", 1), ("tokens", 1500)]));
    let both = [tokens.clone(), ("paced-cost-tokens", text("7")), ("paced-cost", Value::Integer(3))];
    assert_eq!(
        decoded(&both),
        cost(3, &[("requests", 1), ("tokens", 7)]),
        "the job says what it costs a limit"
    );
    let pro = ("paced-plan", text("pro"));
    let images = ("images", Value::Float(2.0));
    let of_pro = cost(1, &[("requests", 1), ("tokens", 100), ("plan.pro.images", 2)]);
    assert_eq!(decoded(&[pro.clone(), images]), of_pro);
}

#[test]
fn a_header_without_a_cost_is_not_an_absent_one() {
    for (value, shown) in [
        (text("many"), "`tokens` is `many`; send a whole number"),
        (text(""), "`tokens` is ``; send a whole number"),
        (Value::Integer(0), "`tokens` is 0; send at least 1"),
        (Value::Integer(-5), "`tokens` is -5; send at least 1"),
        (Value::Float(1.5), "`tokens` is 1.5; send a whole number"),
        (Value::Bool(true), "`tokens` is true; send a whole number"),
        (Value::Timestamp(12), "`tokens` is 12; send a whole number"),
        (Value::Other("decimal"), "`tokens` is decimal; send a whole number"),
    ] {
        assert_eq!(refused(&[("tokens", value)]), (Reason::MalformedHeader, shown.to_owned()));
    }
}

#[test]
fn what_no_limit_can_count_is_refused() {
    let pro = ("paced-plan", text("pro"));
    let (reason, detail) = refused(std::slice::from_ref(&pro));
    assert_eq!(reason, Reason::MalformedHeader);
    assert!(detail.starts_with("`images` is absent, and the limit `images` costs"), "{detail}");
    assert_eq!(refused(&[pro.clone(), ("images", text("two"))]).0, Reason::MalformedHeader);
    let (reason, detail) = refused(&[pro, ("images", Value::Integer(11))]);
    assert_eq!(reason, Reason::CostTooLarge);
    assert!(
        detail.starts_with("`images` is 11; `max_cost` is 10, what the limit `plan.pro.images` holds"),
        "{detail}"
    );
    let mut costing = costing_rules();
    costing.costs[1].max_cost.bound = CostBound::Minute("tokens".to_owned());
    let costly =
        Message { headers: vec![("tokens".to_owned(), Value::Integer(30_001))], ..Message::default() };
    assert_eq!(
        decode(&costly, &costing).expect_err("too costly").detail,
        "`tokens` is 30001; `max_cost` is 30000, what the limit `tokens` releases in a minute: split the job, or set \
         `max_cost` of this limit"
    );
    assert_eq!(refused(&[("tokens", Value::Integer(30_001))]).0, Reason::CostTooLarge);
    let (reason, detail) = refused(&[("paced-cost-token", Value::Integer(1))]);
    assert_eq!(reason, Reason::UnknownHeader);
    assert_eq!(
        detail,
        "`paced-cost-token` is for a limit with a `cost` of its own: the limits that have one are images, requests, tokens"
    );
    let message =
        Message { headers: vec![("paced-cost-token".to_owned(), Value::Integer(1))], ..Message::default() };
    let detail = decode(&message, &rules()).expect_err("no limit has a cost").detail;
    assert!(detail.ends_with("of its own: no limit here has one; leave it out"), "{detail}");
    assert_eq!(refused(&[("paced-cost-tokens", Value::Integer(0))]).0, Reason::MalformedHeader);
    let twice = [("paced-cost-tokens", Value::Integer(1)), ("paced-cost-tokens", Value::Integer(1))];
    assert_eq!(refused(&twice).0, Reason::MalformedHeader);
}

#[test]
fn a_message_says_itself_what_its_headers_of_other_names_cost() {
    let mut costs = costing_rules().costs;
    let named = |costs: &[CostRule], headers: &[(&str, Value)]| {
        let mut message = Message::default();
        let find = |name: &str| headers.iter().find(|(other, _)| *other == name);
        name_costs(&mut message, costs, |name| find(name).map(|(_, value)| value.clone()));
        message.headers
    };
    let cost = |limit: &str, cost| (format!("paced-cost-{limit}"), Value::Integer(cost));
    let both = [("tokens", text("1500")), ("images", Value::Integer(2)), ("requests", Value::Integer(3))];
    assert_eq!(named(&costs, &both), [cost("tokens", 1500), cost("images", 2)]);
    for none in [text("many"), Value::Integer(0), Value::Bool(true)] {
        assert!(named(&costs, &[("tokens", none)]).is_empty());
    }
    let mut given = Message { headers: vec![cost("tokens", 7)], ..Message::default() };
    name_costs(&mut given, &costs, |_| Some(Value::Integer(1)));
    assert_eq!(given.headers, [cost("tokens", 7), cost("images", 1)], "the message says more");
    let source = CostSource::Header("other".to_owned());
    costs.push(CostRule { limit: "plan.pro.tokens".into(), source, ..costs[1].clone() });
    assert_eq!(named(&costs, &both), [cost("images", 2)], "it would set what both limits count");
}
