//! Tokens of the admin server: replaced while the daemon runs, and guessed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use super::*;
use crate::authority::put;
use crate::support::daemon::binary;
use crate::support::eventually;

/// A daemon whose tokens are in files.
struct Scene {
    paced: Paced,
    folder: TempDir,
    url: String,
    client: Client,
}

impl Scene {
    async fn start(name: &str) -> Self {
        let site = Site::shared(name, "rate = '100/s'").await;
        let folder = TempDir::new().unwrap();
        put(folder.path(), "token", "change-1\n");
        put(folder.path(), "read-token", "look-1\n");
        let path = folder.path().display();
        let files = format!("token_file = '{path}/token'\nread_token_file = '{path}/read-token'\n");
        let config = format!("{}{ADMIN}{files}", site.config());
        let paced = Paced::start(&config, &[], &[("PACED_TEST_HASTE", "5")]).await;
        let line = paced.wait_line("probes and metrics are served", LONG).await;
        paced.wait_ready().await;
        let line: Value = serde_json::from_str(&line).unwrap();
        let url = format!("http://{}", line["address"].as_str().unwrap());
        Self { paced, folder, url, client: Client::new() }
    }

    /// The status of a request that looks, and of one that changes something, with these tokens.
    async fn statuses(&self, look: &str, change: &str) -> (u16, u16) {
        let send = async |method, path: &str, token: &str| {
            let bearer = format!("Bearer {token}");
            let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
            let url = format!("{}{path}", self.url);
            self.client.send(method, &url, &headers, "").await.unwrap().status
        };
        let look = send(Method::GET, "/metrics", look).await;
        (look, send(Method::POST, "/api/v1/downstreams/billing/resume", change).await)
    }

    /// Waits until it has read tokens again this many times.
    async fn read_again(&self, times: usize) {
        eventually("the tokens are read again", LONG, || self.count("admin tokens read again") >= times)
            .await;
    }

    fn count(&self, text: &str) -> usize {
        self.paced.log().iter().filter(|line| line.contains(text)).count()
    }
}

#[tokio::test]
async fn tokens_that_are_replaced_count_at_once_and_without_a_restart() {
    let scene = Scene::start("tokenfiles").await;
    assert_eq!(scene.statuses("look-1", "change-1").await, (200, 200));
    assert_eq!(scene.statuses("look-1", "look-1").await, (200, 401));

    // As Kubernetes replaces a secret: the file is a link, whose goal changes.
    let path = scene.folder.path();
    put(path, "next", "change-2\n");
    std::fs::remove_file(path.join("token")).unwrap();
    std::os::unix::fs::symlink(path.join("next"), path.join("token")).unwrap();
    // Wrong tokens are counted, so that this waits for the log.
    scene.read_again(1).await;
    assert_eq!(scene.statuses("look-1", "change-2").await, (200, 200));
    assert_eq!(scene.statuses("look-1", "change-1").await, (200, 401));

    // What cannot be used changes nothing, and is logged once.
    put(path, "next", "no token, since it has spaces\n");
    scene.paced.wait_line("admin tokens cannot be read again", LONG).await;
    assert_eq!(scene.statuses("look-1", "change-2").await, (200, 200));
    let line = scene.paced.wait_line("admin tokens cannot be read again", LONG).await;
    assert!(
        line.contains("admin.token_file: its file cannot be used: no token; use 1 to 1024")
            && !line.contains("spaces\\n"),
        "{line}"
    );
    put(path, "next", "change-3\n");
    scene.read_again(2).await;
    put(path, "read-token", "look-3\n");
    scene.read_again(3).await;
    assert_eq!(scene.statuses("look-3", "change-3").await, (200, 200));
    // A configuration that was read again has what the files have, and no key of it needs a restart.
    put(path, "next", "change-4\n");
    scene.paced.hangup();
    scene.paced.wait_line("configuration reloaded", LONG).await;
    scene.read_again(4).await;
    assert_eq!(scene.statuses("look-3", "change-4").await, (200, 200));
    assert_eq!(scene.count("needs a restart"), 0);
    let log = scene.paced.log().join("\n");
    assert!(["change-", "look-"].iter().all(|secret| !log.contains(secret)), "{log}");
    assert_eq!(scene.paced.stop().await, 0);
}

/// A file that is removed or emptied takes its token away, and opens nothing.
#[tokio::test]
async fn a_token_whose_file_is_gone_or_empty_is_revoked() {
    let scene = Scene::start("tokenrevoked").await;
    assert_eq!(scene.statuses("look-1", "change-1").await, (200, 200));
    let path = scene.folder.path();
    std::fs::remove_file(path.join("read-token")).unwrap();
    scene.read_again(1).await;
    assert_eq!(scene.statuses("look-1", "change-1").await, (401, 200));
    assert_eq!(scene.statuses("change-1", "look-1").await, (200, 401));
    put(path, "token", "\n");
    scene.read_again(2).await;
    assert_eq!(scene.statuses("change-1", "change-1").await, (401, 403));
    let bare = scene.client.get(&format!("{}/metrics", scene.url)).await.unwrap();
    assert_eq!(bare.status, 401, "without a token nobody reads");
    assert_eq!(scene.count("its token is revoked"), 2);
    // A configuration that is read again does not bring it back.
    scene.paced.hangup();
    scene.paced.wait_line("the old one stays in effect", LONG).await;
    assert_eq!(scene.statuses("look-1", "change-1").await, (401, 403));

    put(path, "token", "change-2\n");
    put(path, "read-token", "look-2\n");
    scene.read_again(3).await;
    until("both count", LONG, async || scene.statuses("look-2", "change-2").await == (200, 200)).await;
    assert_eq!(scene.paced.stop().await, 0);
}

