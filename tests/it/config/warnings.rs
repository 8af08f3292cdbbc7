//! Warnings of what is valid and will not do what it seems to.

use std::fs;

use super::{LEAST, Scene, load_shipped, shipped};

/// A store that forgets nothing.
const KEPT: &str = "[store]\nurl = 'file:pace'\n";

/// The lines of the warnings about a downstream with these keys.
fn warned(keys: &str) -> Vec<String> {
    lines(Scene::new(&format!(
        "[downstreams.a]\n{keys}\n[downstreams.a.http]\nbase_url = 'http://a/'\n{KEPT}"
    )))
}

fn lines(scene: Scene) -> Vec<String> {
    scene.right().warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_limit_that_another_one_makes_ineffective() {
    for (keys, expected) in [
        (
            "rate = '50/s'\nlimits = [{ rate = '1000/minute' }]",
            "paced.toml:2:8: downstreams.a.rate: warning: no effect, since `leaky-bucket-1` never allows more: the pace is \
             1000/m; remove one of them, or let `leaky-bucket-1` count: { algorithm = \"sliding-log\", rate = \"1000/m\" }",
        ),
        (
            "rate = '10/s'\nlimits = [{ rate = '20/s', burst = 5, name = 'bursts' }]",
            "paced.toml:3:46: downstreams.a.limits[0].name: warning: no effect, since `leaky-bucket-0` never allows more: the \
             pace is 10/s; remove one of them, or let `leaky-bucket-0` count: { algorithm = \"sliding-log\", rate = \"10/s\" }",
        ),
        (
            "rate = '10/s'\nlimits = [{ algorithm = 'sliding-log', rate = '1000/minute' }]",
            "paced.toml:3:11: downstreams.a.limits[0]: warning: no effect, since `leaky-bucket-0` never allows more: the pace \
             is 10/s; remove one of them",
        ),
        (
            "limits = [{ algorithm = 'sliding-log', rate = '1000/hour' }, { algorithm = 'quota', rate = '1000000/month' }]",
            "paced.toml:2:62: downstreams.a.limits[1]: warning: no effect, since `sliding-log-0` never allows more: the pace is \
             1000/h; remove one of them",
        ),
        (
            "rate = '10/s'\nlimits = [{ algorithm = 'gcra', rate = '600/minute' }]",
            "paced.toml:3:11: downstreams.a.limits[0]: warning: no effect, since `leaky-bucket-0` never allows more: the pace is \
             10/s; remove one of them, or let `leaky-bucket-0` count: { algorithm = \"sliding-log\", rate = \"10/s\" }",
        ),
    ] {
        assert_eq!(warned(keys), [expected], "{keys}");
    }
    for keys in [
        "rate = '50/s'",
        "rate = '50/s'\nlimits = [{ algorithm = 'sliding-log', rate = '1000/minute' }]",
        "rate = '20/s'\nlimits = [{ algorithm = 'token-bucket', rate = '300/minute', capacity = 50 }]",
        "rate = '10/s'\nlimits = [{ rate = '5/s', burst = 20 }]",
        // Around an edge the first one may release twice its count.
        "limits = [{ algorithm = 'fixed-window', rate = '10/s' }, { algorithm = 'sliding-log', rate = '10/s' }]",
        "limits = [{ algorithm = 'quota', rate = '1000/day' }, { algorithm = 'quota', rate = '20000/month' }]",
        // They count other units.
        "limits = [{ rate = '500/min', cost = 1 }, { rate = '30000/min', cost = 'header:tokens', default_cost = 100 }]",
        "rate = '10/s'\nlimits = [{ rate = '600/s', cost = 'header:tokens', default_cost = 100 }]",
        "limits = [{ rate = '10/s', cost = 2 }, { rate = '20/s' }]",
        // The same limit twice is charged twice.
        "limits = [{ rate = '10/s', name = 'a' }, { rate = '10/s', name = 'a' }]",
    ] {
        assert_eq!(warned(keys), [""; 0], "{keys}");
    }
    let plan = "[plans.free]\nlimits = [{ rate = '5/s' }, { rate = '5/m' }]\n";
    let expected =
        "paced.toml:5:11: plans.free.limits[0]: warning: no effect, since `leaky-bucket-1` never allows more";
    let by = "[downstreams.a.lanes]\nby = { tenant = 'plan' }\n";
    let lines = lines(Scene::new(&format!("{LEAST}{plan}{by}")));
    assert!(lines.len() == 1 && lines[0].starts_with(expected), "{lines:?}");
}

#[test]
fn a_burst_that_cannot_be_used() {
    let keys = "limits = [{ rate = '10/s', burst = 100 }]";
    assert_eq!(
        warned(&format!("concurrency = 1\n{keys}")),
        [
            "paced.toml:3:36: downstreams.a.limits[0].burst: warning: a burst of 100 cannot be used: a replica sends at most \
             1 at once (concurrency), and no more until they are answered, in 100ms or so; raise that to 100, or lower this"
        ]
    );
    // With 64 at once it goes at 640/s.
    assert_eq!(warned(keys), [""; 0]);
    let few = warned(&format!("queue.prefetch = 1\n{keys}"));
    assert!(few[0].contains("at most 1 at once (queue.prefetch)"), "{few:?}");
    let capacity = warned("limits = [{ algorithm = 'token-bucket', rate = '600/s', capacity = 65 }]");
    assert!(capacity[0].contains("limits[0].capacity: warning: a burst of 65"), "{capacity:?}");
    // By default it is the count of the rate, which nobody has chosen as a burst.
    assert_eq!(warned("limits = [{ algorithm = 'token-bucket', rate = '600/s' }]"), [""; 0]);
}

#[test]
fn too_few_sends_at_once_for_the_rate() {
    assert_eq!(
        warned("rate = '1000/s'"),
        [
            "paced.toml:1:1: downstreams.a.concurrency: warning: 64 sends at once keep 1000/s only while answers take 64 ms \
             or less (http.timeout allows 30s), in a replica alone; for 100ms raise it to 100"
        ]
    );
    let given = warned("rate = '50/s'\nconcurrency = 2");
    assert!(
        given[0].starts_with("paced.toml:3:15: downstreams.a.concurrency: warning: 2 sends"),
        "{given:?}"
    );
    assert!(given[0].contains("take 40 ms or less") && given[0].contains("raise it to 5"), "{given:?}");
    assert_eq!(warned("rate = '640/s'"), [""; 0]);
    // No answer takes longer than the time-out.
    let quick = "[downstreams.a]\nrate = '1000/s'\nhttp = { base_url = 'http://a/', timeout = '50ms' }\n";
    assert_eq!(lines(Scene::new(quick)), [""; 0]);
}

#[test]
fn jobs_that_the_broker_takes_back() {
    let text = |more: &str, keys: &str, timeout: &str| {
        let http = format!("[downstreams.a.http]\nbase_url = 'http://a/'\ntimeout = '{timeout}'\n");
        lines(Scene::new(&format!("{more}[downstreams.a]\n{keys}\n{http}{KEPT}")))
    };
    let long = text("", "rate = '1/s'", "30m");
    assert_eq!(
        long,
        [
            "paced.toml:5:11: downstreams.a.http.timeout: warning: RabbitMQ takes back what is unacked for its \
             consumer_timeout, 30m unless it says otherwise, and the job is sent again meanwhile; stay below that, or \
             raise it there"
        ]
    );
    let quota = "limits = [{ algorithm = 'quota', rate = '1000/day' }]";
    let declared = "[amqp]\ndeclare = false\n";
    let held = text(declared, quota, "29m");
    assert!(
        held[0].starts_with("paced.toml:4:11: downstreams.a.limits[0]: warning: jobs wait unacked"),
        "{held:?}"
    );
    assert!(held[0].contains("; with amqp.declare = false create what docs/parking.md lists"), "{held:?}");
    assert_eq!(text(declared, "rate = '1/h'", "29m").len(), 1);
    assert_eq!(text("", quota, "29m"), [""; 0], "what is held for long is parked");
    assert_eq!(text(declared, "limits = [{ algorithm = 'quota', rate = '10/29m' }]", "1s"), [""; 0]);
}

#[test]
fn tokens_that_may_be_guessed() {
    let admin =
        |lines: &str| Scene::new(&format!("{LEAST}[admin]\n{lines}\n")).file("token", "0123456789abcde\n");
    assert_eq!(
        lines(admin("token = 'hunter2'\nread_token_file = 'token'")),
        [
            "paced.toml:5:9: admin.token: warning: a token of 7 characters may be guessed; use 16 or more, such as from \
             openssl rand -hex 32",
            "paced.toml:6:19: admin.read_token_file: warning: a token of 15 characters may be guessed; use 16 or more, such \
             as from openssl rand -hex 32",
        ]
    );
    assert_eq!(lines(admin("token = '0123456789abcdef'")), [""; 0]);
}

#[test]
fn a_store_that_forgets_what_was_used_of_a_long_window() {
    let of = |store: &str, limit: &str| {
        let limits = format!("limits = [{{ rate = '5/s' }}, {limit}]");
        lines(Scene::new(&format!("{store}[downstreams.a]\n{limits}\nhttp.base_url = 'http://a/'\n")))
    };
    let daily = "{ algorithm = 'quota', rate = '10/day', name = 'daily' }";
    let text = |at: &str| {
        format!(
            "{at}: store.url: warning: memory: forgets with a restart what was used of `daily` of a; write such as \
             file:/var/lib/paced/store, or redis://HOST"
        )
    };
    assert_eq!(of("", daily), [text("paced.toml:1:1")]);
    assert_eq!(of("[store]\nurl = 'memory:'\n", daily), [text("paced.toml:2:7")]);
    assert_eq!(of("", "{ algorithm = 'sliding-log', rate = '1000/h' }"), [""; 0]);
    for kept in ["file:pace", "redis://localhost"] {
        assert_eq!(of(&format!("[store]\nurl = '{kept}'\n"), daily), [""; 0], "{kept}");
    }
    let plan = "[plans.free]\nlimits = [{ algorithm = 'quota', rate = '10/day', name = 'daily' }]\n";
    let scene = Scene::new(&format!("{plan}[downstreams.a]\nrate = '5/s'\nhttp.base_url = 'http://a/'\n"));
    let warnings = lines(scene);
    let of_plan = "memory: forgets with a restart what was used of `";
    assert!(warnings.iter().any(|warning| warning.contains(of_plan)), "{warnings:?}");
}

#[test]
fn jobs_that_are_released_while_the_file_of_the_store_cannot_be_written() {
    let of = |store: &str, downstream: &str| {
        lines(Scene::new(&format!(
            "[store]\n{store}\n[downstreams.a]\nrate = '1/s'\n{downstream}\nhttp.base_url = 'http://a/'\n"
        )))
    };
    let text = |at: &str| {
        format!(
            "{at}: warning: what is released while the file of the store cannot be written is not kept in it, and a restart \
             allows it once more; write hold"
        )
    };
    let (file, local) = ("url = 'file:pace'", "on_unavailable = 'local'");
    assert_eq!(of(file, local), [text("paced.toml:5:18: downstreams.a.on_unavailable")]);
    assert_eq!(of(&format!("{file}\n{local}"), ""), [text("paced.toml:3:18: store.on_unavailable")]);
    assert_eq!(of(file, "on_unavailable = 'hold'"), [""; 0]);
    assert_eq!(of("url = 'redis://localhost'", local), [""; 0]);
}

#[cfg(unix)]
#[test]
fn files_with_secrets_that_every_user_can_read() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    let text = "[downstreams.a]\nrate = '1/s'\n[downstreams.a.http]\nbase_url = 'https://a/'\n\
                headers = { authorization_file = 'token' }\n";
    let scene = Scene::new(text).file("hunter2", "Bearer x");
    let path = |name: &str| scene.dir.path().join(name);
    // As Kubernetes and systemd do, by a link, which every user can read.
    symlink("hunter2", path("token")).unwrap();
    let warned = |folder: u32, file: u32| {
        let set = |path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(path("hunter2"), file);
        set(scene.dir.path().to_path_buf(), folder);
        scene.right().warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        warned(0o755, 0o644),
        [
            "paced.toml:5:34: downstreams.a.http.headers.authorization_file: warning: every user of this machine can read the \
          file it names (mode 644); take that right away (chmod o-r), or that of entering one of its directories"
        ]
    );
    assert_eq!(warned(0o755, 0o640), [""; 0]);
    assert_eq!(warned(0o700, 0o644), [""; 0], "nobody else comes there");
}

