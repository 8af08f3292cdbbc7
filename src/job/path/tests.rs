use proptest::prelude::*;

use super::*;

#[test]
fn paths_that_pass() {
    for (raw, path) in [
        ("", ""),
        ("/", ""),
        ("jobs", "jobs"),
        ("/jobs", "jobs"),
        ("jobs/", "jobs/"),
        ("a/b/c", "a/b/c"),
        ("?a=1", "?a=1"),
        ("/?a=1", "?a=1"),
        ("a?next=https%3A%2F%2Fexample.com%2F..&x=//", "a?next=https%3A%2F%2Fexample.com%2F..&x=//"),
        ("a?b?c", "a?b?c"),
        ("a%20b", "a%20b"),
        ("a%25b", "a%25b"),
        ("caf%C3%A9", "caf%C3%A9"),
        ("v1/projects:search", "v1/projects:search"),
        ("projects%3asearch", "projects%3asearch"),
        ("1:2", "1:2"),
        ("@me", "@me"),
        ("...", "..."),
        ("a%3fb/c%23d", "a%3fb/c%23d"),
        ("a..%3f/..b%23", "a..%3f/..b%23"),
        ("..%20a", "..%20a"),
        ("100%25ff", "100%25ff"),
        (".well-known/x", ".well-known/x"),
        ("a..b/c.", "a..b/c."),
        ("a;v=1/b", "a;v=1/b"),
        ("{id}/\"x\"|^`<>", "{id}/\"x\"|^`<>"),
    ] {
        assert_eq!(check(raw, false).as_deref(), Ok(path), "{raw}");
    }
    assert!(check(&"a".repeat(MAX_PATH), false).is_ok());
}

/// Paths that are refused, and a part of the reason.
const REFUSED: &[(&str, &str)] = &[
    ("a#b", "`#`"),
    ("#", "`#`"),
    ("a?b#c", "`#`"),
    ("https://evil.example/", "`//`"),
    ("https:evil.example", "scheme"),
    ("/https:evil.example", "scheme"),
    ("javascript:alert(1)", "scheme"),
    ("C:/windows", "scheme"),
    ("x+y-z.1:foo", "scheme"),
    ("//evil.example", "`//`"),
    ("///a", "`//`"),
    ("a//b", "`//`"),
    ("a//", "`//`"),
    (".", "segment"),
    ("..", "segment"),
    ("/..", "segment"),
    ("../x", "segment"),
    ("a/../b", "segment"),
    ("a/.", "segment"),
    ("a/./b", "segment"),
    ("a/..?x=1", "segment"),
    ("..;/x", "segment"),
    ("a/..;v=1/b", "segment"),
    ("..%3bx/y", "behind an encoding"),
    ("..%3f", "behind an encoding"),
    ("a/..%3Fx/b", "behind an encoding"),
    ("..%23", "behind an encoding"),
    ("a/.%23x", "behind an encoding"),
    ("a/..%253f/b", "behind an encoding"),
    ("..%2523", "behind an encoding"),
    ("..%253bx/y", "behind an encoding"),
    ("..%20/x", "behind an encoding"),
    ("%2e%2e/x", "encoded"),
    ("%2E%2e", "encoded"),
    ("a/%2e/b", "encoded"),
    (".%2e", "encoded"),
    ("a%2Fb", "encoded"),
    ("a%2fb", "encoded"),
    ("a%5Cb", "encoded"),
    ("a%5cb", "encoded"),
    ("file%2ejson", "encoded"),
    ("%252e%252e/x", "behind an encoding"),
    ("%252E%252e", "behind an encoding"),
    ("a%252Fb", "behind an encoding"),
    ("a%255cb", "behind an encoding"),
    ("a%2500", "behind an encoding"),
    ("%25%32%65", "behind an encoding"),
    ("%c0%ae%c0%ae/x", "UTF-8"),
    ("%ff", "UTF-8"),
    ("a%00", "%00"),
    ("a?b=%00", "%00"),
    ("a%0d%0ab", "control"),
    ("a%7f", "control"),
    ("a\\b", "backslash"),
    ("..\\", "backslash"),
    ("a?\\", "backslash"),
    ("a b", "space"),
    (" a", "space"),
    ("a?b c", "space"),
    ("a\tb", "control"),
    ("a\r\nHost: x", "control"),
    ("a\0", "control"),
    ("a\u{7f}", "control"),
    ("\t//x", "control"),
    ("café", "ASCII"),
    ("a?é", "ASCII"),
    ("a%", "`%`"),
    ("a%2", "`%`"),
    ("a%zz", "`%`"),
    ("a?%g0", "`%`"),
    ("%%32e", "`%`"),
];

#[test]
fn paths_that_do_not() {
    for &(raw, part) in REFUSED {
        let rejection = check(raw, false).expect_err(raw);
        assert_eq!(rejection.reason, Reason::ForbiddenPath, "{raw}");
        assert!(rejection.detail.contains(part), "{raw}: {}", rejection.detail);
    }
    assert!(check(&"a".repeat(MAX_PATH + 1), false).is_err());
}

#[test]
fn a_detail_does_not_repeat_the_query() {
    let detail = check("a/..?token=s3cret", false).unwrap_err().detail;
    assert!(!detail.contains("s3cret"), "{detail}");
}

/// Decodes as a chain of lenient servers would, and resolves dots as they do.
fn escapes(path: &str) -> bool {
    let mut text = path.split('?').next().unwrap().to_owned();
    for _ in 0..3 {
        let mut depth = 0_i64;
        for segment in text.split(['/', '\\']) {
            // Some servers cut the parameters of a segment and resolve the rest.
            match segment.split([';', '?', '#']).next().unwrap().trim_end_matches(' ') {
                ".." => depth -= 1,
                "." | "" => {}
                _ => depth += 1,
            }
            if depth < 0 {
                return true;
            }
        }
        text = percent_decode_str(&text).decode_utf8_lossy().into_owned();
    }
    false
}

const HOSTILE: &str =
    r"([a-z:;?&#@/\\. ]|%2[eEfF]|%5[cC]|%25|%3[bBfF]|%23|%20|%00|//|\.\./|é|\PC|[\x00-\x1f])";

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn what_passes_stays_under_the_base_for_anyone(
        raw in proptest::collection::vec(prop_oneof![HOSTILE, "[a-z0-9/.%?:;-]{1,6}", "[a-z0-9.;:]{1,3}/?"], 0..6),
        encoded_slash in any::<bool>(),
    ) {
        let raw = raw.concat();
        if let Ok(path) = check(&raw, encoded_slash) {
            prop_assert!(!escapes(&path), "{raw}");
            prop_assert!(path.bytes().all(|b| b.is_ascii_graphic()), "{raw}");
            prop_assert!(!path.starts_with('/'), "{raw}");
            // A path that has passed once passes again, unchanged.
            prop_assert_eq!(check(&path, encoded_slash), Ok(path.clone()));
            prop_assert!(encoded_slash || check(&raw, true) == Ok(path), "allowing more refuses nothing: {raw}");
        }
    }
}
