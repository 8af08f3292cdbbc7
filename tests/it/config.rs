//! The configuration as people use it: files, sources, and messages.
#![cfg(feature = "config")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paced::config::{ConfigErrors, Loaded, Sources, load, show};
use paced::dispatch::OnUnavailable;
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

mod costs;
mod dynamic;
mod lanes;
mod limits;
mod mistakes;
mod oauth2;
mod plans;
mod reload;
mod retries;
mod sources;
#[cfg(feature = "daemon")]
mod tls;
mod warnings;

/// A directory with a `paced.toml`, from which a configuration is loaded.
struct Scene {
    dir: TempDir,
    sources: Sources,
}

impl Scene {
    fn new(text: &str) -> Self {
        let dir = tempdir().unwrap();
        let sources =
            Sources { files: vec!["paced.toml".into()], cwd: dir.path().to_path_buf(), ..Sources::default() };
        Self { dir, sources }.file("paced.toml", text)
    }

    /// A file that its owner alone can read: others are warned of.
    fn file(self, name: &str, text: &str) -> Self {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        #[cfg(unix)]
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        self
    }

    fn also(mut self, name: &str, text: &str) -> Self {
        self.sources.files.push(name.into());
        self.file(name, text)
    }

    fn env(mut self, name: &str, text: &str) -> Self {
        self.sources.env.push((name.into(), text.into()));
        self
    }

    fn set(mut self, argument: &str) -> Self {
        self.sources.set.push(argument.to_owned());
        self
    }

    fn load(&self) -> Result<Loaded, ConfigErrors> {
        load(self.sources.clone())
    }

    #[track_caller]
    fn right(&self) -> Loaded {
        self.load().unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// The lines of the mistakes.
    #[track_caller]
    fn wrong(&self) -> Vec<String> {
        let errors = self.load().expect_err("an error");
        let lines: Vec<String> = errors.to_string().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), errors.iter().count(), "one line each");
        assert!(!lines.is_empty());
        lines
    }
}

/// The shortest valid configuration.
const LEAST: &str = "[downstreams.a]\nrate = \"1/s\"\nhttp.base_url = \"http://localhost/\"\n";

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)
}

