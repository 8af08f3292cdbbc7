//! Quotas of days, weeks and months in time zones, over both changes of summer time, in memory and in Redis.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::calendar::{Unit, Zone};
use paced::limit::{Calendar, Edges};
use paced::store::{RedisStore, Store};
use paced::time::{ManualClock, Micros};
use paced::{Limit, Limiter, MemoryStore};

use super::patient;
use crate::support::{servers, unique};

/// An instant at which the quota's only unit is taken, and the one from which on there is another.
type Row = (&'static str, Unit, &'static str, &'static str);

const CHANGES: [Row; 12] = [
    // A day of 23 hours, and one of 25.
    ("America/Los_Angeles", Unit::Day, "2026-03-08T08:00:00Z", "2026-03-09T07:00:00Z"),
    ("America/Los_Angeles", Unit::Day, "2026-11-01T07:00:00Z", "2026-11-02T08:00:00Z"),
    ("America/Los_Angeles", Unit::Month, "2026-03-01T08:00:00Z", "2026-04-01T07:00:00Z"),
    ("America/Los_Angeles", Unit::Week, "2026-10-26T07:00:00Z", "2026-11-02T08:00:00Z"),
    ("Europe/Berlin", Unit::Day, "2026-03-29T00:59:59Z", "2026-03-29T22:00:00Z"),
    ("Europe/Berlin", Unit::Day, "2026-10-25T01:30:00Z", "2026-10-25T23:00:00Z"),
    ("Europe/Berlin", Unit::Week, "2026-03-23T00:00:00Z", "2026-03-29T22:00:00Z"),
    ("Europe/Berlin", Unit::Month, "2026-10-31T22:59:59Z", "2026-10-31T23:00:00Z"),
    // The southern summer, and half an hour.
    ("Australia/Lord_Howe", Unit::Day, "2026-04-05T00:00:00Z", "2026-04-05T13:30:00Z"),
    ("Australia/Lord_Howe", Unit::Day, "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z"),
    ("Australia/Lord_Howe", Unit::Month, "2026-10-31T12:59:59Z", "2026-10-31T13:00:00Z"),
    ("Australia/Lord_Howe", Unit::Week, "2026-03-29T13:00:00Z", "2026-04-05T13:30:00Z"),
];

fn at(text: &str) -> Micros {
    Micros(text.parse::<jiff::Timestamp>().unwrap().as_microsecond())
}

#[tokio::test]
async fn quotas_over_both_changes_of_summer_time_in_three_zones() {
    let redis = servers::redis().await;
    for margin in [Duration::ZERO, Duration::from_millis(1500)] {
        for (name, unit, taken, next) in CHANGES {
            let edges = Edges::Calendar(Calendar::zoned(unit, Zone::named(name).unwrap()));
            let quota = Limit::quota("quota", 1, edges).unwrap().with_margin(margin).unwrap();
            // With a margin the unit is of the window that has opened.
            let (taken, next) = (at(taken).plus(margin), at(next).plus(margin));
            let clock = Arc::new(ManualClock::new(taken));
            let memory = MemoryStore::with_clock(clock.clone());
            let shared = RedisStore::connect(&redis.url(), patient()).await.unwrap();
            let stores: [Arc<dyn Store>; 2] =
                [Arc::new(memory), Arc::new(shared.with_test_clock(clock.clone()))];
            for store in stores {
                clock.set(taken);
                let limiter =
                    Limiter::builder(unique("zone")).limit(quota.clone()).store(store).build().unwrap();
                let scene = format!("{name} {unit:?} from {taken}");
                assert!(limiter.check("tenant").await.unwrap().allowed, "{scene}");
                let refused = limiter.check("tenant").await.unwrap();
                assert!(!refused.allowed, "{scene}");
                assert_eq!(refused.retry_after, next.since(taken), "{scene}");
                clock.set(Micros(next.0 - 1));
                assert!(!limiter.check("tenant").await.unwrap().allowed, "{scene}: a microsecond too early");
                clock.set(next);
                assert!(limiter.check("tenant").await.unwrap().allowed, "{scene}");
            }
        }
    }
}
