use super::*;
use crate::rate::{Amount, Rate};

#[test]
fn durations() {
    for (text, micros) in [
        ("1us", 1),
        ("25s", 25_000_000),
        ("100ms", 100_000),
        ("5m", 300_000_000),
        ("0s", 0),
        ("366d", 31_622_400_000_000),
    ] {
        assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
    }
    for text in [
        "",
        "5",
        "s",
        "5 s",
        "-5s",
        "1.5s",
        "5S",
        "5sec",
        "367d",
        "99999999999999999999s",
        "18446744073709551615d",
    ] {
        assert!(duration(text).is_err(), "{text}");
    }
    assert!(within("1ms", "1ms", "10s", duration).is_ok());
    assert!(within("10s", "1ms", "10s", duration).is_ok());
    assert!(within("999us", "1ms", "10s", duration).is_err());
    assert!(within("10001ms", "1ms", "10s", duration).is_err());
}

#[test]
fn sizes() {
    for (text, bytes) in [("1B", 1), ("4KiB", 4096), ("1MiB", 1 << 20), ("128MiB", 128 << 20)] {
        assert_eq!(within(text, "1B", "128MiB", size), Ok(bytes), "{text}");
    }
    for text in ["", "0B", "1", "1MB", "1mib", "129MiB", "1GiB", "-1B", "18446744073709551615GiB"] {
        assert!(within(text, "1B", "128MiB", size).is_err(), "{text}");
    }
}

#[test]
fn names_of_downstreams() {
    for name in ["a", "0", "billing", "eu-1_b", &"a".repeat(63)] {
        assert_eq!(super::name("downstream", name), Ok(()), "{name}");
    }
    for name in ["", "-a", "_a", "A", "a.b", "a__b", "ä", "a b", &"a".repeat(64)] {
        assert!(super::name("downstream", name).is_err(), "{name}");
    }
}

#[test]
fn addresses_to_listen_on() {
    for text in ["127.0.0.1:9750", "[::1]:9750", "[::]:0", "localhost:65535", "0.0.0.0:80", "a_b.c-d:1"] {
        assert_eq!(listen(text), Ok(text.to_owned()));
    }
    for (text, problem) in [
        ("", "has no port"),
        ("9750", "has no port"),
        ("127.0.0.1", "has no port"),
        ("127.0.0.1:", "has no port from"),
        ("127.0.0.1:65536", "has no port from"),
        ("127.0.0.1:+1", "has no port from"),
        ("localhost:http", "has no port from"),
        ("::1", "has no host"),
        ("::1:9750", "has no host"),
        (":9750", "has no host"),
        ("[::1:9750", "has no host"),
        ("[localhost]:9750", "has no host"),
        ("a b:9750", "has no host"),
        ("u:p@host:1", "has no host"),
        ("*:9750", "has no host"),
        ("http://127.0.0.1:9750", "a URL"),
    ] {
        let error = listen(text).unwrap_err();
        assert!(error.starts_with(problem) && error.contains("write HOST:PORT"), "{text}: {error}");
    }
}

#[test]
fn hosts_that_may_be_asked_for() {
    for text in ["paced.internal", "a:9750", "10.0.0.1", "[::1]", "[::1]:80"] {
        assert_eq!(allowed_host(text), Ok(text.to_owned()));
    }
    assert_eq!(allowed_host("Paced.Internal:80"), Ok("paced.internal:80".to_owned()));
    for text in ["", "*", "*.a", "http://a", "a/b", "a:", "a:b", "a:65536", ":80", "::1", "[::1", "u@a"] {
        assert!(allowed_host(text).unwrap_err().contains("write HOST or HOST:PORT"), "{text}");
    }
}

#[test]
fn tokens() {
    assert_eq!(token("aB3-._~+/=").unwrap().expose(), "aB3-._~+/=");
    for text in ["", "a b", "a\n", "ä", "a\tb", &"a".repeat(1025)] {
        assert!(token(text).unwrap_err().contains("use 1 to 1024 visible"), "{text}");
    }
}

#[test]
fn headers() {
    assert_eq!(allowed_header("X-Request-Id"), Ok("x-request-id".to_owned()));
    assert_eq!(fixed_header("Authorization"), Ok("authorization".to_owned()));
    #[cfg(feature = "http")]
    assert!(fixed_header("Idempotency-Key").is_err());
    for name in ["", "a b", "a:", "ä", "Host", "Content-Length", "TE", "Proxy-Authorization", "connection"] {
        assert!(fixed_header(name).is_err(), "{name}");
        assert!(allowed_header(name).is_err(), "{name}");
    }
    assert!(allowed_header("Authorization").is_err());
    assert!(allowed_header("cookie").is_err());
    for name in ["*", "x-*", "*-id", "Idempotency-Key"] {
        assert!(allowed_header(name).is_err(), "{name}");
    }
    assert_eq!(header_value("Bearer a b").unwrap().expose(), "Bearer a b");
    assert_eq!(header_value("Büro 7").unwrap().expose(), "Büro 7");
    for value in ["", " a", "a ", "a\nb", "a\r", "a\0", "a\u{85}b", "a\u{7f}"] {
        assert!(header_value(value).is_err(), "{value:?}");
    }
}

#[test]
fn a_secret_in_the_wrong_place_is_not_shown() {
    for text in ["amqp://guest:hunter2@rabbit", &"hunter2".repeat(6)] {
        for problem in [
            duration(text).unwrap_err(),
            size(text).unwrap_err(),
            rate::<Rate>(text).unwrap_err().to_string(),
            rate::<Amount>(text).unwrap_err().to_string(),
            choose(text, "no precision", &[("fine", 1), ("coarse", 2)]).unwrap_err(),
            allowed_host(&format!("{text}/")).unwrap_err(),
            token(&format!("{text} ")).unwrap_err(),
            prefix(&format!("{text}/")).unwrap_err(),
            header_name(&format!("{text}/")).unwrap_err(),
        ] {
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
