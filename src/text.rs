//! Shows foreign text to people: nothing in it may control the terminal or look like another line.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal may obey `c` instead of showing it: control characters (Unicode's `Cc`), the marks
/// and embeddings that change the direction of writing, and the separators of lines and paragraphs.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

/// The text with every character for which [`is_unsafe`] holds as its escape, such as `\u{202e}` or `\n`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escaped_but(text, |_| false)
}

/// As [`escaped`], but for the line feeds: for text of several lines.
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    escaped_but(text, |c| c == '\n')
}

/// JSON as a terminal may be given it: the same value, with the characters that [`escaped`] escapes as JSON's
/// own escapes. The text is one JSON value on one line.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_unsafe) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_unsafe(c) {
            // JSON has them in strings only, and each is a single unit of UTF-16.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// The beginning of a body as text for people, of `most` characters: what is no UTF-8 is replaced, and what [`escaped_lines`]
/// escapes is escaped.
#[must_use]
pub fn excerpt(body: &[u8], most: usize) -> String {
    // The end of a line is often written so.
    let text = String::from_utf8_lossy(body).replace("\r\n", "\n");
    escaped_lines(&text).chars().take(most).collect()
}

/// The beginning of a text, of at most this many characters.
#[must_use]
pub fn cut(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

/// Names with their counts, such as `429 ×411, timeout ×3`.
#[must_use]
pub fn counts<'a>(names: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let mut out = String::new();
    for (name, count) in names {
        let comma = if out.is_empty() { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(out, "{comma}{name} ×{count}");
    }
    out
}

fn escaped_but(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let escapes = |c: char| is_unsafe(c) && !keep(c);
    if !text.contains(escapes) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if escapes(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_shown_without_harm() {
        assert_eq!(excerpt(b"{\r\n  \"error\": 1\n}", 1024), "{\n  \"error\": 1\n}");
        assert_eq!(excerpt(b"\x1b[2J\xff\x00\xe2\x80\xae\r", 1024), "\\u{1b}[2J\u{fffd}\\u{0}\\u{202e}\\r");
        assert_eq!(excerpt("é".repeat(20).as_bytes(), 3), "ééé");
        assert_eq!(excerpt(&[0; 1024], 1024).len(), 1024, "escapes make it no longer");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!((cut("ééé", 2), cut("ééé", 3), cut("", 0)), ("éé", "ééé", ""));
    }

    #[test]
    fn counts_are_named() {
        assert_eq!(counts([("429", 411), ("timeout a:1", 3)]), "429 ×411, timeout a:1 ×3");
        assert_eq!(counts([]), "");
    }

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        for c in ['\0', '\n', '\r', '\u{1b}', '\u{7f}', '\u{85}', '\u{9b}'] {
            assert!(is_unsafe(c), "{c:?}");
        }
        for c in ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            assert!(is_unsafe(c), "{c:?}");
        }
        for c in ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'] {
            assert!(is_unsafe(c), "{c:?}");
        }
        assert_eq!(escaped("a\u{202e}b\nc\u{1b}[2J"), "a\\u{202e}b\\nc\\u{1b}[2J");
        assert_eq!(escaped_json("{\"a\":\"\u{202e}\u{7f}\"}"), "{\"a\":\"\\u202e\\u007f\"}");
        assert_eq!(escaped_lines("a\u{2028}\nb\r"), "a\\u{2028}\nb\\r");
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in [
            "",
            "grüße, 你好, שלום",
            "👩\u{200d}👩\u{200d}👧",
            "a\u{200b}b\u{2060}c",
            "\u{2027}\u{202f}\u{206a}",
        ] {
            assert!(matches!(escaped(text), Cow::Borrowed(same) if same == text), "{text:?}");
        }
    }
}