#[test]
fn a_secret_that_goes_to_a_token_server_without_tls() {
    let to = |url: &str| {
        let client =
            format!("oauth2 = {{ token_url = '{url}', client_id = 'c', client_secret = 'hunter2' }}");
        let base = "[downstreams.a]\nrate = '1/s'\n[downstreams.a.http]\nbase_url = 'https://a/'\n";
        lines(Scene::new(&format!("{base}{client}\n")))
    };
    assert_eq!(
        to("http://login.example.com/token"),
        [
            "paced.toml:5:24: downstreams.a.http.oauth2.token_url: warning: the client's secret goes to login.example.com \
          without TLS; write https://"
        ]
    );
    for url in [
        "https://login.example.com/token",
        "http://127.0.0.1:1/token",
        "http://[::1]/token",
        "http://localhost/",
    ] {
        assert_eq!(to(url), [""; 0], "{url}");
    }
}

/// The warning of each secret that crosses a network without TLS, for lines of `[downstreams.a.http]` and for other tables.
#[test]
fn each_secret_that_crosses_a_network_without_tls() {
    let scene = |lines_of_http: &str, others: &str| {
        let base = if lines_of_http.contains("base_url") { "" } else { "base_url = 'https://api/'\n" };
        let text =
            format!("[downstreams.a]\nrate = '1/s'\n[downstreams.a.http]\n{base}{lines_of_http}\n{others}\n");
        Scene::new(&text).file("url", "amqp://me:hunter2@rabbit/v").file("api", "http://api/in?k=hunter2")
    };
    for (http, others, expected) in [
        (
            "",
            "[amqp]\nurl = 'amqp://me:hunter2@rabbit:5672/v'",
            "amqp.url: warning: the password goes to rabbit without TLS; write amqps://",
        ),
        (
            "",
            "[amqp]\nurl_file = 'url'",
            "amqp.url_file: warning: the password goes to another host without TLS; write amqps://",
        ),
        (
            "",
            "[store]\nurl = 'redis://:hunter2@cache'",
            "store.url: warning: the password goes to cache without TLS; write rediss instead of redis",
        ),
        (
            "",
            "[store]\nurl = 'redis+sentinel://127.0.0.1,b/m?sentinel_user=u&sentinel_password=hunter2'",
            "store.url: warning: the password goes to b without TLS; write rediss instead of redis",
        ),
        (
            "",
            "[store]\nurl = 'redis+cluster://:hunter2@[::1],10.0.0.1'",
            "store.url: warning: the password goes to 10.0.0.1 without TLS; write rediss instead of redis",
        ),
        (
            "base_url = 'http://api/'\nheaders = { authorization = 'hunter2' }",
            "",
            "http.base_url: warning: the header `authorization` goes to api without TLS; write https://",
        ),
        (
            "base_url = 'http://api/'\nheaders = { x-api-key = 'hunter2' }",
            "",
            "http.base_url: warning: the header `x-api-key` goes to api without TLS; write https://",
        ),
        (
            "base_url = 'http://api/in?k=hunter2'",
            "",
            "http.base_url: warning: the query goes to api without TLS; write https://",
        ),
        (
            "base_url_file = 'api'",
            "",
            "http.base_url_file: warning: the query goes to another host without TLS; write https://",
        ),
        (
            "base_url = 'http://api/'\n\
             oauth2 = { token_url = 'https://login/', client_id = 'c', client_secret = 'hunter2' }",
            "",
            "http.base_url: warning: the token goes to api without TLS; write https://",
        ),
        (
            "proxy = 'http://me:hunter2@proxy:3128'",
            "",
            "http.proxy: warning: the password goes to proxy without TLS; use a proxy on this machine",
        ),
    ] {
        let found = lines(scene(http, others));
        assert!(found.len() == 1 && found[0].contains(expected), "{http}{others}: {found:?}");
        assert!(!found[0].contains("hunter2"), "{found:?}");
    }
    for (http, others) in [
        ("", "[amqp]\nurl = 'amqps://me:hunter2@rabbit/v'"),
        ("", "[amqp]\nurl = 'amqp://me:hunter2@127.0.0.1/v'"),
        ("", "[amqp]\nurl = 'amqp://rabbit/v'"),
        ("", "[store]\nurl = 'rediss+cluster://:hunter2@a,b'"),
        ("", "[store]\nurl = 'redis://cache'"),
        ("base_url = 'http://api/'\nheaders = { x-client = 'paced' }", ""),
        ("base_url = 'http://localhost/in?k=hunter2'\nheaders = { authorization = 'hunter2' }", ""),
        ("proxy = 'http://proxy:3128'", ""),
        ("proxy = 'http://me:hunter2@[::1]:3128'", ""),
    ] {
        assert_eq!(lines(scene(http, others)), [""; 0], "{http}{others}");
    }
    // The URL in effect is warned of, not the file that it takes the place of.
    let over = scene("", "[amqp]\nurl_file = 'url'").env("PACED_AMQP__URL", "amqp://me:hunter2@broker/v");
    assert_eq!(
        lines(over),
        ["env PACED_AMQP__URL: amqp.url: warning: the password goes to broker without TLS; write amqps://"]
    );
}

