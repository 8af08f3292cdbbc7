//! Checks paths that a job may append to the base URL: none leads out of it, here or at a server that decodes once
//! more.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::{Reason, Rejection};

/// Servers commonly stop at 8 KiB for the whole request line.
const MAX_PATH: usize = 8000;

/// The path without its leading `/`, if it is safe to append to a base URL behind a slash. With `encoded_slash` it may have
/// `%2f`, which is a slash to all of these rules.
///
/// The rules for `/`, `.` and their encodings hold up to the `?`: a query cannot leave the base,
/// and commonly holds encoded URLs.
pub(super) fn check(raw: &str, encoded_slash: bool) -> Result<String, Rejection> {
    let refused = |what: &str| {
        // The path itself is not in the text, as its query may hold a token.
        Err(Rejection::new(Reason::ForbiddenPath, format!("`paced-path` {what}")))
    };
    if raw.len() > MAX_PATH {
        return refused("is over 8000 bytes; move data to the body");
    }
    if let Some(why) = raw.bytes().find_map(forbidden_byte) {
        return refused(why);
    }
    if !escapes_are_whole(raw) {
        return refused(
            "has a `%` that two hexadecimal digits do not follow; write `%25` for a percent sign",
        );
    }
    if contains_escape(raw, "00") {
        return refused("has `%00`; leave it out");
    }
    let whole_path = raw.split('?').next().unwrap_or_default();
    let whole_path: Cow<'_, str> = match encoded_slash {
        true => whole_path.replace("%2f", "/").replace("%2F", "/").into(),
        false => whole_path.into(),
    };
    // What is appended stands behind a slash.
    if whole_path.contains("//") || whole_path.starts_with('/') && !raw.starts_with('/') {
        return refused("has `//` (an encoded slash counts too); write one slash");
    }
    if contains_escape(&whole_path, "2f") {
        return refused(
            "has an encoded `/` (%2f); write the path plainly, or allow it by `http.encoded_slash`",
        );
    }
    if ["2e", "5c"].iter().any(|code| contains_escape(&whole_path, code)) {
        return refused("has an encoded `.` or `\\` (%2e, %5c); write the path plainly");
    }
    let path = whole_path.strip_prefix('/').unwrap_or(&whole_path);
    if has_scheme(path) {
        return refused("begins like a scheme (`name:`); write `%3a` for a colon in the first segment");
    }
    if path.split('/').any(is_dots) {
        return refused("has a segment `.` or `..`; write the path without them");
    }
    if let Some(what) = decoded_once(path) {
        return refused(what);
    }
    Ok(raw.strip_prefix('/').unwrap_or(raw).to_owned())
}

fn forbidden_byte(byte: u8) -> Option<&'static str> {
    match byte {
        b'#' => Some("has a `#`; leave the fragment out, or write `%23`"),
        b'\\' => Some("has a backslash; write `/`"),
        b' ' => Some("has a space; write `%20`"),
        0..=0x1f | 0x7f => Some("has a control character; leave it out"),
        0x80.. => Some("has a character beyond ASCII; percent-encode its UTF-8 bytes"),
        _ => None,
    }
}

/// Checks the path after decoding it once, for servers that decode it twice.
fn decoded_once(path: &str) -> Option<&'static str> {
    let decoded: Cow<'_, [u8]> = percent_decode_str(path).into();
    let Cow::Owned(bytes) = decoded else { return None };
    // Overlong UTF-8 (`%c0%ae`) is a dot to a lenient decoder.
    let Ok(text) = str::from_utf8(&bytes) else {
        return Some("does not decode to UTF-8; percent-encode UTF-8 bytes");
    };
    if text.bytes().any(|b| b.is_ascii_control()) {
        return Some("has an encoded control character; leave it out");
    }
    let twice = ["00", "2e", "2f", "5c"].iter().any(|code| contains_escape(text, code));
    // The text is decoded once more, since `%253f` is a `?` to a server that decodes twice.
    let again = percent_decode_str(text).decode_utf8_lossy();
    if twice || text.split('/').chain(again.split('/')).any(is_dots) {
        return Some("hides `.`, `/` or `\\` behind an encoding; write the path plainly");
    }
    None
}

/// Whether `segment` is `.` or `..` to some server: as it is; before parameters (`..;x`), a query or a fragment (`..?`,
/// once `%3f` is decoded), which some servers cut first; before spaces, which some file systems ignore.
fn is_dots(segment: &str) -> bool {
    let name = segment.split([';', '?', '#']).next().unwrap_or_default();
    matches!(name.trim_end_matches(' '), "." | "..")
}

/// Whether a URL parser would take the beginning for `scheme:`.
fn has_scheme(path: &str) -> bool {
    let Some((name, _)) = path.split_once(':') else { return false };
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

/// Whether `%code` occurs, in any case; `code` is in lower case.
fn contains_escape(text: &str, code: &str) -> bool {
    text.split('%').skip(1).any(|rest| rest.get(..2).is_some_and(|hex| hex.eq_ignore_ascii_case(code)))
}

fn escapes_are_whole(text: &str) -> bool {
    text.split('%')
        .skip(1)
        .all(|rest| rest.get(..2).is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit())))
}

#[cfg(test)]
mod tests;
