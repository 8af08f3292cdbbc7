use proptest::prelude::*;

use super::*;

const DAY: u64 = 86_400_000_000;

fn amount(text: &str) -> Result<Amount, RateError> {
    text.parse()
}

#[test]
fn amounts_keep_their_count_and_their_period() {
    for (text, count, period, shown) in [
        ("1000/minute", 1000, Period::Micros(60_000_000), "1000/m"),
        ("1_000 per 5 minutes", 1000, Period::Micros(300_000_000), "1000/5m"),
        ("60/60s", 60, Period::Micros(60_000_000), "60/m"),
        ("10 / 1 s", 10, Period::Micros(1_000_000), "10/s"),
        ("10 per sec", 10, Period::Micros(1_000_000), "10/s"),
        ("10/1min", 10, Period::Micros(60_000_000), "10/m"),
        ("10/100ms", 10, Period::Micros(100_000), "10/100ms"),
        ("3/1500us", 3, Period::Micros(1500), "3/1500us"),
        ("24/day", 24, Period::Micros(DAY), "24/d"),
        ("7/7d", 7, Period::Micros(7 * DAY), "7/7d"),
        ("1/366d", 1, Period::Micros(366 * DAY), "1/366d"),
        ("7/w", 7, Period::Week, "7/week"),
        ("7 per week", 7, Period::Week, "7/week"),
        ("7/1weeks", 7, Period::Week, "7/week"),
        ("1_000_000/month", 1_000_000, Period::Month, "1000000/month"),
        ("5/ 1 months", 5, Period::Month, "5/month"),
    ] {
        let read = amount(text).unwrap();
        assert_eq!((read.count(), read.period()), (count, period), "{text}");
        assert_eq!(read.to_string(), shown, "{text}");
        assert_eq!(amount(shown), Ok(read), "{text}");
    }
}

#[test]
fn amounts_out_of_range_are_refused() {
    assert_eq!(amount("0/week"), Err(RateError::Zero));
    assert_eq!(amount("1/0ms"), Err(RateError::Zero));
    for text in ["1/2weeks", "1/0w", "3/12 months"] {
        assert_eq!(amount(text), Err(RateError::SeveralCalendarUnits(text.to_owned())));
    }
    let error = amount("7/2w").unwrap_err().to_string();
    assert!(error.contains("one week or one month") && error.contains("7/14d"), "{error}");
    for text in ["1/367d", "400/400d", "1/18446744073709551615d"] {
        assert_eq!(amount(text), Err(RateError::TooLong(text.to_owned())));
    }
    for text in ["1000001/s", "1001/ms", "2/us", "604800000001/week", "2678400000001/month"] {
        assert_eq!(amount(text), Err(RateError::TooHigh(text.to_owned())));
    }
    for text in ["604800000000/week", "2678400000000/month", "1/us"] {
        assert!(amount(text).is_ok(), "{text}");
    }
    assert_eq!(Amount::new(0, Duration::from_secs(1)), Err(RateError::Zero));
    assert!(matches!(Amount::new(1, Duration::MAX), Err(RateError::Fraction(_))));
    assert!(matches!(Amount::new(1, Duration::from_secs(u64::MAX)), Err(RateError::TooLong(_))));
    assert!(matches!(Amount::per(1, Period::Micros(u64::MAX)), Err(RateError::TooLong(_))));
    assert!(matches!(Amount::per(u64::MAX, Period::Month), Err(RateError::TooHigh(_))));
}

#[test]
fn an_amount_as_a_rate() {
    for (text, rate) in
        [("1000/minute", "50/3s"), ("7/week", "1/d"), ("31/month", "1/d"), ("1/366d", "1/366d")]
    {
        assert_eq!(amount(text).unwrap().rate(), rate.parse(), "{text}");
    }
}

