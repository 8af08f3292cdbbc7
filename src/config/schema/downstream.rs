//! The tables of downstreams and plans.

use serde_json::{Value, json};

use super::node::{Node, Table, any_of, any_text, boolean, integer, list, named, one_of, scalar, text};
use super::{DURATION, SIZE, on_unavailable, tls};
use crate::config::value::OWN_TOKEN_PARAMS;

/// A name of a downstream, a plan or a limit.
const NAME: &str = "^[a-z0-9](_?[a-z0-9-])*_?$";
const HEADER: &str = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$";
/// The name of a parameter of a request for a token.
const TOKEN_PARAM: &str = "^[A-Za-z0-9._-]+$";
/// Statuses that are no success: one, a range or a class.
const STATUSES: &str = "^([345]xx|[345][0-9][0-9](-[345][0-9][0-9])?)$";
const RATE: &str = r"^\s*[0-9][0-9_]*(\s*/\s*|\s+per\s+)([0-9][0-9_]*)?\s*(us|ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)\s*$";
/// As [`RATE`], with the periods of a calendar.
const QUOTA: &str = r"^\s*[0-9][0-9_]*(\s*/\s*|\s+per\s+)([0-9][0-9_]*)?\s*(us|ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?|months?)\s*$";

pub(super) fn plans() -> Node {
    let plan = Table::new("A plan: limits for the jobs that name it.").key(
        "limits",
        limits()
            .with("minItems", 1)
            .about("What jobs of this plan keep besides the limits of their downstream."),
    );
    named(NAME, plan.end()).about("Limits under a name, for the jobs that name the plan (paced-plan).")
}

fn limits() -> Node {
    list(limit())
}

/// Every algorithm, with the keys that it has besides `algorithm`, `name` and `rate`.
const ALGORITHMS: [(&str, &[&str]); 7] = [
    ("leaky-bucket", &["burst"]),
    ("gcra", &["burst"]),
    ("token-bucket", &["capacity"]),
    ("fixed-window", &["anchor"]),
    ("sliding-window", &["buckets"]),
    ("sliding-log", &[]),
    ("quota", &["reset", "utc_offset"]),
];

fn limit() -> Node {
    let most = u64::from(u32::MAX);
    let keys = Table::new("A limit. A job goes when all limits allow it.")
        .key(
            "algorithm",
            one_of(&ALGORITHMS.map(|(name, _)| name)).default("leaky-bucket").about(
                "How it counts: docs/algorithms.md. leaky-bucket: evenly apart. gcra, token-bucket: bursts. fixed-window, \
                 sliding-window, sliding-log: a count in a period. quota: a count per day, week or month.",
            ),
        )
        .key(
            "rate",
            text(QUOTA)
                .about("COUNT/UNIT or COUNT per N UNIT, such as 50/s or 1000/5min; of a quota also week and month."),
        )
        .key(
            "name",
            text(NAME).with("maxLength", 63).about(
                "Under this its state is kept, whatever its numbers. Unset: the algorithm and its place, such as gcra-2.",
            ),
        )
        .key("burst", integer(1..=most).default(1).about("leaky-bucket, gcra: so many at once after a rest."))
        .key("capacity", integer(1..=most).about("token-bucket: its tokens. Unset: the count of the rate."))
        .key(
            "anchor",
            one_of(&["epoch", "first-hit"])
                .default("epoch")
                .about("fixed-window: from one edge of the clock to the next, or from the first job on."),
        )
        .key("buckets", integer(1..=120).default(10).about("sliding-window: the parts that a period is counted in."))
        .key(
            "reset",
            one_of(&["calendar", "fixed", "rolling"]).about(
                "quota: from midnight on (calendar, for days, weeks and months), in equal periods (fixed), or in a period \
                 from the first job on (rolling). Unset: calendar where the rate is per day, week or month, else fixed.",
            ),
        )
        .key(
            "utc_offset",
            text("^(Z|[+-][0-9][0-9]:[0-5][0-9])$").default("Z").about("quota: where midnight is, such as +02:00."),
        )
        .end();
    // An array is replaced as a whole, so that an entry has all that it needs.
    keys.with("required", json!(["rate"])).with("oneOf", ALGORITHMS.map(variant).to_vec())
}

