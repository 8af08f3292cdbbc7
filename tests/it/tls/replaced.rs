//! Certificates that are replaced while jobs flow, with TLS on every side.

use std::sync::Arc;

use rustls::ALL_VERSIONS;

use super::*;
use crate::support::api::Api;
use crate::support::daemon::Paced;
use crate::support::publish;
use crate::support::servers::{rabbit, redis};
use crate::support::site::{NAME, compare};
use crate::support::tls::Front;
use crate::support::{LONG, eventually, unique};

/// A server that shows a certificate of `shown`, and trusts the clients of `trusted`.
fn front_config(shown: &Authority, trusted: &Authority) -> Arc<rustls::ServerConfig> {
    shown.issue(&["localhost"]).server(Some(trusted), ALL_VERSIONS)
}

/// How often the daemon has read files again.
fn reads(paced: &Paced) -> usize {
    paced.log().iter().filter(|line| line.contains("certificates read again")).count()
}

#[tokio::test]
async fn no_job_is_lost_or_doubled_when_certificates_are_replaced() {
    let files = Files::new();
    let rabbit = rabbit().await;
    let before = async |server| Front::start_with(server, front_config(&files.ours, &files.ours)).await;
    let (amqps, rediss) = (before(rabbit.port()).await, before(redis().await.port()).await);
    let api = Api::start();
    // The API has files of its own, which are replaced; those of the servers stay.
    let own = Files::new();
    let front = Front::start_with(api.port(), front_config(&own.ours, &own.ours)).await;
    let prefix = unique("replaced");
    let config = format!(
        "[amqp]\nurl = 'amqps://localhost:{amqps}/%2f'\nprefix = '{prefix}'\n[amqp.tls]\n{tls}\
         [store]\nurl = 'rediss://localhost:{rediss}'\nkey_prefix = '{prefix}'\n[store.tls]\n{tls}\
         [downstreams.{NAME}]\nrate = '100/s'\nconcurrency = 8\n\
         [downstreams.{NAME}.http]\nbase_url = 'https://localhost:{front}/'\nmax_connection_age = '500ms'\n\
         [downstreams.{NAME}.tls]\n{own}",
        tls = files.lines(),
        amqps = amqps.port(),
        rediss = rediss.port(),
        front = front.port(),
        own = own.lines()
    );
    // No proxy is taken from the environment.
    let nobody = "http://127.0.0.1:1";
    let envs = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "https_proxy"].map(|variable| (variable, nobody));
    let envs = [&envs[..], &[("PACED_TEST_HASTE", "10")]].concat();
    let paced = Paced::start(&config, &[], &envs).await;
    paced.wait_ready().await;
    let replace = async {
        eventually("the first jobs", LONG, || api.count() > 10).await;

        // Both authorities are trusted before either side shows a certificate of the new one.
        put(own.folder.path(), "ca.pem", &format!("{}{}", own.ours.pem, own.theirs.pem));
        eventually("the authorities are read", LONG, || reads(&paced) > 0).await;
        front.replace(front_config(&own.theirs, &own.ours));
        eventually("a connection with the server's new certificate", LONG, || front.accepted()[1] > 0).await;
        // The key follows the certificate after a while in which neither can be used.
        let client = own.theirs.issue(&["paced"]);
        put(own.folder.path(), "client.pem", &client.certificate);
        let line = paced.wait_line("certificates cannot be read again", LONG).await;
        assert!(line.contains("does not fit the certificate in cert_file"), "{line}");
        front.replace(front_config(&own.theirs, &own.ours));
        eventually("the old certificate is still shown", LONG, || front.accepted()[2] > 0).await;
        // What changes while it is read is read twice.
        let before = reads(&paced);
        put(own.folder.path(), "client-key.pem", &client.key);
        paced.hangup();
        eventually("the certificate is read", LONG, || reads(&paced) > before).await;
        front.replace(front_config(&own.theirs, &own.theirs));
        eventually("a connection with the client's new certificate", LONG, || front.accepted()[3] > 0).await;
        let before = reads(&paced);
        put(own.folder.path(), "ca.pem", &own.theirs.pem);
        eventually("the old authority is gone", LONG, || reads(&paced) > before).await;
    };
    let jobs = publish::flow(&rabbit.url(), &prefix, NAME, "job", &api, replace).await;
    eventually("all jobs", LONG, || api.count() >= jobs).await;
    assert_eq!(paced.stop().await, 0);
    let tally = compare("job", jobs, &api.end());
    assert!(tally.is_clean(), "{tally:?}");
}