#[test]
fn names_of_variables_with_one_underscore() {
    let scene = Scene::new(LEAST)
        .env("PACED_AMQP_URL", "amqp://u:hunter2@rabbit")
        .env("PACED_DOWNSTREAMS_A_HTTP_BASE_URL", "http://b/")
        .env("PACED_STORE_URL_FILE", "/run/secret")
        .env("PACED_PRECISION", "coarse")
        // Those of a Service `paced`, `paced-admin` and `paced-amqp-url` in Kubernetes.
        .env("PACED_PORT", "tcp://10.0.0.1:80")
        .env("PACED_PORT_80_TCP_ADDR", "10.0.0.1")
        .env("PACED_SERVICE_HOST", "10.0.0.1")
        .env("PACED_ADMIN_SERVICE_PORT", "80")
        .env("PACED_ADMIN_LISTEN", "tcp://10.0.0.1:80")
        // Those of others, and one that is right.
        .env("PACED_HOME", "/opt/paced")
        .env("PACED_AMQP", "x")
        .env("PACED_STORE__KEY_PREFIX", "p")
        .env("PACED_CONFIG", "paced.toml");
    assert_eq!(
        lines(scene),
        [
            "env PACED_AMQP_URL: amqp.url: warning: not read; write PACED_AMQP__URL",
            "env PACED_DOWNSTREAMS_A_HTTP_BASE_URL: downstreams.a.http.base_url: warning: not read; write \
             PACED_DOWNSTREAMS__A__HTTP__BASE_URL",
            "env PACED_PRECISION: precision: warning: not read, since variables name a section; write precision in a \
             file, or --set precision=...",
            "env PACED_STORE_URL_FILE: store.url_file: warning: not read; write PACED_STORE__URL_FILE",
        ]
    );
}

#[test]
fn nothing_that_is_shipped_is_warned_of() {
    let examples = fs::read_dir(shipped("examples")).unwrap().map(|entry| entry.unwrap().path());
    for path in examples.filter(|path| path.extension().is_some()).chain([shipped("paced.toml")]) {
        let mut warnings = load_shipped(path.to_str().unwrap(), &[]).warnings;
        // Who can read what is in a checkout depends on how it was made.
        warnings.retain(|warning| !warning.to_string().contains("every user of this machine can read"));
        assert!(warnings.is_empty(), "{}: {warnings:?}", path.display());
    }
    // The README's, the second of which has no base URL of its own.
    let readme = include_str!("../../../README.md");
    let blocks = readme.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut found = 0;
    for block in blocks.filter(|block| block.contains("[downstreams.")) {
        let more = if block.contains("base_url") {
            ""
        } else {
            &format!("[downstreams.search.http]\nbase_url = 'http://a/'\n{KEPT}")
        };
        let token = "x".repeat(32);
        let scene = Scene::new(&format!("{block}\n{more}"));
        let scene = scene.file("billing.token", "x").file("admin.token", &token);
        assert_eq!(lines(scene), [""; 0], "{block}");
        found += 1;
    }
    assert_eq!(found, 2);
}