/// Each file is read by itself: a file that is spoilt keeps no other token from being replaced or revoked.
#[tokio::test]
async fn a_file_that_cannot_be_used_holds_up_no_other() {
    let scene = Scene::start("tokenspoiled").await;
    let path = scene.folder.path();
    put(path, "token", "no token, since it has spaces\n");
    scene.paced.wait_line("admin tokens cannot be read again", LONG).await;
    put(path, "read-token", "look-2\n");
    scene.read_again(1).await;
    assert_eq!(scene.statuses("look-2", "change-1").await, (200, 200));
    std::fs::remove_file(path.join("read-token")).unwrap();
    scene.read_again(2).await;
    assert_eq!(scene.statuses("look-2", "change-1").await, (401, 200));
    assert_eq!(scene.count("its token is revoked"), 1);
    put(path, "token", "change-2\n");
    scene.read_again(3).await;
    assert_eq!(scene.statuses("change-2", "change-2").await, (200, 200));
    assert_eq!(scene.paced.stop().await, 0);
}

#[tokio::test]
async fn who_guesses_tokens_is_made_to_wait_and_nobody_else() {
    let scene = Scene::start("tokenguess").await;
    let mut statuses = Vec::new();
    for number in 0..22 {
        let bearer = format!("Bearer guess-{number}");
        let url = format!("{}/metrics", scene.url);
        let reply = scene.client.send(Method::GET, &url, &[("authorization", &bearer)], "").await.unwrap();
        if reply.status == 429 {
            let wait: u64 = reply.headers["retry-after"].to_str().unwrap().parse().unwrap();
            assert!((1..=61).contains(&wait), "{wait}");
            assert!(reply.text.contains("too many wrong tokens"), "{}", reply.text);
        }
        statuses.push(reply.status);
    }
    assert_eq!(statuses[..20], [401; 20]);
    assert_eq!(statuses[20..], [429; 2]);
    // Nothing was accepted from this address before, so that nothing is now.
    assert_eq!(scene.statuses("look-1", "change-1").await, (429, 429));
    // Probes need no token; another address is another client.
    let to = scene.url.strip_prefix("http://").unwrap();
    assert_eq!(scene.client.get(&format!("{}/livez", scene.url)).await.unwrap().status, 200);
    let mut stream = super::load::connect("127.0.0.9", to).await;
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {to}\r\nauthorization: Bearer look-1\r\n\r\n");
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    assert_eq!(scene.paced.stop().await, 0);
}

/// A tool that runs on, and is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_tool_that_runs_on_reads_its_token_again_and_ends_if_that_is_refused_too() {
    let scene = Scene::start("tokentool").await;
    let path = scene.folder.path();
    put(path, "own-token", "look-1\n");
    let file = put(path, "tool.toml", "[admin]\nread_token_file = 'own-token'\n");
    let mut command = Command::new(binary());
    command.arg("-c").arg(&file).args(["--admin", &scene.url, "-o", "json", "status", "--watch"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = Running(command.spawn().unwrap());
    let answers = Arc::new(AtomicUsize::new(0));
    let (stdout, counted) = (tool.0.stdout.take().unwrap(), answers.clone());
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).for_each(|_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
    });
    eventually("an answer", LONG, || answers.load(Ordering::SeqCst) > 0).await;

    put(path, "own-token", "look-2\n");
    put(path, "read-token", "look-2\n");
    scene.read_again(1).await;
    // One answer may have been on its way.
    let before = answers.load(Ordering::SeqCst) + 1;
    eventually("answers to the new token", LONG, || answers.load(Ordering::SeqCst) > before).await;

    put(path, "read-token", "look-3\n");
    let mut ended = None;
    let has_ended = || {
        ended = tool.0.try_wait().unwrap();
        ended.is_some()
    };
    eventually("the tool ends", LONG, has_ended).await;
    let mut text = String::new();
    tool.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(ended.unwrap().code(), Some(77), "{text}");
    assert!(text.contains("the token is wrong") && !text.contains("look-"), "{text}");
    assert_eq!(scene.paced.stop().await, 0);
}

#[tokio::test]
async fn who_shares_an_address_with_a_guesser_is_not_locked_out() {
    let scene = Scene::start("tokenshared").await;
    assert_eq!(scene.statuses("look-1", "change-1").await, (200, 200));
    for _ in 0..20 {
        scene.statuses("guess", "guess").await;
    }
    assert_eq!(scene.statuses("guess", "guess").await, (429, 429));
    // There may be too many guesses, so that the right token must be sent again.
    until("the tokens still count", LONG, async || scene.statuses("look-1", "change-1").await == (200, 200))
        .await;
    assert_eq!(scene.paced.stop().await, 0);
}
