//! The text of a first configuration.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use paced::Amount;
use paced::config::{self, quote};

use super::Answers;
use super::field::Field;

/// A URL with something secret in it, which no configuration should hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Secret<'a> {
    pub(super) field: Field,
    /// The key of the URL.
    pub(super) key: String,
    /// What is secret of it.
    pub(super) part: &'static str,
    /// The name of the file that is to hold it.
    pub(super) file: &'static str,
    pub(super) text: &'a str,
}

impl Secret<'_> {
    /// The environment variable that overrides the key.
    pub(super) fn variable(&self) -> String {
        format!("PACED_{}", self.key.to_ascii_uppercase().replace('.', "__"))
    }
}

/// The URLs with something secret in them: a password, or the query of a base URL.
pub(super) fn secrets(answers: &Answers) -> Vec<Secret<'_>> {
    let base_url = format!("downstreams.{}.http.base_url", get(answers, Field::Downstream));
    let urls = [
        (Field::Broker, "amqp.url".to_owned(), "password", "amqp-url"),
        (Field::Store, "store.url".to_owned(), "password", "store-url"),
        (Field::BaseUrl, base_url, "query", "base-url"),
    ];
    let of = |(field, key, part, file)| {
        let text = get(answers, field);
        let is_secret = if field == Field::BaseUrl { text.contains('?') } else { has_password(text) };
        is_secret.then_some(Secret { field, key, part, file, text })
    };
    urls.into_iter().filter_map(of).collect()
}

fn get(answers: &Answers, field: Field) -> &str {
    answers.get(&field).map_or("", String::as_str)
}

/// The user and the password of a URL: where they begin and end, the `@` not included.
fn credentials(url: &str) -> Option<(usize, usize)> {
    let start = url.find("://")? + 3;
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    url[start..end].rfind('@').map(|at| (start, start + at))
}

/// Where the query of a URL begins, with its `?`, if it has a password in it, as that of sentinels may.
fn query_with_password(url: &str) -> Option<usize> {
    let (before, query) = url.split_once('?')?;
    let names = query.split(['&', ';']).map(|pair| pair.split('=').next().unwrap_or_default());
    names.map(str::to_ascii_lowercase).any(|name| name.contains("password")).then_some(before.len())
}

fn has_password(url: &str) -> bool {
    let in_credentials = credentials(url).is_some_and(|(start, end)| url[start..end].contains(':'));
    in_credentials || query_with_password(url).is_some()
}

/// The same URL without its passwords. A query that has one is left out as a whole, as a user without a password would be
/// refused.
fn without_password(url: &str) -> String {
    let url = query_with_password(url).map_or(url, |at| &url[..at]);
    let Some((start, end)) = credentials(url) else { return url.to_owned() };
    match url[start..end].split(':').next() {
        None | Some("") => format!("{}{}", &url[..start], &url[end + 1..]),
        Some(user) => format!("{}{user}{}", &url[..start], &url[end..]),
    }
}

/// The shortest configuration with these answers, to be checked.
pub(super) fn document(answers: &Answers, limits: &[String]) -> String {
    let line = |key: &str, field| format!("{key} = {}\n", quote(get(answers, field)));
    let mut text = line("amqp.url", Field::Broker) + &line("store.url", Field::Store);
    let _ = writeln!(text, "[downstreams.{}]", quote(get(answers, Field::Downstream)));
    text += &rate(answers, limits);
    text += &line("http.base_url", Field::BaseUrl);
    if answers.contains_key(&Field::Queue) {
        text += &line("queue.name", Field::Queue);
    }
    text
}

/// The lines of the rate, if there is one, and of further limits. A rate with a margin is a limit of its own.
fn rate(answers: &Answers, limits: &[String]) -> String {
    let rate = answers.get(&Field::Rate).map(|rate| quote(rate));
    let margin = answers.get(&Field::Margin).filter(|margin| *margin != "0s");
    let with_margin = rate.as_ref().zip(margin);
    let first = with_margin.map(|(rate, margin)| format!("{{ rate = {rate}, margin = {} }}", quote(margin)));
    let plain = rate.filter(|_| first.is_none());
    let mut text = plain.map(|rate| format!("rate = {rate}\n")).unwrap_or_default();
    let all: Vec<String> = first.into_iter().chain(limits.iter().map(|limit| further(limit))).collect();
    match all.as_slice() {
        [] => {}
        [one] => text += &format!("limits = [{one}]\n"),
        several => text += &format!("limits = [\n    {},\n]\n", several.join(",\n    ")),
    }
    text
}

