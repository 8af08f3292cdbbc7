//! Reads the instants of jobs: the one rule for AMQP headers, lines of JSON and cells of CSV.

use jiff::Timestamp;
use jiff::fmt::temporal::{Pieces, PiecesOffset};
use jiff::tz::Offset;

use super::value::{described, integer_text, whole};
use super::{Rejection, Value};
use crate::time::Micros;

/// A bare number below this one is seconds since 1970, another milliseconds: seconds reach the year 5138, and milliseconds
/// begin in 1973.
const FIRST_MILLIS: i128 = 100_000_000_000;

/// 2001-01-01T00:00:00Z in seconds. No producer means an earlier instant with a bare number.
const EARLIEST: i128 = 978_307_200;

const MICROS: i128 = 1_000_000;

/// The instants that a header may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A bare number, in µs if it is seconds; it may have a fraction.
    Number { micros: i128 },
    /// RFC 3339.
    Text(Micros),
}

/// An instant: seconds or milliseconds since 1970 as a number or text, an AMQP timestamp, or RFC 3339. 0 is the Unix epoch,
/// which every clock has passed. An instant outside of what [`Micros`] holds becomes the nearest one that it holds.
pub(super) fn instant(name: &str, value: &Value) -> Result<Micros, Rejection> {
    let form = form(value).ok_or_else(|| {
        Rejection::malformed(format!(
            "`{name}` is {}; send seconds or milliseconds since 1970, RFC 3339 such as 2030-01-31T08:00:00Z, or 0 for \
             now",
            described(value)
        ))
    })?;
    match form {
        Form::Text(at) => Ok(at),
        Form::Number { micros: 0 } => Ok(Micros(0)),
        Form::Number { micros } => number(micros).ok_or_else(|| {
            Rejection::malformed(format!(
                "`{name}` is {}, which is before 2001: {} in seconds, {} in milliseconds; send seconds or \
                 milliseconds since 1970, RFC 3339, or 0 for now",
                described(value),
                shown(micros),
                shown(micros / 1000)
            ))
        }),
    }
}

/// The instant of a bare number, unless it is before 2001.
fn number(micros: i128) -> Option<Micros> {
    let is_seconds = micros < FIRST_MILLIS * MICROS;
    let micros = if is_seconds { micros } else { micros / 1000 };
    (micros >= EARLIEST * MICROS).then(|| held(micros))
}

/// The instant of a message's `timestamp`, which is seconds; some clients send milliseconds.
pub(super) fn made_at(number: u64) -> Micros {
    let micros = i128::from(number) * MICROS;
    held(if micros < FIRST_MILLIS * MICROS { micros } else { micros / 1000 })
}

fn held(micros: i128) -> Micros {
    Micros(i64::try_from(micros.clamp(0, Micros::MAX.0.into())).unwrap_or(Micros::MAX.0))
}

fn form(value: &Value) -> Option<Form> {
    let number = |seconds: i128| Form::Number { micros: seconds.saturating_mul(MICROS) };
    match value {
        Value::Integer(seconds) => Some(number(*seconds)),
        Value::Timestamp(seconds) => Some(number((*seconds).into())),
        Value::Float(seconds) => fraction(*seconds),
        Value::Text(bytes) => {
            let text = str::from_utf8(bytes).ok()?.trim_ascii();
            match integer_text(text) {
                Some(seconds) => Some(number(seconds)),
                None if is_decimal(text) => fraction(text.parse().ok()?),
                None => Some(Form::Text(rfc3339(text)?)),
            }
        }
        Value::Bool(_) | Value::Other(_) => None,
    }
}

/// A bare number with a fraction, such as the seconds of Python's `time.time()`.
fn fraction(number: f64) -> Option<Form> {
    // Doubles above 2^53 skip integers, and no producer means such an instant.
    if let Some(number) = whole(number) {
        return Some(Form::Number { micros: number.saturating_mul(MICROS) });
    }
    #[expect(clippy::cast_possible_truncation, reason = "a number with a fraction is below 2^53")]
    (number.is_finite() && number.fract() != 0.0).then(|| {
        // The two parts are converted apart: the whole product would be above 2^53.
        let (units, rest) = (number.trunc() as i128, (number.fract() * 1e6).round() as i128);
        Form::Number { micros: units * MICROS + rest }
    })
}