fn load_shipped(name: &str, env: &[(&str, &str)]) -> Loaded {
    let sources = Sources {
        files: vec![shipped(name)],
        env: env.iter().map(|(name, text)| (name.into(), text.into())).collect(),
        ..Sources::default()
    };
    load(sources).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn every_shipped_file_is_right() {
    let examples = fs::read_dir(shipped("examples")).unwrap().map(|entry| entry.unwrap().path());
    let examples: Vec<PathBuf> = examples.filter(|path| path.extension().is_some()).collect();
    assert_eq!(examples.len(), 9, "{examples:?}");
    for path in examples.iter().chain([&shipped("paced.toml")]) {
        let loaded = load_shipped(path.to_str().unwrap(), &[]);
        assert_eq!(loaded.files, std::slice::from_ref(path));
        assert!(!loaded.settings.downstreams.is_empty(), "{}", path.display());
    }
}

#[test]
fn the_default_file_holds_the_defaults() {
    let documented = load_shipped("paced.toml", &[]).settings;
    let text = "[downstreams.billing]\nrate = \"50/s\"\nhttp.base_url = \"https://api.example.com/v1/\"\n";
    let bare = Scene::new(text).right().settings;
    assert_eq!(format!("{documented:#?}"), format!("{bare:#?}"));
    assert_eq!(documented.amqp.url, bare.amqp.url);
    let billing = &bare.downstreams["billing"];
    assert_eq!(bare.amqp.url.expose(), "amqp://127.0.0.1:5672/%2f");
    assert_eq!((bare.amqp.prefix.as_str(), bare.amqp.declare), ("paced", true));
    assert_eq!((bare.amqp.window_bytes, billing.queue.prefetch_bytes), (240 << 20, 64 << 20));
    assert_eq!((bare.store.url.expose(), bare.store.key_prefix.as_str()), ("memory:", "paced"));
    assert_eq!((bare.admin.listen, bare.admin.token, bare.admin.allow_hosts), (None, None, vec![]));
    let hold = OnUnavailable::Hold;
    assert_eq!((bare.store.on_unavailable, billing.on_unavailable, billing.revision), (hold, hold, None));
    assert_eq!(billing.retry.max_pause, Duration::from_secs(300));
    assert_eq!(bare.shutdown.drain_timeout, Duration::from_secs(25));
    assert_eq!((billing.horizon, billing.concurrency), (Duration::from_millis(100), 64));
    assert_eq!((&billing.queue.name, billing.queue.prefetch), (&None, 1000));
    assert_eq!((billing.http.timeout, billing.http.max_body), (Duration::from_secs(30), 1 << 20));
    assert_eq!(
        (billing.http.max_connection_age, billing.http.keep_response),
        (Duration::from_secs(90), true)
    );
    assert!(billing.http.allow_headers.is_empty() && billing.http.headers.is_empty());
    let retry = &billing.retry;
    assert_eq!((retry.max_attempts, retry.max_throttled), (8, None));
    assert!(retry.answers.on_unauthorized.contains(401) && !retry.answers.on_unauthorized.contains(403));
    assert_eq!((retry.backoff.min, retry.backoff.max), (Duration::from_secs(1), Duration::from_secs(300)));
}

#[test]
fn the_examples_mean_what_they_say() {
    let several = load_shipped("examples/several-limits.toml", &[]).settings;
    let limits: Vec<(String, String)> = several.downstreams["crm"]
        .limits
        .iter()
        .map(|limit| (limit.name().to_owned(), limit.rate().to_string()))
        .collect();
    let expected = [("leaky-bucket-0", "20/s"), ("leaky-bucket-1", "550/m"), ("leaky-bucket-2", "9500/d")];
    assert_eq!(limits, expected.map(|(name, rate)| (name.to_owned(), rate.to_owned())));

    let secrets = load_shipped("examples/secrets-in-files.toml", &[]).settings;
    assert_eq!(secrets.amqp.url.expose(), "amqps://paced:example-password@rabbitmq:5671/%2f");
    let headers = &secrets.downstreams["billing"].http.headers;
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(headers, [("accept", "application/json"), ("authorization", "Bearer example-token")]);

    let sentinels = load_shipped("examples/sentinels.toml", &[]).settings;
    let shown = "redis+sentinel://sentinel-1:26379,sentinel-2:26379,sentinel-3:26379/pace-master";
    assert_eq!((sentinels.store.url.expose(), sentinels.store.url.to_string().as_str()), (shown, shown));

    let existing = load_shipped("examples/existing-queue.toml", &[]).settings;
    assert_eq!(existing.downstreams["invoices"].queue.name.as_deref(), Some("erp.invoices"));

    let token = shipped("examples/secrets/billing-token");
    let env = [
        ("PACED_PORT", "tcp://10.0.0.1:9750"),
        ("PACED_STORE__URL", "redis://redis:6379"),
        ("PACED_DOWNSTREAMS__BILLING__RATE", "50/s"),
        ("PACED_DOWNSTREAMS__BILLING__HTTP__HEADERS__AUTHORIZATION_FILE", token.to_str().unwrap()),
    ];
    let kubernetes = load_shipped("examples/kubernetes.toml", &env).settings;
    assert_eq!(kubernetes.store.url.expose(), "redis://redis:6379");
    assert_eq!(kubernetes.admin.listen.as_deref(), Some("0.0.0.0:9750"));
    let billing = &kubernetes.downstreams["billing"];
    assert_eq!(billing.limits.rate().to_string(), "50/s");
    assert_eq!(billing.http.headers[0].1.expose(), "Bearer example-token");
}

#[test]
fn what_is_in_effect_is_shown_with_where_it_comes_from() {
    let text =
        format!("{LEAST}limits = [{{ rate = \"5/m\" }}]\n[amqp]\nurl = \"amqp://u:hunter2@rabbit/v\"\n");
    let loaded = Scene::new(&text)
        .env("PACED_DOWNSTREAMS__A__CONCURRENCY", "7")
        .set("downstreams.a.http.headers.x-key=hunter2")
        .set("admin.listen=[::1]:9750")
        .set("store.url=redis://:hunter2@cache")
        .set("precision=coarse")
        .right();
    let shown = show(&loaded);
    assert!(!shown.contains("hunter2"), "{shown}");
    let lines: Vec<String> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[..3], ["precision = \"coarse\" # --set", "", "[amqp]"]);
    for line in [
        "[amqp]",
        "url = \"amqp://rabbit/v\" # paced.toml:6:7",
        "prefix = \"paced\" # default",
        "url = \"redis://cache\" # --set",
        "[admin]",
        "listen = \"[::1]:9750\" # --set",
        "[downstreams.a]",
        "rate = \"1/s\" # paced.toml:2:8",
        "limits = [{ algorithm = \"leaky-bucket\", rate = \"5/m\", burst = 1, margin = \"0s\" }] # paced.toml:4:10",
        "concurrency = 7 # env PACED_DOWNSTREAMS__A__CONCURRENCY",
        "base_url = \"http://localhost/\" # paced.toml:3:17",
        "[downstreams.a.http.headers]",
        "x-key = \"***\" # --set",
        "max_attempts = 8 # default",
    ] {
        assert!(lines.iter().any(|shown| shown == line), "{line}\nin\n{shown}");
    }
    // The output is itself a configuration, with the same meaning.
    let again = Scene::new(&shown).right();
    assert_eq!(format!("{:?}", again.settings), format!("{:?}", loaded.settings));
}

