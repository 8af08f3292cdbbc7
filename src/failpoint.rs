//! Points between two steps at which tests end the process, as `kill -9` does. Without the feature `failpoints` they are
//! nothing.

/// The environment variable that names the point, and how often it is to be reached: `park:confirmed`, or
/// `park:confirmed=3`.
#[cfg(feature = "failpoints")]
const VARIABLE: &str = "PACED_TEST_FAIL_AT";

/// Ends the process if the environment names this point.
#[cfg(feature = "failpoints")]
pub(crate) fn reached(point: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static CHOSEN: LazyLock<Option<(String, u32)>> = LazyLock::new(|| {
        let text = std::env::var(VARIABLE).ok()?;
        Some(match text.split_once('=') {
            Some((name, times)) => (name.to_owned(), times.parse().unwrap_or(1)),
            None => (text, 1),
        })
    });
    static TIMES: AtomicU32 = AtomicU32::new(0);
    if let Some((chosen, times)) = &*CHOSEN
        && chosen == point
        && TIMES.fetch_add(1, Ordering::SeqCst) + 1 == *times
    {
        // Nothing of this process runs any more: no destructor, and no other thread.
        std::process::abort();
    }
}

/// Does nothing.
#[cfg(not(feature = "failpoints"))]
pub(crate) const fn reached(_point: &str) {}