/// The most that a sliding log counts.
const LONGEST_LOG: u64 = 10_000;

/// A further limit: a quota of days, weeks or months, and otherwise what is never exceeded in any window of its length.
fn further(limit: &str) -> String {
    let algorithm = match limit.parse::<Amount>() {
        Ok(amount) if amount.period().longest() >= Duration::from_secs(86_400) => "quota",
        Ok(amount) if amount.count() > LONGEST_LOG => "sliding-window",
        _ => "sliding-log",
    };
    format!("{{ algorithm = \"{algorithm}\", rate = {} }}", quote(limit))
}

/// Checks an answer as the daemon would, together with those that were `given` before. The problem never repeats a secret.
pub(super) fn check(field: Field, answer: &str, given: &Answers) -> Result<(), String> {
    let others = [
        (Field::Downstream, "billing"),
        (Field::BaseUrl, "http://localhost/"),
        // A period that is longer than any sensible margin. Rate and margin are checked together once both are known.
        (Field::Rate, "1/180d"),
        (Field::Broker, "amqp://127.0.0.1/"),
        (Field::Store, "memory:"),
    ];
    let mut answers: Answers = others.map(|(field, text)| (field, text.to_owned())).into();
    // All other answers are right or wrong by themselves.
    let of_the_limit = given.iter().filter(|(field, _)| matches!(field, Field::Rate | Field::Margin));
    answers.extend(of_the_limit.map(|(field, text)| (*field, text.clone())));
    answers.insert(field, answer.to_owned());
    let checked = config::load_text("answer", &document(&answers, &[]), Path::new(""));
    let first = |errors: config::ConfigErrors| errors.iter().next().map(|error| error.problem().to_owned());
    checked.map(drop).map_err(|errors| first(errors).unwrap_or_default())
}

const HEAD: &str = "\
# paced takes jobs from RabbitMQ and releases them to an API at an exact pace.
#
#   paced check -c FILE             says what is wrong in this file, and warns of what has another effect than it seems
#   paced check --online -c FILE    connects to the broker and the store too
#   paced config show -c FILE       shows every key in effect, with its default
#   paced run -c FILE               releases jobs
#
# Any key can also be given as an environment variable: amqp.url is PACED_AMQP__URL, with two underscores. For completion in an editor
# (taplo, Even Better TOML): `paced config schema > paced.schema.json`, and as the first line here `#:schema ./paced.schema.json`.
";

const ADMIN: &str = "
# Probes, metrics, the page and the tools (paced status, paced pause and so on). Nothing listens unless it is set.
[admin]
listen = \"127.0.0.1:9750\"
";

/// The name of the file that holds the token of the admin API.
pub(super) const TOKEN_FILE: &str = "admin-token";

const HEADERS: &str = "\
# For one request, including the connection.
timeout = \"30s\"
# Request headers of every request. A secret is read from a file of its own, whose path starts at the directory of this file.
# headers = { authorization_file = \"api-token\" }
";

const RETRY: &str = "\
# Attempts in all, the first included. What is tried again, and when, is in the other keys of this table.
max_attempts = 8
";

const FURTHER_LIMITS: &str = "\
# Further limits, all of which must allow a job. A `margin` is for APIs that count in any window, since arrivals jitter.
# limits = [{ algorithm = \"sliding-log\", rate = \"1000/hour\", margin = \"50ms\" }]
";

const MARGIN: &str = "# Its period is longer by the margin, since arrivals jitter and the API counts in any window. More limits may follow.\n";

const UNSPACED: &str = "\
# All limits must allow a job. None of them spaces jobs out: as many go at once as each of them has left. For an even pace add `rate`.
";

