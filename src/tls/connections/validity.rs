//! When certificates are valid, and whether that needs somebody's attention.

use std::fmt;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, RootCertStore};

use super::refusal::instant;
use crate::time::Micros;

const DAY: u64 = 86_400;

/// The time before its end in which a certificate should be renewed, in seconds.
const SOON: u64 = 14 * DAY;

/// The instants between which a certificate is valid, in seconds of Unix time. Where several are shown, as by a
/// certificate and those that lead to its authority, all of them are valid between these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    not_before: u64,
    not_after: u64,
}

/// A warning about a certificate. Its text is a predicate, such as `expired at 2026-01-01T00:00:00Z; renew it`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Concern {
    /// It begins to be valid at this instant, in seconds of Unix time.
    NotYetValid(u64),
    /// It is valid until this instant, which comes within 14 days.
    EndsSoon {
        /// The instant, in seconds of Unix time.
        at: u64,
        /// The seconds until then.
        within: u64,
    },
    /// It was valid until this instant, in seconds of Unix time.
    Expired(u64),
}

impl Validity {
    /// From `not_before` until `not_after`, both included, in seconds of Unix time.
    #[must_use]
    pub const fn new(not_before: u64, not_after: u64) -> Self {
        Self { not_before, not_after }
    }

    /// When all of these certificates are valid; `None` if that is not known of any of them.
    pub(crate) fn of(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let both = |one: Self, other: Self| Self {
            not_before: one.not_before.max(other.not_before),
            not_after: one.not_after.min(other.not_after),
        };
        chain.iter().filter_map(of_one).reduce(both)
    }

    /// The first second in which it is valid, in Unix time.
    #[must_use]
    pub const fn not_before(self) -> u64 {
        self.not_before
    }

    /// The last second in which it is valid, in Unix time.
    #[must_use]
    pub const fn not_after(self) -> u64 {
        self.not_after
    }

    /// The warning about it at this instant, if there is one.
    #[must_use]
    pub fn concern(self, now: Micros) -> Option<Concern> {
        let now = seconds(now);
        if now > self.not_after {
            return Some(Concern::Expired(self.not_after));
        }
        if now < self.not_before {
            return Some(Concern::NotYetValid(self.not_before));
        }
        let within = self.not_after - now;
        (within < SOON).then_some(Concern::EndsSoon { at: self.not_after, within })
    }

    /// Whether less than a third of its time is left. A tool that renews certificates has done so by then, also for
    /// certificates with a short life.
    #[must_use]
    pub fn is_overdue(self, now: Micros) -> bool {
        let lifetime = self.not_after.saturating_sub(self.not_before);
        self.not_after.saturating_sub(seconds(now)) < lifetime / 3
    }
}

fn seconds(now: Micros) -> u64 {
    u64::try_from(now.0 / 1_000_000).unwrap_or(0)
}

/// When this certificate is valid. The library reports that only as the reason why it is not valid at an instant; it checks
/// the time before anything else, so that no authority is needed.
fn of_one(certificate: &CertificateDer<'_>) -> Option<Validity> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let nobody = RootCertStore::empty();
    let problem_at = |seconds| {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        match verify_server_cert_signed_by_trust_anchor(&parsed, &nobody, &[], time, &[]) {
            Err(rustls::Error::InvalidCertificate(problem)) => Some(problem),
            _ => None,
        }
    };
    let Some(CertificateError::ExpiredContext { not_after, .. }) = problem_at(u64::MAX) else { return None };
    let not_before = match problem_at(0) {
        Some(CertificateError::NotValidYetContext { not_before, .. }) => not_before.as_secs(),
        // It was valid in 1970 already.
        _ => 0,
    };
    Some(Validity { not_before, not_after: not_after.as_secs() })
}

impl fmt::Display for Concern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotYetValid(from) => {
                write!(f, "is not valid before {}; wait until then, or set the clock right", shown(from))
            }
            Self::EndsSoon { at, within } => {
                write!(f, "ends at {}, in {}; renew it", shown(at), span(within))
            }
            Self::Expired(at) => write!(f, "expired at {}; renew it", shown(at)),
        }
    }
}

fn shown(seconds: u64) -> String {
    instant(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

/// A time of less than two weeks, in words.
fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / DAY, seconds / 3600, seconds / 60);
    match (days, hours) {
        (2.., _) => format!("{days} days"),
        (_, 2..) => format!("{hours} hours"),
        _ => format!("{minutes} minutes"),
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use rustls::pki_types::pem::PemObject as _;

    use super::super::authority::Authority;
    use super::*;

    fn at(seconds: u64) -> Micros {
        Micros(i64::try_from(seconds).unwrap() * 1_000_000)
    }

    /// 2020-01-01 and 2049-01-01, which the tests' certificates are valid from and until.
    const FROM: u64 = 1_577_836_800;
    const UNTIL: u64 = 2_493_072_000;

    #[test]
    fn the_library_tells_when_a_certificate_is_valid() {
        let authority = Authority::new("ours");
        let parsed = |text: &str| CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
        let leaf = parsed(&authority.issue(&["a.example"]).certificate);
        let past = parsed(&authority.issue_expired(&["a.example"]).certificate);
        let root = parsed(&authority.pem);
        let long = Validity::new(FROM, UNTIL);
        assert_eq!(Validity::of(slice::from_ref(&leaf)), Some(long));
        assert_eq!(Validity::of(&[leaf.clone(), root.clone()]), Some(long), "of an authority too");
        let short = Validity::new(FROM, 1_609_459_200);
        assert_eq!(Validity::of(slice::from_ref(&past)), Some(short));
        assert_eq!(Validity::of(&[leaf, past, root]), Some(short), "the chain ends with its first end");
        assert_eq!(Validity::of(&[]), None);
        assert_eq!(Validity::of(&[CertificateDer::from(vec![0x30, 0x03, 0x02, 0x01, 0x01])]), None);
    }

    #[test]
    fn which_warning_a_certificate_gets_and_when() {
        let year = Validity::new(FROM, FROM + 365 * DAY);
        let end = FROM + 365 * DAY;
        let warning = |now: u64| year.concern(at(now)).map(|concern| concern.to_string());
        for now in [FROM, FROM + 1, end - SOON] {
            assert_eq!(warning(now), None, "{now}");
        }
        for (now, expected) in [
            (FROM - 1, "is not valid before 2020-01-01T00:00:00Z; wait until then, or set the clock right"),
            (end - SOON + 1, "ends at 2020-12-31T00:00:00Z, in 13 days; renew it"),
            (end - 2 * DAY + 1, "ends at 2020-12-31T00:00:00Z, in 47 hours; renew it"),
            (end - 3600, "ends at 2020-12-31T00:00:00Z, in 60 minutes; renew it"),
            (end, "ends at 2020-12-31T00:00:00Z, in 0 minutes; renew it"),
            (end + 1, "expired at 2020-12-31T00:00:00Z; renew it"),
        ] {
            assert_eq!(warning(now).as_deref(), Some(expected));
        }
        // A clock before 1970, and a certificate that is never valid, are no reason to fail.
        assert_eq!(year.concern(Micros(-1)), Some(Concern::NotYetValid(FROM)));
        assert_eq!(Validity::new(10, 5).concern(at(7)), Some(Concern::Expired(5)));
        let day = Validity::new(FROM, FROM + DAY);
        assert!(!day.is_overdue(at(FROM)) && !day.is_overdue(at(FROM + 16 * 3600)));
        assert!(day.is_overdue(at(FROM + 16 * 3600 + 1)) && day.is_overdue(at(FROM + 2 * DAY)));
    }
}
