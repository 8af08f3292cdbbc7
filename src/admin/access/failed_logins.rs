//! The bound on wrong tokens.
//!
//! A client that has sent [`MAX_FAILURES`] wrong tokens within a minute of the first of them is blocked until that
//! minute is over: its tokens are not checked, since otherwise the answers would still show which one is right. This
//! must not lock out a user who shares the address (behind a proxy or NAT, or on the same machine). So while a client
//! is blocked, a token still passes if the client has sent a right token with the same role within the last day. For
//! that, the tokens of such a client are checked, and a guesser at that address may find tokens of that role.
//! [`MAX_CHECKS`] bounds these checks in each second. The answers show nothing about tokens with other roles.
//!
//! A client that has sent no wrong token is always checked. If many clients guess at once, each of them gets fewer
//! tries ([`MAX_FAILURES_WHEN_MANY`]). The tables are bounded. The table of failures first forgets the client that
//! has failed least, and only clients with a right token are in the other table.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use paced::config::Role;
use paced::lock::lock;
use tokio::time::Instant;

use crate::admin::connections::Network;

/// How long failures count.
const WINDOW: Duration = Duration::from_secs(60);
/// The failures of a client within the window after which it is blocked.
const MAX_FAILURES: u32 = 20;
/// The failures of all clients within the window from which on each may have fewer.
const GLOBAL_THRESHOLD: u32 = 200;
/// The failures of a client within the window after which it is then blocked.
const MAX_FAILURES_WHEN_MANY: u32 = 2;
/// The most clients that are remembered, of those that failed and of those that sent right tokens.
const MAX_CLIENTS: usize = 1024;
/// How long a right token of a client counts.
const SUCCESS_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// The tokens of a blocked client that are checked in each second, if it has sent a right one before.
const MAX_CHECKS: u32 = 20;
/// The number of roles of tokens.
const ROLES: usize = Role::Admin as usize + 1;
/// The span in which [`MAX_CHECKS`] count.
const CHECKS_WINDOW: Duration = Duration::from_secs(1);

/// The clients that sent tokens.
#[derive(Debug, Default)]
pub(super) struct FailedLogins(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    failures: HashMap<Network, Count>,
    all_failures: Option<Count>,
    successes: HashMap<Network, Success>,
}

/// Something that is counted within a window, which begins with the first of it.
#[derive(Clone, Copy, Debug)]
struct Count {
    since: Instant,
    number: u32,
}

/// The right tokens that a client has sent.
#[derive(Clone, Copy, Debug)]
struct Success {
    /// When it sent the last one.
    at: Instant,
    /// Whether it has sent one with each role.
    keys: [bool; ROLES],
    /// The tokens that were checked while it was blocked.
    checks: Option<Count>,
}

/// The result of comparing a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verified {
    /// One that the request needs.
    Right(Role),
    /// One of this daemon's, for other requests: its sender need not have guessed it.
    Other,
    Wrong,
}

/// The decision about a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Right,
    Wrong,
    /// The client is blocked for so long.
    Blocked(Duration),
}

impl Count {
    /// What is left of the window; `None` if it is over.
    fn left(self, window: Duration, now: Instant) -> Option<Duration> {
        window.checked_sub(now.saturating_duration_since(self.since)).filter(|left| !left.is_zero())
    }

    /// The number within the window.
    fn number(count: Option<Self>, window: Duration, now: Instant) -> u32 {
        count.filter(|count| count.left(window, now).is_some()).map_or(0, |count| count.number)
    }

    /// The same with one more.
    fn and_one(count: Option<Self>, window: Duration, now: Instant) -> Self {
        match count.filter(|count| count.left(window, now).is_some()) {
            Some(Self { since, number }) => Self { since, number: number.saturating_add(1) },
            None => Self { since: now, number: 1 },
        }
    }
}

