use proptest::prelude::*;

use super::*;
use crate::job::{CostBound, JobLanes, METHODS, MaxCost, Message, ReplyRules, Rules, Value, decode};

fn base(text: &str) -> Base {
    Base::parse(text).expect(text).0
}

/// The request target of a job with this `paced-path`, by the rules for producers and by the base; `None` if one of them
/// refuses it.
fn joined(base: &Base, path: &str, encoded_slash: bool) -> Option<String> {
    let rules = Rules {
        max_body: 0,
        allow_headers: Vec::new(),
        methods: METHODS.map(str::to_owned).to_vec(),
        encoded_slash,
        max_cost: MaxCost { units: 1, bound: CostBound::Given, given: None },
        costs: Vec::new(),
        plans: Vec::new(),
        lanes: JobLanes::default(),
        reply: ReplyRules::default(),
    };
    let headers = vec![("paced-path".to_owned(), Value::Text(path.to_owned().into()))];
    let job = decode(&Message { headers, ..Message::default() }, &rules).ok()?;
    base.join(&job.request.path).ok()
}

const HOST: &str = "https://api.example.com";

/// Below the host: the base, the path of a job, and the target; "" where the path is refused.
const JOINS: &[(&str, &str, &str)] = &[
    // A base that ends in a slash.
    ("", "", "/"),
    ("/", "", "/"),
    ("/", "/", "/"),
    ("", "a", "/a"),
    ("/v1/", "", "/v1/"),
    ("/v1/", "/", "/v1/"),
    ("/v1/", "a/b", "/v1/a/b"),
    ("/v1/", "/a/b/", "/v1/a/b/"),
    ("/v1/", "?q=1", "/v1/?q=1"),
    ("/v1/", "a?q=1&q=2", "/v1/a?q=1&q=2"),
    ("/v1/", "a?", "/v1/a?"),
    ("/v1/", "{id}/x", "/v1/%7Bid%7D/x"),
    ("/v1/", "caf%C3%A9/.well-known", "/v1/caf%C3%A9/.well-known"),
    ("/v1/", "projects/1:search", "/v1/projects/1:search"),
    ("/v1/", "projects%3asearch", "/v1/projects%3asearch"),
    // An endpoint.
    ("/hook", "", "/hook"),
    ("/hook", "/", "/hook"),
    ("/hook", "a", "/hook/a"),
    ("/hook", "/a/", "/hook/a/"),
    ("/hook", "?q=1", "/hook?q=1"),
    ("/hook", "/?q=1", "/hook?q=1"),
    ("/hook", "a?q=1", "/hook/a?q=1"),
    ("/hook", ".env", "/hook/.env"),
    ("/a%20b", "c", "/a%20b/c"),
    ("/v1/../hook", "a", "/hook/a"),
    // A query in the base.
    ("/hook?key=abc", "", "/hook?key=abc"),
    ("/hook?key=abc", "/", "/hook?key=abc"),
    ("/hook?key=abc", "items/1", "/hook/items/1?key=abc"),
    ("/hook?key=abc", "items/1?q=1", "/hook/items/1?key=abc&q=1"),
    ("/hook?key=abc", "?q=1&r=a=b", "/hook?key=abc&q=1&r=a=b"),
    ("/hook?key=abc", "?", "/hook?key=abc"),
    ("/v1/?key=abc", "a?q=?", "/v1/a?key=abc&q=?"),
    ("?key=abc", "a", "/a?key=abc"),
    ("/hook?", "a", "/hook/a"),
    ("/hook?a=1&b[]=2", "?c=3", "/hook?a=1&b[]=2&c=3"),
    ("/hook?filter[a]=1", "?filter[b]=2", "/hook?filter[a]=1&filter[b]=2"),
    ("/hook?filter[a]=1", "?filtera=2", "/hook?filter[a]=1&filtera=2"),
    ("/hook?filter[a]=1", "?a=2&filters[a]=3", "/hook?filter[a]=1&a=2&filters[a]=3"),
    ("/hook?key=abc", "a?x=%26key%3D1", "/hook/a?key=abc&x=%26key%3D1"),
    ("/hook?key=abc", "a?keys=1&xkey=1", "/hook/a?key=abc&keys=1&xkey=1"),
    ("/hook?sig=%2Fa%2B", "?q=%2F", "/hook?sig=%2Fa%2B&q=%2F"),
    // A name that the base has.
    ("/hook?key=abc", "?key=1", ""),
    ("/hook?key=abc", "a?q=1&key=1", ""),
    ("/hook?key=abc", "?q=1;key=1", ""),
    ("/hook?key=abc", "?key", ""),
    ("/hook?key=abc", "?KEY=1", ""),
    ("/hook?key=abc", "?k%65y=1", ""),
    ("/hook?key=abc", "?%2565y=1&%256Bey=1", ""),
    ("/hook?key=abc", "?+key=1", ""),
    ("/hook?key=abc", "?%20key=1", ""),
    ("/hook?key=abc", "?key[]=1", ""),
    ("/hook?key=abc", "?key%5Ba%5D=1", ""),
    ("/hook?k%65y=abc", "?key=1", ""),
    ("/hook?api_key=abc", "?api.key=1", ""),
    ("/hook?api_key=abc", "?api%20key=1", ""),
    ("/hook?api_key=abc", "?api[key=1", ""),
    ("/hook?key=abc", "?[key]=1", ""),
    ("/hook?key=abc", "?%5Bkey%5D=1", ""),
    ("/hook?key=abc", "?key]=1", ""),
    ("/hook?key=abc", "?+[key=1", ""),
    ("/hook?key=abc", "?key[=1", ""),
    ("/hook?filter[a]=1", "?filter[a]=2", ""),
    ("/hook?filter[a]=1", "?filter[a][b]=2", ""),
    ("/hook?filter[a]=1", "?filter%5Ba%5D=2", ""),
    ("/hook?filter[a]=1", "?filter=2", ""),
    ("/hook?filter[a]=1", "?filter[a=2", ""),
    ("/hook?filter[a]=1", "?filter[a]b=2", ""),
    ("/hook?filter[a][b]=1", "?filter[a]x[c]=2", ""),
    ("/hook?filter[a]=1", "?filter.a=2", ""),
    ("/hook?filter.a=1", "?filter[a]=2", ""),
    ("/hook?filter[]=1", "?filter[0]=2", ""),
    // Ways out.
    ("/hook", "..", ""),
    ("/hook", "../x", ""),
    ("/hook", "a/../../x", ""),
    ("/hook", "/../x", ""),
    ("/hook", "..;/x", ""),
    ("/hook", "%2e%2e/x", ""),
    ("/hook", "%252e%252e/x", ""),
    ("/hook", "..%2fx", ""),
    ("/hook", "..\\x", ""),
    ("/hook", "//evil.example/", ""),
    ("/hook", "https://evil.example/", ""),
    ("/hook", "https:evil.example", ""),
    ("/hook", "@evil.example/", "/hook/@evil.example/"),
    ("", "@evil.example/", "/@evil.example/"),
    ("", ":80/", "/:80/"),
    ("", "//evil.example/", ""),
    ("", ".evil.example/", "/.evil.example/"),
    ("/hook", "a#b", ""),
    ("/hook?key=abc", "#", ""),
    ("/hook", "a b", ""),
    ("/hook", "a\r\nHost: evil.example", ""),
];

