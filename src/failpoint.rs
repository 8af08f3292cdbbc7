//! Hooks for tests of whole processes: points between two steps at which a test ends the process, as `kill -9` does,
//! answers that it loses, loops that it holds, and polling intervals that it shortens. Without the feature
//! `failpoints` they do nothing.

use std::time::Duration;

/// The environment variable that names the point, and at which of its passes the process ends: `park:confirmed`, or
/// `park:confirmed=3`.
#[cfg(feature = "failpoints")]
const VARIABLE: &str = "PACED_TEST_FAIL_AT";

/// Ends the process if the environment names this point.
#[cfg(feature = "failpoints")]
pub fn reached(point: &str) {
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
pub const fn reached(_point: &str) {}

/// The divisor in an environment variable; 1 where it has none.
#[cfg(feature = "failpoints")]
fn divisor(variable: &str) -> u32 {
    let chosen = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    chosen.filter(|&divisor| divisor > 0).unwrap_or(1)
}

/// The divisor of polling intervals: 1, or what a test has set in `PACED_TEST_HASTE`.
pub fn haste() -> u32 {
    #[cfg(feature = "failpoints")]
    {
        static HASTE: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| divisor("PACED_TEST_HASTE"));
        *HASTE
    }
    #[cfg(not(feature = "failpoints"))]
    1
}

/// An interval between two polls, which tests shorten.
pub fn interval(usual: Duration) -> Duration {
    usual / haste()
}

/// A time limit of one call, which a test of that limit shortens by `PACED_TEST_IMPATIENCE`: on a busy machine a
/// shorter limit ends calls that would succeed.
pub fn limit(usual: Duration) -> Duration {
    #[cfg(feature = "failpoints")]
    {
        static IMPATIENCE: std::sync::LazyLock<u32> =
            std::sync::LazyLock::new(|| divisor("PACED_TEST_IMPATIENCE"));
        usual / *IMPATIENCE
    }
    #[cfg(not(feature = "failpoints"))]
    usual
}

/// Whether the answer to a call that changed something is lost, as if the connection had ended just then: as long as the file
/// that a test has named in `PACED_TEST_LOSE` exists.
#[cfg(feature = "failpoints")]
pub fn loses_answers() -> bool {
    use std::path::PathBuf;
    use std::sync::LazyLock;

    static FILE: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("PACED_TEST_LOSE").map(PathBuf::from));
    FILE.as_ref().is_some_and(|file| file.exists())
}

/// No answer is lost.
#[cfg(not(feature = "failpoints"))]
pub const fn loses_answers() -> bool {
    false
}

/// Waits as long as the file that a test has named in `PACED_TEST_HOLD` exists, so that a loop does not continue.
#[cfg(feature = "failpoints")]
pub async fn held() {
    use std::path::PathBuf;
    use std::sync::LazyLock;

    static FILE: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("PACED_TEST_HOLD").map(PathBuf::from));
    while FILE.as_ref().is_some_and(|file| file.exists()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for nothing.
#[cfg(not(feature = "failpoints"))]
pub fn held() -> std::future::Ready<()> {
    std::future::ready(())
}
