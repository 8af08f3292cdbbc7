//! The sources of values, and their precedence.

use std::fs;

use super::{LEAST, Scene};

#[test]
fn later_sources_override_earlier_ones() {
    let rate = |scene: &Scene| scene.right().settings.downstreams["a"].limits.rate().to_string();
    let horizon = |scene: &Scene| scene.right().settings.downstreams["a"].horizon.as_millis();
    let scene = Scene::new(&format!("{LEAST}horizon = \"1ms\"\nhttp.allow_headers = [\"a\", \"b\"]\n"));
    assert_eq!(rate(&scene), "1/s");
    let scene = scene.also("b.toml", "[downstreams.a]\nrate = \"2/s\"\nhttp.allow_headers = [\"c\"]\n");
    assert_eq!((rate(&scene), horizon(&scene)), ("2/s".to_owned(), 1));
    // Arrays are replaced, tables merge.
    assert_eq!(scene.right().settings.downstreams["a"].http.allow_headers, ["c"]);
    let scene = scene.env("PACED_DOWNSTREAMS__A__RATE", "3/s");
    assert_eq!(rate(&scene), "3/s");
    let scene = scene.set("downstreams.a.rate=4/s").set("downstreams.a.horizon = 2ms");
    assert_eq!((rate(&scene), horizon(&scene)), ("4/s".to_owned(), 2));
    let scene = scene.set("downstreams.a.rate=5/s");
    assert_eq!(rate(&scene), "5/s");
    // An array that is replaced is not checked any more.
    let scene = Scene::new(&format!("{LEAST}limits = [{{ rate = 5, x = 1 }}, {{ y = 1 }}]\n"));
    scene.set("downstreams.a.limits=[]").right();
}

#[test]
fn the_environment_gives_every_type() {
    let loaded = Scene::new("")
        .env("PACED_AMQP__DECLARE", "false")
        .env("PACED_AMQP__PREFIX", "007")
        .env("PACED_DOWNSTREAMS__EU-1_B__RATE", "50/s")
        .env("PACED_DOWNSTREAMS__EU-1_B__CONCURRENCY", "7")
        .env("PACED_DOWNSTREAMS__EU-1_B__LIMITS", "[{ rate = \"5/m\", burst = 3 }, {rate=6/m}]")
        .env("PACED_DOWNSTREAMS__EU-1_B__HTTP__ALLOW_HEADERS", "[accept, X-Request-Id]")
        .env("PACED_DOWNSTREAMS__EU-1_B__HTTP__BASE_URL", "http://localhost/")
        .env("PACED_DOWNSTREAMS__EU-1_B__HTTP__HEADERS__X-KEY", "[1, {}]")
        .env("PACED_PORT", "tcp://10.0.0.1:80")
        .env("PACED_CONFIG", "nowhere")
        .env("OTHER__KEY", "1")
        .right();
    assert!(!loaded.settings.amqp.declare);
    assert_eq!(loaded.settings.amqp.prefix, "007");
    let downstream = &loaded.settings.downstreams["eu-1_b"];
    assert_eq!((downstream.concurrency, downstream.limits.len()), (7, 3));
    assert_eq!(downstream.http.allow_headers, ["accept", "x-request-id"]);
    assert_eq!(downstream.http.headers[0].0, "x-key");
    assert_eq!(downstream.http.headers[0].1.expose(), "[1, {}]");
    let lines = Scene::new(LEAST)
        .env("PACED_DOWNSTREAMS__A__RATE", "50")
        .env("PACED_DOWNSTREAMS__A__CONCURRENCY", "many")
        .env("PACED_AMQP__URL", "hunter2")
        .env("PACED_AMQP__", "hunter2")
        .env("PACED_AMQP__PASSWORD", "hunter2")
        .wrong();
    assert_eq!(
        lines,
        [
            "env PACED_AMQP__: no key; write PACED_SECTION__KEY, with a name on each side of `__`",
            "env PACED_AMQP__PASSWORD: amqp.password: unknown key; known here are `declare`, `prefix`, `tls`, `url`, `url_file`, `window_bytes`",
            "env PACED_AMQP__URL: amqp.url: no URL; write amqp://USER:PASSWORD@HOST:5672/VHOST, or amqps://",
            "env PACED_DOWNSTREAMS__A__CONCURRENCY: downstreams.a.concurrency: a string where an integer belongs; write such as 64",
            "env PACED_DOWNSTREAMS__A__RATE: downstreams.a.rate: `50` is no rate; write its unit too, such as 50/s",
        ]
    );
}

