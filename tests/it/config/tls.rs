//! The tables of TLS, and proxies.

use paced::time::wall_now;

use super::*;
use crate::authority::{Authority, Issued};

/// A configuration with TLS everywhere, and a proxy. The files are those of [`scene`].
const ALL: &str = "\
[amqp]
url = 'amqps://rabbit/'
[amqp.tls]
ca_file = 'ca.pem'
cert_file = 'certs/one.pem'
key_file = 'certs/one-key.pem'
[store]
url = 'rediss+cluster://a,b'
[store.tls]
server_name = 'redis.internal'
ca_file = 'ca.pem'
[downstreams.a]
rate = '1/s'
tls = { ca_file = 'ca.pem' }
[downstreams.a.http]
base_url = 'https://api.internal/'
proxy = 'http://me:hunter2@proxy.internal:3128'
";

fn scene(text: &str) -> (Scene, Authority) {
    let authority = Authority::new("ours");
    let Issued { certificate, key } = authority.issue(&["one"]);
    let scene = Scene::new(text).file("ca.pem", &authority.pem);
    fs::create_dir(scene.dir.path().join("certs")).unwrap();
    let scene = scene.file("certs/one.pem", &certificate).file("certs/one-key.pem", &key);
    (scene.file("certs/two-key.pem", &authority.issue(&["two"]).key), authority)
}

#[test]
fn every_url_may_have_tls_of_its_own() {
    let (scene, _) = scene(ALL);
    let loaded = scene.right();
    let dir = scene.dir.path();
    let amqp = loaded.settings.amqp.tls.as_ref().unwrap();
    assert_eq!(amqp.cert_file, Some(dir.join("certs/one.pem")), "paths start at the file's directory");
    assert_eq!(amqp.key_file, Some(dir.join("certs/one-key.pem")));
    let store = loaded.settings.store.tls.as_ref().unwrap();
    assert_eq!((store.server_name.as_deref(), &store.cert_file), (Some("redis.internal"), &None));
    let downstream = &loaded.settings.downstreams["a"];
    assert_eq!(downstream.tls.as_ref().unwrap().ca_file, Some(dir.join("ca.pem")));
    let proxy = downstream.http.proxy.as_ref().unwrap();
    assert_eq!(proxy.expose(), "http://me:hunter2@proxy.internal:3128");
    let shown = show(&loaded);
    for line in [
        "ca_file = \"ca.pem\"",
        "cert_file = \"certs/one.pem\"",
        "server_name = \"redis.internal\"",
        "proxy = \"http://proxy.internal:3128\"",
    ] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    assert!(!shown.contains("hunter2") && !shown.contains("PRIVATE"), "{shown}");
    assert!(!shown.contains("from the file it names"), "a path is shown as it was given: {shown}");
    assert_eq!(Scene::new(LEAST).right().settings.amqp.tls, None);
}

#[test]
fn a_proxy_may_be_in_a_file_of_its_own() {
    let text = format!("{LEAST}http.proxy_file = 'proxy'\n");
    let loaded = Scene::new(&text).file("proxy", "http://me:hunter2@proxy:3128\n").right();
    let proxy = loaded.settings.downstreams["a"].http.proxy.as_ref().unwrap();
    assert_eq!((proxy.expose(), &*proxy.to_string()), ("http://me:hunter2@proxy:3128", "***"));
}

