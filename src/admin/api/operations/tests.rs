//! What is known of a change whose answer is not clear, and what the history keeps of one.

use paced::store::LONGEST_NOTE;

use super::*;
use crate::admin::certificate::MAX_NAME;

#[test]
fn a_change_in_the_history_is_never_too_long() {
    let long = "\u{1}ä".repeat(2_000);
    let change = history::Change {
        author: history::Author { by: "alice".to_owned(), ..history::Author::default() },
        chosen: long.clone(),
        after: long.clone(),
        reason: long,
        ..history::Change::default()
    };
    let text = history_text(&change);
    assert!((MAX_HISTORY_BYTES / 4..=MAX_HISTORY_BYTES).contains(&text.len()), "{}", text.len());
    let kept: history::Change = serde_json::from_str(&text).unwrap();
    assert!(kept.author.by == "alice" && change.after.starts_with(&kept.after), "{text}");
}

/// The longest name that a certificate may give, of what JSON escapes, with the longest reason.
#[test]
fn the_longest_author_and_reason_fit_into_a_note() {
    let (name, reason) = ("\"".repeat(MAX_NAME), "\u{1d11e}".repeat(200));
    assert_eq!(paced::api::order::reason(Some(reason.clone())), Ok(Some(reason.clone())));
    let note = Author { name: &name, reason: Some(&reason) }.note();
    assert!(note.len() <= LONGEST_NOTE, "{}", note.len());
}

#[tokio::test(start_paused = true)]
async fn a_change_without_a_clear_answer_may_have_been_made() {
    let detail = || (String::new(), String::new());
    let away = |(address, detail)| StoreError::Unreachable { address, detail };
    let refused = |(address, detail)| StoreError::Unauthorized { address, detail };
    let odd = |(address, detail)| StoreError::Unexpected { address, detail };
    for (error, is_unknown) in [
        (away(detail()), true),
        (odd(detail()), true),
        (refused(detail()), true),
        (StoreError::Invalid(String::new()), false),
    ] {
        let refusal = made_within_timeout::<()>(async { Err(error.clone()) }).await.unwrap_err();
        assert_eq!(refusal.is_unknown(), is_unknown, "{error}");
        let read = within_timeout::<(), _>(async { Err(error) }).await.unwrap_err();
        assert!(!read.is_unknown(), "nothing was changed: {}", read.text());
    }
    let late = made_within_timeout::<()>(std::future::pending()).await.unwrap_err();
    assert!(late.is_unknown() && late.status() == 503, "{}", late.text());
    assert_eq!(made_within_timeout(async { Ok(7) }).await, Ok(7));
}
