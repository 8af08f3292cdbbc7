use jiff::civil::date;
use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;

use super::*;

const UNITS: [Unit; 3] = [Unit::Day, Unit::Week, Unit::Month];

fn calendar(unit: Unit, offset_minutes: i16) -> Calendar {
    Calendar::new(unit, offset_minutes).unwrap()
}

fn at(text: &str) -> Micros {
    Micros(text.parse::<Timestamp>().unwrap().as_microsecond())
}

fn date_of(instant: i64) -> Date {
    Offset::UTC.to_datetime(Timestamp::from_microsecond(instant).unwrap()).date()
}

/// Days from 1970-01-01 to a date, by arithmetic alone (Hinnant's `days_from_civil`).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The year and the month of a day: the last first-of-month that is not after it.
fn month_of(day: i64) -> (i64, i64) {
    // A first guess that is not too late: years have 365 or 366 days.
    let shortest_or_longest = if day < 0 { 365 } else { 366 };
    let mut month = (1970 + day.div_euclid(shortest_or_longest)) * 12;
    let first = |month: i64| days_from_civil(month.div_euclid(12), month.rem_euclid(12) + 1, 1);
    while first(month + 1) <= day {
        month += 1;
    }
    (month.div_euclid(12), month.rem_euclid(12) + 1)
}

/// The period around `at`, without jiff and without an end of time.
fn oracle(unit: Unit, offset_minutes: i16, at: i64) -> (i64, i64) {
    let offset = i64::from(offset_minutes) * 60_000_000;
    let day = (at + offset).div_euclid(DAY);
    let (begin, end) = match unit {
        Unit::Day => (day, day + 1),
        Unit::Week => {
            // 1970-01-01 was a Thursday.
            let monday = day - (day + 3).rem_euclid(7);
            (monday, monday + 7)
        }
        Unit::Month => {
            let (year, month) = month_of(day);
            let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
            (days_from_civil(year, month, 1), days_from_civil(next_year, next_month, 1))
        }
    };
    (begin * DAY - offset, end * DAY - offset)
}

fn zone(name: &str) -> Zone {
    Zone::named(name).unwrap()
}

