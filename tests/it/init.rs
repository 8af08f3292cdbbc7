//! `paced init`, and the schema of what it writes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::support::daemon::{Output, binary, on_a_terminal as terminal, run_cli, run_cli_in};

const LEAST: [&str; 7] =
    ["init", "--downstream", "billing", "--base-url", "https://api.example.com/v1/", "--rate", "1000/minute"];

async fn init(folder: &TempDir, more: &[&str]) -> Output {
    run_cli_in(folder.path(), &[&LEAST, more].concat(), b"").await
}

/// What is in effect with the file, by key; it passes the check without a warning.
async fn in_effect(folder: &Path, file: &str) -> impl Fn(&str) -> Value {
    let checked = run_cli_in(folder, &["check", "-c", file], b"").await;
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""));
    let shown = run_cli_in(folder, &["-o", "json", "config", "show", "-c", file], b"").await;
    let entries: Vec<Value> = shown.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    move |key| {
        let entry = entries.iter().find(|entry| entry["key"] == key);
        entry.map_or(Value::Null, |entry| entry["value"].clone())
    }
}

/// Checks a file against the schema that the program prints.
async fn assert_valid(file: &Path) {
    let printed = run_cli(&["config", "schema"], b"").await;
    assert_eq!((printed.code, printed.stderr.as_str()), (0, ""));
    let schema: Value = serde_json::from_str(&printed.stdout).unwrap();
    assert!(printed.stdout.lines().count() > 100, "for people it has lines");
    let line = run_cli(&["-o", "json", "config", "schema"], b"").await;
    assert_eq!(line.stdout.lines().count(), 1);
    assert_eq!(serde_json::from_str::<Value>(&line.stdout).unwrap(), schema);
    let table: toml::Table = toml::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let instance = serde_json::to_value(table).unwrap();
    let validator = jsonschema::draft4::new(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(&instance).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[tokio::test]
async fn options_make_a_file_that_passes_the_check() {
    let folder = tempdir().unwrap();
    let more = ["--store", "redis://127.0.0.1:6379/0", "--queue", "erp \"in\"", "--file", "paced.toml"];
    let limits = ["--limit", "5000/day", "--limit", "900/h"];
    let output = init(&folder, &[&more[..], &limits].concat()).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "paced.toml\nadmin-token\n"), "{}", output.stderr);
    for next in [
        "\n  paced check --online -c paced.toml ",
        "\n  paced run -c paced.toml\n",
        "\n  paced publish billing --body '{}' -c paced.toml ",
        "\n  paced status -c paced.toml\n",
    ] {
        assert!(output.stderr.contains(next), "{}", output.stderr);
    }
    let token = folder.path().join("admin-token");
    assert_eq!(fs::read_to_string(&token).unwrap().trim_end().len(), 64);
    assert_eq!(fs::metadata(&token).unwrap().permissions().mode() & 0o777, 0o600);
    let file = folder.path().join("paced.toml");
    let value = in_effect(folder.path(), "paced.toml").await;
    assert_eq!(value("downstreams.billing.rate"), "1000/minute");
    assert_eq!(value("downstreams.billing.http.base_url"), "https://api.example.com/v1/");
    assert_eq!(value("downstreams.billing.queue.name"), "erp \"in\"");
    assert_eq!(value("amqp.url"), "amqp://127.0.0.1:5672/%2f");
    assert_eq!(value("store.url"), "redis://127.0.0.1:6379/0");
    assert_eq!((value("admin.listen"), value("admin.token")), ("127.0.0.1:9750".into(), "***".into()));
    let limits = value("downstreams.billing.limits").to_string();
    for part in ["quota", "5000/d", "sliding-log", "900/h"] {
        assert!(limits.contains(part), "{limits}");
    }
    assert_valid(&file).await;

    // What is there is kept.
    let before = fs::read_to_string(&file).unwrap();
    let refused = init(&folder, &["--file", "paced.toml"]).await;
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("paced.toml is there already; --force replaces it"),
        "{}",
        refused.stderr
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    let forced = init(&folder, &["-o", "json", "--file", "paced.toml", "--force"]).await;
    assert_eq!((forced.code, forced.stdout.as_str()), (0, "{\"file\":\"paced.toml\"}\n"));
    assert!(!fs::read_to_string(&file).unwrap().contains("erp"));
    // Without a Redis the pace is kept beside it, and survives restarts.
    assert_eq!(in_effect(folder.path(), "paced.toml").await("store.url"), "file:paced.store");
    let nowhere = init(&folder, &["--file", "nowhere/paced.toml"]).await;
    assert_eq!(nowhere.code, 1, "{}", nowhere.stderr);
}

