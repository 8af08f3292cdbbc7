//! Where the jobs of a pipe go: to a URL, or to paths below it.

use paced::dispatch::{Delivery, Source};
use paced::job::{Message, Value};

/// Splits a URL into a base that ends in `/`, and the part after its last `/`.
pub(super) fn split(url: &str) -> (String, String) {
    let path = url.find("://").map_or(0, |at| at + 3);
    match url[path..].rfind('/') {
        Some(at) => (url[..=path + at].to_owned(), url[path + at + 1..].to_owned()),
        None => (format!("{url}/"), String::new()),
    }
}

/// A source whose jobs go to `last` below the base, or to paths below that.
pub(super) struct Below<S> {
    pub(super) source: S,
    pub(super) last: String,
}

impl<S: Source> Source for Below<S> {
    async fn next(&mut self) -> Option<Delivery> {
        let mut delivery = self.source.next().await?;
        if !self.last.is_empty() {
            below(&self.last, &mut delivery.message);
        }
        Some(delivery)
    }

    async fn close(&mut self) {
        self.source.close().await;
    }
}

fn below(last: &str, message: &mut Message) {
    const PATH: &str = "paced-path";
    let path = message.headers.iter_mut().find(|(name, _)| name == PATH);
    match path {
        Some((_, Value::Text(path))) => {
            let separator: &[u8] = if path.starts_with(b"/") || path.starts_with(b"?") { b"" } else { b"/" };
            *path = [last.as_bytes(), separator, path].concat().into();
        }
        // A path of another type is left as it is, and refused later.
        Some(_) => {}
        None => message.headers.push((PATH.to_owned(), Value::Text(last.to_owned().into()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_final_slash_is_where_the_jobs_go() {
        for (url, base, last) in [
            ("http://host", "http://host/", ""),
            ("http://host/", "http://host/", ""),
            ("http://host/hook", "http://host/", "hook"),
            ("http://host/v1/hook", "http://host/v1/", "hook"),
            ("http://host/v1/", "http://host/v1/", ""),
        ] {
            assert_eq!(split(url), (base.to_owned(), last.to_owned()), "{url}");
        }
    }

    #[test]
    fn paths_go_below_it() {
        for (path, expected) in [(None, "hook"), (Some("a/b"), "hook/a/b"), (Some("?q=1"), "hook?q=1")] {
            let mut message = Message::default();
            if let Some(path) = path {
                message.headers.push(("paced-path".to_owned(), Value::Text(path.into())));
            }
            below("hook", &mut message);
            let text = Value::Text(expected.to_owned().into());
            assert_eq!(message.headers, [("paced-path".to_owned(), text)]);
        }
    }
}
