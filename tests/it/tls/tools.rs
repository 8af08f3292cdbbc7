//! The tools over https: whom they trust, who they are, and which token goes where.

use rustls::ALL_VERSIONS;
use serde_json::Value;

use super::*;
use crate::support::LONG;
use crate::support::api::{Answer, Api};
use crate::support::daemon::{Output, Paced, run_cli_in};
use crate::support::site::Site;
use crate::support::tls::Front;

/// Starts a daemon with this table `[admin]` on any port; returns the port too.
async fn daemon(site: &Site, admin: &str) -> (Paced, u16) {
    let config = format!("{}[admin]\nlisten = '127.0.0.1:0'\n{admin}", site.config());
    let paced = Paced::start(&config, &[], &[]).await;
    let line = paced.wait_line("probes and metrics are served", LONG).await;
    paced.wait_ready().await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let port = line["address"].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap();
    (paced, port)
}

/// Runs a tool in the folder of the files, with this table `[admin]`.
async fn tool(files: &Files, admin: &str, args: &[&str]) -> Output {
    put(files.folder.path(), "paced.toml", &format!("[admin]\n{admin}"));
    run_cli_in(files.folder.path(), args, b"").await
}

#[track_caller]
fn assert_told(output: &Output, code: i32, text: &str) {
    assert_eq!(output.code, code, "{} {}", output.stdout, output.stderr);
    assert!(output.stderr.contains(text), "{text} in {}", output.stderr);
}

#[tokio::test]
async fn a_daemon_is_asked_over_https() {
    let (site, files) = (Site::shared("https", "rate = '50/s'").await, Files::new());
    let (paced, plain) = daemon(&site, "token = 'for-changes'\n").await;
    let server = files.ours.issue(&["localhost"]).server(Some(&files.ours), ALL_VERSIONS);
    let front = Front::start_with(plain, server).await;
    let url = |scheme: &str, host: &str, port: u16| format!("{scheme}://{host}:{port}");
    let (https, by_address) =
        (url("https", "localhost", front.port()), url("https", "127.0.0.1", front.port()));
    let trusting = ["--ca-file", "ca.pem"];
    let known = ["--ca-file", "ca.pem", "--cert-file", "client.pem", "--key-file", "client-key.pem"];
    let ask = async |admin: &str, options: &[&str], command: &[&str]| {
        let args = [&["--admin", admin], options, command].concat();
        tool(&files, "token = 'for-changes'\n", &args).await
    };

    let output = ask(&https, &known, &["-o", "json", "status"]).await;
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "nothing goes in clear");
    let state: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(state["downstreams"][0]["name"], "billing");
    assert_eq!(ask(&https, &known, &["pause", "billing"]).await.code, 0);
    assert_eq!(ask(&https, &known, &["resume", "billing"]).await.code, 0);

    let strange = ["--ca-file", "theirs.pem"];
    let stranger = ["--ca-file", "ca.pem", "--cert-file", "stranger.pem", "--key-file", "stranger-key.pem"];
    let (to_plain, in_clear, plainly) = (
        url("https", "localhost", plain),
        url("http", "localhost", front.port()),
        url("http", "localhost", plain),
    );
    let cases: [(&str, &[&str], i32, &str); 9] = [
        (&https, &strange, 69, "signed by an authority that is not in ca_file (theirs.pem)"),
        (
            &https,
            &trusting,
            77,
            "the server requires a client certificate; set cert_file and key_file; tools have them from",
        ),
        (&https, &stranger, 77, "does not trust the authority of the client certificate in cert_file"),
        (&by_address, &known, 69, "is for localhost, not for 127.0.0.1"),
        (&https, &["--ca-file", "nowhere.pem"], 2, "--ca-file: cannot be read (No such file or directory)"),
        (&https, &["--ca-file", "ca.pem", "--cert-file", "client.pem"], 2, "--cert-file: needs key_file"),
        (&to_plain, &known, 69, "does not speak TLS on this port"),
        (&in_clear, &[], 69, "if it speaks TLS there, write https://"),
        (&plainly, &trusting, 2, "--ca-file: would not be used, since http://localhost"),
    ];
    for (admin, options, code, text) in cases {
        assert_told(&ask(admin, options, &["status"]).await, code, text);
    }
    assert_eq!(paced.stop().await, 0);
}