/// The file. With `beside` the URLs with passwords are in files of their own beside it.
pub(super) fn file(answers: &Answers, limits: &[String], beside: bool) -> String {
    let (name, rate) = (get(answers, Field::Downstream), rate(answers, limits));
    let is_spaced = answers.contains_key(&Field::Rate);
    let more = match (rate.starts_with("rate"), limits) {
        (true, []) => FURTHER_LIMITS,
        (true, _) => "",
        (false, _) if !is_spaced => UNSPACED,
        (false, _) => MARGIN,
    };
    let spacing = match (is_spaced, more) {
        (true, "") => ", evenly spaced. All limits must allow a job",
        (true, _) => ", evenly spaced",
        (false, _) => "",
    };
    let mut text = HEAD.to_owned();
    text += "\n[amqp]\n# The broker: amqp:// or amqps://USER@HOST:PORT/VHOST; %2f is the vhost `/`.\n";
    text += &url(answers, Field::Broker, "url", beside);
    text += "\n[store]\n# Where the pace is kept. file:PATH (from the directory of this file) is one process alone, and survives its restarts; memory: is\n\
             # forgotten at the end; a Redis (redis://HOST:6379) is shared by all replicas.\n";
    text += &url(answers, Field::Store, "url", beside);
    text += ADMIN;
    // Without a file there is no place for a token.
    let (how, mark) = if beside { ("", "") } else { ("; make it with `openssl rand -hex 32`", "# ") };
    let _ = writeln!(text, "# What changes must carry{how}. Without one there are no changes.");
    let _ = writeln!(text, "{mark}token_file = \"{TOKEN_FILE}\"");
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\n# One table for each API. Jobs for this one have the routing key `{name}`.\n[downstreams.{name}]\n\
         # COUNT/UNIT or COUNT per N UNIT{spacing}.\n{rate}{more}\
         # Sends in flight, in each replica: at least what the rate releases while an answer takes.\nconcurrency = 64\n"
    );
    if answers.contains_key(&Field::Queue) {
        let queue = quote(get(answers, Field::Queue));
        let _ = write!(
            text,
            "\n[downstreams.{name}.queue]\n# An existing queue, which is used as it is.\nname = {queue}\n"
        );
    }
    let base_url = url(answers, Field::BaseUrl, "base_url", beside);
    let _ = write!(
        text,
        "\n[downstreams.{name}.http]\n# Where jobs go; a job's path is appended behind one slash.\n{base_url}{HEADERS}\
         \n[downstreams.{name}.retry]\n{RETRY}"
    );
    text
}

/// The lines of a URL under `key`.
fn url(answers: &Answers, field: Field, key: &str, beside: bool) -> String {
    let given = get(answers, field);
    let secrets = secrets(answers);
    match secrets.iter().find(|secret| secret.field == field) {
        None => format!("{key} = {}\n", quote(given)),
        Some(secret) if beside => format!(
            "# It has a {} in it, so it is in a file of its own, which the user that runs paced must be able to read.\n\
             {key}_file = {}\n",
            secret.part,
            quote(secret.file)
        ),
        Some(secret) => format!(
            "# Its {} is not here: give the whole URL as {}, or in a file of its own instead of `{key}`.\n\
             # {key}_file = {}\n{key} = {}\n",
            secret.part,
            secret.variable(),
            quote(secret.file),
            quote(&without_secret(field, given))
        ),
    }
}

