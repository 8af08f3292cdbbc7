//! `Retry-After`: seconds, or a date; and the other ways in which servers write a wait.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use crate::time::wall_now;

/// The longest wait that is believed: a server that asks for more is asked again after this.
const LONGEST: Duration = Duration::from_secs(86_400);

/// How long the value of a `Retry-After` field asks to wait, at most a day; `None` where it says nothing clear.
///
/// It is a number of seconds, or a date (RFC 9110, sections 5.6.7 and 10.2.3); some servers write fractions of a second. A
/// date counts by the clock of the server that sent it: `date` is the value of the `Date` field of the same answer, if there
/// is one. Without it, or where it is unclear, the wall clock of this machine counts. For
/// [`Shaper::penalize`](crate::Shaper::penalize).
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(paced::retry_after("120", None), Some(Duration::from_secs(120)));
/// assert_eq!(paced::retry_after("2.5", None), Some(Duration::from_millis(2500)));
/// let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
/// let wait = paced::retry_after("Sun, 06 Nov 1994 08:50:00 GMT", date);
/// assert_eq!(wait, Some(Duration::from_secs(23)));
/// assert_eq!(paced::retry_after("soon", None), None);
/// ```
#[must_use]
pub fn retry_after(value: &str, date: Option<&str>) -> Option<Duration> {
    let value = value.trim();
    number(value).map(seconds).or_else(|| Some(until(http_date(value)?, date)))
}

/// How long the value of a field such as `X-RateLimit-Reset` asks to wait, at most a day. It is a number of seconds, an instant
/// in seconds or milliseconds since 1970, a date, or a duration such as `6m0s`; `date` is as in [`retry_after`]. `None` where it
/// says nothing clear, or an instant that has passed.
#[cfg(any(feature = "http", test))]
pub(crate) fn reset_after(value: &str, date: Option<&str>) -> Option<Duration> {
    // Numbers below this are seconds from now, and those from it on an instant.
    const FIRST_INSTANT: f64 = 1e8;
    // Instants from this on are in milliseconds, and those below it in seconds.
    const FIRST_MILLIS: f64 = 1e11;
    let value = value.trim();
    let wait = match number(value) {
        Some(number) if number < FIRST_INSTANT => seconds(number),
        Some(number) => {
            let micros = number * if number < FIRST_MILLIS { 1e6 } else { 1e3 };
            // A float has 53 bits, which are microseconds until the year 2255.
            until(Timestamp::from_microsecond(micros as i64).ok()?, date)
        }
        None => span(value).or_else(|| {
            let at = http_date(value).or_else(|| value.parse().ok())?;
            Some(until(at, date))
        })?,
    };
    (!wait.is_zero()).then_some(wait)
}

/// A number of milliseconds, at most a day.
#[cfg(any(feature = "http", test))]
pub(crate) fn millis(value: &str) -> Option<Duration> {
    number(value.trim()).map(|millis| seconds(millis / 1000.0))
}

/// A number without a sign, such as `2`, `2.0` or `0.5`.
fn number(text: &str) -> Option<f64> {
    let is_number = text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| is_number)
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).map_or(LONGEST, |wait| wait.min(LONGEST))
}

/// A duration as some programs write it, such as `6m0s`, `1.5s` or `20ms`, at most a day.
#[cfg(any(feature = "http", test))]
fn span(text: &str) -> Option<Duration> {
    let (mut rest, mut sum) = (text, 0.0);
    while !rest.is_empty() {
        let length = rest.find(|next: char| !next.is_ascii_digit() && next != '.')?;
        let (count, unit) = rest.split_at(length);
        let length = unit.find(|next: char| !next.is_ascii_alphabetic()).unwrap_or(unit.len());
        let second = match &unit[..length] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum += number(count)? * second;
        rest = &unit[length..];
    }
    (!text.is_empty()).then(|| seconds(sum))
}

/// How long it is until then, at most a day; zero if it has passed.
fn until(at: Timestamp, date: Option<&str>) -> Duration {
    let now = date.and_then(|date| http_date(date.trim()));
    let now = now.map_or_else(|| wall_now().0, Timestamp::as_microsecond);
    let wait = at.as_microsecond().saturating_sub(now);
    Duration::from_micros(u64::try_from(wait).unwrap_or(0)).min(LONGEST)
}