/// The beginnings of periods around the changes of summer time, as they stand in almanacs. In Los Angeles clocks are set at 2 on
/// the second Sunday of March and the first one of November; in Berlin at 1 UTC on the last ones of March and October; in
/// Cairo at midnight, so that a day begins at 1; in Havana back from 1 to midnight, so that a day begins twice; on Lord Howe
/// Island by half an hour.
#[test]
fn periods_in_time_zones_over_both_changes() {
    for (name, unit, instant, begin, end) in [
        ("America/Los_Angeles", Unit::Day, "2026-03-08T12:00Z", "2026-03-08T08:00Z", "2026-03-09T07:00Z"),
        (
            "America/Los_Angeles",
            Unit::Day,
            "2026-03-08T07:59:59.999999Z",
            "2026-03-07T08:00Z",
            "2026-03-08T08:00Z",
        ),
        ("America/Los_Angeles", Unit::Day, "2026-11-01T12:00Z", "2026-11-01T07:00Z", "2026-11-02T08:00Z"),
        ("America/Los_Angeles", Unit::Week, "2026-03-08T12:00Z", "2026-03-02T08:00Z", "2026-03-09T07:00Z"),
        ("America/Los_Angeles", Unit::Month, "2026-03-31T12:00Z", "2026-03-01T08:00Z", "2026-04-01T07:00Z"),
        ("America/Los_Angeles", Unit::Month, "2026-11-30T12:00Z", "2026-11-01T07:00Z", "2026-12-01T08:00Z"),
        ("Europe/Berlin", Unit::Day, "2026-03-29T00:59Z", "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
        ("Europe/Berlin", Unit::Day, "2026-10-25T01:30Z", "2026-10-24T22:00Z", "2026-10-25T23:00Z"),
        ("Europe/Berlin", Unit::Month, "2026-10-25T01:30Z", "2026-09-30T22:00Z", "2026-10-31T23:00Z"),
        ("Africa/Cairo", Unit::Day, "2026-04-23T22:00Z", "2026-04-23T22:00Z", "2026-04-24T21:00Z"),
        ("Africa/Cairo", Unit::Day, "2026-04-23T21:59:59Z", "2026-04-22T22:00Z", "2026-04-23T22:00Z"),
        ("Africa/Cairo", Unit::Day, "2026-10-29T20:30Z", "2026-10-28T21:00Z", "2026-10-29T22:00Z"),
        ("America/Havana", Unit::Day, "2025-11-02T05:30Z", "2025-11-02T04:00Z", "2025-11-03T05:00Z"),
        ("Australia/Lord_Howe", Unit::Day, "2026-04-05T00:00Z", "2026-04-04T13:00Z", "2026-04-05T13:30Z"),
        ("Australia/Lord_Howe", Unit::Day, "2026-10-04T00:00Z", "2026-10-03T13:30Z", "2026-10-04T13:00Z"),
        // Clocks went back from 00:01 to 23:01 of the day before: its date came again for an hour.
        ("America/St_Johns", Unit::Day, "2006-10-29T02:45Z", "2006-10-29T02:30Z", "2006-10-30T03:30Z"),
        // Samoa skipped 30 December.
        ("Pacific/Apia", Unit::Day, "2011-12-30T09:59Z", "2011-12-29T10:00Z", "2011-12-30T10:00Z"),
        ("Pacific/Apia", Unit::Day, "2011-12-30T10:00Z", "2011-12-30T10:00Z", "2011-12-31T10:00Z"),
        ("UTC", Unit::Day, "2026-03-29T00:59Z", "2026-03-29T00:00Z", "2026-03-30T00:00Z"),
    ] {
        let calendar = Calendar::zoned(unit, zone(name));
        assert_eq!(calendar.period(at(instant)), (at(begin), at(end)), "{name} {unit:?} {instant}");
    }
}

/// Around each change of the clocks in every zone a period ends where the next one begins, is as long as said, and is found from
/// any instant within it.
#[test]
fn the_periods_of_all_zones_follow_each_other() {
    let database = TimeZoneDatabase::bundled();
    let (first, last): (Timestamp, Timestamp) =
        ("2001-01-01T00:00Z".parse().unwrap(), "2040-01-01T00:00Z".parse().unwrap());
    for name in Zone::names() {
        let rules = database.get(&name).unwrap();
        let changes = rules.following(first).map(|change| change.timestamp());
        for change in std::iter::once(first).chain(changes.take_while(|change| *change < last)) {
            for unit in UNITS {
                let calendar = Calendar::zoned(unit, zone(&name));
                // The period before the change, that of the change, and the next one.
                let mut at = Micros(calendar.current(Micros(change.as_microsecond() - 1)).0 - 1);
                for _ in 0..3 {
                    let (begin, end) = calendar.period(at);
                    let length = end.0 - begin.0;
                    assert!(
                        0 < length && length <= calendar.longest(),
                        "{name} {unit:?}: {begin} for {length} µs"
                    );
                    // A week or a month lacks a day where a zone skipped one.
                    assert!(
                        unit != Unit::Day || length >= calendar.shortest(),
                        "{name}: {begin} for {length} µs"
                    );
                    for inside in [begin, Micros(end.0 - 1)] {
                        assert_eq!(calendar.period(inside), (begin, end), "{name} {unit:?}: {inside}");
                    }
                    assert_eq!(calendar.current(end), end, "{name} {unit:?}");
                    at = end;
                }
            }
        }
        for unit in UNITS {
            let calendar = Calendar::zoned(unit, zone(&name));
            let (begin, end) = calendar.period(Micros::MAX);
            assert!(begin < Micros::MAX && end == Micros::MAX, "{name}");
            assert!(calendar.period(Micros(-Micros::MAX.0)).0 < Micros(0), "{name}");
        }
    }
}

#[test]
fn a_zone_is_the_same_under_each_of_its_spellings() {
    assert_eq!(zone("europe/berlin"), zone("Europe/Berlin"));
    assert_ne!(zone("Europe/Paris"), zone("Europe/Berlin"));
    let unknown = Zone::named("Mars/Olympus").unwrap_err().to_string();
    assert!(unknown.starts_with("`Mars/Olympus` is no time zone"), "{unknown}");
}

#[test]
fn boundaries_that_one_can_look_up() {
    for (unit, offset, instant, begin, end) in [
        (Unit::Month, 0, "2024-02-29T12:00Z", "2024-02-01T00:00Z", "2024-03-01T00:00Z"),
        (Unit::Month, 0, "2000-02-29T23:59:59.999999Z", "2000-02-01T00:00Z", "2000-03-01T00:00Z"),
        (Unit::Month, 0, "2100-02-28T23:59:59.999999Z", "2100-02-01T00:00Z", "2100-03-01T00:00Z"),
        (Unit::Day, 0, "2100-02-28T12:00Z", "2100-02-28T00:00Z", "2100-03-01T00:00Z"),
        (Unit::Day, 0, "2024-02-28T12:00Z", "2024-02-28T00:00Z", "2024-02-29T00:00Z"),
        (Unit::Month, 0, "2025-12-31T23:59:59Z", "2025-12-01T00:00Z", "2026-01-01T00:00Z"),
        // A Sunday and a Monday.
        (Unit::Week, 0, "2026-11-22T23:59:59Z", "2026-11-16T00:00Z", "2026-11-23T00:00Z"),
        (Unit::Week, 0, "2026-11-23T00:00:00Z", "2026-11-23T00:00Z", "2026-11-30T00:00Z"),
        // India, 5:30 h east.
        (Unit::Day, 330, "2026-03-31T18:29:59.999999Z", "2026-03-30T18:30Z", "2026-03-31T18:30Z"),
        (Unit::Month, 330, "2026-03-31T18:30Z", "2026-03-31T18:30Z", "2026-04-30T18:30Z"),
        (Unit::Month, 330, "2026-03-31T18:29:59.999999Z", "2026-02-28T18:30Z", "2026-03-31T18:30Z"),
        // The easternmost offset is in the next month already, the westernmost one in the previous month still.
        (Unit::Month, 840, "2024-02-29T10:00Z", "2024-02-29T10:00Z", "2024-03-31T10:00Z"),
        (Unit::Month, -840, "2024-03-01T13:59:59Z", "2024-02-01T14:00Z", "2024-03-01T14:00Z"),
        (Unit::Week, -840, "2026-11-23T13:59:59Z", "2026-11-16T14:00Z", "2026-11-23T14:00Z"),
        // The first periods began before 1970.
        (Unit::Week, 0, "1970-01-01T00:00Z", "1969-12-29T00:00Z", "1970-01-05T00:00Z"),
        (Unit::Month, -840, "1970-01-01T00:00Z", "1969-12-01T14:00Z", "1970-01-01T14:00Z"),
        (Unit::Day, 840, "1970-01-01T00:00Z", "1969-12-31T10:00Z", "1970-01-01T10:00Z"),
    ] {
        let calendar = calendar(unit, offset);
        let period = (at(begin), at(end));
        assert_eq!(calendar.period(at(instant)), period, "{unit:?} at {offset}, {instant}");
        assert_eq!((calendar.current(at(instant)), calendar.next(at(instant))), period);
    }
}

#[test]
fn an_offset_is_at_most_840_minutes() {
    for offset in [-840, -1, 0, 330, 840] {
        let calendar = Calendar::new(Unit::Month, offset).unwrap();
        assert_eq!((calendar.unit(), calendar.midnight()), (Unit::Month, Midnight::Offset(offset)));
    }
    for offset in [-841, 841, i64::from(i16::MAX) + 1, 65_536, i64::MIN, i64::MAX] {
        let error = Calendar::new(Unit::Day, offset).unwrap_err();
        assert_eq!(error, CalendarError::Offset(offset));
        let text = format!("an offset of {offset} minutes from UTC is out of range; use -840 to 840");
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn every_boundary_from_1970_to_the_end_of_time_follows_its_last() {
    for unit in UNITS {
        for offset in [0, -840, 840, 330] {
            let calendar = calendar(unit, offset);
            let mut boundary = calendar.current(Micros(0));
            let mut boundaries = 0;
            while boundary < Micros::MAX {
                let next = calendar.next(boundary);
                assert!(boundary < next, "{unit:?} at {offset}: {next} after {boundary}");
                for instant in [boundary, Micros(boundary.0 + 1), Micros(next.0 - 1)] {
                    assert_eq!(calendar.period(instant), (boundary, next), "{unit:?} at {offset}, {instant}");
                }
                let (begin, end) = oracle(unit, offset, boundary.0);
                assert_eq!((boundary.0, next.0), (begin, end.min(Micros::MAX.0)), "{unit:?} at {offset}");
                boundary = next;
                boundaries += 1;
            }
            // The number of periods up to June 2255, and one more where an offset begins one before 1970.
            let expected = match unit {
                Unit::Day => 104_250,
                Unit::Week => 14_893,
                Unit::Month => 3_426,
            };
            assert!((expected..=expected + 1).contains(&boundaries), "{unit:?} at {offset}: {boundaries}");
        }
    }
}

/// SYSTEMS, ThrottleKit: "calendar round trip over 550 years".
#[test]
fn calendar_round_trip_over_550_years() {
    for first_year in [1700_i16, 1970] {
        let begin = date(first_year, 1, 1);
        let end = date(first_year + 550, 1, 1);
        let (mut day, mut days, mut leap_days) = (begin, 0_i64, 0);
        while day < end {
            let (year, month, of_month) = (day.year().into(), day.month().into(), day.day().into());
            // The date is converted to a number and back.
            let number = days_from_civil(year, month, of_month);
            assert_eq!(midnight(day).unwrap(), number * DAY, "{day}");
            assert_eq!(date_of(number * DAY + DAY - 1), day);
            for unit in UNITS {
                let (from, to) = around(unit, day).unwrap();
                assert!((from..to).contains(&(number * DAY)), "{unit:?} around {day}: {from} to {to}");
                assert_eq!(around(unit, date_of(from)).unwrap(), (from, to), "{unit:?} around {day}");
                assert_eq!(around(unit, date_of(to)).unwrap().0, to, "{unit:?} after {day}");
                assert_eq!((from, to), oracle(unit, 0, number * DAY), "{unit:?} around {day}");
            }
            leap_days += i32::from(month == 2 && of_month == 29);
            days += 1;
            day = day.tomorrow().unwrap();
        }
        assert_eq!(day, end);
        let leap_years = (first_year..first_year + 550)
            .filter(|year| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0))
            .count();
        assert_eq!(usize::try_from(leap_days), Ok(leap_years), "from {first_year}");
        assert_eq!(days, 550 * 365 + i64::from(leap_days), "from {first_year}");
    }
}

#[test]
fn time_ends_at_the_latest_instant() {
    for unit in UNITS {
        for offset in [0, -840, 840, 330] {
            let calendar = calendar(unit, offset);
            let last = calendar.current(Micros::MAX);
            assert!(last < Micros::MAX && Micros::MAX.0 - last.0 < 31 * DAY, "{unit:?} at {offset}");
            for instant in [last, Micros(Micros::MAX.0 - 1), Micros::MAX, Micros(i64::MAX)] {
                assert_eq!(calendar.period(instant), (last, Micros::MAX), "{unit:?} at {offset}, {instant}");
            }
            assert_eq!(calendar.next(Micros(last.0 - 1)), last);
            let lowest = calendar.period(Micros(i64::MIN));
            assert_eq!(lowest, calendar.period(Micros(-Micros::MAX.0)));
            let (begin, end) = oracle(unit, offset, -Micros::MAX.0);
            assert_eq!(lowest, (Micros(begin), Micros(end)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn periods_are_those_of_plain_arithmetic(
        at in -Micros::MAX.0..=Micros::MAX.0,
        unit in proptest::sample::select(UNITS.to_vec()),
        offset in -840_i16..=840,
    ) {
        let calendar = calendar(unit, offset);
        let (begin, end) = oracle(unit, offset, at);
        prop_assert_eq!(calendar.period(Micros(at)), (Micros(begin), Micros(end.min(Micros::MAX.0))));
    }

    #[test]
    fn next_and_current_agree(
        at in 0..=Micros::MAX.0 - 32 * DAY,
        unit in proptest::sample::select(UNITS.to_vec()),
        offset in -840_i16..=840,
    ) {
        let calendar = calendar(unit, offset);
        let at = Micros(at);
        let (current, next) = (calendar.current(at), calendar.next(at));
        prop_assert!(current <= at && at < next);
        prop_assert_eq!(calendar.next(current), next);
        prop_assert_eq!(calendar.current(next), next);
    }
}