impl FailedLogins {
    /// Decides about the token of a client, which `look` compares in constant time.
    pub(super) fn check(&self, client: Network, look: impl FnOnce() -> Verified) -> Verdict {
        let now = Instant::now();
        // One token at a time is checked, so that many requests at once cannot exceed the bound. No panic leaves the
        // table half changed.
        let mut table = lock(&self.0);
        if let Some(left) = table.block(client, now) {
            let Some(keys) = table.check_while_blocked(client, now) else { return Verdict::Blocked(left) };
            return match look() {
                Verified::Right(key) if keys[key as usize] => {
                    table.on_success(client, key, now);
                    Verdict::Right
                }
                _ => Verdict::Blocked(left),
            };
        }
        match look() {
            Verified::Right(key) => {
                table.on_success(client, key, now);
                Verdict::Right
            }
            Verified::Other => Verdict::Wrong,
            Verified::Wrong => {
                table.on_failure(client, now);
                Verdict::Wrong
            }
        }
    }
}

impl Table {
    /// For how long this client is still blocked; `None` if it is not.
    fn block(&self, client: Network, now: Instant) -> Option<Duration> {
        let all = Count::number(self.all_failures, WINDOW, now);
        let most = if all < GLOBAL_THRESHOLD { MAX_FAILURES } else { MAX_FAILURES_WHEN_MANY };
        let count = self.failures.get(&client).filter(|count| count.number >= most)?;
        count.left(WINDOW, now)
    }

    /// The tokens that pass although this client is blocked. `None` if there are none, or if too many of its tokens were
    /// checked just now.
    fn check_while_blocked(&mut self, client: Network, now: Instant) -> Option<[bool; ROLES]> {
        let success = self.successes.get_mut(&client)?;
        let is_recent = now.saturating_duration_since(success.at) <= SUCCESS_AGE;
        if !is_recent || Count::number(success.checks, CHECKS_WINDOW, now) >= MAX_CHECKS {
            return None;
        }
        success.checks = Some(Count::and_one(success.checks, CHECKS_WINDOW, now));
        Some(success.keys)
    }

    fn on_success(&mut self, client: Network, key: Role, now: Instant) {
        let is_recent = |success: &Success| now.saturating_duration_since(success.at) <= SUCCESS_AGE;
        let known = self.successes.get(&client).copied().filter(is_recent);
        if self.successes.len() >= MAX_CLIENTS && !self.successes.contains_key(&client) {
            let oldest = self.successes.iter().min_by_key(|(_, success)| success.at);
            if let Some(oldest) = oldest.map(|(client, _)| *client) {
                self.successes.remove(&oldest);
            }
        }
        let (mut keys, checks) = known.map_or(([false; ROLES], None), |known| (known.keys, known.checks));
        keys[key as usize] = true;
        self.successes.insert(client, Success { at: now, keys, checks });
    }

    fn on_failure(&mut self, client: Network, now: Instant) {
        self.all_failures = Some(Count::and_one(self.all_failures, WINDOW, now));
        let known = self.failures.get(&client).copied();
        if known.is_none() && self.failures.len() >= MAX_CLIENTS {
            self.forget_failures(now);
        }
        self.failures.insert(client, Count::and_one(known, WINDOW, now));
    }

