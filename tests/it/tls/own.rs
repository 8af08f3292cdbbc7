//! Servers that have signed their own certificates, which are in `ca_file`: the broker, the store and an API.

use tokio_rustls::rustls::ALL_VERSIONS;

use super::*;
use crate::authority::self_signed;
use crate::support::LONG;
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::servers::{rabbit, redis};
use crate::support::site::{NAME, Site};
use crate::support::tls::Front;

#[tokio::test]
async fn the_very_certificate_of_a_server_may_be_its_authority() {
    let site = Site::shared("ownauthority", "rate = '200/s'").await;
    let issued = self_signed(&["localhost"], &rcgen::KeyPair::generate().unwrap(), (2049, 1, 1));
    let folder = TempDir::new_in(scratch().unwrap()).unwrap();
    let file = put(folder.path(), "server.pem", &issued.certificate);
    let front = async |port| Front::start_with(port, issued.server(None, ALL_VERSIONS)).await;
    let fronts =
        [front(rabbit().await.port()).await, front(redis().await.port()).await, front(site.api.port()).await];
    let [amqps, rediss, https] = [0, 1, 2].map(|n: usize| fronts[n].port());
    let (prefix, tls) = (&site.prefix, format!("ca_file = '{}'\n", file.display()));
    let config = format!(
        "[amqp]\nurl = 'amqps://localhost:{amqps}/%2f'\nprefix = '{prefix}'\n[amqp.tls]\n{tls}\
         [store]\nurl = 'rediss://localhost:{rediss}'\nkey_prefix = '{prefix}'\n[store.tls]\n{tls}\
         [downstreams.{NAME}]\nrate = '200/s'\nhttp.base_url = 'https://localhost:{https}/'\n\
         [downstreams.{NAME}.tls]\n{tls}"
    );
    let replica = Paced::spawn(&config).await;
    site.publish(vec![Job::new("a")]).await;
    assert_eq!(site.api.wait_for(1, LONG).await[0].id(), "a");
    assert_eq!(replica.stop().await, 0);
}
