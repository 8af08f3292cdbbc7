//! The admin API and the tools that use it: permissions, and the effect of changes on every replica.

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::support::daemon::{Output, binary, run_cli};
use crate::support::eventually;

pub(crate) const TOKEN: &str = "correct-horse-battery";

/// A replica with a token.
pub(crate) struct AdminReplica {
    pub(crate) paced: Paced,
    pub(crate) base: String,
    pub(crate) client: Client,
}

impl AdminReplica {
    /// Starts a replica with this in the table `[admin]`.
    pub(super) async fn start(site: &Site, admin: &str) -> Self {
        Self::with_config(&format!("{}{ADMIN}{admin}", site.config())).await
    }

    /// Starts a replica with this configuration, which has the table `[admin]`.
    pub(crate) async fn with_config(config: &str) -> Self {
        Self::hasty(config, 1).await
    }

    /// As [`AdminReplica::with_config`]; its polling intervals are divided by `haste`.
    pub(crate) async fn hasty(config: &str, haste: u32) -> Self {
        Self::with_envs(config, &[("PACED_TEST_HASTE", &haste.to_string())]).await
    }

    /// As [`AdminReplica::with_config`], with these environment variables.
    pub(crate) async fn with_envs(config: &str, envs: &[(&str, &str)]) -> Self {
        let paced = Paced::start(config, &[], envs).await;
        let line = paced.wait_line("probes and metrics are served", LONG).await;
        paced.wait_ready().await;
        let line: Value = serde_json::from_str(&line).unwrap();
        let base = format!("http://{}", line["address"].as_str().unwrap());
        Self { paced, base, client: Client::new() }
    }

    pub(crate) async fn with_token(site: &Site) -> Self {
        Self::start(site, &format!("token = '{TOKEN}'\n")).await
    }

    /// Sends a request; `headers` are added to those of an allowed change, or replace them.
    pub(crate) async fn send(
        &self,
        method: Method,
        what: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, Value) {
        let bearer = format!("Bearer {TOKEN}");
        let usual = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        let kept = usual.iter().filter(|(name, _)| headers.iter().all(|(other, _)| other != name));
        let all: Vec<(&str, &str)> =
            kept.chain(headers).filter(|(_, value)| !value.is_empty()).copied().collect();
        let url = format!("{}/api/v1/downstreams/billing{what}", self.base);
        let reply = self.client.send(method, &url, &all, body.to_owned()).await.unwrap();
        (reply.status, serde_json::from_str(&reply.text).unwrap())
    }