/// With `encoded_slash`.
const ENCODED: &[(&str, &str, &str)] = &[
    ("/api/v4/projects/", "group%2Fproject/issues", "/api/v4/projects/group%2Fproject/issues"),
    ("/api/v4/projects", "group%2fsub%2Fproject", "/api/v4/projects/group%2fsub%2Fproject"),
    ("/api/v4/projects/", "group%2Fproject?path=a%2Fb", "/api/v4/projects/group%2Fproject?path=a%2Fb"),
    ("/v1/", "a%2F", "/v1/a%2F"),
    ("/v1/", "a%2F..%2Fb", ""),
    ("/v1/", "a%2f..", ""),
    ("/v1/", "..%2Fb", ""),
    ("/v1/", "%2F..%2Fb", ""),
    ("/v1/", "a%2F.%2Fb", ""),
    ("/v1/", "a%2F..;x%2Fb", ""),
    ("/v1/", "a%2F..%3Bx%2Fb", ""),
    ("/v1/", "a%2F%2e%2e", ""),
    ("/v1/", "a%2F%252e%252e", ""),
    ("/v1/", "a%252F..%252Fb", ""),
    ("/v1/", "a%252Fb", ""),
    ("/v1/", "a%5C..%5Cb", ""),
    ("/v1/", "%2Fetc", ""),
    ("/v1/", "/%2Fetc", ""),
    ("/v1/", "%2F%2Fevil.example", ""),
    ("/v1/", "a%2F%2Fb", ""),
    ("/v1/", "a/%2Fb", ""),
    ("/v1/", "a%2F/b", ""),
    ("/v1/", "https:%2F%2Fevil.example", ""),
    ("/v1/", "https:%2Fevil.example", ""),
];