#[tokio::test]
async fn passwords_are_kept_out_of_the_file() {
    let folder = tempdir().unwrap();
    let secrets = ["--broker", "amqps://me:hunter2@rabbit/orders", "--store", "rediss://:hunter2@cache:6379"];
    let output = init(&folder, &[&secrets[..], &["--file", "paced.toml"]].concat()).await;
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (0, "paced.toml\nadmin-token\nstore-url\namqp-url\n"),
        "{}",
        output.stderr
    );
    assert!(!fs::read_to_string(folder.path().join("paced.toml")).unwrap().contains("hunter2"));
    let value = in_effect(folder.path(), "paced.toml").await;
    assert_eq!((value("amqp.url"), value("store.url")), ("***".into(), "***".into()));
    assert_valid(&folder.path().join("paced.toml")).await;
    for (name, url) in [("amqp-url", secrets[1]), ("store-url", secrets[3])] {
        let file = folder.path().join(name);
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("{url}\n"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
    // Another configuration does not take the secrets of this one, and leaves nothing behind.
    let other = init(&folder, &[&secrets[..], &["--file", "other.toml"]].concat()).await;
    assert_eq!(other.code, 2, "{}", other.stderr);
    assert!(other.stderr.contains("amqp-url is there already"), "{}", other.stderr);
    assert!(!folder.path().join("other.toml").exists());
    fs::remove_file(folder.path().join("amqp-url")).unwrap();
    let other = init(&folder, &[&secrets[..], &["--file", "other.toml"]].concat()).await;
    assert!(other.code == 2 && other.stderr.contains("store-url is there already"), "{}", other.stderr);
    assert!(!folder.path().join("other.toml").exists() && !folder.path().join("amqp-url").exists());

    let output = init(&folder, &secrets).await;
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(!output.stdout.contains("hunter2") && !output.stderr.contains("hunter2"), "{}", output.stdout);
    for hint in ["give the whole URL as PACED_AMQP__URL", "give the whole URL as PACED_STORE__URL"] {
        assert!(output.stderr.contains(hint), "{}", output.stderr);
    }
    fs::write(folder.path().join("printed.toml"), &output.stdout).unwrap();
    let value = in_effect(folder.path(), "printed.toml").await;
    assert_eq!(
        (value("amqp.url"), value("store.url")),
        ("amqps://rabbit/orders".into(), "rediss://cache:6379".into())
    );

    let sentinels = ["--store", "redis+sentinel://a,b/master?sentinel_password=hunter2"];
    let printed = init(&folder, &sentinels).await;
    assert!(printed.code == 0 && !printed.stdout.contains("hunter2"), "{}", printed.stdout);
    let written = init(&folder, &[&sentinels[..], &["--file", "sentinels.toml", "--force"]].concat()).await;
    assert_eq!(written.stdout, "sentinels.toml\nstore-url\n", "{}", written.stderr);
    assert!(!fs::read_to_string(folder.path().join("sentinels.toml")).unwrap().contains("hunter2"));
}

#[tokio::test]
async fn the_query_of_a_base_url_is_kept_out_of_the_file() {
    let folder = tempdir().unwrap();
    let url = "https://hooks.example.com/in?key=hunter2";
    let mut args = LEAST.to_vec();
    args[4] = url;
    let run = async |more: &[&str]| run_cli_in(folder.path(), &[&args[..], more].concat(), b"").await;
    let written = run(&["--file", "paced.toml"]).await;
    assert_eq!(
        (written.code, written.stdout.as_str()),
        (0, "paced.toml\nadmin-token\nbase-url\n"),
        "{}",
        written.stderr
    );
    assert!(!fs::read_to_string(folder.path().join("paced.toml")).unwrap().contains("hunter2"));
    assert_eq!(fs::read_to_string(folder.path().join("base-url")).unwrap(), format!("{url}\n"));
    let value = in_effect(folder.path(), "paced.toml").await;
    assert_eq!(value("downstreams.billing.http.base_url"), "***");
    assert_valid(&folder.path().join("paced.toml")).await;

    let printed = run(&[]).await;
    assert_eq!(printed.code, 0, "{}", printed.stderr);
    assert!(!printed.stdout.contains("hunter2") && !printed.stderr.contains("hunter2"), "{}", printed.stdout);
    for hint in ["PACED_DOWNSTREAMS__BILLING__HTTP__BASE_URL", "downstreams.billing.http.base_url_file"] {
        assert!(printed.stderr.contains(hint), "{}", printed.stderr);
    }
    fs::write(folder.path().join("printed.toml"), &printed.stdout).unwrap();
    let value = in_effect(folder.path(), "printed.toml").await;
    assert_eq!(value("downstreams.billing.http.base_url"), "https://hooks.example.com/in");
}

#[tokio::test]
async fn without_a_terminal_it_says_what_to_give() {
    let output = run_cli(&["init", "--rate", "1/s"], b"billing\n").await;
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert!(output.stderr.contains("give --downstream, --base-url, such as"), "{}", output.stderr);
    let windows = ["init", "--downstream", "crm", "--base-url", "http://crm/", "--limit", "100/minute"];
    let unspaced = run_cli(&windows, b"").await;
    assert!(unspaced.code == 0 && unspaced.stdout.contains("\"sliding-log\""), "{unspaced:?}");
    let moot = run_cli(&[&windows[..], &["--margin", "50ms"]].concat(), b"").await;
    assert!(moot.code == 2 && moot.stderr.contains("--margin belongs to --rate"), "{moot:?}");
    for (option, value, problem) in [
        ("--rate", "fast", "paced: --rate: `fast` is no rate"),
        ("--margin", "1m", "paced: --margin: a margin of 60s at a period of 60s"),
        ("--downstream", "My API", "paced: --downstream: no name for a downstream"),
        ("--base-url", "https://api.example.com/?hunter2#", "paced: --base-url: has a `#`"),
        ("--broker", "redis://u:hunter2@a", "paced: --broker: not the URL of a broker"),
        ("--store", "amqp://u:hunter2@a", "paced: --store: not the URL of a store"),
    ] {
        let mut args: Vec<&str> = LEAST.to_vec();
        match args.iter().position(|arg| *arg == option) {
            Some(at) => args[at + 1] = value,
            None => args.extend([option, value]),
        }
        let output = run_cli(&args, b"").await;
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{option}");
        assert!(
            output.stderr.starts_with(problem) && !output.stderr.contains("hunter2"),
            "{}",
            output.stderr
        );
    }
}

/// Runs it on a terminal of its own, and types this.
async fn on_a_terminal(folder: &TempDir, args: &str, typed: &'static [u8]) -> (Option<i32>, String) {
    let line = format!("{} init {args}", binary().display());
    terminal(folder.path(), &line, typed).await
}

#[tokio::test]
async fn on_a_terminal_it_asks_until_it_can_be_used() {
    let folder = tempdir().unwrap();
    let typed = b"My API\nbilling\napi.example.com\nhttps://api.example.com/\n0.5/s\n1/2s\n3s\n50ms\n\nredis://cache\n\n";
    let (code, output) = on_a_terminal(&folder, "--file paced.toml", typed).await;
    assert_eq!(code, Some(0), "{output}");
    for text in [
        "Name of the API",
        "no name for a downstream; use up to 63",
        "no URL; write https://HOST/PATH, or http://",
        "`0.5/s` is no rate; write 1/2s",
        "Does it count in any window",
        "a margin of 3s at a period of 2s; use a shorter one",
        "RabbitMQ [amqp://127.0.0.1:5672/%2f]:",
        "An existing queue",
    ] {
        assert!(output.contains(text), "{text} in {output}");
    }
    let value = in_effect(folder.path(), "paced.toml").await;
    let limits = value("downstreams.billing.limits").to_string();
    assert!(limits.contains("1/2s") && limits.contains("50ms"), "{limits}");
    assert_eq!(value("downstreams.billing.http.base_url"), "https://api.example.com/");
    assert_eq!(
        (value("store.url"), value("downstreams.billing.queue.name")),
        ("redis://cache".into(), Value::Null)
    );
    assert_eq!(value("amqp.url"), "amqp://127.0.0.1:5672/%2f");

    // What options say is not asked for; nobody is asked for what would not be written.
    let (code, output) = on_a_terminal(
        &folder,
        "--downstream crm --broker amqp://rabbit --file crm.toml",
        b"http://crm/\n5/s\n\n\n\n",
    )
    .await;
    assert_eq!(code, Some(0), "{output}");
    assert!(!output.contains("Name of the API") && !output.contains("RabbitMQ ["), "{output}");
    assert_eq!(in_effect(folder.path(), "crm.toml").await("downstreams.crm.rate"), "5/s");
    let (code, output) = on_a_terminal(&folder, "--file crm.toml", b"").await;
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("is there already") && !output.contains("Name of the API"), "{output}");
    // The end of the input, which is Ctrl-D.
    let (code, output) = on_a_terminal(&folder, "--file new.toml", b"billing\n\x04").await;
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("nothing was written") && !folder.path().join("new.toml").exists(), "{output}");
}