fn without_secret(field: Field, url: &str) -> String {
    match field {
        Field::BaseUrl => url.split('?').next().unwrap_or_default().to_owned(),
        _ => without_password(url),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_cut_out_of_urls() {
        for (url, without) in [
            ("amqp://rabbit/%2f", None),
            ("amqps://paced@rabbit/orders", None),
            ("amqp://paced:hunter2@rabbit:5672/a:b@c", Some("amqp://paced@rabbit:5672/a:b@c")),
            ("redis://:hunter2@cache/0", Some("redis://cache/0")),
            ("redis+sentinel://u:hunter2@a,b:1/master", Some("redis+sentinel://u@a,b:1/master")),
            ("redis+sentinel://a,b/master?sentinel_password=hunter2", Some("redis+sentinel://a,b/master")),
            ("redis+sentinel://:x@a/m/3?sentinel_user=s&sentinel_password=y", Some("redis+sentinel://a/m/3")),
            ("amqp://paced:hunter2@rabbit/?heartbeat=10", Some("amqp://paced@rabbit/?heartbeat=10")),
            ("amqp://paced@rabbit/?heartbeat=10", None),
            ("memory:", None),
        ] {
            assert_eq!(has_password(url), without.is_some(), "{url}");
            assert_eq!(without_password(url), without.unwrap_or(url), "{url}");
        }
    }

    #[test]
    fn answers_are_checked_as_the_daemon_would() {
        for (field, wrong, expected) in [
            (Field::Downstream, "My API", "no name for a downstream"),
            (Field::Downstream, "", "no name for a downstream"),
            (Field::BaseUrl, "https://api.example.com/#a", "has a `#`"),
            (Field::BaseUrl, "https://api.example.com/#?key=hunter2", "has a `#`"),
            (Field::Rate, "fast", "`fast` is no rate"),
            (Field::Rate, "5\"\n[admin]\n#", "is no rate"),
            (Field::Broker, "redis://a", "not the URL of a broker"),
            (Field::Broker, "amqp://user:hunter2@", "has no host"),
            (Field::Margin, "soon", "`soon` is no duration"),
            (Field::Store, "amqp://a", "not the URL of a store"),
            (Field::Queue, "", "no name of a queue"),
        ] {
            let problem = check(field, wrong, &Answers::new()).unwrap_err();
            assert!(problem.contains(expected) && !problem.contains("hunter2"), "{wrong}: {problem}");
        }
        for (field, right) in [
            (Field::Downstream, "crm"),
            (Field::BaseUrl, "https://api.example.com/"),
            (Field::BaseUrl, "https://api.example.com/hook?key=hunter2"),
            (Field::Rate, "1 per 3 seconds"),
            (Field::Margin, "50ms"),
            (Field::Broker, "amqps://user:secret@a/v"),
            (Field::Store, "redis+cluster://a,b"),
            (Field::Queue, "a \"queue\""),
        ] {
            assert_eq!(check(field, right, &Answers::new()), Ok(()), "{right}");
        }
    }

    #[test]
    fn further_limits_are_quotas_or_never_exceeded_in_any_window() {
        let answers = |margin: &str| {
            let text = |text: &str| text.to_owned();
            Answers::from([(Field::Rate, text("100/minute")), (Field::Margin, text(margin))])
        };
        let limits = |all: &[&str]| all.iter().map(|limit| (*limit).to_owned()).collect::<Vec<_>>();
        assert_eq!(rate(&answers("0s"), &[]), "rate = \"100/minute\"\n");
        assert_eq!(
            rate(&answers("0s"), &limits(&["5000/day"])),
            "rate = \"100/minute\"\nlimits = [{ algorithm = \"quota\", rate = \"5000/day\" }]\n"
        );
        assert_eq!(
            rate(&answers("50ms"), &limits(&["1000/h", "50000/h"])),
            "limits = [\n    { rate = \"100/minute\", margin = \"50ms\" },\n    \
             { algorithm = \"sliding-log\", rate = \"1000/h\" },\n    \
             { algorithm = \"sliding-window\", rate = \"50000/h\" },\n]\n"
        );
    }

    #[test]
    fn limits_without_a_rate_are_not_called_a_pace() {
        let given = [
            (Field::Downstream, "crm"),
            (Field::BaseUrl, "http://crm/"),
            (Field::Broker, "amqp://a/"),
            (Field::Store, "memory:"),
            (Field::Margin, "0s"),
        ];
        let answers: Answers = given.map(|(field, text)| (field, text.to_owned())).into();
        let limits = ["100/minute", "5000/day"].map(str::to_owned);
        let expected = "limits = [\n    { algorithm = \"sliding-log\", rate = \"100/minute\" },\n    \
                        { algorithm = \"quota\", rate = \"5000/day\" },\n]\n";
        assert_eq!(rate(&answers, &limits), expected);
        let text = file(&answers, &limits, true);
        assert!(text.contains("add `rate`") && !text.contains("evenly spaced"), "{text}");
        let loaded = config::load_text("text", &document(&answers, &limits), Path::new("")).unwrap();
        assert_eq!(loaded.settings.downstreams["crm"].limits.pace(), None);
    }

    #[test]
    fn a_margin_and_a_rate_are_checked_together_whichever_comes_first() {
        let given = |field, text: &str| Answers::from([(field, text.to_owned())]);
        assert_eq!(check(Field::Margin, "2s", &Answers::new()), Ok(()));
        assert_eq!(check(Field::Margin, "2s", &given(Field::Rate, "1000/minute")), Ok(()));
        assert_eq!(check(Field::Rate, "1000/minute", &given(Field::Margin, "2s")), Ok(()));
        for problem in [
            check(Field::Margin, "2s", &given(Field::Rate, "10/s")).unwrap_err(),
            check(Field::Rate, "10/s", &given(Field::Margin, "2s")).unwrap_err(),
        ] {
            assert!(problem.contains("a margin of 2s at a period of 1s; use a shorter one"), "{problem}");
        }
    }
}