    /// Makes room for the failures of one more client: forgets those whose window is over, or else the client with the
    /// fewest, of these the one that began first.
    fn forget_failures(&mut self, now: Instant) {
        self.failures.retain(|_, count| count.left(WINDOW, now).is_some());
        if self.failures.len() < MAX_CLIENTS {
            return;
        }
        let fewest = self.failures.iter().min_by_key(|(_, count)| (count.number, count.since));
        if let Some(client) = fewest.map(|(client, _)| *client) {
            self.failures.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::time::advance;

    use super::*;

    fn client(address: &str) -> Network {
        address.parse::<IpAddr>().unwrap().into()
    }

    #[tokio::test(start_paused = true)]
    async fn after_some_wrong_tokens_none_is_looked_at_for_a_while() {
        let logins = FailedLogins::default();
        let (guesser, other) = (client("192.0.2.1"), client("192.0.2.2"));
        for _ in 0..MAX_FAILURES {
            assert_eq!(logins.check(guesser, || Verified::Wrong), Verdict::Wrong);
        }
        advance(Duration::from_secs(20)).await;
        let refused = logins.check(guesser, || panic!("it is not checked"));
        assert_eq!(refused, Verdict::Blocked(Duration::from_secs(40)));
        assert_eq!(logins.check(other, || Verified::Right(Role::Read)), Verdict::Right);
        assert_eq!(logins.check(other, || Verified::Wrong), Verdict::Wrong);
        advance(Duration::from_secs(40)).await;
        assert_eq!(logins.check(guesser, || Verified::Right(Role::Read)), Verdict::Right);
        for _ in 0..MAX_FAILURES {
            assert_eq!(logins.check(guesser, || Verified::Wrong), Verdict::Wrong);
        }
        assert_eq!(logins.check(guesser, || Verified::Right(Role::Admin)), Verdict::Blocked(WINDOW));
        // A token for other requests is no guess.
        let confused = client("192.0.2.3");
        assert!((0..2 * MAX_FAILURES).all(|_| logins.check(confused, || Verified::Other) == Verdict::Wrong));
    }

    #[tokio::test(start_paused = true)]
    async fn many_clients_get_fewer_tries_each_but_everybody_gets_one() {
        let logins = FailedLogins::default();
        for number in 0..10 * GLOBAL_THRESHOLD {
            let guesser = client(&format!("10.0.{}.{}", number / 256, number % 256));
            assert_eq!(logins.check(guesser, || Verified::Wrong), Verdict::Wrong);
        }
        let guesser = client("192.0.2.1");
        let tries: Vec<Verdict> = (0..4).map(|_| logins.check(guesser, || Verified::Wrong)).collect();
        assert_eq!(tries[..2], [Verdict::Wrong, Verdict::Wrong]);
        assert!(matches!(tries[2..], [Verdict::Blocked(_), Verdict::Blocked(_)]), "{tries:?}");
        assert_eq!(logins.check(client("192.0.2.2"), || Verified::Right(Role::Read)), Verdict::Right);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded_and_keeps_the_worst() {
        let logins = FailedLogins::default();
        let worst = client("192.0.2.1");
        for _ in 0..MAX_FAILURES {
            logins.check(worst, || Verified::Wrong);
        }
        for number in 0..10 * MAX_CLIENTS {
            logins.check(client(&format!("10.{}.{}.1", number / 256, number % 256)), || Verified::Wrong);
        }
        assert_eq!(logins.0.lock().unwrap().failures.len(), MAX_CLIENTS);
        assert!(matches!(logins.check(worst, || Verified::Right(Role::Read)), Verdict::Blocked(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sent_the_right_token_before_is_not_locked_out_by_others_of_the_address() {
        let logins = FailedLogins::default();
        let shared = client("192.0.2.1");
        let guess = || {
            for _ in 0..MAX_FAILURES {
                assert_eq!(logins.check(shared, || Verified::Wrong), Verdict::Wrong);
            }
        };
        assert_eq!(logins.check(shared, || Verified::Right(Role::Read)), Verdict::Right);
        for _ in 0..3 {
            guess();
            assert_eq!(logins.check(shared, || Verified::Right(Role::Read)), Verdict::Right);
            // The answer shows nothing about a token that was never sent from there.
            for token in [Verified::Right(Role::Admin), Verified::Other, Verified::Wrong] {
                assert!(matches!(logins.check(shared, || token), Verdict::Blocked(_)), "{token:?}");
            }
            // Nor are many checked in a second.
            for _ in 0..MAX_CHECKS {
                assert!(matches!(logins.check(shared, || Verified::Wrong), Verdict::Blocked(_)));
            }
            let refused = logins.check(shared, || panic!("it is not checked"));
            assert!(matches!(refused, Verdict::Blocked(_)));
            advance(CHECKS_WINDOW).await;
            assert_eq!(logins.check(shared, || Verified::Right(Role::Read)), Verdict::Right);
            advance(WINDOW).await;
        }
        advance(SUCCESS_AGE).await;
        guess();
        assert!(matches!(logins.check(shared, || panic!("it was long ago")), Verdict::Blocked(_)));
        for number in 0..2 * MAX_CLIENTS {
            let holder = client(&format!("10.{}.{}.1", number / 256, number % 256));
            assert_eq!(logins.check(holder, || Verified::Right(Role::Read)), Verdict::Right);
        }
        assert_eq!(logins.0.lock().unwrap().successes.len(), MAX_CLIENTS);
    }
}
