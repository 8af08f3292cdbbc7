//! Whether the broker drops letters that are listed often.

use lapin::Connection;

use crate::amqp::address::Address;
use crate::amqp::foreign::{Returns, traits};
use crate::amqp::greeting::greeting;

/// The delivery limit of quorum queues that name none, from RabbitMQ 4.0 on.
const DEFAULT: u32 = 20;

/// Higher limits are not reported: nobody lists letters that often.
const ENOUGH: u32 = 1000;

/// How often letters of the queue may be given back before the broker drops them. `None` if that is [`ENOUGH`] times
/// or more, or if the user may not find out. A limit that a policy sets cannot be seen.
pub(super) async fn low_limit(connection: &Connection, address: &Address, queue: &str) -> Option<u32> {
    let release = greeting(address).await?.release()?;
    // From 4.3 on, letters that are given back do not count.
    if release >= (4, 3, 0) {
        return None;
    }
    low(&traits(connection, queue).await.returns(), release >= (4, 0, 0))
}

fn low(returns: &Returns, limits_by_default: bool) -> Option<u32> {
    match returns {
        // A negative limit means that there is none.
        Returns::Dropped(Some(limit)) => limit.parse().ok().filter(|limit| *limit < ENOUGH),
        Returns::Dropped(None) => limits_by_default.then_some(DEFAULT),
        Returns::Harmless | Returns::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_low_limits_matter() {
        let dropped = |limit: &str| Returns::Dropped(Some(limit.to_owned()));
        for (returns, by_default, expected) in [
            (dropped("1000000"), true, None),
            (dropped("7"), false, Some(7)),
            (dropped("-1"), true, None),
            (Returns::Dropped(None), true, Some(20)),
            (Returns::Dropped(None), false, None),
            (Returns::Harmless, true, None),
            (Returns::Unknown, true, None),
        ] {
            assert_eq!(low(&returns, by_default), expected, "{returns:?}");
        }
    }
}