#[tokio::test]
async fn each_token_goes_where_it_is_needed() {
    let files = Files::new();
    let api = Api::start();
    api.rule(|_| Answer::status(503));
    let url = api.url();
    let tokens = "token = 'for-changes'\nread_token = 'for-looks'\n";
    for admin in [tokens, "token = 'for-changes'\n", "read_token = 'for-looks'\n"] {
        for command in
            [&["status"][..], &["rate", "get", "billing"], &["pause", "billing"], &["resume", "billing"]]
        {
            let args = [&["--admin", &url], command].concat();
            let output = tool(&files, admin, &args).await;
            assert_eq!(output.code, 69, "{}", output.stderr);
            assert!(!output.stderr.contains("warning"), "it is this machine: {}", output.stderr);
        }
    }
    let sent: Vec<Option<String>> =
        api.arrivals().iter().map(|arrival| arrival.header("authorization").map(str::to_owned)).collect();
    let (look, change) = (Some("Bearer for-looks".to_owned()), Some("Bearer for-changes".to_owned()));
    let both = [look.clone(), look.clone(), change.clone(), change.clone()];
    assert_eq!(sent[..4], both);
    assert_eq!(sent[4..8], [None, None, change.clone(), change]);
    assert_eq!(sent[8..], [look.clone(), look, None, None]);
}

#[tokio::test]
async fn a_token_for_looking_is_asked_for() {
    let (site, files) = (Site::shared("looks", "rate = '50/s'").await, Files::new());
    let (paced, port) = daemon(&site, "token = 'for-changes'\nread_token = 'for-looks'\n").await;
    let url = format!("http://127.0.0.1:{port}");
    let ask = async |admin: &str, command: &[&str]| {
        tool(&files, admin, &[&["--admin", &url], command].concat()).await
    };
    assert_told(&ask("token = 'for-changes'\n", &["status"]).await, 77, "PACED_ADMIN__READ_TOKEN");
    assert_eq!(ask("token = 'for-changes'\n", &["pause", "billing"]).await.code, 0);
    assert_eq!(ask("read_token = 'for-looks'\n", &["status"]).await.code, 0);
    assert_eq!(ask("read_token = 'for-changes'\n", &["status"]).await.code, 0, "it may look as well");
    assert_told(&ask("read_token = 'for-looks'\n", &["resume", "billing"]).await, 77, "admin.token");
    assert_eq!(paced.stop().await, 0);
}

#[tokio::test]
async fn the_daemon_of_the_configuration_is_known_by_its_certificate() {
    let (site, files) = (Site::shared("pinned", "rate = '50/s'").await, Files::new());
    let folder = files.folder.path();
    // Nobody reaches it by this name here.
    files.ours.issue(&["paced.internal"]).put(folder, "admin");
    let path = |name: &str| files.path(name).display().to_string();
    let table = format!(
        "[admin.tls]\ncert_file = '{}'\nkey_file = '{}'\nclient_ca_file = '{}'\n",
        path("admin.pem"),
        path("admin-key.pem"),
        path("ca.pem")
    );
    let (paced, port) = daemon(&site, &format!("token = 'for-changes'\n{table}")).await;
    // The tools have no use for the key, which they may not be allowed to read.
    let own =
        format!("listen = '127.0.0.1:{port}'\ntoken = 'for-changes'\n{}", table.replace("admin-key", "none"));
    let known = ["--cert-file", "client.pem", "--key-file", "client-key.pem"];
    let ask =
        async |options: &[&str], command: &[&str]| tool(&files, &own, &[options, command].concat()).await;
    let output = ask(&known, &["status"]).await;
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    assert_eq!(ask(&known, &["pause", "billing"]).await.code, 0);
    assert_told(&ask(&[], &["status"]).await, 77, "the server requires a client certificate");
    let by_authority = [&["--ca-file", "ca.pem"][..], &known].concat();
    assert_told(&ask(&by_authority, &["status"]).await, 69, "is for paced.internal, not for 127.0.0.1");
    let url = format!("http://127.0.0.1:{port}");
    let plain = ["--admin", &url, "status"];
    assert_told(&ask(&[], &plain).await, 69, "if it speaks TLS there, write https://");

    // Another one who listens there gets nothing.
    put(folder, "own.pem", &files.ours.issue(&["paced.internal", "127.0.0.1"]).certificate);
    let other = own.replace("admin.pem", "own.pem");
    let output = tool(&files, &other, &[&known[..], &["resume", "billing"]].concat()).await;
    assert_told(&output, 69, "the server shows another certificate than the one in");
    let gone = own.replace("admin.pem", "gone.pem");
    let output = tool(&files, &gone, &[&known[..], &["status"]].concat()).await;
    assert_told(&output, 78, "admin.tls.cert_file cannot be read");
    assert_eq!(paced.stop().await, 0);
}
