//! The last changes by operators: both stores keep the same ones.

use std::sync::Arc;
use std::time::Duration;

use paced::StoreError;
use paced::store::{HISTORY_KEPT, MAX_HISTORY, MAX_HISTORY_BYTES, MemoryStore, RedisStore, Store};
use paced::time::{ManualClock, Micros};

use super::patient;
use crate::support::servers::redis;
use crate::support::unique;

const NOW: Micros = Micros(1_760_000_000_123_000);
const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn the_last_changes_are_kept_for_a_while() {
    let clock = Arc::new(ManualClock::new(NOW));
    let shared = RedisStore::open(&redis().await.url(), patient()).unwrap().with_test_clock(clock.clone());
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::with_clock(clock.clone())), Arc::new(shared)];
    for store in stores {
        clock.set(NOW);
        let name = unique("history");
        let texts = async |text: Option<&str>| {
            let entries = store.history(&name, text).await.unwrap();
            entries.into_iter().map(|entry| (entry.at, entry.text)).collect::<Vec<_>>()
        };
        assert!(texts(None).await.is_empty());
        let first = r#"{"by":"ä: \"so\"","at":1}"#;
        assert_eq!(texts(Some(first)).await, [(NOW, first.to_owned())]);
        for number in 0..MAX_HISTORY + 5 {
            clock.set(NOW.plus(DAY));
            texts(Some(&number.to_string())).await;
        }
        let kept = texts(None).await;
        let expected: Vec<_> =
            (5..MAX_HISTORY + 5).map(|number| (NOW.plus(DAY), number.to_string())).collect();
        assert_eq!(kept, expected);
        let longest = "x".repeat(MAX_HISTORY_BYTES);
        clock.set(NOW.plus(2 * DAY));
        assert_eq!(texts(Some(&longest)).await.last(), Some(&(NOW.plus(2 * DAY), longest.clone())));
        for wrong in ["", "two\nlines", &format!("{longest}x")] {
            let refused = store.history(&name, Some(wrong)).await;
            assert!(matches!(refused, Err(StoreError::Invalid(_))), "{wrong}: {refused:?}");
        }
        // One is forgotten before the other.
        clock.set(NOW.plus(DAY).plus(HISTORY_KEPT));
        assert_eq!(texts(None).await.len(), 1);
        clock.set(NOW.plus(2 * DAY).plus(HISTORY_KEPT));
        assert!(texts(None).await.is_empty());
        assert!(store.history(&unique("other"), None).await.unwrap().is_empty());
    }
}