#[test]
fn arguments_are_keys_and_values() {
    let loaded = Scene::new(LEAST)
        .set("downstreams.b={ rate = \"5/s\", http.base_url = \"http://localhost/\" }")
        .set("downstreams.\"a\".queue.name='q = 1'")
        .right();
    assert_eq!(loaded.settings.downstreams["b"].limits.rate().to_string(), "5/s");
    assert_eq!(loaded.settings.downstreams["a"].queue.name.as_deref(), Some("q = 1"));
    let lines = Scene::new(LEAST)
        .set("amqp://u:hunter2@rabbit")
        .set("amqp://u:hunter2@rabbit?a=1")
        .set("=hunter2")
        .set("store.url=hunter2")
        .wrong();
    assert_eq!(
        lines,
        [
            "--set: argument 1 has no `=`; write KEY=VALUE, such as store.url=memory:",
            "--set: argument 2 begins with no key; write KEY=VALUE, such as store.url=memory:",
            "--set: argument 3 begins with no key; write KEY=VALUE, such as store.url=memory:",
            "--set: store.url: no URL; write memory:, file:PATH, redis://HOST:6379, redis+sentinel://HOST:26379/MASTER_NAME or \
             redis+cluster://HOST:6379",
        ]
    );
}

#[test]
fn secrets_come_from_files() {
    let text = "[amqp]\nurl_file = \"url\"\n[downstreams.a]\nrate = \"1/s\"\n\
                http = { base_url_file = \"base\", headers = { X-Key_file = \"key\" } }\n";
    let scene =
        Scene::new("").file("url", "amqp://u:hunter2@rabbit/v\n").file("base", "http://localhost/\r\n");
    fs::create_dir(scene.dir.path().join("sub")).unwrap();
    let mut scene = scene.file("sub/paced.toml", text).file("key", "a \n");
    // Names are relative to the file that contains them: sub/url does not exist, ../url does.
    scene.sources.files = vec!["sub/paced.toml".into()];
    let lines = scene.wrong();
    let keys = ["amqp.url_file", "downstreams.a.http.base_url_file", "downstreams.a.http.headers.X-Key_file"];
    for (line, key) in lines.iter().zip(keys) {
        let expected =
            "the file it names cannot be read (No such file or directory); give a path, absolute or from ";
        assert!(line.contains(&format!(": {key}: {expected}")) && line.ends_with("/sub"), "{line}");
    }
    assert_eq!(lines.len(), 3);
    let scene = scene.file("sub/paced.toml", &text.replace("file = \"", "file = \"../"));
    assert_eq!(
        scene.wrong(),
        [
            "sub/paced.toml:5:62: downstreams.a.http.headers.X-Key_file: begins or ends with white space; remove it"
        ]
    );
    let scene = scene.file("key", "hunter2\n");
    let settings = scene.right().settings;
    assert_eq!(settings.amqp.url.expose(), "amqp://u:hunter2@rabbit/v");
    let http = &settings.downstreams["a"].http;
    assert_eq!(http.base_url.expose(), "http://localhost/");
    assert_eq!((http.headers[0].0.as_str(), http.headers[0].1.expose()), ("x-key", "hunter2"));
    assert!(!format!("{settings:?}").contains("hunter2"));
    // Names from the environment and --set are relative to the working directory.
    let scene = scene.file("other", "amqp://other/v").env("PACED_AMQP__URL_FILE", "other");
    assert_eq!(scene.right().settings.amqp.url.expose(), "amqp://other/v");
}

