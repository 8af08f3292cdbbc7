//! `paced top` on a terminal of its own.

use std::io::{ErrorKind, Read as _};
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::authority::put;
use crate::support::daemon::binary;
use crate::support::site::NAME;

/// The codes that make a terminal show another screen, and its own again.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// How it is ended.
enum End {
    Keys(&'static [u8]),
    /// By the keys at last, once this text is on the screen after the keys at first.
    KeysThen(&'static [u8], &'static str, &'static [u8]),
    Signal(Signal),
    /// By itself, once this file has another text.
    Replaced(PathBuf, &'static str),
}

/// Runs it against the daemon at this address until `text` is on the screen, then ends it; returns the exit code and what was
/// written to the terminal, at last how the terminal is set.
async fn top(base: &str, text: &'static str, end: End) -> (Option<i32>, String) {
    top_with("token", base, text, end).await
}

/// As [`top`], with the token under this key.
async fn top_with(key: &str, base: &str, text: &'static str, end: End) -> (Option<i32>, String) {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("tool.toml");
    std::fs::write(&file, format!("[admin]\n{key} = '{TOKEN}'\n")).unwrap();
    let (binary, file) = (binary(), file.display().to_string());
    let line = format!(
        "stty rows 24 cols 100; \
         timeout --foreground 180 sh -c 'echo pid=$$,; exec {} -c {file} --admin {base} top'; code=$?; \
         stty -a; exit $code",
        binary.display()
    );
    // It is part of Debian's base system.
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &line, "/dev/null"]).env("SHELL", "/bin/sh").env("TERM", "xterm");
    // A name that does not exist is known as such soon.
    script.env("RES_OPTIONS", "timeout:1 attempts:1");
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    blocking(move || {
        let _folder = folder;
        let mut child = script.spawn().unwrap();
        let (mut keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (mut written, mut end, mut text) = (Vec::new(), Some(end), text);
        let mut buffer = [0; 4096];
        loop {
            match output.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => written.extend(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
            let seen = String::from_utf8_lossy(&written);
            match end.take_if(|_| seen.contains(text)) {
                Some(End::Keys(typed)) => keys.write_all(typed).unwrap(),
                Some(End::KeysThen(typed, expected, last)) => {
                    keys.write_all(typed).unwrap();
                    (text, end) = (expected, Some(End::Keys(last)));
                }
                Some(End::Signal(signal)) => kill_process(pid(&seen), signal).unwrap(),
                Some(End::Replaced(file, text)) => {
                    put(file.parent().unwrap(), file.file_name().unwrap().to_str().unwrap(), text);
                }
                None => {}
            }
        }
        let status = child.wait().unwrap();
        (status.code(), String::from_utf8_lossy(&written).into_owned())
    })
    .await
}

/// The id of the process, which it began with.
fn pid(written: &str) -> Pid {
    let id = written.split_once("pid=").unwrap().1.split_once(',').unwrap().0;
    Pid::from_raw(id.parse().unwrap()).unwrap()
}

/// Checks that the terminal shows its own screen again, and is not in raw mode.
fn assert_restored(written: &str) {
    let after = written.rsplit_once(LEAVE).unwrap_or_else(|| panic!("{written:?}")).1;
    assert!(!after.contains("billing"), "{after:?}");
    assert!(after.contains(" icanon") && !after.contains("-icanon"), "{after:?}");
}

#[tokio::test]
async fn top_shows_the_downstreams_and_gives_the_terminal_back() {
    let site = Site::shared("top", "rate = '40/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    let (code, written) = top(&replica.base, "billing", End::Keys(b"q")).await;
    assert_eq!(code, Some(0), "{written:?}");
    assert!(written.contains(ENTER), "{written:?}");
    assert_restored(&written);
    for signal in [Signal::TERM, Signal::HUP] {
        let (code, written) = top(&replica.base, "billing", End::Signal(signal)).await;
        assert_eq!(code, Some(0), "{signal:?}: {written:?}");
        assert_restored(&written);
    }

    let output = replica.tool(TOKEN, &["top"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert!(output.stderr.contains("paced status --watch"), "{}", output.stderr);
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn top_goes_on_trying_where_no_daemon_is() {
    let base = format!("http://127.0.0.1:{}", free_port());
    // A terminal gets only what changed, so that words may come in pieces.
    let (code, written) = top(&base, "ANSWERED", End::Keys(b"\x03")).await;
    assert_eq!(code, Some(0), "{written:?}");
    assert_restored(&written);
}

#[tokio::test]
async fn top_warns_of_a_token_in_clear_before_it_takes_the_terminal() {
    // No name ends so.
    let base = "http://paced.invalid:9750";
    let (code, written) = top_with("read_token", base, "ANSWERED", End::Keys(b"q")).await;
    assert_eq!(code, Some(0), "{written:?}");
    let (before, on_screen) = written.split_once(ENTER).unwrap_or_else(|| panic!("{written:?}"));
    let warning = "warning: the token goes to http://paced.invalid:9750/ in clear";
    assert!(before.contains(warning) && !on_screen.contains(warning), "{written:?}");
    assert_restored(&written);
    // That of changes is sent when one is ordered, when there is no place to warn.
    let (_, written) = top_with("token", base, "ANSWERED", End::Keys(b"q")).await;
    assert!(written.split_once(ENTER).unwrap().0.contains(warning), "{written:?}");
    // It is not sent to another machine.
    let (_, written) = top_with("read_token", "http://localhost:1", "ANSWERED", End::Keys(b"q")).await;
    assert!(!written.contains("warning"), "{written:?}");
}

#[tokio::test]
async fn top_pauses_and_resumes() {
    let site = Site::shared("toppause", "rate = '40/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    let status = async || replica.tool(TOKEN, &["status", NAME]).await.stdout;
    // A terminal gets only what changed: a word comes whole where none of its letters was there before.
    let (code, written) = top(&replica.base, NAME, End::KeysThen(b"pnpy", "paused", b"q")).await;
    assert_eq!(code, Some(0), "{written:?}");
    assert_restored(&written);
    let paused = status().await;
    assert!(paused.contains("until somebody resumes"), "{paused}");
    let (code, written) = top(&replica.base, NAME, End::KeysThen(b"ry", "resumed", b"q")).await;
    assert_eq!(code, Some(0), "{written:?}");
    let resumed = status().await;
    assert!(!resumed.contains("until somebody resumes"), "{resumed}");
    // A user who leaves at once gets the result of the change.
    let (code, written) = top(&replica.base, NAME, End::Keys(b"pyq")).await;
    assert_eq!(code, Some(0), "{written:?}");
    let after = written.rsplit_once(LEAVE).unwrap().1;
    assert!(after.contains("billing is paused until it is resumed"), "{after:?}");
    assert!(status().await.contains("until somebody resumes"));
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn top_ends_when_its_token_is_refused_from_then_on() {
    let site = Site::shared("toptoken", "rate = '40/s'").await;
    let folder = tempfile::TempDir::new().unwrap();
    let file = put(folder.path(), "read-token", TOKEN);
    let config = format!("{}{ADMIN}read_token_file = '{}'\n", site.config(), file.display());
    let replica = AdminReplica::hasty(&config, 5).await;
    let end = End::Replaced(file, "another-horse-battery");
    let (code, written) = top_with("read_token", &replica.base, "billing", end).await;
    assert_eq!(code, Some(77), "{written:?}");
    assert_restored(&written);
    let after = written.rsplit_once(LEAVE).unwrap().1;
    assert!(after.contains("the token is wrong"), "{after:?}");
    assert_eq!(replica.paced.stop().await, 0);
}
