//! Texts that may hold credentials.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::error::system_text;
use super::source::read_text;

/// A text that may hold credentials: it is shown as `***`, or as a URL without its user information. One from a file of
/// its own is always shown as `***`.
#[derive(Clone)]
pub struct Secret {
    text: String,
    hidden: bool,
    /// The file that it was read from, if it has one of its own.
    file: Option<PathBuf>,
    /// What a text in that file must be.
    check: Option<Check>,
}

/// Returns the secret that a text is, or a problem that does not show it.
pub(super) type Check = fn(&str) -> Result<Secret, String>;

impl Secret {
    /// Wraps a text; if it is a URL, it is shown without user information, and with `***` for the query of one of HTTP.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), hidden: false, file: None, check: None }
    }

    /// Wraps a text of which nothing is ever shown.
    pub fn hidden(text: impl Into<String>) -> Self {
        Self { text: text.into(), hidden: true, file: None, check: None }
    }

    /// Wraps the text of a file, of which nothing is ever shown.
    pub fn of_file(text: impl Into<String>, file: PathBuf) -> Self {
        Self { text: text.into(), hidden: true, file: Some(file), check: None }
    }

    /// The same secret, whose file must hold what `check` accepts each time it is read again.
    #[must_use]
    pub(super) fn checked_by(self, check: Check) -> Self {
        Self { check: Some(check), ..self }
    }

    /// The file that it was read from, if it has one of its own.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the secret from its file again; a secret without a file is returned unchanged. It blocks while it reads.
    ///
    /// # Errors
    /// The file cannot be read, or what is in it cannot be used. The text shows neither the file's name nor what is in it.
    pub fn read_again(&self) -> Result<Self, String> {
        let Some(file) = self.file() else { return Ok(self.clone()) };
        self.checked(contents(file).map_err(|error| unreadable(&error))?)
    }

    /// As [`Secret::read_again`]; `None` if its file is not there any more, or is empty.
    ///
    /// # Errors
    /// Those of [`Secret::read_again`].
    pub fn read_again_if_there(&self) -> Result<Option<Self>, String> {
        let Some(file) = self.file() else { return Ok(Some(self.clone())) };
        match contents(file) {
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => self.checked(text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(&error)),
        }
    }

    /// The same secret with this text, which its file has now.
    fn checked(&self, text: String) -> Result<Self, String> {
        let text = match self.check {
            Some(check) => {
                check(&text).map_err(|problem| format!("its file cannot be used: {problem}"))?.text
            }
            None => text,
        };
        Ok(Self { text, ..self.clone() })
    }

    /// How it is read again, if it has a file of its own.
    #[cfg(feature = "tls")]
    pub fn reader(&self) -> Option<crate::ReadSecret> {
        let secret = self.clone();
        let read = move || secret.read_again().map(|secret| secret.text);
        self.file().is_some().then(|| crate::ReadSecret::new(read))
    }

    /// The text itself: for the connection, never for a log.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The part of a URL that may be shown; `None` if anything about it is odd, such as a password with an unencoded
    /// `/`, `?` or `#`, or a password without `@`.
    fn shown(&self) -> Option<String> {
        const SCHEMES: [&str; 4] = ["redis", "rediss", "http", "https"];
        const SEVERAL: [&str; 6] =
            ["amqp", "amqps", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"];
        let (scheme, rest) = self.text.split_once("://").filter(|_| !self.hidden)?;
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
        let path = tail.split(['?', '#']).next().unwrap_or_default();
        let known = match SEVERAL.contains(&scheme) {
            true => hosts.split(',').all(is_host),
            false => SCHEMES.contains(&scheme) && is_host(hosts),
        };
        let odd = tail.contains('@') || self.text.contains(|c: char| c.is_whitespace() || c.is_control());
        // Of the others the query holds settings, and is left out.
        let query = if scheme.starts_with("http") && tail.contains('?') { "?***" } else { "" };
        (known && !odd).then(|| format!("{scheme}://{hosts}{path}{query}"))
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("its file cannot be read: {}", system_text(error))
}

/// Whether the text is a host, with a valid port if it has one; a password without a host has none.
fn is_host(host: &str) -> bool {
    let port = match host.strip_prefix('[') {
        Some(inner) => inner.split_once(']').map(|(_, port)| port),
        None => Some(&host[host.find(':').unwrap_or(host.len())..]),
    };
    port.is_some_and(|port| {
        port.is_empty() || port.strip_prefix(':').is_some_and(|digits| digits.parse::<u16>().is_ok())
    })
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, self.hidden, &self.file) == (&other.text, other.hidden, &other.file)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_local = self.text == "memory:" || self.text.starts_with("file:");
        if is_local && !self.hidden && !self.text.contains(char::is_control) {
            return f.write_str(&self.text);
        }
        f.write_str(self.shown().as_deref().unwrap_or("***"))
    }
}