#[test]
fn each_join_has_its_target_or_is_refused() {
    let mut wrong = Vec::new();
    for (joins, encoded_slash) in [(JOINS, false), (JOINS, true), (ENCODED, true)] {
        for &(below, path, target) in joins {
            let found = joined(&base(&format!("{HOST}{below}")), path, encoded_slash).unwrap_or_default();
            if found != target {
                wrong.push(format!("{below} and {path}: {found}"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    for &(below, path, _) in ENCODED {
        let found = joined(&base(&format!("{HOST}{below}")), path, false);
        assert_eq!(found, None, "{path} has an encoded slash");
    }
}

#[test]
fn no_refusal_shows_a_query() {
    let base = base("https://api.example.com/hook?s3cret=s3cret");
    let refused = base.join("a?s3cret=1").unwrap_err();
    assert!(refused.contains("`base_url`") && !refused.contains("s3cret"), "{refused}");
}

#[test]
fn what_is_appended_plainly_is_what_a_parser_makes_of_it() {
    // All short paths of pieces that parsers give a meaning to, and of pieces that they do not.
    let pieces = ["", "a", "/", ".", "%2e", "%", "?", ":", ";", "@", "=", "!", "+", "//", "a.b", "~", "$"];
    let base = base("http://127.0.0.1/v1/");
    let mut plain = 0;
    for first in pieces {
        for second in pieces {
            for third in pieces {
                for fourth in pieces {
                    let path = format!("{first}{second}{third}{fourth}");
                    if is_plain(&path) {
                        plain += 1;
                        let target = format!("/v1/{path}");
                        assert_eq!(base.normalised(&target), Some(target));
                    }
                }
            }
        }
    }
    assert!(plain > 20_000, "{plain}");
    for byte in 0..=0x7f_u8 {
        let path = format!("a{}b?c{}d", char::from(byte), char::from(byte));
        if is_plain(&path) {
            let target = format!("/v1/{path}");
            assert_eq!(base.normalised(&target), Some(target));
        }
    }
}

/// Jobs can be built by hand, without the rules for producers.
#[test]
fn what_is_not_plain_is_encoded_or_refused() {
    let base = base("http://127.0.0.1/v1/");
    for (path, sent) in [
        ("", "/v1/"),
        ("a/b?c=d", "/v1/a/b?c=d"),
        ("a%20b/%41", "/v1/a%20b/%41"),
        (".well-known/x", "/v1/.well-known/x"),
        ("{id}/<x>?q={y}", "/v1/%7Bid%7D/%3Cx%3E?q={y}"),
        ("a/b#c", "/v1/a/b"),
        ("a/./b", "/v1/a/b"),
    ] {
        assert_eq!(base.join(path).as_deref(), Ok(sent), "{path}");
    }
    for path in ["..", "%2E%2e/x", "a/../../x", "..\\x"] {
        assert!(base.join(path).is_err(), "{path}");
    }
    let endpoint = self::base("http://127.0.0.1/v1/hook");
    for path in ["..", "../hooks", "a/../../hooks", "%2e%2e/hooks"] {
        assert!(endpoint.join(path).is_err(), "{path}");
    }
    // A parser leaves out tabs and line ends, wherever they are.
    let with_query = self::base("http://127.0.0.1/hook?key=abc");
    for path in ["?k\ney=1", "a?q=1&\tkey=1", "a\t?ke\ry=1"] {
        assert!(with_query.join(path).is_err(), "{path:?}");
    }
    assert_eq!(with_query.join("?a\nb=1#key=1").as_deref(), Ok("/hook?key=abc&ab=1"));
}

/// Decodes a path as a chain of lenient servers would, each of which resolves dots, and returns whether it stays below
/// `base`, whose segments it begins with.
fn stays(path: &str, base: &str) -> bool {
    let floor = base.split('/').filter(|segment| !segment.is_empty()).count();
    let mut text = path.to_owned();
    (0..3).all(|_| {
        let mut depth = 0_usize;
        let mut seen = 0_usize;
        for segment in text.split(['/', '\\']) {
            match segment.split([';', '?', '#']).next().unwrap_or_default().trim_end_matches(' ') {
                ".." => depth = depth.saturating_sub(1),
                "." | "" => {}
                _ => {
                    depth += 1;
                    seen += 1;
                }
            }
            if seen >= floor && depth < floor {
                return false;
            }
        }
        text = percent_decode_str(&text).decode_utf8_lossy().into_owned();
        true
    })
}

const PIECES: &str = r"([a-z:;?&#@/\\.= \[\]+]|%2[eEfF]|%5[bBcCdD]|%25|%3[bBfFdD]|%26|%23|%20|%00|//|\.\./|key|é|\PC|[\x00-\x1f])";

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn no_job_leaves_the_host_or_the_base(
        path in proptest::collection::vec(prop_oneof![PIECES, "[a-z0-9/.%?:;&=-]{1,6}", "[a-z0-9.;:]{1,3}(/|%2F)?"], 0..7),
        below in prop_oneof![
            Just(""), Just("/"), Just("/v1/"), Just("/hook"), Just("/a%20b/c"), Just("/hook?key=abc"), Just("/v1/?key=abc&x[]=1"),
        ],
        origin in prop_oneof![Just("http://127.0.0.1:8080"), Just("https://api.example.com"), Just("https://[::1]:8443")],
        encoded_slash in any::<bool>(),
    ) {
        let base = base(&format!("{origin}{below}"));
        let path = path.concat();
        if let Some(target) = joined(&base, &path, encoded_slash) {
            let url = Url::parse(&format!("{origin}{target}")).expect("a URL");
            prop_assert_eq!(url.origin(), base.url().origin(), "{}", &path);
            prop_assert!(url.username().is_empty() && url.fragment().is_none(), "{}", &path);
            // The parser finds nothing to change, and neither does what sends it.
            prop_assert_eq!(&url[Position::BeforePath..], &target, "{}", &path);
            prop_assert!(target.parse::<hyper::Uri>().is_ok_and(|uri| uri.host().is_none()), "{}", &target);
            prop_assert!(base.has(url.path()), "{} of {}", &target, &path);
            prop_assert!(stays(url.path(), base.url().path()), "{} of {}", &target, &path);
            // The base URL's query is whole, comes first, and each of its names occurs once.
            if let Some(fixed) = &base.query {
                let query = url.query().unwrap_or_default();
                let own = query.strip_prefix(&fixed.text).expect("the query of the base");
                prop_assert!(own.is_empty() || own.starts_with('&'), "{}", &target);
                let of_base: &[&str] = if fixed.text.contains("x[]") { &["key", "x[]"] } else { &["key"] };
                for (name, _) in url::form_urlencoded::parse(own.as_bytes()) {
                    prop_assert!(!of_base.contains(&&*name), "{}", &target);
                }
            }
        }
    }
}
