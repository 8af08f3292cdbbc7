//! Parses texts that only limits have. The problems say what would be right.

use crate::config::value::{clipped, name, rate, shown};
use crate::job::nearest;
use crate::limit::Calendar;
use crate::limit::calendar::Zone;
use crate::rate::{Amount, RateError};

/// Parses an amount whose period is not a calendar's.
pub(super) fn amount(text: &str) -> Result<Amount, RateError> {
    let amount: Amount = rate(text)?;
    if amount.period().is_calendar() {
        return Err(RateError::QuotaUnit(clipped(text)));
    }
    Ok(amount)
}

/// The beginnings of fixed windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Epoch,
    FirstHit,
}

/// The beginnings of a quota's windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reset {
    Calendar,
    Fixed,
    Rolling,
}

/// Parses an offset from UTC into minutes to the east.
pub(super) fn utc_offset(text: &str) -> Result<i16, String> {
    if text == "Z" {
        return Ok(0);
    }
    let syntax =
        || format!("{} is no offset from UTC; write +HH:MM or -HH:MM, such as +02:00, or Z", shown(text));
    let two = |digits: &str| {
        let fits = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit());
        fits.then(|| digits.parse::<i16>().ok()).flatten()
    };
    let (sign, rest) = match text.split_at_checked(1) {
        Some(("+", rest)) => (1, rest),
        Some(("-", rest)) => (-1, rest),
        _ => return Err(syntax()),
    };
    let (hours, minutes) = rest.split_once(':').ok_or_else(syntax)?;
    let (hours, minutes) = (two(hours).ok_or_else(syntax)?, two(minutes).ok_or_else(syntax)?);
    if minutes > 59 {
        return Err(syntax());
    }
    let offset = hours * 60 + minutes;
    if offset > Calendar::FARTHEST {
        return Err(format!("{} is out of range; use -14:00 to +14:00", shown(text)));
    }
    Ok(sign * offset)
}

/// Parses the name of a time zone.
pub(super) fn time_zone(text: &str) -> Result<Zone, String> {
    Zone::named(text).map_err(|_| {
        let names: Vec<String> = Zone::names().collect();
        let near = nearest(text, &names.iter().map(String::as_str).collect::<Vec<_>>());
        let hint = match near {
            Some(name) => format!("did you mean `{name}`?"),
            None => "write its name in the IANA database, such as America/Los_Angeles".to_owned(),
        };
        format!("{} is no time zone; {hint}", shown(text))
    })
}

/// Checks the name of a limit: it has no dot, so that it cannot be one of a plan's.
pub(super) fn limit_name(text: &str) -> Result<String, String> {
    name("limit", text).map(|()| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_from_utc() {
        for (text, minutes) in
            [("Z", 0), ("+00:00", 0), ("-00:00", 0), ("+02:00", 120), ("-09:30", -570), ("+14:00", 840)]
        {
            assert_eq!(utc_offset(text), Ok(minutes), "{text}");
        }
        for text in
            ["", "+", "2", "+2", "+2:00", "+02", "+0200", "+02:0", "+02:60", "02:00", "UTC", "z", "+ä:00"]
        {
            assert!(utc_offset(text).unwrap_err().contains("write +HH:MM"), "{text}");
        }
        for text in ["+14:01", "-15:00", "+99:00"] {
            assert_eq!(utc_offset(text), Err(format!("`{text}` is out of range; use -14:00 to +14:00")));
        }
    }

    #[test]
    fn time_zones_by_their_names() {
        for (text, name) in [
            ("America/Los_Angeles", "America/Los_Angeles"),
            ("europe/BERLIN", "Europe/Berlin"),
            ("UTC", "UTC"),
        ] {
            assert_eq!(time_zone(text).map(Zone::name), Ok(name), "{text}");
        }
        let near = time_zone("America/LosAngeles").unwrap_err();
        assert_eq!(near, "`America/LosAngeles` is no time zone; did you mean `America/Los_Angeles`?");
        for text in ["", "Mars", "CEST-2", "../../etc/passwd", "+02:00"] {
            assert!(time_zone(text).unwrap_err().contains("is no time zone"), "{text}");
        }
    }

    #[test]
    fn names_that_no_plan_can_have() {
        assert_eq!(limit_name("per-minute"), Ok("per-minute".to_owned()));
        for text in ["", "plan.pro", "a:b", "A", "a__b"] {
            assert!(limit_name(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_secret_in_the_wrong_place_is_not_shown() {
        for text in ["amqp://guest:hunter2@rabbit", &"hunter2".repeat(6)] {
            for problem in [amount(text).unwrap_err().to_string(), utc_offset(text).unwrap_err()] {
                assert!(!problem.contains("hunter2"), "{problem}");
            }
        }
    }
}