#[test]
fn what_contradicts_itself_is_a_mistake_with_the_way_out() {
    for (from, to, expected) in [
        (
            "amqps://",
            "amqp://",
            "paced.toml:4:11: amqp.tls.ca_file: would not be used, since the URL is amqp and has no TLS; write amqps://HOST:5671/VHOST, or remove it",
        ),
        (
            "rediss+cluster://",
            "redis+cluster://",
            "paced.toml:11:11: store.tls.ca_file: would not be used, since the URL is redis+cluster and has no TLS; write rediss instead of redis, or remove it",
        ),
        (
            "rediss+cluster://a,b",
            "memory:",
            "paced.toml:11:11: store.tls.ca_file: would not be used, since the URL is memory and has no TLS; write rediss instead of redis, or remove it",
        ),
        (
            "https://",
            "http://",
            "paced.toml:14:19: downstreams.a.tls.ca_file: would not be used, since the URL is http and has no TLS; write https://, or remove it",
        ),
        (
            "key_file = 'certs/one-key.pem'\n",
            "",
            "paced.toml:5:13: amqp.tls.cert_file: needs key_file, the private key of the certificate, as well; give both, or neither",
        ),
        (
            "cert_file = 'certs/one.pem'\n",
            "",
            "paced.toml:5:12: amqp.tls.key_file: needs cert_file, the certificate of the key, as well; give both, or neither",
        ),
        (
            "certs/one-key.pem",
            "certs/two-key.pem",
            "paced.toml:6:12: amqp.tls.key_file: has a private key in it that does not fit the certificate in cert_file; give the two of one pair",
        ),
        (
            "ca_file = 'ca.pem'\ncert",
            "ca_file = 'certs/one-key.pem'\ncert",
            "paced.toml:4:11: amqp.tls.ca_file: has no certificate in it; give a file in PEM format, which has a line -----BEGIN CERTIFICATE-----",
        ),
        (
            "{ ca_file = 'ca.pem' }",
            "{ ca_file = 'missing.pem' }",
            "paced.toml:14:19: downstreams.a.tls.ca_file: cannot be read (No such file or directory); give the path of a file in PEM format that this process may read",
        ),
        (
            "redis.internal",
            "redis internal",
            "paced.toml:10:15: store.tls.server_name: no name that a certificate can have; write a host name, or an address without a port, such as api.internal",
        ),
        (
            "server_name = 'redis.internal'",
            "server_names = 'x'",
            "paced.toml:10:1: store.tls.server_names: unknown key; did you mean `server_name`?",
        ),
        (
            "ca_file = 'ca.pem'\ncert",
            "ca_file = true\ncert",
            "paced.toml:4:11: amqp.tls.ca_file: a boolean where a string belongs; write it in quotes",
        ),
        (
            "http://me:hunter2@proxy.internal:3128",
            "https://me:hunter2@proxy.internal:3128",
            "paced.toml:17:9: downstreams.a.http.proxy: not the URL of an HTTP proxy that is reached without TLS; write http://USER:PASSWORD@HOST:PORT, or without credentials http://HOST:PORT",
        ),
    ] {
        assert!(ALL.contains(from), "{from}");
        let (scene, _) = scene(&ALL.replacen(from, to, 1));
        assert_eq!(scene.wrong(), [expected]);
    }
}

#[test]
fn another_path_restarts_the_downstream() {
    let (scene, authority) = scene(ALL);
    let before = scene.right();
    let scene = scene.file("other.pem", &authority.pem);
    let text = ALL.replace("tls = { ca_file = 'ca.pem' }", "tls = { ca_file = 'other.pem' }");
    let after = scene.file("paced.toml", &text.replace("hunter2", "hunter3")).right();
    let reload = before.reload(&after);
    assert_eq!(reload.changed, [""; 0]);
    assert_eq!(reload.restart, [""; 0]);
    let keys: Vec<&String> = reload.downstreams.replaced["a"].iter().collect();
    assert_eq!(keys, ["downstreams.a.http.proxy", "downstreams.a.tls.ca_file"]);
}

/// The date in this many days from now: year, month and day, and as it is written.
fn in_days(days: i64) -> ((i32, u8, u8), String) {
    let at = jiff::Timestamp::from_microsecond(wall_now().0).unwrap()
        + jiff::SignedDuration::from_hours(24 * days);
    let text = at.to_string()[..10].to_owned();
    let [year, month, day] = [&text[..4], &text[5..7], &text[8..]].map(|part| part.parse::<i32>().unwrap());
    ((year, u8::try_from(month).unwrap(), u8::try_from(day).unwrap()), text)
}