/// The contents of a secret file, without one newline at its end.
pub(super) fn contents(file: &Path) -> io::Result<String> {
    const MAX_SECRET: u64 = 64 << 10;
    let mut text = read_text(file, MAX_SECRET)?;
    if text.ends_with('\n') {
        text.truncate(text.len() - 1 - usize::from(text.ends_with("\r\n")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_without_what_is_secret() {
        for (text, shown) in [
            ("memory:", "memory:"),
            ("file:/var/lib/paced/store", "file:/var/lib/paced/store"),
            ("amqp://guest:hunter2@rabbit:5672/%2f", "amqp://rabbit:5672/%2f"),
            ("amqps://rabbit", "amqps://rabbit"),
            ("amqp://guest:hunter2@a:1,b/v", "amqp://a:1,b/v"),
            ("redis://:hunter2@[::1]:6379/3", "redis://[::1]:6379/3"),
            ("redis://hunter2@cache", "redis://cache"),
            ("rediss://u:hunter2@p@cache/", "rediss://cache/"),
            ("https://api/v1/?token=hunter2#hunter2", "https://api/v1/?***"),
            ("https://api/hook?hunter2", "https://api/hook?***"),
            ("redis+cluster://u:hunter2@a:7000,[::1]:7000,b", "redis+cluster://a:7000,[::1]:7000,b"),
            (
                "rediss+sentinel://:hunter2@a,b:1/my-master/3?sentinel_password=hunter2",
                "rediss+sentinel://a,b:1/my-master/3",
            ),
            // The password has an unencoded delimiter.
            ("redis+cluster://u:hunter2,b", "***"),
            ("redis+cluster://a,u:hun/ter2@b", "***"),
            ("amqp://u:hun/ter2@rabbit/", "***"),
            ("amqp://u:hun?ter2@rabbit/", "***"),
            ("amqp://u:hun#ter2@rabbit/", "***"),
            ("amqp://u:5672/hunter2@rabbit/", "***"),
            // The URL has a password without a host.
            ("amqp://guest:hunter2", "***"),
            ("amqp://guest:hunter2/", "***"),
            ("amqp://[::1:hunter2", "***"),
            ("amqp://[::1]hunter2", "***"),
            // The text is none of the accepted URLs.
            ("guest:hunter2@rabbit", "***"),
            ("hunter2://rabbit", "***"),
            ("Bearer hunter2", "***"),
            ("https://api/ hunter2", "***"),
            ("memory:hunter2", "***"),
            ("", "***"),
        ] {
            let secret = Secret::new(text);
            assert_eq!(secret.to_string(), shown, "{text}");
            assert_eq!(format!("{secret:?}"), shown, "{text}");
            assert_eq!(secret.expose(), text);
            assert_eq!(Secret::hidden(text).to_string(), "***");
        }
    }

    #[test]
    fn what_a_file_holds_now_is_checked_as_it_was_at_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let check: Check = super::super::value::header_value;
        let secret = Secret::of_file("old", file.clone()).checked_by(check);
        for (text, read) in [("new", Some("new")), ("new\r\n", Some("new")), ("", None), ("two\nlines", None)]
        {
            std::fs::write(&file, text).unwrap();
            let again = secret.read_again();
            assert_eq!(again.as_ref().ok().map(Secret::expose), read, "{text}");
            assert!(again.is_err() || again.is_ok_and(|again| again.to_string() == "***"));
            let there = secret.read_again_if_there().map(|there| there.map(|there| there.text));
            assert_eq!(
                there.ok(),
                if text.is_empty() { Some(None) } else { read.map(|read| Some(read.to_owned())) }
            );
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(secret.read_again_if_there(), Ok(None));
        let error = secret.read_again().unwrap_err();
        assert!(!error.contains("token"), "{error}");
        assert_eq!(Secret::hidden("x").read_again(), Ok(Secret::hidden("x")));
    }
}