#[test]
fn the_file_of_a_store_starts_at_the_directory_of_its_source() {
    let scene = Scene::new("");
    let dir = scene.dir.path().to_path_buf();
    fs::create_dir(dir.join("sub")).unwrap();
    let mut scene = scene.file("sub/paced.toml", &format!("[store]\nurl = 'file:pace'\n{LEAST}"));
    scene.sources.files = vec!["sub/paced.toml".into()];
    let store = scene.right().settings.store;
    assert_eq!((store.url.to_string().as_str(), store.file), ("file:pace", Some(dir.join("sub/pace"))));
    let scene = scene.file("url", "file:/var/lib/paced/store\n").env("PACED_STORE__URL_FILE", "url");
    assert_eq!(scene.right().settings.store.file, Some("/var/lib/paced/store".into()));
    let scene = scene.set("store.url=file:here");
    assert_eq!(scene.right().settings.store.file, Some(dir.join("here")));
    assert_eq!(scene.set("store.url=memory:").right().settings.store.file, None);
}

#[test]
fn files_may_lie_in_the_directory_of_credentials() {
    let text = "[amqp]\nurl_file = '$CREDENTIALS_DIRECTORY/paced_url'\n[admin]\ntoken_file = '${CREDENTIALS_DIRECTORY}/token'\n";
    let scene = Scene::new(&format!("{text}{LEAST}"));
    const UNSET: &str = "begins with $CREDENTIALS_DIRECTORY, which systemd has not set here; give the service a \
                         LoadCredential= (and run tools with that variable), or name the file by its path";
    assert_eq!(
        scene.wrong(),
        [
            format!("paced.toml:2:12: amqp.url_file: {UNSET}"),
            format!("paced.toml:4:14: admin.token_file: {UNSET}")
        ]
    );
    let credentials = tempfile::tempdir().unwrap();
    fs::write(credentials.path().join("paced_url"), "amqp://u:hunter2@rabbit/v\n").unwrap();
    fs::write(credentials.path().join("token"), "0123456789abcdef\n").unwrap();
    let scene = scene.env("CREDENTIALS_DIRECTORY", credentials.path().to_str().unwrap());
    let settings = scene.right().settings;
    assert_eq!(settings.amqp.url.expose(), "amqp://u:hunter2@rabbit/v");
    assert_eq!(settings.admin.token.unwrap().expose(), "0123456789abcdef");
}

#[test]
fn a_value_and_its_file_contradict_each_other_within_a_source_only() {
    let both = "[amqp]\nurl = \"amqp://a/v\"\nurl_file = \"url\"\n";
    let scene = Scene::new(&format!("{LEAST}{both}")).file("url", "amqp://b/v");
    assert_eq!(scene.wrong(), ["paced.toml:6:12: amqp.url_file: given as `url` and as `url_file`; keep one"]);
    let scene = scene.file("paced.toml", &format!("{LEAST}[amqp]\nurl_file = \"url\"\n"));
    assert_eq!(scene.right().settings.amqp.url.expose(), "amqp://b/v");
    let scene = scene.env("PACED_AMQP__URL", "amqp://c/v");
    assert_eq!(scene.right().settings.amqp.url.expose(), "amqp://c/v");
    let scene = scene.env("PACED_AMQP__URL_FILE", "url");
    assert_eq!(
        scene.wrong(),
        ["env PACED_AMQP__URL_FILE: amqp.url_file: given as `url` and as `url_file`; keep one"]
    );
}

#[test]
fn what_is_nearly_an_array_is_reported_with_any_characters() {
    for text in ["[\"\u{1f300}\\\"\"\"", "[\u{e4}\\", "{ a = \"\u{e4}\\n\" \"\" }"] {
        let lines = Scene::new(LEAST).env("PACED_DOWNSTREAMS__A__HTTP__ALLOW_HEADERS", text).wrong();
        let place = "env PACED_DOWNSTREAMS__A__HTTP__ALLOW_HEADERS: downstreams.a.http.allow_headers: ";
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with(place), "{lines:?}");
    }
}