/// What holds for the limits of one algorithm: no key of another one, and a rate that it can count by.
fn variant((algorithm, own): (&str, &[&str])) -> Value {
    let others: Vec<Value> = ALGORITHMS
        .iter()
        .flat_map(|(_, keys)| keys.iter())
        .filter(|key| !own.contains(key))
        .map(|key| json!({ "required": [key] }))
        .collect();
    let rate = if algorithm == "quota" { QUOTA } else { RATE };
    let mut variant = json!({
        "properties": { "algorithm": { "enum": [algorithm] }, "rate": { "pattern": rate } },
        "not": { "anyOf": others },
    });
    if algorithm != "leaky-bucket" {
        variant["required"] = json!(["algorithm"]);
    }
    variant
}

pub(super) fn downstreams() -> Node {
    named(NAME, downstream())
        .about("One table for each API, [downstreams.NAME]. Jobs for it have the routing key NAME.")
}

fn downstream() -> Node {
    Table::new("An API that is called no faster than its limits allow.")
        .key(
            "rate",
            text(RATE).about("COUNT/UNIT or COUNT per N UNIT, evenly spaced, such as 50/s or 1 per 3 seconds."),
        )
        .key("limits", limits().about("Further limits, all of which must agree with `rate` (or instead of it)."))
        .key(
            "on_limit",
            one_of(&["wait", "reject"]).default("wait").about(
                "What becomes of a job that the limits do not allow at once. wait: it waits for its slot. reject: it is \
                 dead-lettered as `rejected`.",
            ),
        )
        .key(
            "max_cost",
            integer(1..=u64::from(u32::MAX)).about(
                "The highest cost of one job (paced-cost). Unset: what the slowest limit releases in a minute, at least \
                 its burst.",
            ),
        )
        .key(
            "horizon",
            text(DURATION).default("100ms").about("How far ahead of now a slot is taken: 1ms to 10s."),
        )
        .key(
            "max_wait",
            text(DURATION).about(
                "How long a job may wait for its first attempt, 1s to 365d; after that it is dead-lettered as \
                 `queue-full`. Unset: as long as it takes.",
            ),
        )
        .key(
            "hold_max",
            text(DURATION).default("60s").about(
                "How long a job that cannot go yet is held, 1s to 10m; one that must wait for longer is parked in the \
                 broker.",
            ),
        )
        .key(
            "concurrency",
            integer(1..=65_535).default(64).about(
                "Sends in flight, in each replica: at least what the rate releases while an answer takes.",
            ),
        )
        .key("on_unavailable", on_unavailable())
        .key(
            "revision",
            integer(0..=(1 << 53) - 1).about(
                "Limits in force that have a higher revision are not replaced by those of this file.",
            ),
        )
        .key("queue", queue())
        .key("http", http())
        .key("retry", retry())
        .key("lanes", lanes())
        .key("tls", tls("an https:// base_url"))
        .end()
}

fn queue() -> Node {
    Table::new("The queue of the jobs.")
        .key(
            "name",
            any_text().with("maxLength", 255).about(
                "An existing queue, used as it is, instead of PREFIX.jobs.NAME.",
            ),
        )
        .key(
            "max_length",
            integer(1..=u64::MAX).about(
                "The most messages that wait in the queue: beyond it the broker refuses to take more. Unset: no bound.",
            ),
        )
        .key("prefetch", integer(1..=65_535).default(1000).about("Jobs held unacked at once."))
        .key(
            "prefetch_bytes",
            text(SIZE).default("64MiB").about(
                "The bytes of unsettled messages that are held in memory: 1MiB to 1024GiB.",
            ),
        )
        .end()
}

fn http() -> Node {
    let header = any_text().about("The value of the header; under NAME_file the file that has it in it.");
    Table::new("Where jobs go.")
        .secret(
            "base_url",
            text(r"^https?://[^/\s@?#]+/([^\s@?#]*/)?$")
                .about("Each job's path is appended to it. Ends in `/`, without credentials."),
        )
        .key("timeout", text(DURATION).default("30s").about("For one request, connecting included."))
        .key(
            "max_connection_age",
            text(DURATION).default("90s").about(
                "A connection takes no request once it is so old. 0s: it is used until either side closes it.",
            ),
        )
        .key("max_body", text(SIZE).default("1MiB").about("The longest body of a job, up to 128MiB."))
        .key(
            "allow_headers",
            list(text(HEADER)).default(json!([])).about("Request headers that a job may set (as http-NAME)."),
        )
        .key(
            "keep_response",
            boolean().default(true).about(
                "Whether the first KiB of an answer that a job died of is kept in its dead letter (paced-response).",
            ),
        )
        .key(
            "headers",
            named(HEADER, header)
                .about("Request headers of every request. Keep a secret in a file: authorization_file = \"...\"."),
        )
        .secret(
            "proxy",
            text("^http://.").about("An HTTP proxy by which the API is reached: http://USER:PASSWORD@HOST:PORT."),
        )
        .key("oauth2", oauth2())
        .end()
}