#[test]
fn a_certificate_that_ends_is_warned_of_and_no_mistake() {
    // A password for a proxy elsewhere is warned of too.
    let (scene, authority) = scene(&ALL.replace("proxy.internal", "127.0.0.1"));
    let warnings = |issued: &Issued| {
        issued.put(&scene.dir.path().join("certs"), "one");
        scene.right().warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(warnings(&authority.issue(&["one"])), [""; 0]);
    let past = "paced.toml:5:13: amqp.tls.cert_file: warning: expired at 2021-01-01T00:00:00Z; renew it";
    assert_eq!(warnings(&authority.issue_expired(&["one"])), [past]);
    let ((today, _), (soon, soon_text)) = (in_days(0), in_days(5));
    let ((later, _), (far, far_text)) = (in_days(20), in_days(40));
    assert_eq!(warnings(&authority.issue_between(&["one"], (2020, 1, 1), later)), [""; 0]);
    for (from, until, expected) in [
        (today, soon, format!("ends at {soon_text}T00:00:00Z, in ")),
        (far, (2049, 1, 1), format!("is not valid before {far_text}T00:00:00Z; wait until then")),
    ] {
        let [warning] = &warnings(&authority.issue_between(&["one"], from, until))[..] else {
            panic!("not one")
        };
        let place = "paced.toml:5:13: amqp.tls.cert_file: warning: ";
        assert!(warning.strip_prefix(place).is_some_and(|rest| rest.starts_with(&expected)), "{warning}");
    }
}

/// The admin server with a certificate, which must come from authorities that [`scene`] has.
const ADMIN: &str = "\
[admin]
listen = '127.0.0.1:0'
[admin.tls]
cert_file = 'certs/one.pem'
key_file = 'certs/one-key.pem'
client_ca_file = 'ca.pem'
[downstreams.a]
rate = '1/s'
http.base_url = 'http://localhost/'
";

#[test]
fn the_admin_server_may_have_a_certificate() {
    let (scene, _) = scene(ADMIN);
    let loaded = scene.right();
    let dir = scene.dir.path();
    let tls = loaded.settings.admin.tls.as_ref().unwrap();
    assert_eq!(tls.cert_file, dir.join("certs/one.pem"));
    assert_eq!(tls.key_file, dir.join("certs/one-key.pem"));
    assert_eq!(tls.client_ca_file, Some(dir.join("ca.pem")));
    assert!(show(&loaded).contains("client_ca_file = \"ca.pem\""), "{}", show(&loaded));
    assert_eq!(Scene::new(LEAST).right().settings.admin.tls, None);
    for (from, to, expected) in [
        (
            "key_file = 'certs/one-key.pem'\n",
            "",
            "paced.toml:4:13: admin.tls.cert_file: needs key_file, the private key of the certificate, as well; give both, or neither",
        ),
        (
            "cert_file = 'certs/one.pem'\n",
            "",
            "paced.toml:4:12: admin.tls.key_file: needs cert_file, the certificate of the key, as well; give both, or neither",
        ),
        (
            "cert_file = 'certs/one.pem'\nkey_file = 'certs/one-key.pem'\n",
            "",
            "paced.toml:4:18: admin.tls.client_ca_file: needs cert_file and key_file, the certificate of this server, as well; give all three, or remove it",
        ),
        (
            "certs/one-key.pem",
            "certs/two-key.pem",
            "paced.toml:5:12: admin.tls.key_file: has a private key in it that does not fit the certificate in cert_file; give the two of one pair",
        ),
        (
            "'ca.pem'",
            "'certs/one-key.pem'",
            "paced.toml:6:18: admin.tls.client_ca_file: has no certificate in it; give a file in PEM format, which has a line -----BEGIN CERTIFICATE-----",
        ),
        (
            "client_ca_file",
            "ca_file",
            "paced.toml:6:1: admin.tls.ca_file: unknown key; known here are `cert_file`, `client_ca_file`, `key_file`",
        ),
    ] {
        let (scene, _) = self::scene(&ADMIN.replacen(from, to, 1));
        assert_eq!(scene.wrong(), [expected]);
    }
}
