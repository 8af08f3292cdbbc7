use super::*;

#[track_caller]
fn right(check: fn(&str) -> Result<Secret, String>, texts: &[&str]) {
    for text in texts {
        assert_eq!(check(text).map(|url| url.expose().to_owned()), Ok((*text).to_owned()));
    }
}

#[track_caller]
fn wrong(check: fn(&str) -> Result<Secret, String>, texts: &[&str]) {
    for text in texts {
        let problem = check(text).expect_err(text);
        assert!(problem.contains("; "), "{text}: {problem} says what would be right");
        assert!(!problem.contains("hunter2"), "{text}: {problem}");
    }
}

#[test]
fn brokers() {
    right(
        amqp,
        &[
            "amqp://guest:hunter2@rabbit:5672/%2f",
            "amqps://[::1]/v?heartbeat=5",
            "amqp://10.0.0.1/orders",
            "amqp://u:hunter2@a:5672,b:5673,[::1]/orders",
        ],
    );
    for (text, expected) in [
        ("amqp://rabbit", "amqp://rabbit/%2f"),
        ("amqp://rabbit/", "amqp://rabbit/%2f"),
        ("amqps://u:p@rabbit:5671/?heartbeat=5", "amqps://u:p@rabbit:5671/%2f?heartbeat=5"),
        ("amqp://rabbit?heartbeat=5", "amqp://rabbit/%2f?heartbeat=5"),
        ("amqp://u:p@a,b:1", "amqp://u:p@a,b:1/%2f"),
        ("amqps://a,b/?heartbeat=5", "amqps://a,b/%2f?heartbeat=5"),
    ] {
        assert_eq!(amqp(text).unwrap().expose(), expected, "{text}");
    }
    wrong(
        amqp,
        &[
            "",
            "rabbit",
            "http://rabbit/",
            "amqp://",
            "amqp:///v",
            "amqp://u:hunter2@",
            "amqp://u:hunter2@/v",
            "amqp://u:hunter2",
            "amqp://u:hun/ter2@rabbit/",
            "amqp://u:hun#ter2@rabbit/",
            "amqp://u:hun?ter2@rabbit/",
            "amqp://u:hunter2@x@rabbit/",
            "amqp://u:hunter2%@rabbit/",
            "amqp://u:hunter2 @rabbit/",
            "amqp://rabbit/a/b",
            "amqp://u:hunter2@a,",
            "amqp://u:hunter2@a,,b",
            "amqp://u:hunter2@a,b:port/v",
            "amqp://u:hunter2@a,c:hunter2@b/v",
            "amqp://rabbit:0/",
            "amqp://rabbit:70000/",
            "amqp://rabbit:/",
            "amqp://rabbit/v#f",
        ],
    );
}

#[test]
#[cfg(feature = "amqp")]
fn what_the_broker_s_client_refuses() {
    wrong(amqp, &["amqp://u:hunter2@rabbit/v?heartbeat=abc", "amqp://rabbit?heartbeat=abc"]);
    wrong(amqp, &[&format!("amqp://rabbit/{}", "v".repeat(256))]);
}

#[test]
#[cfg(feature = "redis")]
fn what_the_store_s_client_refuses() {
    wrong(store, &["redis://u:hunter2%ff@cache/0"]);
}

#[test]
#[cfg(feature = "http")]
fn what_the_http_client_refuses() {
    wrong(base, &["http://169.254.169.254/", "http://[fe80::1]/"]);
    wrong(base, &[&format!("http://api/{}/", "a".repeat(8192))]);
}

#[test]
fn stores() {
    right(
        store,
        &[
            "memory:",
            "file:/var/lib/paced/store",
            "file:///var/lib/paced/store",
            "file:store",
            "file:$CREDENTIALS_DIRECTORY/store of mine",
            "redis://:hunter2@cache:6379/3",
            "rediss://u:hunter2@[::1]",
            "redis://cache/",
            "redis+cluster://:hunter2@a:7000,b,[::1]:7000",
            "rediss+cluster://a/",
            "redis+sentinel://u:hunter2@a:26379,b/my-master",
            "rediss+sentinel://a/m/3?sentinel_user=u&sentinel_password=hunter2",
        ],
    );
    wrong(
        store,
        &[
            "",
            "memory",
            "memory:hunter2",
            "file:",
            "file://host/store",
            "file:/var/lib/",
            "file:a/.",
            "file:a\nb",
            "redis:",
            "redis+cluster:a",
            "redis+cluster://",
            "redis+cluster://:hunter2@a,",
            "redis+cluster://:hunter2@a,b:port",
            "redis+cluster://:hunter2@a,b%2",
            "redis+cluster://u:hun/ter2@a,b",
            "redis+cluster://u:hunter2@x@a,b",
            "redis+cluster://:hunter2",
            "redis+tls://a",
            "http://cache/",
            "redis://cache/hunter2",
            "redis://cache/-1",
            "redis://cache/+1",
            "rediss://cache/#insecure",
        ],
    );
}

/// Paths that the store itself refuses when it is opened.
#[test]
#[cfg(feature = "redis")]
fn paths_of_several_hosts() {
    let urls = [
        "redis+cluster://:hunter2@a/1",
        "redis+cluster://a?x=hunter2",
        "redis+sentinel://:hunter2@a:26379",
        "redis+sentinel://:hunter2@a/m/db",
        "redis+sentinel://a/m?sentinel_user=hunter2",
    ];
    wrong(store, &urls);
}

#[test]
fn proxies() {
    right(
        proxy,
        &[
            "http://proxy:3128",
            "http://me:hunter2@proxy.example:3128/",
            "http://[::1]:3128",
            "http://10.0.0.1",
        ],
    );
    wrong(
        proxy,
        &[
            "",
            "proxy:3128",
            "https://u:hunter2@proxy/",
            "socks5://proxy:1080",
            "http://u:hunter2@proxy/path",
            "http://proxy/?x=hunter2",
            "http://proxy#x",
            "http://u:hun/ter2@proxy:3128",
            "http://169.254.169.254:80",
        ],
    );
}

#[test]
fn downstreams() {
    right(
        base,
        &[
            "http://localhost/",
            "https://api.example.com/v1/",
            "http://127.0.0.1:8080/",
            "http://[::1]:1/a%20b/",
            "https://api",
            "https://api/v1",
            "https://api/hook?token=hunter2",
            "https://api?filter[a]=hunter2&b[]=%2F",
        ],
    );
    wrong(
        base,
        &[
            "",
            "api.example.com/",
            "ftp://api/",
            "https://u:hunter2@api/",
            "https://hunter2@api/",
            "https://api/?token=hunter2#",
            "https://api/?token=hun ter2",
            "https://api?token=hunter2@",
            "https://api/#hunter2",
            "https://api/v1/../",
            "https://api/%2e%2E/",
            "https://api/a b/",
            "https://api\\/",
            "https://\u{e4}pi/",
            "https://a..b/",
            "https://1.2.3/",
            "https://1.2.3.4.5/",
            "https://[::1/",
            "https://[hunter2]/",
            "https://a%20b/",
            "https:///v1/",
        ],
    );
}