fn oauth2() -> Node {
    Table::new("A client of OAuth2, whose token every request has (its client credentials).")
        .key(
            "token_url",
            text(r"^https?://[^/\s@?#]+(/[^\s@?#]*)?$")
                .about("Where tokens are had, without credentials and query."),
        )
        .key(
            "client_id",
            any_text().with("maxLength", 256).with("pattern", "^[ -~]+$").about("The name of the client."),
        )
        .secret("client_secret", text("^[!-~]([ -~]*[!-~])?$").about("Its secret."))
        .key(
            "scopes",
            list(text(r"^[!#-\[\]-~]+$"))
                .about("What the token is to be good for. Unset: what the server gives."),
        )
        .key(
            "params",
            named(TOKEN_PARAM, text(r"^[^\x00-\x1f\x7f-\x9f]+$").with("maxLength", 1024))
                .with("not", json!({ "anyOf": OWN_TOKEN_PARAMS.map(|name| json!({ "required": [name] })) }))
                .about("What else a request for a token says, such as audience. It is shown, so keep no secret here."),
        )
        .key(
            "client_auth",
            one_of(&["basic", "post"])
                .about("How the secret is shown: by HTTP Basic (unset), or in the body."),
        )
        .key("timeout", text(DURATION).about("The time-out for one token, 100ms to 1m. Unset: 10s."))
        .key("tls", tls("an https:// token_url"))
        .end()
}

fn retry() -> Node {
    let statuses = || list(any_of([integer(300..=599), text(STATUSES)]));
    let backoff = |about: &str| text(DURATION).about(about);
    let attempts = || integer(1..=1000).about("Attempts in all, the first included: 1 to 1000.");
    let own = Table::new("What differs after these answers; without a key it is as in `retry`.")
        .key("max_attempts", attempts())
        .key("min_backoff", backoff("The shortest wait before another attempt."))
        .key("max_backoff", backoff("The longest wait before another attempt."));
    let when = Table::new("For an API that answers 2xx and means that it throttles.")
        .key(
            "pointer",
            text("^(/([^~]|~[01])*)?$").about("Where in the body, as a JSON pointer such as /error/code."),
        )
        .key("equals", scalar().about("The value there that means so."));
    Table::new("What is tried again, for how long, and what costs an attempt: docs/retries.md.")
        .key("max_attempts", attempts().default(8))
        .key(
            "max_throttled",
            integer(1..=u64::from(u32::MAX)).about(
                "How often a job may be answered by 429, or by 503 with Retry-After. Unset: until its deadline.",
            ),
        )
        .key(
            "max_age",
            text(DURATION).about(
                "The age at which a job is not tried again, 1s to 365d: since it was made or first taken in.",
            ),
        )
        .key(
            "on",
            statuses().default(json!([408, 425, "5xx"])).about(
                "The answers after which a job is tried again: statuses, ranges and classes from 300 to 599.",
            ),
        )
        .key(
            "never",
            statuses().default(json!([])).about("The answers after which it is dead at once all the same."),
        )
        .key(
            "on_unauthorized",
            list(integer(401..=407).with("enum", json!([401, 403, 407]))).default(json!([401])).about(
                "The statuses that may mean that paced's own credentials are refused: any of 401, 403, 407.",
            ),
        )
        .key("min_backoff", backoff("The shortest wait before another attempt.").default("1s"))
        .key("max_backoff", backoff("The longest wait before another attempt.").default("5m"))
        .key("max_pause", backoff("The longest that a Retry-After of the API may pause the downstream.").default("5m"))
        .key(
            "status",
            named(STATUSES, own.end()).about("What differs after some answers, by status, range or class."),
        )
        .key("when", when.end())
        .end()
}

fn lanes() -> Node {
    Table::new("The lanes of the jobs.")
        .key(
            "default_plan",
            any_text().about(
                "The plan of jobs that name none. Unset: they keep the limits of the downstream alone.",
            ),
        )
        .end()
}
