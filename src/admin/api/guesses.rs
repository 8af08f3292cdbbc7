//! Wrong tokens, of which nobody may try many.
//!
//! After [`MOST`] wrong tokens within a minute of its first one, a client is refused until that minute is over, without a
//! look at the token that it sends: otherwise the right one would still be told from the wrong ones. So whoever shares
//! an address with somebody who guesses waits with them; other addresses do not. A client that has sent no wrong token
//! is always looked at: where many clients guess at once, each of them gets fewer tries ([`MOST_OF_MANY`]). The table is
//! bounded, and forgets first who has tried least.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::admin::connections::Network;

/// How long wrong tokens count.
const SPAN: Duration = Duration::from_secs(60);
/// The wrong tokens that a client may send in that time.
const MOST: u32 = 20;
/// The wrong tokens of all clients in that time, from which on each may send fewer.
const MANY: u32 = 200;
/// The wrong tokens that a client may then send in that time.
const MOST_OF_MANY: u32 = 2;
/// The most clients that are remembered.
const CLIENTS: usize = 1024;

/// What is known of those who sent wrong tokens.
#[derive(Debug, Default)]
pub(super) struct Guesses(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    clients: HashMap<Network, Count>,
    all: Option<Count>,
}

/// Wrong tokens, since the first of them.
#[derive(Clone, Copy, Debug)]
struct Count {
    since: Instant,
    wrong: u32,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// One that the request needs.
    Right,
    /// One of this daemon's, for other requests: whoever sends it need not have guessed it.
    Other,
    Wrong,
}

/// What became of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guess {
    Right,
    Wrong,
    /// It was not looked at, nor will any be before this time has passed.
    TooMany(Duration),
}

impl Count {
    /// What is left of the time in which these count; `None` if it is over.
    fn left(self, now: Instant) -> Option<Duration> {
        SPAN.checked_sub(now.saturating_duration_since(self.since)).filter(|left| !left.is_zero())
    }

    /// The same with one more.
    fn and_one(count: Option<Self>, now: Instant) -> Self {
        match count.filter(|count| count.left(now).is_some()) {
            Some(Self { since, wrong }) => Self { since, wrong: wrong.saturating_add(1) },
            None => Self { since: now, wrong: 1 },
        }
    }
}

impl Guesses {
    /// Looks at the token of a client by `look`, unless the client has sent too many wrong ones.
    pub(super) fn guess(&self, client: Network, look: impl FnOnce() -> Token) -> Guess {
        let now = Instant::now();
        // One at a time, so that many at once are no way around the bound. No panic leaves the table half changed.
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = table.clients.get(&client).copied()
            && let Some(left) = count.left(now)
            && count.wrong >= table.most(now)
        {
            return Guess::TooMany(left);
        }
        match look() {
            Token::Right => Guess::Right,
            Token::Other => Guess::Wrong,
            Token::Wrong => {
                table.count(client, now);
                Guess::Wrong
            }
        }
    }
}

impl Table {
    /// The wrong tokens that each client may send now.
    fn most(&self, now: Instant) -> u32 {
        let all = self.all.filter(|count| count.left(now).is_some()).map_or(0, |count| count.wrong);
        if all < MANY { MOST } else { MOST_OF_MANY }
    }

    fn count(&mut self, client: Network, now: Instant) {
        self.all = Some(Count::and_one(self.all, now));
        let known = self.clients.get(&client).copied();
        if known.is_none() && self.clients.len() >= CLIENTS {
            self.forget(now);
        }
        self.clients.insert(client, Count::and_one(known, now));
    }

    /// Makes room for one more client: forgets those whose time is over, or else the one with the fewest wrong tokens, of
    /// these the one that began first.
    fn forget(&mut self, now: Instant) {
        self.clients.retain(|_, count| count.left(now).is_some());
        if self.clients.len() < CLIENTS {
            return;
        }
        let fewest = self.clients.iter().min_by_key(|(_, count)| (count.wrong, count.since));
        if let Some(client) = fewest.map(|(client, _)| *client) {
            self.clients.remove(&client);
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
        let guesses = Guesses::default();
        let (guesser, other) = (client("192.0.2.1"), client("192.0.2.2"));
        for _ in 0..MOST {
            assert_eq!(guesses.guess(guesser, || Token::Wrong), Guess::Wrong);
        }
        advance(Duration::from_secs(20)).await;
        let refused = guesses.guess(guesser, || panic!("it is not looked at"));
        assert_eq!(refused, Guess::TooMany(Duration::from_secs(40)));
        assert_eq!(guesses.guess(other, || Token::Right), Guess::Right);
        assert_eq!(guesses.guess(other, || Token::Wrong), Guess::Wrong);
        advance(Duration::from_secs(40)).await;
        assert_eq!(guesses.guess(guesser, || Token::Right), Guess::Right);
        for _ in 0..MOST {
            assert_eq!(guesses.guess(guesser, || Token::Wrong), Guess::Wrong);
        }
        assert_eq!(guesses.guess(guesser, || Token::Right), Guess::TooMany(SPAN));
        // A token for other requests is no guess.
        let confused = client("192.0.2.3");
        assert!((0..2 * MOST).all(|_| guesses.guess(confused, || Token::Other) == Guess::Wrong));
    }

    #[tokio::test(start_paused = true)]
    async fn many_clients_get_fewer_tries_each_but_everybody_gets_one() {
        let guesses = Guesses::default();
        for number in 0..10 * MANY {
            let guesser = client(&format!("10.0.{}.{}", number / 256, number % 256));
            assert_eq!(guesses.guess(guesser, || Token::Wrong), Guess::Wrong);
        }
        let guesser = client("192.0.2.1");
        let tries: Vec<Guess> = (0..4).map(|_| guesses.guess(guesser, || Token::Wrong)).collect();
        assert_eq!(tries[..2], [Guess::Wrong, Guess::Wrong]);
        assert!(matches!(tries[2..], [Guess::TooMany(_), Guess::TooMany(_)]), "{tries:?}");
        assert_eq!(guesses.guess(client("192.0.2.2"), || Token::Right), Guess::Right);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded_and_keeps_the_worst() {
        let guesses = Guesses::default();
        let worst = client("192.0.2.1");
        for _ in 0..MOST {
            guesses.guess(worst, || Token::Wrong);
        }
        for number in 0..10 * CLIENTS {
            guesses.guess(client(&format!("10.{}.{}.1", number / 256, number % 256)), || Token::Wrong);
        }
        assert_eq!(guesses.0.lock().unwrap().clients.len(), CLIENTS);
        assert!(matches!(guesses.guess(worst, || Token::Right), Guess::TooMany(_)));
    }
}
