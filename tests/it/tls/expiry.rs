//! When certificates end: the metric, the log and the check.

use super::*;
use crate::support::daemon::{Paced, run_cli};
use crate::support::{LONG, eventually, until};

/// 2021-01-01 and 2049-01-01.
const PAST: f64 = 1_609_459_200.0;
const FAR: f64 = 2_493_072_000.0;

/// Two downstreams with the same certificate and one with another; neither the broker nor the APIs are there.
fn config(files: &Files) -> String {
    let downstream = |name: &str, client: &str| {
        let lines = files.lines().replace("client", client);
        format!(
            "[downstreams.{name}]\nrate = '1/s'\nhttp.base_url = 'https://localhost:1/'\n[downstreams.{name}.tls]\n{lines}"
        )
    };
    format!(
        "[amqp]\nurl = 'amqp://127.0.0.1:1/%2f'\n[admin]\nlisten = '127.0.0.1:0'\n{}{}{}",
        downstream("one", "client"),
        downstream("two", "client"),
        downstream("three", "late")
    )
}

/// When the certificates of the three end, by the metric.
async fn ends(paced: &Paced) -> [f64; 3] {
    let page = paced.metrics().await;
    ["one", "two", "three"].map(|name| {
        let of = |metric: &str| -> f64 {
            let series = format!("{metric}{{setting=\"downstreams.{name}.tls\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
        };
        assert_eq!(of("paced_certificate_start_timestamp_seconds"), 1_577_836_800.0);
        of("paced_certificate_expiry_timestamp_seconds")
    })
}

#[tokio::test]
async fn the_end_of_each_certificate_is_exported_and_logged() {
    let files = Files::new();
    let paced = Paced::start(&config(&files), &[], &[("PACED_TEST_HASTE", "10")]).await;
    assert_eq!(ends(&paced).await, [FAR, FAR, PAST]);
    let count = |text: &str| paced.log().iter().filter(|line| line.contains(text)).count();
    assert_eq!(
        count("downstreams.three.tls.cert_file: warning: expired at 2021-01-01T00:00:00Z; renew it"),
        1
    );
    assert_eq!(count("expired"), 1, "reported once");

    files.ours.issue_expired(&["paced"]).put(files.folder.path(), "client");
    let line =
        paced.wait_line("the certificate in cert_file expired at 2021-01-01T00:00:00Z; renew it", LONG).await;
    assert!(line.contains("\"ERROR\"") && line.contains("downstreams.one.tls and 1 more"), "{line}");
    until("the metric", LONG, async || ends(&paced).await == [PAST; 3]).await;
    files.ours.issue(&["paced"]).put(files.folder.path(), "late");
    until("the metric", LONG, async || ends(&paced).await == [PAST, PAST, FAR]).await;
    // Equal files are read once, for all settings that name them.
    eventually("both were read", LONG, || count("certificates read again") == 2).await;
    assert_eq!(count("the certificate in cert_file"), 1);
    paced.term();
    paced.wait_exit(LONG).await;
}

#[tokio::test]
async fn the_check_warns_of_a_certificate_that_has_ended() {
    let files = Files::new();
    let file = put(files.folder.path(), "paced.toml", &config(&files));
    let output = run_cli(&["-c", file.to_str().unwrap(), "check"], b"").await;
    assert_eq!(output.code, 0, "servers decide what they accept: {}", output.stderr);
    let expected = "downstreams.three.tls.cert_file: warning: expired at 2021-01-01T00:00:00Z; renew it\n";
    assert!(output.stderr.ends_with(expected) && output.stderr.lines().count() == 1, "{}", output.stderr);
}
