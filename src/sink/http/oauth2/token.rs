//! A token, and the time of its renewal.

use std::sync::OnceLock;
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::time::Instant;

/// The part of its life after which a token is renewed at the latest; it is renewed up to [`SPREAD`] earlier, at random,
/// so that the replicas of a fleet do not ask together.
const RENEWED_AFTER: f64 = 0.8;
const SPREAD: f64 = 0.1;

/// How long before its end a token is not used any more, at most: a request takes time, and clocks differ.
const LONGEST_MARGIN: Duration = Duration::from_secs(10);

/// The longest life, which can be added to any instant.
const LONGEST_LIFE: Duration = Duration::from_secs(366 * 86_400);

/// How long requests wait for another token once one was refused; after that they are sent with the old one, since
/// the API may refuse one job alone.
const SUSPENSION: Duration = Duration::from_secs(1);

/// A token, as the value of `Authorization`.
pub(in crate::sink::http) struct Token {
    pub(in crate::sink::http) header: HeaderValue,
    asked: Instant,
    life: Duration,
    renew_at: Instant,
    /// When it was refused for the first time.
    refused: OnceLock<Instant>,
}

impl Token {
    /// A token that was requested at this instant, and lives for `life` from then on. `chance`, from 0 to 1, decides
    /// when it is renewed.
    pub(super) fn new(header: HeaderValue, asked: Instant, life: Duration, chance: f64) -> Self {
        let life = life.min(LONGEST_LIFE);
        let renew_at = asked + life.mul_f64(RENEWED_AFTER - SPREAD * chance);
        Self { header, asked, life, renew_at, refused: OnceLock::new() }
    }

    /// Whether it is time to request another token.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.renew_at || self.is_refused()
    }

    /// Whether requests may use it; `is_coming` says whether another token is being requested.
    pub(super) fn is_usable(&self, now: Instant, is_coming: bool) -> bool {
        let margin = (self.life / 10).min(LONGEST_MARGIN);
        let is_suspended = is_coming && self.refused.get().is_some_and(|at| now < *at + SUSPENSION);
        now < self.asked + self.life - margin && !is_suspended
    }

    /// Records that the token was refused, so that it is replaced.
    pub(super) fn refuse(&self, now: Instant) {
        self.refused.get_or_init(|| now);
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(asked: Instant, life: Duration, chance: f64) -> Token {
        Token::new(HeaderValue::from_static("Bearer x"), asked, life, chance)
    }

    #[test]
    fn it_is_renewed_before_it_ends_and_not_used_to_its_very_end() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs_f64(seconds);
        for (chance, renewed) in [(0.0, 80.0), (1.0, 70.0)] {
            let token = token(start, Duration::from_secs(100), chance);
            assert!(!token.is_due(after(renewed - 0.001)) && token.is_due(after(renewed + 0.001)));
            assert!(token.is_usable(after(89.9), true) && !token.is_usable(after(90.1), false));
        }
        // For a long-lived token too, the margin has an upper bound.
        let token = token(start, Duration::from_secs(3600), 0.5);
        assert!(token.is_usable(after(3589.0), false) && !token.is_usable(after(3591.0), false));
        assert!(
            Token::new(HeaderValue::from_static("x"), start, Duration::MAX, 0.5).is_usable(after(1e6), false)
        );
    }

    #[test]
    fn one_that_is_refused_waits_for_another_and_goes_on_without() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs_f64(seconds);
        let token = token(start, Duration::from_secs(3600), 0.5);
        assert!(!token.is_due(after(11.0)));
        token.refuse(after(11.0));
        assert!(token.is_due(after(11.0)));
        assert!(!token.is_usable(after(11.5), true), "another one is coming");
        assert!(token.is_usable(after(11.5), false), "none is");
        token.refuse(after(12.0));
        assert!(token.is_usable(after(12.1), true), "it does not come");
    }
}