/// An HTTP-date: RFC 9110 takes its form from RFC 2822, and has two older ones that are still to be read.
fn http_date(text: &str) -> Option<Timestamp> {
    static PARSER: DateTimeParser = DateTimeParser::new();
    PARSER.parse_timestamp(text).ok().or_else(|| {
        let older = ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];
        let read = |format| strtime::parse(format, text).ok()?.to_datetime().ok();
        let at = older.into_iter().find_map(read)?;
        Some(at.to_zoned(TimeZone::UTC).ok()?.timestamp())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(value: &str, date: Option<&str>) -> Option<u64> {
        retry_after(value, date).map(|wait| wait.as_secs())
    }

    #[test]
    fn seconds() {
        for (text, seconds) in
            [("0", 0), ("7", 7), (" 7 ", 7), ("86401", 86_400), ("99999999999999999999999", 86_400)]
        {
            assert_eq!(after(text, None), Some(seconds), "{text}");
        }
        for text in ["", "-1", "7s", "soon", "+7", "1e3", ".5", "1.2.3", "inf", "0x10", "7 8"] {
            assert_eq!(after(text, None), None, "{text}");
        }
        for (text, millis) in [("2.0", 2000), ("1.5", 1500), ("0.05", 50), ("2.", 2000)] {
            assert_eq!(retry_after(text, None), Some(Duration::from_millis(millis)), "{text}");
        }
        for (text, wait) in
            [("1500", Some(1500)), ("0", Some(0)), ("2.5", Some(2)), ("-1", None), ("1s", None)]
        {
            assert_eq!(millis(text).map(|wait| wait.as_millis()), wait, "{text}");
        }
    }

    #[test]
    fn a_reset_is_a_wait_an_instant_or_a_date() {
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        for (text, millis) in [
            ("30", Some(30_000)),
            ("0.5", Some(500)),
            ("99999999", Some(86_400_000)),
            ("784111800", Some(23_000)),
            ("784111777.5", Some(500)),
            ("784111800250", Some(23_250)),
            ("784111777", None),
            ("784111000", None),
            ("0", None),
            ("6m0s", Some(360_000)),
            ("1h2m3s", Some(3_723_000)),
            ("1.5s", Some(1500)),
            ("20ms", Some(20)),
            ("1m30.951s", Some(90_951)),
            ("0s", None),
            ("48h", Some(86_400_000)),
            ("1994-11-06T08:50:00Z", Some(23_000)),
            ("1994-11-06T09:50:00+01:00", Some(23_000)),
            ("1994-11-06T08:00:00Z", None),
            ("Sun, 06 Nov 1994 08:50:00 GMT", Some(23_000)),
            ("Sunday, 06-Nov-94 08:50:00 GMT", Some(23_000)),
            ("", None),
            ("-1", None),
            ("m", None),
            ("5", Some(5000)),
            ("5x", None),
            ("5m5", None),
            ("soon", None),
            ("9999999999999999999999999999999999", None),
        ] {
            let wait = reset_after(text, date).map(|wait| wait.as_millis());
            assert_eq!(wait, millis, "{text}");
        }
    }

    #[test]
    fn dates_by_the_servers_clock() {
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        for (text, seconds) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
            ("Sun, 06 Nov 1994 08:50:00 GMT", 23),
            ("Sat, 05 Nov 1994 08:50:00 GMT", 0),
            ("Sun, 06 Nov 2044 08:49:37 GMT", 86_400),
            ("Sunday, 06-Nov-94 08:50:00 GMT", 23),
            ("Sun Nov  6 08:50:00 1994", 23),
        ] {
            assert_eq!(after(text, date), Some(seconds), "{text}");
        }
        assert_eq!(after("Sun, 99 Nov 1994 08:49:37 GMT", date), None);
    }

    #[test]
    fn dates_by_the_wall_clock_when_the_server_does_not_say() {
        let now = Timestamp::from_microsecond(wall_now().0).unwrap();
        let at = |seconds| {
            let at = now + jiff::SignedDuration::from_secs(seconds);
            jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).unwrap()
        };
        assert_eq!(after(&at(-60), None), Some(0));
        let wait = after(&at(3600), Some("nonsense")).unwrap();
        assert!((3500..=3600).contains(&wait), "{wait}");
    }
}
