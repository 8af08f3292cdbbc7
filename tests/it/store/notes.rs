//! The note on a pause: who paused a downstream, and why.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::Limit;
use paced::store::{Change, LONGEST_NOTE, MemoryStore, Recall, RedisStore, Store};
use paced::time::{ManualClock, Micros};
use paced::{RedisOptions, StoreError};

use super::patient;
use crate::support::servers::{Redis, redis};
use crate::support::unique;

const HOUR: Duration = Duration::from_secs(3600);
const DAY_MS: i64 = 86_400_000;
const NOTE: &str = r#"{"by": "10.0.0.1", "reason": "später: \"so\""}"#;

fn pause(span: Option<Duration>, note: &str) -> Change<'_> {
    Change::Pause { span, note }
}

fn options(prefix: &str) -> RedisOptions {
    patient().with_key_prefix(prefix)
}

#[tokio::test]
async fn a_note_is_on_its_pause_alone() {
    let clock = Arc::new(ManualClock::new(Micros(1_760_000_000_000_000)));
    let shared = RedisStore::open(&redis().await.url(), patient()).unwrap().with_test_clock(clock.clone());
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::with_clock(clock.clone())), Arc::new(shared)];
    let limits = [Limit::leaky_bucket("pace", "100/s".parse().unwrap(), 1).unwrap()];
    for store in stores {
        let name = unique("noted");
        let read = async || store.read_record(&name).await.unwrap().note;
        let update = async |change: Change<'_>| store.update_record(&name, change).await.unwrap().note;
        assert_eq!(read().await, None);
        assert_eq!(update(pause(None, NOTE)).await.as_deref(), Some(NOTE));
        // Every answer with the record has the note.
        for change in [
            Change::Penalize(HOUR),
            Change::Terms { of: 0, text: "terms" },
            Change::Reset { limits: &limits },
            Change::Recall(Recall::default()),
        ] {
            assert_eq!(update(change).await.as_deref(), Some(NOTE), "{change:?}");
        }
        // A later pause has its own note, or none.
        assert_eq!(update(pause(Some(HOUR), "later")).await.as_deref(), Some("later"));
        assert_eq!(update(pause(Some(HOUR), "")).await, None);
        update(pause(Some(HOUR), NOTE)).await;
        assert_eq!(update(Change::Resume).await, None);
        // A recalled pause is later than the one with the note.
        let noted = store.update_record(&name, pause(None, NOTE)).await.unwrap().status.pause.version;
        assert_eq!(read().await.as_deref(), Some(NOTE));
        let recall = Recall { version: noted + 1, ..Recall::default() };
        assert_eq!(update(Change::Recall(recall)).await, None);
        let longest = "x".repeat(LONGEST_NOTE);
        assert_eq!(update(pause(Some(HOUR), &longest)).await, Some(longest.clone()));
        let longer = format!("{longest}x");
        let refused = store.update_record(&name, pause(None, &longer)).await;
        assert!(
            matches!(&refused, Err(StoreError::Invalid(text)) if text.contains("1025 bytes")),
            "{refused:?}"
        );
        assert_eq!(read().await, Some(longest));
    }
}

async fn ttl(redis: &Redis, key: &str) -> i64 {
    let answer = redis.command(&["PTTL", key]).await.unwrap();
    answer.trim().trim_start_matches(':').parse().unwrap()
}

#[tokio::test]
async fn a_note_outlives_its_pause_by_a_day_and_no_loss() {
    let (redis, prefix) = (redis().await, unique("notes"));
    let store = RedisStore::connect(&redis.url(), options(&prefix)).await.unwrap();
    let key = |name: &str| format!("{prefix}:{{billing}}:{name}");
    let update = async |change: Change<'_>| store.update_record("billing", change).await.unwrap();
    for (span, expected) in [(Some(HOUR), DAY_MS + 3_600_000), (None, 400 * DAY_MS)] {
        update(pause(span, NOTE)).await;
        let left = ttl(redis, &key("note")).await;
        assert!((expected - 600_000..=expected + 1).contains(&left), "{span:?}: {left} ms");
    }
    let resumed = update(Change::Resume).await.status.pause.version;
    assert_eq!(ttl(redis, &key("note")).await, -2, "a resume ends it");

    // A text that another version of paced, or a stranger, has left there is no note on this pause.
    let version = update(pause(None, NOTE)).await.status.pause.version;
    assert!(version > resumed);
    let long = format!("{version}:{}", "x".repeat(1 << 20));
    for odd in [format!("{}:old", version - 1), "x".to_owned(), format!(":{version}"), String::new()] {
        redis.command(&["SET", &key("note"), &odd]).await.unwrap();
        assert_eq!(store.read_record("billing").await.unwrap().note, None, "{odd}");
    }
    redis.command(&["SET", &key("note"), &long]).await.unwrap();
    let kept_note = store.read_record("billing").await.unwrap().note;
    assert!(kept_note.is_none_or(|note| note.len() <= LONGEST_NOTE), "it is not read as a whole");

    // After a loss, the pause comes back without its note.
    update(pause(None, NOTE)).await;
    let lost = store.read_record("billing").await.unwrap();
    redis.command(&["DEL", &key("record"), &key("note")]).await.unwrap();
    let recall = Recall { version: lost.status.pause.version, ..Recall::default() };
    let recalled = update(Change::Recall(recall)).await;
    assert_eq!((recalled.status.pause, recalled.note), (lost.status.pause, None));
}
