//! The `Retry-After` of an answer.

use std::time::Duration;

use hyper::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};

use crate::retry_after;

/// How long the downstream asks to wait; `None` when the header is absent or unclear.
pub(super) fn read(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok();
    retry_after(text(&RETRY_AFTER)?, text(&DATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_fields_are_read() {
        let mut headers = HeaderMap::new();
        assert_eq!(read(&headers), None);
        headers.insert(RETRY_AFTER, "Sun, 06 Nov 1994 08:50:00 GMT".parse().unwrap());
        assert_eq!(read(&headers), Some(Duration::ZERO), "long ago");
        headers.insert(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        assert_eq!(read(&headers), Some(Duration::from_secs(23)));
    }
}