    pub(crate) async fn get(&self) -> Value {
        let (status, answer) = self.send(Method::GET, "", &[], "").await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Runs a tool against this replica, with a token.
    pub(crate) async fn tool(&self, token: &str, args: &[&str]) -> Output {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("tool.toml");
        std::fs::write(folder.path().join("token"), format!("{token}\n")).unwrap();
        std::fs::write(&file, "[admin]\ntoken_file = 'token'\n").unwrap();
        let mut all = vec!["-c", file.to_str().unwrap(), "--admin", &self.base];
        all.extend(args);
        run_cli(&all, b"").await
    }

    /// Waits for this many lines of the audit log.
    pub(crate) async fn audit(&self, message: &str, count: usize) -> Vec<Value> {
        let lines = || -> Vec<Value> {
            let lines =
                self.paced.log().into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
            lines.filter(|line| line["message"] == message).collect()
        };
        eventually(message, LONG, || lines().len() >= count).await;
        let lines = lines();
        assert_eq!(lines.len(), count, "{lines:?}");
        lines
    }
}

#[tokio::test]
async fn only_who_knows_the_token_changes_anything() {
    let site = Site::shared("apitoken", "rate = '100/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    let before = replica.get().await;
    let origin = replica.base.clone();
    let long = format!("{{\"reason\": \"{}\"}}", "x".repeat(20_000));
    for (headers, body, status, error) in [
        (&[("authorization", "")][..], "", 401, "send authorization: Bearer TOKEN"),
        (&[("authorization", "Bearer correct-horse")], "", 401, "the token is wrong"),
        (&[("authorization", "Basic Y29ycmVjdA==")], "", 401, "send authorization: Bearer TOKEN"),
        (&[("origin", "https://evil.example")], "", 403, "another origin"),
        (&[("origin", "http://127.0.0.1:1")], "", 403, "another origin"),
        (&[("origin", "null")], "", 403, "another origin"),
        (&[("host", "evil.example")], "", 421, "admin.allow_hosts"),
        (&[("content-type", "")], "", 415, "application/json"),
        (&[("content-type", "text/plain")], "{}", 415, "application/json"),
        (&[], "{", 400, "body: "),
        (&[], &long, 413, "over 16384 bytes"),
    ] {
        let (got, answer) = replica.send(Method::POST, "/pause", headers, body).await;
        assert_eq!(got, status, "{headers:?} {answer}");
        assert!(answer["error"].as_str().unwrap().contains(error), "{headers:?} {answer}");
    }
    // Reading needs no token, but a known name of the daemon, and no foreign origin.
    for (headers, status) in [
        (&[("authorization", "")][..], 200),
        (&[("origin", &*origin)], 200),
        (&[("host", "localhost")], 200),
        (&[("host", "evil.example")], 421),
        (&[("origin", "https://evil.example")], 403),
    ] {
        assert_eq!(replica.send(Method::GET, "", headers, "").await.0, status, "{headers:?}");
    }
    let refused = replica.audit("admin: refused", 11).await;
    assert!(refused[0]["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{refused:?}");
    let after = replica.get().await;
    assert_eq!((&after["generation"], &after["paused"]), (&before["generation"], &json!(false)));
    assert!(!replica.paced.log().join("\n").contains("correct-horse"), "no token is logged, right or wrong");
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn without_a_token_nothing_is_changed() {
    let site = Site::shared("apinone", "rate = '100/s'").await;
    let replica = AdminReplica::start(&site, "allow_hosts = ['paced.internal']\n").await;
    let (status, answer) = replica.send(Method::POST, "/pause", &[], "").await;
    assert!(
        status == 403 && answer["error"].as_str().unwrap().contains("set admin.token"),
        "{status} {answer}"
    );
    assert_eq!(replica.send(Method::GET, "", &[("host", "paced.internal:9750")], "").await.0, 200);
    let output = replica.tool("any", &["pause", "billing"]).await;
    assert!(output.code == 77 && output.stderr.contains("admin.token"), "{output:?}");
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn what_one_replica_is_asked_for_all_know() {
    let site = Site::shared("apishare", "rate = '100/s'").await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    let order = |span: &str| format!(r#"{{"rate": "40/s", "for": "{span}", "reason": "trial"}}"#);
    let (status, answer) = one.send(Method::PUT, "/rate", &[], &order("1h")).await;
    assert_eq!((status, &answer["limits"][0]["rate"]), (200, &json!("40/s")), "{answer}");
    let answer = other.get().await;
    let set = &answer["overrides"][0];
    assert_eq!(
        (&set["by"], &set["set_at"]),
        (&json!("127.0.0.1"), &answer["limits"][0]["since"]),
        "{answer}"
    );
    assert_eq!(answer["limits"][0]["from"]["replica"], one.get().await["replica"], "{answer}");
    let span = set["until"].as_i64().unwrap() - set["set_at"].as_i64().unwrap();
    assert_eq!(
        (&set["rate"], &set["reason"], span),
        (&json!("40/s"), &json!("trial"), 3_600_000),
        "{answer}"
    );
    assert_eq!(one.send(Method::PUT, "/rate", &[], &order("1s")).await.0, 200);
    until("the rate is over", LONG, async || {
        let answer = other.get().await;
        answer["overrides"] == json!([]) && answer["limits"][0]["rate"] == "100/s"
    })
    .await;

    assert_eq!(other.send(Method::POST, "/pause", &[], r#"{"reason": "\"so\""}"#).await.0, 200);
    let pause = one.get().await["pause"].take();
    let shown = ["until", "by", "reason"].map(|name| pause[name].clone());
    assert_eq!(shown, [Value::Null, json!("127.0.0.1"), json!("\"so\"")], "{pause}");
    let ago = paced::time::wall_now().0 / 1000 - pause["at"].as_i64().unwrap();
    assert!((0..60_000).contains(&ago), "{pause}: {ago} ms ago");
    assert_eq!(one.send(Method::POST, "/resume", &[], "").await.0, 200);
    assert_eq!(other.get().await["paused"], false);

    let lines = (one.audit("admin: changed", 3).await, other.audit("admin: changed", 1).await);
    let field = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let [set, _, resume] = &lines.0[..] else { panic!("{lines:?}") };
    assert_eq!((field(set, "change"), field(set, "reason")), ("rate set".to_owned(), "trial".to_owned()));
    assert_eq!(field(set, "before"), "leaky-bucket-0: as in the file");
    assert!(field(set, "after").starts_with("leaky-bucket-0: 40/s until "), "{set}");
    assert!(field(set, "remote").starts_with("127.0.0.1:") && set["downstream"] == "billing", "{set}");
    assert_eq!(
        (field(resume, "before"), field(resume, "after")),
        ("paused until resumed".into(), "not paused".into())
    );
    assert_eq!(field(&lines.1[0], "reason"), "\"so\"");
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}

#[tokio::test]
async fn the_tools_change_what_runs() {
    let downstream =
        "rate = '100/s'\nlimits = [{ algorithm = 'sliding-log', rate = '1000/m', name = 'log' }]";
    let site = Site::shared("apitools", downstream).await;
    let replica = AdminReplica::with_token(&site).await;
    let tool = async |args: &[&str]| {
        let output = replica.tool(TOKEN, args).await;
        assert_eq!(output.code, 0, "{output:?}");
        output.stdout
    };
    let output = tool(&["pause", "billing", "--for", "10m", "--reason", "they asked"]).await;
    assert!(output.starts_with("billing is paused until 2") && output.ends_with(" UTC\n"), "{output}");
    assert_eq!(tool(&["pause", "billing"]).await, "billing is paused until it is resumed\n");
    let answer: Value = serde_json::from_str(&tool(&["-o", "json", "pause", "billing"]).await).unwrap();
    assert_eq!((&answer["name"], &answer["pause"]["until"]), (&json!("billing"), &Value::Null));
    assert_eq!(tool(&["resume", "billing"]).await, "billing is resumed\n");

    let table = tool(&["rate", "get", "billing"]).await;
    let id = replica.get().await["replica"].as_str().unwrap().to_owned();
    let head = format!("billing: generation 1, by the file that replica {id} on ");
    assert!(table.starts_with(&head), "{table}");
    // The columns after the one with instants have the machine's name, which may be anything.
    let rows = |table: &str| -> Vec<Vec<String>> {
        let cells = |line: &str| line.split("  ").map(str::trim).map(str::to_owned).collect::<Vec<_>>();
        let rows = table.lines().skip(1).map(cells);
        rows.map(|row| row.into_iter().filter(|cell| !cell.is_empty()).collect()).collect()
    };
    let shown_rows = rows(&table);
    assert_eq!(shown_rows[0], ["LIMIT", "ALGORITHM", "FILE", "IN FORCE", "SINCE", "FROM", "SET"], "{table}");
    assert_eq!(shown_rows[1][..4], ["leaky-bucket-0", "leaky-bucket", "100/s", "100/s"], "{table}");
    assert_eq!(shown_rows[2][..4], ["log", "sliding-log", "1000/m", "1000/m"], "{table}");
    for row in &shown_rows[1..] {
        assert!(row[4].parse::<jiff::Timestamp>().is_ok() && row[4].contains('T'), "{table}");
        assert!(row[5].starts_with(&format!("{id} on ")) && row[6] == "-", "{table}");
    }
    let table =
        tool(&["rate", "set", "billing", "2_0 per 1 second", "--for", "2h", "--reason", "trial"]).await;
    let set = &rows(&table)[1];
    assert_eq!(set[..4], ["leaky-bucket-0", "leaky-bucket", "100/s", "20/s"], "{table}");
    assert!(set[6].starts_with("by 127.0.0.1 at 2") && set[6].ends_with("Z (trial)"), "{table}");
    until("the status says who set it", LONG, async || {
        tool(&["status", "billing"]).await.contains("leaky-bucket-0 20/s by 127.0.0.1 since 2")
    })
    .await;
    let table = tool(&["rate", "set", "billing", "500/m", "--limit", "log"]).await;
    let set = &rows(&table)[2];
    assert_eq!(set[2..4], ["1000/m", "500/m"], "{table}");
    assert!(set[6].ends_with(", until it is unset"), "{table}");
    let answer: Value =
        serde_json::from_str(&tool(&["-o", "json", "rate", "unset", "billing"]).await).unwrap();
    assert_eq!(answer["overrides"].as_array().unwrap().len(), 1);
    tool(&["rate", "unset", "billing", "--limit", "log", "--reason", "done"]).await;
    assert_eq!(replica.get().await["overrides"], json!([]));

    // Without a configuration the environment suffices.
    let (folder, base) = (TempDir::new().unwrap(), replica.base.clone());
    let output = blocking(move || {
        let mut command = Command::new(binary());
        command.args(["--admin", &base, "pause", "billing"]).current_dir(&folder);
        command.env_remove("PACED_CONFIG").env("PACED_ADMIN__TOKEN", TOKEN).output()
    });
    let output = output.await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "billing is paused until it is resumed\n",
        "{output:?}"
    );
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn tools_end_with_what_is_wrong() {
    let site = Site::shared("apiexit", "rate = '100/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    for (token, args, code, message) in [
        ("wrong", &["pause", "billing"][..], 77, "the token is wrong"),
        ("wrong", &["rate", "set", "billing", "20/s"], 77, "the token is wrong"),
        ("wrong", &["rate", "get", "billing"], 0, ""),
        (TOKEN, &["pause", "biling"], 2, "no such downstream; this daemon has billing"),
        (TOKEN, &["pause", "billing", "--for", "soon"], 2, "`soon` is no duration; write an integer and"),
        (TOKEN, &["pause", "billing", "--for", "0s"], 2, "no time at all"),
        (TOKEN, &["rate", "set", "billing", "20r/s"], 2, "`20r/s` is no rate; write 20/s"),
        (TOKEN, &["rate", "set", "billing", "7/week"], 2, "write days"),
        (TOKEN, &["rate", "set", "billing", "20/s", "--limit", "x"], 2, "there are `leaky-bucket-0`"),
        (TOKEN, &["rate", "unset", "billing", "--limit", "x"], 2, "there are `leaky-bucket-0`"),
    ] {
        let output = replica.tool(token, args).await;
        assert_eq!(output.code, code, "{args:?} {output:?}");
        assert!(output.stderr.contains(message), "{args:?} {output:?}");
        assert!(!output.stderr.contains(TOKEN), "{output:?}");
    }
    assert_eq!(replica.get().await["overrides"], json!([]));
    assert_eq!(replica.paced.stop().await, 0);
    let output = replica.tool(TOKEN, &["pause", "billing"]).await;
    assert!(output.code == 69 && output.stderr.contains(&replica.base), "{output:?}");
    // Another server at that address is not taken for a daemon.
    let api = crate::support::api::Api::start();
    let output = run_cli(&["--admin", &api.url(), "resume", "billing"], b"").await;
    assert!(output.code == 1 && output.stderr.contains("not that of a paced daemon"), "{output:?}");
    let output = run_cli(&["--admin", "ftp://a", "resume", "billing"], b"").await;
    assert!(output.code == 2 && output.stderr.contains("write https://HOST:PORT"), "{output:?}");
    let output = run_cli(&["resume", "billing"], b"").await;
    assert!(output.code == 78 && output.stderr.contains("admin.listen is not set"), "{output:?}");
    // With its own configuration a tool finds the daemon of this machine.
    let port = free_port();
    let config = format!("{}[admin]\nlisten = '0.0.0.0:{port}'\ntoken = '{TOKEN}'\n", site.config());
    let local = Paced::spawn(&config).await;
    let file = local.config_file();
    let output = run_cli(&["-c", file.to_str().unwrap(), "rate", "set", "billing", "20/s"], b"").await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(local.stop().await, 0);
}

#[tokio::test]
async fn a_store_that_is_away_is_reported() {
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "apiaway", "rate = '100/s'");
    let replica = AdminReplica::with_token(&site).await;
    assert_eq!(replica.send(Method::POST, "/pause", &[], "").await.0, 200);
    redis.kill().await;
    for (method, what) in [(Method::GET, ""), (Method::POST, "/resume"), (Method::DELETE, "/rate")] {
        let (status, answer) = replica.send(method, what, &[], "").await;
        assert!(status == 503 && answer["error"].as_str().unwrap().contains("store"), "{status} {answer}");
    }
    let output = replica.tool(TOKEN, &["resume", "billing"]).await;
    assert!(output.code == 69 && output.stderr.contains("store"), "{output:?}");
    replica.audit("admin: not changed", 3).await;
    assert_eq!(replica.paced.stop().await, 0);
}
