//! The messages about mistakes, and their positions.

use std::fs;

use super::{LEAST, Scene};

#[test]
fn ten_mistakes_are_ten_lines_at_their_places() {
    let text = "\
[amqp]
url = \"http://guest:hunter2@rabbit\"
prefx = \"paced\"
[downstreams.billing]
rate = \"50x/s\"
limits = [{ rate = \"1/s\" }, { rate = \"5/s\", burst = 0 }]
[downstreams.billing.http]
headers = { authorization = \"hun\\nter2\", \"x-ä\" = \"hunter2\", authorization_file = \"hunter2\" }
[downstreams.billing.retry]
  min_backoff = \"10m\"
[downstreams.\"Ärger\"]
rate = \"1/s\"
http.base_url = \"https://u:hunter2@api/\"
";
    assert_eq!(
        Scene::new(text).wrong(),
        [
            "paced.toml:2:7: amqp.url: not the URL of a broker; write amqp://USER:PASSWORD@HOST:5672/VHOST, or amqps://",
            "paced.toml:3:1: amqp.prefx: unknown key; did you mean `prefix`?",
            "paced.toml:5:8: downstreams.billing.rate: `50x/s` is no rate; write COUNT/UNIT, such as 50/s or 100 per 5 minutes",
            "paced.toml:6:53: downstreams.billing.limits[1].burst: out of range; use an integer from 1 to 4294967295",
            "paced.toml:7:1: downstreams.billing.http.base_url: missing; say where jobs go, such as base_url = \"https://api.example.com/v1/\"",
            "paced.toml:8:42: downstreams.billing.http.headers.\"x-ä\": no name of a header; use letters, digits and `-`, such as x-request-id",
            "paced.toml:8:82: downstreams.billing.http.headers.authorization_file: given as `authorization` and as `authorization_file`; keep one",
            "paced.toml:10:17: downstreams.billing.retry.min_backoff: over max_backoff (300s); use at most that, or raise max_backoff",
            "paced.toml:11:14: downstreams.\"Ärger\": no name for a downstream; use up to 63 of a-z, 0-9, _ and -, begin with a letter or digit, without `__`",
            "paced.toml:13:17: downstreams.\"Ärger\".http.base_url: has credentials in it; put them under `headers`, such as headers.authorization_file",
        ]
    );
}

#[test]
fn each_wrong_value_is_reported_with_what_is_right() {
    for (line, expected) in [
        ("limits = [{ rate = 7 }]", "an integer where a rate belongs; write its unit too, such as \"7/s\""),
        ("limits = [{ rate = \"250\" }]", "`250` is no rate; write its unit too, such as 250/s"),
        ("limits = [{ rate = 0 }]", "an integer where a rate belongs; write its unit too, such as \"50/s\""),
        ("horizon = \"11s\"", "`11s` is out of range; use 1ms to 10s"),
        ("hold_max = \"11m\"", "`11m` is out of range; use 1s to 10m"),
        ("horizon = \"0ms\"", "`0ms` is out of range; use 1ms to 10s"),
        (
            "horizon = 1979-05-27",
            "a date or time where a string belongs; write it in quotes, such as \"100ms\"",
        ),
        ("concurrency = 65536", "out of range; use an integer from 1 to 65535"),
        (
            "concurrency = 99999999999999999999999999999999999999999",
            "out of range; use an integer from 1 to 65535",
        ),
        ("concurrency = 1.5", "a float where an integer belongs; write such as 64"),
        ("queue.prefetch = 0", "out of range; use an integer from 1 to 65535"),
        ("queue.prefetch_bytes = \"1023KiB\"", "`1023KiB` is out of range; use 1MiB to 1024GiB"),
        (
            "queue.prefetch_bytes = 64",
            "an integer where a string belongs; write it in quotes, such as \"64MiB\"",
        ),
        ("queue.name = \"\"", "no name of a queue; use 1 to 255 bytes without control characters"),
        ("http.timeout = \"0s\"", "`0s` is out of range; use 1us to 365d"),
        (
            "http.max_connection_age = \"never\"",
            "`never` is no duration; write an integer and us, ms, s, m, h or d, such as 30s",
        ),
        ("http.max_body = \"0B\"", "`0B` is out of range; use 1B to 128MiB"),
        ("http.max_body = \"129MiB\"", "`129MiB` is out of range; use 1B to 128MiB"),
        ("http.keep_response = 0", "an integer where a boolean belongs; write true or false"),
        (
            "http.allow_headers = \"accept\"",
            "a string where an array of strings belongs; write [\"x-request-id\"]",
        ),
        ("http.methods = []", "has no method, so that every job would be refused; name one"),
        ("http.methods = [\"GTE\"]", "`GTE` is no method that a job may have; did you mean GET?"),
        ("retry.max_attempts = 1001", "out of range; use an integer from 1 to 1000"),
        ("retry.max_backoff = \"10ms\"", "under min_backoff (1s); use at least that, or lower min_backoff"),
        (
            "limits = [{ rate = \"1/d\", burst = 4294967295 }]",
            "a burst of 4294967295 at 1/d is beyond exact time; use a smaller burst or a shorter period",
        ),
        (
            "limits = { rate = \"1/s\" }",
            "a table where an array of tables belongs; write [{ rate = \"1000/minute\" }]",
        ),
        (
            "limits = [{ rate = \"1/s\", algorithm = \"bucket\" }]",
            "`bucket` is no algorithm; use one of leaky-bucket, gcra, token-bucket, fixed-window, sliding-window, sliding-log, quota",
        ),
        ("limits = [{ rate = \"10r/s\" }]", "`10r/s` is no rate; write 10/s"),
        ("limits = [{ rate = \"0.5/s\" }]", "`0.5/s` is no rate; write 1/2s"),
        ("limits = [{ burst = 5 }]", "missing; write such as rate = \"1000/minute\""),
        (
            "http.allow_headers = [\"accept\", \"Cookie\"]",
            "a job never sets cookie; put it under `headers` of this downstream",
        ),
        ("http.headers = { Host = \"a\" }", "host belongs to the connection, not to a request; remove it"),
        ("http.headers = { A = \"a\", a = \"b\" }", "given as `A` and as `a`; keep one"),
        ("on_unavailable = \"wait\"", "`wait` is nothing to do; use hold, local or open"),
        ("revision = -1", "out of range; use an integer from 0 to 9007199254740991"),
        ("revision = 9007199254740992", "out of range; use an integer from 0 to 9007199254740991"),
        ("revision = \"1\"", "a string where an integer belongs; write such as 1"),
        (
            "retry.max_pause = \"5 minutes\"",
            "`5 minutes` is no duration; write an integer and us, ms, s, m, h or d, such as 30s",
        ),
        ("retry.max_throttled = 0", "out of range; use an integer from 1 to 4294967295"),
        ("max_wait = \"0s\"", "`0s` is out of range; use 1s to 365d"),
        ("queue.max_length = 0", "out of range; use an integer from 1 to 9223372036854775807"),
        (
            "queue = { name = \"q\", max_length = 5 }",
            "nobody would set it, since queue.name is used as it is; set it by a policy of the broker",
        ),
        ("retry.max_age = \"1ms\"", "`1ms` is out of range; use 1s to 365d"),
        ("retry.on = 500", "an integer where an array of statuses belongs; write [500, \"502-504\"]"),
        ("retry.on = [600]", "no status; write one such as 503, \"500-504\" or \"5xx\""),
        ("retry.never = [\"504-500\"]", "a range without a status; write \"500-504\""),
        ("retry.on = [\"2xx\"]", "200 is no failure; use statuses from 300 to 599"),
        (
            "retry.on = [\"4xx\"]",
            "401 is in on_unauthorized too; take it out, or set on_unauthorized without it",
        ),
        (
            "retry.status = { 503 = { min_backoff = \"6m\" } }",
            "over max_backoff (300s); use at most that, or raise max_backoff",
        ),
        (
            "retry.status = { 404 = { max_attempts = 20 } }",
            "a job that is answered 404 is not tried again; add it to `retry.on`",
        ),
        (
            "retry.status = { 429 = { max_attempts = 3 } }",
            "429 throttles, which max_attempts does not count; use retry.max_throttled",
        ),
        ("retry.status = { 5xx = {}, 503 = {} }", "503 is in another key too; let them not overlap"),
        ("retry.status = { 700 = {} }", "no status; write one such as 503, \"500-504\" or \"5xx\""),
        (
            "retry.when = { pointer = \"/code\", equals = 1 }",
            "unknown key; write answers = [{ status = \"2xx\", body = { pointer = \"/error/code\", equals = \"rate_limited\" }, is = \"throttled\" }]",
        ),
        ("retry.answers = [{ is = \"dead\" }]", "matches every answer; give it a status, a header or a body"),
        (
            "retry.answers = [{ status = 100, is = \"dead\" }]",
            "100 is no final answer; use statuses from 200 to 599",
        ),
        ("retry.answers = [{ status = [], is = \"dead\" }]", "empty; write such as [403, \"5xx\"]"),
        (
            "retry.answers = [{ status = 409, is = \"retry\", wait = \"10m\" }]",
            "over max_pause (300s); use at most that, or raise max_pause",
        ),
        ("retry.answers = [{ status = 409 }]", "missing; say what it means, such as is = \"throttled\""),
        (
            "retry.answers = [{ status = 409, is = \"again\" }]",
            "`again` is no meaning; use one of delivered, throttled, retry, dead, unauthorized",
        ),
        (
            "retry.answers = [{ body = { pointer = \"code\", equals = 1 }, is = \"dead\" }]",
            "no JSON pointer; write one such as \"/error/code\"",
        ),
        (
            "retry.answers = [{ body = { pointer = \"/code\" }, is = \"dead\" }]",
            "missing; say which value, such as equals = \"rate_limited\"",
        ),
        (
            "retry.answers = [{ body = { pointer = \"/code\", equals = [1] }, is = \"dead\" }]",
            "an array where a string, a number or a boolean belongs; write \"rate_limited\"",
        ),
        (
            "retry.answers = [{ status = 409, is = \"dead\", wait = \"5s\" }]",
            "nothing waits where the answer means \"dead\"; leave it out",
        ),
        (
            "retry.answers = [{ status = 409, is = \"retry\", wait = \"header:\" }]",
            "no name of a header; use letters, digits and `-`, such as x-request-id",
        ),
        ("retry.on_unauthorized = 401", "an integer where an array of integers belongs; write [401, 403]"),
        ("queue = 5", "an integer where a table belongs; write [downstreams.a.queue] or queue = { ... }"),
    ] {
        let lines = Scene::new(&format!("{LEAST}{line}\n")).wrong();
        let (key, value) = line.split_once(" = ").unwrap();
        let start = format!("paced.toml:4:{}: downstreams.a.{key}", key.len() + 4);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].ends_with(&format!(": {expected}")), "{line}\n{}", lines[0]);
        // In a table or an array the position is further in.
        if !value.starts_with(['{', '[']) {
            assert!(lines[0].starts_with(&format!("{start}: ")), "{line}\n{}", lines[0]);
        }
        assert!(lines[0].starts_with("paced.toml:4:"), "{}", lines[0]);
    }
    for (listen, problem) in [
        ("\"9750\"", "has no port; write HOST:PORT, such as 127.0.0.1:9750 or [::1]:9750"),
        ("\":9750\"", "has no host to listen on; write HOST:PORT, such as 127.0.0.1:9750 or [::1]:9750"),
        (
            "\"localhost:99999\"",
            "has no port from 0 to 65535; write HOST:PORT, such as 127.0.0.1:9750 or [::1]:9750",
        ),
        ("9750", "an integer where a string belongs; write it in quotes"),
    ] {
        assert_eq!(
            Scene::new(&format!("{LEAST}[admin]\nlisten = {listen}\n")).wrong(),
            [format!("paced.toml:5:10: admin.listen: {problem}")]
        );
    }
    for (line, expected) in [
        ("precision = \"exact\"", "`exact` is no precision; use fine or coarse"),
        ("precision = 5", "an integer where a string belongs; write it in quotes, such as \"fine\""),
        ("precison = \"fine\"", "unknown key; did you mean `precision`?"),
    ] {
        let (key, value) = line.split_once(" = ").unwrap();
        let column = if key == "precision" { line.len() - value.len() + 1 } else { 1 };
        let wanted = format!("paced.toml:1:{column}: {key}: {expected}");
        assert_eq!(Scene::new(&format!("{line}\n{LEAST}")).wrong(), [wanted]);
    }
    assert_eq!(
        Scene::new(LEAST).set("precision=rough").wrong(),
        ["--set: precision: `rough` is no precision; use fine or coarse"]
    );
    let admin =
        |line: &str| Scene::new(&format!("{LEAST}[admin]\n{line}\n")).file("token", "hunter2 \n").wrong();
    const NO_TOKEN: &str = "no token; use 1 to 1024 visible ASCII characters without spaces";
    for (line, expected) in [
        ("token = \"hunter 2\"", format!("paced.toml:5:9: admin.token: {NO_TOKEN}")),
        ("token_file = \"token\"", format!("paced.toml:5:14: admin.token_file: {NO_TOKEN}")),
        (
            "token = \"a\"\ntoken_file = \"token\"",
            "paced.toml:6:14: admin.token_file: given as `token` and as `token_file`; keep one".to_owned(),
        ),
        (
            "allow_hosts = [\"http://a\"]",
            "paced.toml:5:16: admin.allow_hosts[0]: `***` is no host; write HOST or HOST:PORT, such as paced.internal".to_owned(),
        ),
        (
            "allow_hosts = \"a\"",
            "paced.toml:5:15: admin.allow_hosts: a string where an array of strings belongs; write [\"paced.internal\"]".to_owned(),
        ),
        ("tokn = \"hunter2\"", "paced.toml:5:1: admin.tokn: unknown key; did you mean `token`?".to_owned()),
    ] {
        assert_eq!(admin(line), [expected], "{line}");
    }
    assert_eq!(
        Scene::new(&format!("{LEAST}[store]\non_unavailable = \"close\"\n")).wrong(),
        ["paced.toml:5:18: store.on_unavailable: `close` is nothing to do; use hold, local or open"]
    );
    let amqp = |line: &str| Scene::new(&format!("{LEAST}[amqp]\n{line}\n")).wrong();
    assert_eq!(
        amqp("prefix = \"a{b}\""),
        ["paced.toml:5:10: amqp.prefix: no prefix; use 1 to 64 of letters, digits, `.`, `_` and `-`"]
    );
    assert_eq!(
        amqp("declare = \"no\""),
        ["paced.toml:5:11: amqp.declare: a string where a boolean belongs; write true or false"]
    );
}

#[test]
#[cfg(feature = "daemon")]
fn what_only_the_clients_refuse_is_reported_at_its_key() {
    for (line, expected) in [
        (
            "http.headers.idempotency-key = \"hunter2\"",
            "the header `idempotency-key` is set by paced itself; leave it out",
        ),
        (
            "[amqp]\nurl = \"amqp://u:hunter2@rabbit/v?heartbeat=abc\"",
            "not an AMQP URL: scheme, host, port or query are wrong; write amqp://USER:PASSWORD@HOST:PORT/VHOST, %2f for the vhost \"/\"",
        ),
        (
            "[store]\nurl = \"redis://u:hunter2%ff@cache/0\"",
            "the store's URL is malformed; write redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]",
        ),
        (
            "[downstreams.b]\nrate = \"1/s\"\nhttp.base_url = \"http://169.254.169.254/\"",
            "169.254.169.254 is a link-local or metadata address, which paced never connects to; use the API's own address",
        ),
    ] {
        let lines = Scene::new(&format!("{LEAST}{line}\n")).wrong();
        assert_eq!(lines.len(), 1, "{lines:?}");
        let place = format!("paced.toml:{}:", 3 + line.lines().count());
        assert!(lines[0].starts_with(&place), "{}", lines[0]);
        assert!(lines[0].ends_with(&format!(": {expected}")), "{line}\n{}", lines[0]);
    }
}

#[test]
fn two_downstreams_never_share_a_queue() {
    let two = |first: &str, second: &str| {
        let b = LEAST.replace("[downstreams.a]", "[downstreams.b]");
        Scene::new(&format!("{LEAST}{first}\n{b}{second}\n"))
    };
    assert_eq!(
        two("queue.name = \"erp\"", "queue.name = \"erp\"").wrong(),
        ["paced.toml:8:14: downstreams.b.queue.name: the queue of downstream `a` too; give each its own"]
    );
    assert_eq!(
        two("queue.name = \"paced.jobs.b\"", "").wrong(),
        ["paced.toml:4:14: downstreams.a.queue.name: the queue of downstream `b` too; give each its own"]
    );
    two("queue.name = \"erp\"", "queue.name = \"erp.b\"").right();
    two("queue.name = \"paced.jobs.a\"", "").right();
}

#[test]
fn what_is_missing_is_reported_at_the_nearest_table() {
    let rate = "missing; give a downstream a limit, such as rate = \"50/s\"";
    let sink = "missing; say where jobs go, such as base_url = \"https://api.example.com/v1/\"";
    let none = "missing; add a downstream, such as [downstreams.billing]";
    assert_eq!(Scene::new("").wrong(), [format!("paced.toml:1:1: downstreams: {none}")]);
    assert_eq!(Scene::new("\n[downstreams]").wrong(), [format!("paced.toml:2:1: downstreams: {none}")]);
    assert_eq!(
        Scene::new("[amqp]\n\n  [downstreams.a]\n").wrong(),
        [
            format!("paced.toml:3:3: downstreams.a.http.base_url: {sink}"),
            format!("paced.toml:3:3: downstreams.a.rate: {rate}")
        ]
    );
    assert_eq!(
        Scene::new("[downstreams.a]\nlimits = []\n[downstreams.a.http]\n").wrong(),
        [
            "paced.toml:2:10: downstreams.a.limits: empty; give a downstream a limit, such as rate = \"50/s\"".to_owned(),
            format!("paced.toml:3:1: downstreams.a.http.base_url: {sink}"),
        ]
    );
    assert_eq!(
        Scene::new(LEAST).env("PACED_DOWNSTREAMS__B__RATE", "1/s").wrong(),
        [format!("env PACED_DOWNSTREAMS__B__RATE: downstreams.b.http.base_url: {sink}")]
    );
}

#[test]
fn unknown_keys_come_with_the_nearest_known_one() {
    for (line, key, hint) in [
        (
            "burts = 1",
            "downstreams.a.burts",
            "known here are `concurrency`, `hold_max`, `horizon`, `http`, `lanes`, `limits`, `max_cost`, `max_wait`, `on_limit`, `on_unavailable`, `queue`, `rate`, `retry`, `revision`, `tls`",
        ),
        ("horizn = 1", "downstreams.a.horizn", "did you mean `horizon`?"),
        ("timeout = 1", "downstreams.a.timeout", "did you mean `downstreams.a.http.timeout`?"),
        (
            "http.max_attempts = 1",
            "downstreams.a.http.max_attempts",
            "did you mean `downstreams.a.retry.max_attempts`?",
        ),
        ("limit = 1", "downstreams.a.limit", "did you mean `limits`?"),
        ("http.base_ulr_file = 1", "downstreams.a.http.base_ulr_file", "did you mean `base_url_file`?"),
        (
            "limits = [{ rate = \"1/s\", burts = 1 }]",
            "downstreams.a.limits[0].burts",
            "did you mean `burst`?",
        ),
        (
            "lanes.spill = true",
            "downstreams.a.lanes.spill",
            "known here are `by`, `default_plan`, `fair_by`, `limits`, `max_lanes`, `pause_per`, `weights`",
        ),
        (
            "[lanes]",
            "lanes",
            "known here are `admin`, `amqp`, `downstreams`, `dynamic`, `plans`, `precision`, `reply`, `shutdown`, `store`",
        ),
        ("[stroe]", "stroe", "did you mean `store`?"),
        (
            "[\"a b\"]",
            "\"a b\"",
            "known here are `admin`, `amqp`, `downstreams`, `dynamic`, `plans`, `precision`, `reply`, `shutdown`, `store`",
        ),
    ] {
        let lines = Scene::new(&format!("{LEAST}{line}\n")).wrong();
        let name = key.rsplit('.').next().unwrap();
        let column = line.find(name.split('[').next().unwrap()).unwrap() + 1;
        assert_eq!(lines, [format!("paced.toml:4:{column}: {key}: unknown key; {hint}")], "{line}");
    }
    let beyond = LEAST.replace("1/s", "2_000_000/s");
    assert_eq!(
        Scene::new(&format!("{beyond}burst = 5\n")).wrong(),
        [
            "paced.toml:2:8: downstreams.a.rate: `2_000_000/s` is more than 1000000/s, the highest rate",
            "paced.toml:4:1: downstreams.a.burst: unknown key; known here are `concurrency`, `hold_max`, `horizon`, `http`, `lanes`, `limits`, `max_cost`, `max_wait`, `on_limit`, `on_unavailable`, `queue`, `rate`, `retry`, `revision`, `tls`",
        ]
    );
    let overridden = Scene::new(&format!("{LEAST}x = 1\n")).set("downstreams.a.x=2").wrong();
    let hint = "unknown key; known here are `concurrency`, `hold_max`, `horizon`, `http`, `lanes`, `limits`, `max_cost`, `max_wait`, `on_limit`, `on_unavailable`, `queue`, `rate`, `retry`, `revision`, `tls`";
    assert_eq!(
        overridden,
        [format!("paced.toml:4:1: downstreams.a.x: {hint}"), format!("--set: downstreams.a.x: {hint}")]
    );
}

#[test]
fn a_syntax_error_hides_nothing_before_it_and_invents_nothing_after_it() {
    let text = "[amqp]\nprefix = 5\n[downstreams.a]\nrate = 50/s\nhttp.base_ulr = 1\nx = = 1\n";
    assert_eq!(
        Scene::new(text).also("b.toml", "[store]\nurl = 1\n").wrong(),
        [
            "paced.toml:2:10: amqp.prefix: an integer where a string belongs; write it in quotes, such as \"paced\"",
            "paced.toml:4:8: not TOML: string values must be quoted; expected literal string",
            "b.toml:2:7: store.url: an integer where a string belongs; write it in quotes",
        ]
    );
    assert_eq!(
        Scene::new("[downstreams.a]\nrate = \"1/s\"\nrate = \"2/s\"\n").wrong(),
        ["paced.toml:3:1: not TOML: duplicate key `rate`; keep one"]
    );
    assert_eq!(Scene::new("\u{feff}ä = \"hunter2").wrong().len(), 1);
}

#[test]
fn files_that_cannot_be_read_are_reported() {
    let mut scene = Scene::new(LEAST).also("latin1.toml", "");
    fs::write(scene.dir.path().join("latin1.toml"), b"# \xe4\n").unwrap();
    scene.sources.files.push("nowhere.toml".into());
    scene.sources.files.push(".".into());
    assert_eq!(
        scene.wrong(),
        [
            "latin1.toml: cannot be read (not UTF-8); name a file that can",
            "nowhere.toml: cannot be read (No such file or directory); name a file that can",
            ".: cannot be read (Is a directory); name a file that can",
        ]
    );
}
