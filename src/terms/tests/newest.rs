//! Limits that only the newest version of the text has.

use super::*;

#[test]
fn margins_are_kept_in_a_version_of_their_own() {
    let margin = Duration::from_millis(50);
    // A margin is added to the period as it is written, which may be less than a second.
    let short = Limit::leaky_bucket("short", rate("10/100ms"), 1).unwrap();
    let limits: Vec<Limit> = every()
        .into_iter()
        .chain([short])
        .map(|limit| limit.with_margin(margin))
        .filter_map(Result::ok)
        .collect();
    assert_eq!(limits.len(), every().len() + 1);
    for limit in &limits {
        let mut one = terms(vec![limit.clone()]);
        let text = one.to_text();
        assert!(text.starts_with(r#"{"version":3,"#) && text.contains(r#""margin":50000"#), "{text}");
        assert_eq!(Terms::parse(&text).as_ref(), Ok(&one));
        one.set_rate(None, over(&rate_text(limit), None)).unwrap();
        let in_force = one.effective(Micros(0)).0;
        assert_eq!(in_force.get(0), Some(limit), "a rate that is set keeps the margin");
    }
    assert!(!every().iter().any(|limit| terms(vec![limit.clone()]).to_text().contains("margin")));
    let own = terms(vec![limits[0].clone()]);
    assert!(matches!(Terms::load(Some(&terms(vec![every()[0].clone()])), &own), Load::Replace(_)));
}

#[test]
fn a_time_zone_is_kept_by_its_name() {
    let zone = |name: &str| Calendar::zoned(calendar::Unit::Day, calendar::Zone::named(name).unwrap());
    let quota = |name: &str| Limit::quota("day", 1000, Edges::Calendar(zone(name))).unwrap();
    let mut one = terms(vec![quota("America/Los_Angeles")]);
    let text = one.to_text();
    let numbers = r#""numbers":{"count":1000,"edges":{"zone":{"name":"America/Los_Angeles","unit":"day"}}}"#;
    assert!(text.starts_with(r#"{"version":3,"#) && text.contains(numbers), "{text}");
    assert_eq!(Terms::parse(&text).as_ref(), Ok(&one));
    assert!(matches!(Terms::load(Some(&one), &terms(vec![quota("Europe/Berlin")])), Load::Replace(_)));
    one.set_rate(None, over("7/week", None)).unwrap();
    let edges = Edges::Calendar(Calendar::zoned(
        calendar::Unit::Week,
        calendar::Zone::named("America/Los_Angeles").unwrap(),
    ));
    let in_force = one.effective(Micros(0)).0;
    assert_eq!(in_force.get(0), Some(&Limit::quota("day", 7, edges).unwrap()));
    let unknown = Terms::parse(&text.replace("Los_Angeles", "Olympus")).unwrap_err().to_string();
    assert!(unknown.contains("`America/Olympus` is no time zone"), "{unknown}");
}