fn is_decimal(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut parts = digits.splitn(2, '.');
    parts.all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// An instant in RFC 3339 with any offset. Those that jiff cannot hold are years away from any clock.
fn rfc3339(text: &str) -> Option<Micros> {
    let pieces = Pieces::parse(text).ok()?;
    let at = pieces.date().to_datetime(pieces.time()?);
    let offset = match pieces.offset()? {
        PiecesOffset::Zulu => Offset::UTC,
        offset => offset.to_numeric_offset(),
    };
    let beyond = if at.year() > 0 { Micros::MAX } else { Micros(0) };
    Some(offset.to_timestamp(at).map_or(beyond, |at| held(at.as_microsecond().into())))
}

/// The instant as text for people; a number where the calendar has none.
pub(crate) fn shown(micros: i128) -> String {
    let at = i64::try_from(micros).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    at.map_or_else(|| format!("{} s since 1970", micros / MICROS), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned().into())
    }

    fn read(value: &Value) -> Result<i64, String> {
        instant("t", value).map(|at| at.0).map_err(|rejection| rejection.detail)
    }

    #[test]
    fn numbers_are_seconds_below_ten_to_the_eleventh_and_milliseconds_from_there_on() {
        for (number, micros) in [
            (0, 0),
            (978_307_200, 978_307_200_000_000),
            (1_700_000_000, 1_700_000_000_000_000),
            // Seconds of the year 5138 are beyond what is held.
            (99_999_999_999, Micros::MAX.0),
            (978_307_200_000, 978_307_200_000_000),
            (1_700_000_000_123, 1_700_000_000_123_000),
            (i128::MAX, Micros::MAX.0),
        ] {
            assert_eq!(read(&Value::Integer(number)), Ok(micros), "{number}");
            assert_eq!(read(&text(&number.to_string())), Ok(micros), "{number}");
            if let Ok(seconds) = u64::try_from(number) {
                assert_eq!(read(&Value::Timestamp(seconds)), Ok(micros), "{number}");
            }
        }
        for (value, micros) in [
            (Value::Float(1_700_000_000.0), 1_700_000_000_000_000),
            (Value::Float(1_700_000_000.25), 1_700_000_000_250_000),
            (Value::Float(1_700_000_000_123.5), 1_700_000_000_123_500),
            (text(" 1700000000.5 "), 1_700_000_000_500_000),
            (text("1.7e9"), 1_700_000_000_000_000),
            (text("-0"), 0),
        ] {
            assert_eq!(read(&value), Ok(micros), "{value:?}");
        }
    }

    #[test]
    fn a_number_for_an_instant_before_2001_is_refused_with_both_readings() {
        let refused = read(&Value::Integer(3600)).unwrap_err();
        let begin = "`t` is 3600, which is before 2001: 1970-01-01T01:00:00Z in seconds, 1970-01-01T00:00:03.6Z in \
                     milliseconds;";
        assert!(refused.starts_with(begin), "{refused}");
        let millis = read(&text("100000000000")).unwrap_err();
        assert!(millis.contains("5138-11-16T09:46:40Z in seconds, 1973-03-03T09:46:40Z in"), "{millis}");
        for number in [1, -1, 978_307_199, 978_307_199_999, i128::MIN] {
            let refused = read(&Value::Integer(number)).unwrap_err();
            assert!(refused.contains("before 2001") && refused.chars().count() < 300, "{refused}");
        }
        assert!(read(&Value::Float(0.5)).unwrap_err().contains("before 2001"));
    }

    #[test]
    fn rfc_3339_with_any_offset_from_the_past_to_the_end_of_the_calendar() {
        for (value, micros) in [
            ("2023-11-14T22:13:20.123456Z", 1_700_000_000_123_456),
            ("2023-11-15T12:13:20.123456+14:00", 1_700_000_000_123_456),
            ("2023-11-14t10:13:20.123456-12:00", 1_700_000_000_123_456),
            ("2023-11-15 03:58:20.123456+05:45", 1_700_000_000_123_456),
            ("1999-12-31T23:59:59Z", 946_684_799_000_000),
            ("1960-01-01T00:00:00Z", 0),
            ("0001-01-01T00:00:00+14:00", 0),
            ("-009999-01-01T00:00:00+14:00", 0),
            ("2400-01-01T00:00:00Z", Micros::MAX.0),
            // The latest instant of some programming languages.
            ("9999-12-31T23:59:59.9999999Z", Micros::MAX.0),
            ("9999-12-31T23:59:59-12:00", Micros::MAX.0),
        ] {
            assert_eq!(read(&text(value)), Ok(micros), "{value}");
        }
    }

    #[test]
    fn what_is_no_instant() {
        let texts =
            ["", " ", "tomorrow", "inf", "nan", "2023-11-14", "2023-11-14T22:13:20", "2023-13-14T22:13:20Z"];
        let others = [
            Value::Bool(true),
            Value::Other("array"),
            Value::Float(f64::NAN),
            Value::Float(f64::INFINITY),
            Value::Float(1e300),
            Value::Text(bytes::Bytes::from_static(b"\xff")),
        ];
        for value in texts.map(text).into_iter().chain(others) {
            let refused = read(&value).unwrap_err();
            assert!(
                refused.contains("; send seconds or milliseconds since 1970, RFC 3339"),
                "{value:?}: {refused}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_and_number_is_read_or_refused(words in ".{0,40}", integer: i128, float: f64, stamp: u64) {
            for value in [text(&words), Value::Integer(integer), Value::Float(float), Value::Timestamp(stamp)] {
                if let Ok(at) = read(&value) {
                    prop_assert!((0..=Micros::MAX.0).contains(&at), "{value:?}: {at}");
                }
            }
        }

        #[test]
        fn an_instant_is_read_back(seconds in 978_307_200i64..9_000_000_000) {
            let micros = seconds * 1_000_000;
            for value in [Value::Integer(seconds.into()), Value::Integer(i128::from(seconds) * 1000), text(&shown(micros.into()))] {
                prop_assert_eq!(read(&value), Ok(micros), "{:?}", value);
            }
        }
    }
}
