//! `Retry-After`: seconds, or a date.

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
/// It is a number of seconds, or a date (RFC 9110, sections 5.6.7 and 10.2.3). A date counts by the clock of the server that
/// sent it: `date` is the value of the `Date` field of the same answer, if there is one. Without it, or where it is
/// unclear, the wall clock of this machine counts. For [`Shaper::penalize`](crate::Shaper::penalize).
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(paced::retry_after("120", None), Some(Duration::from_secs(120)));
/// let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
/// let wait = paced::retry_after("Sun, 06 Nov 1994 08:50:00 GMT", date);
/// assert_eq!(wait, Some(Duration::from_secs(23)));
/// assert_eq!(paced::retry_after("soon", None), None);
/// ```
#[must_use]
pub fn retry_after(value: &str, date: Option<&str>) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // A number that does not fit 64 bits is over a day too.
        let seconds = value.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(LONGEST));
    }
    let until = http_date(value)?;
    let now = date
        .and_then(|date| http_date(date.trim()))
        .or_else(|| Timestamp::from_microsecond(wall_now().0).ok())?;
    let wait = until.as_second().saturating_sub(now.as_second());
    Some(Duration::from_secs(u64::try_from(wait).unwrap_or(0)).min(LONGEST))
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
        for text in ["", "-1", "1.5", "7s", "soon", "+7"] {
            assert_eq!(after(text, None), None, "{text}");
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