#[test]
fn the_query_of_a_base_url_is_not_shown() {
    let text = LEAST.replace("http://localhost/", "https://hooks.example.com/in?key=hunter2");
    let loaded = Scene::new(&text).right();
    let shown = show(&loaded);
    assert!(shown.contains("\"https://hooks.example.com/in?***\"") && !shown.contains("hunter2"), "{shown}");
    let base_url = &loaded.settings.downstreams["a"].http.base_url;
    assert_eq!(base_url.expose(), "https://hooks.example.com/in?key=hunter2");
    assert!(!format!("{:?}", loaded.settings).contains("hunter2"));
    let wrong = Scene::new(&text.replace("hunter2", "hunter2#hunter2")).wrong();
    assert!(wrong.iter().all(|error| !error.contains("hunter2")), "{wrong:?}");
}

#[test]
fn nothing_of_a_secret_file_is_shown() {
    let text = "[downstreams.a]\nrate = \"1/s\"\nhttp.base_url_file = \"url\"\n";
    let loaded = Scene::new(text).file("url", "https://hooks.example.com/services/hunter2/").right();
    let shown = show(&loaded);
    let line = shown.lines().find(|line| line.starts_with("base_url = ")).unwrap();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(line, "base_url = \"***\" # paced.toml:3:22, from the file it names");
    let base_url = &loaded.settings.downstreams["a"].http.base_url;
    assert_eq!(base_url.to_string(), "***");
    assert_eq!(base_url.expose(), "https://hooks.example.com/services/hunter2/");
}

/// Pieces of configurations, valid and invalid.
fn piece() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "[amqp]",
        "[downstreams.a]",
        "[[downstreams.a.limits]]",
        "[downstreams.a.http]",
        "[downstreams]",
        "[x]",
        "downstreams",
        "amqp",
        "url",
        "url_file",
        "rate",
        "limits",
        "burst",
        "http",
        "base_url",
        "headers",
        "retry",
        ".",
        " = ",
        "\"1/s\"",
        "\"http://localhost/\"",
        "5",
        "-1",
        "1.5",
        "true",
        "1979-05-27",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\n",
        "\n",
        "\n",
        " ",
        "\"",
        "'",
        "\\",
        "#",
        "\u{feff}",
        "ä",
        "\r\n",
        "\"\"\"",
        "0x",
        "inf",
        "\"hunter2\"",
    ]);
    prop_oneof![8 => fixed.prop_map(str::to_owned), 1 => "\\PC{0,4}", 1 => any::<char>().prop_map(String::from)]
}

/// Lines that are TOML if no key repeats.
fn line() -> impl Strategy<Value = String> {
    let header = prop::sample::select(vec!["[amqp]", "[downstreams.a]", "[downstreams.a.http]", "[store]"]);
    let key = prop::sample::select(vec![
        "url",
        "url_file",
        "rate",
        "limits",
        "http",
        "base_url",
        "headers",
        "http.base_url",
        "timeout",
        "prefix",
        "horizon",
        "queue.name",
    ]);
    let value = prop::sample::select(vec![
        "\"1/s\"",
        "\"http://localhost/\"",
        "\"memory:\"",
        "\"1s\"",
        "[{ rate = \"5/m\" }]",
        "[]",
        "{}",
        "{ a = \"b\" }",
        "5",
        "\"a\\nb\"",
        "true",
        "[[1], {}]",
    ]);
    prop_oneof![
        header.prop_map(str::to_owned),
        (key, value).prop_map(|(key, value)| format!("{key} = {value}"))
    ]
}

fn text() -> impl Strategy<Value = String> {
    let pieces = prop::collection::vec(piece(), 0..40).prop_map(|pieces| pieces.concat());
    let lines = (prop::sample::select(vec!["", LEAST]), prop::collection::vec(line(), 0..8));
    prop_oneof![pieces, lines.prop_map(|(start, lines)| format!("{start}{}", lines.join("\n")))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_text_panics_and_each_error_is_one_line(
        file in text(),
        other in text(),
        variables in prop::collection::vec(("[A-C_]{0,12}", text()), 0..3),
        arguments in prop::collection::vec(text(), 0..3),
    ) {
        let mut scene = Scene::new(&file).also("b.toml", &other);
        for (name, value) in variables {
            scene = scene.env(&format!("PACED_DOWNSTREAMS__{name}"), &value);
        }
        scene.sources.set = arguments;
        match scene.load() {
            Ok(loaded) => prop_assert!(!show(&loaded).is_empty()),
            Err(errors) => {
                let lines = errors.to_string();
                prop_assert!(errors.iter().count() > 0);
                prop_assert_eq!(lines.split('\n').count(), errors.iter().count());
                for line in lines.lines() {
                    let place = ["paced.toml:", "b.toml:", "env PACED_", "--set: "];
                    prop_assert!(place.iter().any(|start| line.starts_with(start)), "{}", line);
                }
            }
        }
    }
}