#[test]
fn a_slip_is_answered_with_what_was_meant() {
    for (text, meant) in [
        ("10r/s", "10/s"),
        ("10rps", "10/s"),
        ("10 RPS", "10/s"),
        ("10rpm", "10/m"),
        ("10 req/s", "10/s"),
        ("10 requests per second", "10/s"),
        ("10 req/5 Min", "10/5m"),
        ("10/S", "10/s"),
        ("10/Sec", "10/s"),
        ("10/sec.", "10/s"),
        ("10 Per Sec", "10/s"),
        ("10per s", "10/s"),
        ("10pers", "10/s"),
        ("10hz", "10/s"),
        ("5 kHz", "5000/s"),
        ("5k/s", "5000/s"),
        ("2.5k req/s", "2500/s"),
        ("5M/day", "5000000/d"),
        ("10Msgs/s", "10/s"),
        ("0.5/s", "1/2s"),
        (".5/s", "1/2s"),
        ("1.5/s", "3/2s"),
        ("1/0.5s", "2/s"),
        ("1_000.0/60S", "1000/60s"),
        ("100/hr", "100/h"),
        ("100/2hrs", "100/2h"),
        ("100/mins", "100/m"),
        ("10 s", "10/s"),
        ("10 hour", "10/h"),
        ("7/Wk", "7/week"),
        ("7/mo", "7/month"),
    ] {
        let error = amount(text).unwrap_err();
        assert_eq!(error.to_string(), format!("`{text}` is no rate; write {meant}"));
        assert!(amount(meant).is_ok(), "{meant}");
    }
}

#[test]
fn a_text_that_is_no_rate_gets_the_form_of_one() {
    for text in [
        "",
        "10s",
        "10m",
        "s",
        "/s",
        "-1/s",
        "+1/s",
        "50x/s",
        "50//s",
        "50/s/s",
        "5m/s",
        "10/M",
        "100/mn",
        "1,000/s",
        "1.2.3/s",
        "1./s",
        "0.0/s",
        "2M/s",
        "0.5/week",
        "10 req s",
        "10/s/req",
        "per s",
        "99999999999999999999r/s",
        "9999999999999999999k/s",
        "1.00000000000000000000001/s",
        "10/1e3s",
        "10 µHz",
        "00000000000000000000000000000000000010r/s",
    ] {
        let error = amount(text).unwrap_err().to_string();
        assert!(error.ends_with("write COUNT/UNIT, such as 50/s or 100 per 5 minutes"), "{text}: {error}");
    }
}

#[test]
fn a_count_without_a_unit_gets_a_suggestion_with_one() {
    for (text, right) in [("50", "50/s"), ("999999", "999999/s")] {
        let error = amount(text).unwrap_err().to_string();
        assert!(error.ends_with(&format!("write its unit too, such as {right}")), "{text}: {error}");
    }
    for text in ["", "0", "007", "1000000"] {
        let error = amount(text).unwrap_err().to_string();
        assert!(error.ends_with("write COUNT/UNIT, such as 50/s or 100 per 5 minutes"), "{text}: {error}");
    }
}

fn periods() -> impl Strategy<Value = Period> {
    prop_oneof![(1..=LONGEST).prop_map(Period::Micros), Just(Period::Week), Just(Period::Month)]
}

proptest! {
    #[test]
    fn what_is_shown_reads_back(period in periods(), part in 0.0..1.0_f64) {
        let most = u64::try_from(period.longest().as_micros()).unwrap();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "any count")]
        let count = ((most as f64 * part) as u64).max(1);
        let amount = Amount::per(count, period).unwrap();
        prop_assert_eq!(amount.to_string().parse(), Ok(amount));
        // Every amount is a rate.
        let rate = amount.rate().unwrap();
        prop_assert_eq!(u128::from(rate.count()) * period.longest().as_micros(), u128::from(count) * u128::from(rate.period_micros()));
    }

    #[test]
    fn a_suggestion_reads_and_repeats_nothing_but_numbers(text in "[0-9]{1,3}[._]?[0-9]{0,3} ?[kKMrh]?[a-z]{0,4} ?(/|per|Per|p)? ?[0-9.]{0,3} ?[a-zA-Z]{0,7}[.]?") {
        if let Err(RateError::Syntax { suggestion: Some(suggestion), .. }) = amount(&text) {
            prop_assert!(amount(&suggestion).is_ok(), "{} for {}", suggestion, text);
            let words: String = suggestion.chars().filter(|c| !c.is_ascii_digit()).collect();
            let known = ["us", "ms", "s", "m", "h", "d", "week", "month"];
            prop_assert!(known.iter().any(|unit| words == format!("/{unit}")), "{} for {}", suggestion, text);
        }
        if let Err(RateError::Syntax { suggestion: Some(suggestion), .. }) = text.parse::<Rate>() {
            prop_assert!(suggestion.parse::<Rate>().is_ok(), "{} for {}", suggestion, text);
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,50}") {
        let _ = amount(&text);
        let _ = text.parse::<Rate>();
    }
}
