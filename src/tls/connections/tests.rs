use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::KeyPair;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ServerConfig, SupportedProtocolVersion};
use tempfile::tempdir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio_rustls::TlsAcceptor;

use super::authority::{Authority, Issued, put, self_signed};
use super::*;
use crate::tls::TlsOptions;

mod reset;

const BOTH: &[&SupportedProtocolVersion] = rustls::ALL_VERSIONS;
const OLD: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];

fn server(
    issued: &Issued,
    clients: Option<&Authority>,
    versions: &[&'static SupportedProtocolVersion],
) -> TlsAcceptor {
    TlsAcceptor::from(issued.server(clients, versions))
}

/// Connects, and reads what the server says.
async fn greet(tls: &Tls, host: &str, server: &TlsAcceptor) -> io::Result<()> {
    let (near, far) = duplex(64 * 1024);
    let server = server.clone();
    let serving = tokio::spawn(async move {
        // Some tests are about a client that the server refuses.
        if let Ok(mut stream) = server.accept(far).await {
            stream.write_all(b"hello").await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    let answer = async {
        let mut answer = String::new();
        tls.connect(host, near).await?.read_to_string(&mut answer).await?;
        assert_eq!(answer, "hello");
        Ok(())
    };
    let answer = answer.await;
    serving.await.unwrap();
    answer
}

fn trusting(folder: &Path, authority: &Authority) -> TlsOptions {
    TlsOptions::default().with_ca_file(put(folder, "ca.pem", &authority.pem))
}

fn with_certificate(options: TlsOptions, folder: &Path, issued: &Issued) -> TlsOptions {
    let (certificate, key) = issued.put(folder, "client");
    options.with_certificate(certificate, key)
}

#[tokio::test]
async fn each_side_proves_who_it_is() {
    let folder = tempdir().unwrap();
    let ours = Authority::new("ours");
    let options = trusting(folder.path(), &ours);
    let plain = Tls::load(options.clone()).unwrap();
    let mutual = with_certificate(options.clone(), folder.path(), &ours.issue(&["paced"]));
    let mutual = Tls::load(mutual).unwrap();
    assert!(plain.validity().is_none() && mutual.validity().is_some());
    let issued = ours.issue(&["localhost", "127.0.0.1", "::1"]);
    for versions in [BOTH, OLD] {
        let open = server(&issued, None, versions);
        for host in ["localhost", "127.0.0.1", "::1", "[::1]"] {
            greet(&plain, host, &open).await.unwrap();
        }
        let closed = server(&issued, Some(&ours), versions);
        greet(&mutual, "localhost", &closed).await.unwrap();
        greet(&mutual, "localhost", &open).await.unwrap();
    }
    // The name is asked for instead of the host.
    let other = server(&ours.issue(&["redis.internal"]), None, BOTH);
    let named = Tls::load(options.with_server_name("redis.internal")).unwrap();
    greet(&named, "10.0.0.1", &other).await.unwrap();
}

/// A server that shows a certificate without having its key.
fn impostor(shown: &Issued, has: &Issued, versions: &[&'static SupportedProtocolVersion]) -> TlsAcceptor {
    let chain = CertificateDer::pem_slice_iter(shown.certificate.as_bytes()).collect::<Result<_, _>>();
    let key = PrivateKeyDer::from_pem_slice(has.key.as_bytes()).unwrap();
    let pair = CertifiedKey::new(chain.unwrap(), ring::sign::any_supported_type(&key).unwrap());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn a_pinned_certificate_is_trusted_and_no_other() {
    let folder = tempdir().unwrap();
    let (ours, path) = (Authority::new("ours"), folder.path());
    // Neither name nor date matter, as the file is the server's own.
    let issued = ours.issue_expired(&["other.internal"]);
    let file = put(path, "admin.pem", &format!("{}{}", issued.certificate, ours.pem));
    let options = TlsOptions::default().with_pinned_file(&file);
    let tls = Tls::load(options.clone()).unwrap();
    let mutual = Tls::load(with_certificate(options, path, &ours.issue(&["paced"]))).unwrap();
    let expected = format!("shows another certificate than the one in {}", file.display());
    for versions in [BOTH, OLD] {
        greet(&tls, "127.0.0.1", &server(&issued, None, versions)).await.unwrap();
        greet(&mutual, "localhost", &server(&issued, Some(&ours), versions)).await.unwrap();
        let error = greet(&tls, "127.0.0.1", &server(&ours.issue(&["127.0.0.1"]), None, versions)).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
        // One who has copied the certificate has not its key.
        let error = greet(&tls, "127.0.0.1", &impostor(&issued, &ours.issue(&["x"]), versions)).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
    }
    // It is read again when it is replaced.
    let next = ours.issue(&["a"]);
    put(path, "admin.pem", &next.certificate);
    tls.refresh();
    greet(&tls, "127.0.0.1", &server(&next, None, BOTH)).await.unwrap();
    let missing = Tls::load(TlsOptions::default().with_pinned_file(path.join("none"))).unwrap_err();
    assert_eq!(missing.key(), "pinned_file");
}

/// The file may hold the server's own certificate, although it is one of an authority.
#[tokio::test]
async fn a_certificate_that_signed_itself_is_accepted_if_it_is_the_very_one_in_ca_file() {
    const LATE: (i32, u8, u8) = (2049, 1, 1);
    let folder = tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let issued = self_signed(&["localhost"], &key, LATE);
    let ours = Authority::new("ours");
    let both = put(folder.path(), "ca.pem", &format!("{}{}", ours.pem, issued.certificate));
    let trusting = |name: &str, issued: &Issued| {
        let file = put(folder.path(), name, &issued.certificate);
        Tls::load(TlsOptions::default().with_ca_file(file)).unwrap()
    };
    let tls = Tls::load(TlsOptions::default().with_ca_file(both)).unwrap();
    let expired = self_signed(&["localhost"], &key, (2021, 1, 1));
    let same_key = self_signed(&["localhost"], &key, (2048, 1, 1));
    let stranger = self_signed(&["localhost"], &KeyPair::generate().unwrap(), LATE);
    for versions in [BOTH, OLD] {
        greet(&tls, "localhost", &server(&issued, None, versions)).await.unwrap();
        greet(&tls, "localhost", &server(&ours.issue(&["localhost"]), None, versions)).await.unwrap();
        for (tls, host, server, expected) in [
            (&tls, "127.0.0.1", server(&issued, None, versions), "is for localhost, not for 127.0.0.1"),
            (
                &trusting("expired.pem", &expired),
                "localhost",
                server(&expired, None, versions),
                "expired at 2021-01-01T00:00:00Z",
            ),
            (&tls, "localhost", server(&same_key, None, versions), "is one of an authority (CA:TRUE"),
            (&tls, "localhost", server(&stranger, None, versions), "is one of an authority (CA:TRUE"),
            (&tls, "localhost", impostor(&issued, &stranger, versions), ""),
        ] {
            let error = greet(tls, host, &server).await.unwrap_err();
            assert!(error.to_string().contains(expected), "{expected}: {error}");
        }
    }
}

/// So may it hold one that an authority has signed which it does not hold.
#[tokio::test]
async fn a_certificate_in_ca_file_needs_no_authority_there() {
    let folder = tempdir().unwrap();
    let theirs = Authority::new("theirs");
    let trusting = |name: &str, issued: &Issued| {
        let file = put(folder.path(), name, &issued.certificate);
        Tls::load(TlsOptions::default().with_ca_file(file)).unwrap()
    };
    let issued = theirs.issue(&["localhost"]);
    let tls = trusting("leaf.pem", &issued);
    let expired = theirs.issue_expired(&["localhost"]);
    let other = theirs.issue(&["localhost"]);
    for versions in [BOTH, OLD] {
        greet(&tls, "localhost", &server(&issued, None, versions)).await.unwrap();
        for (tls, host, server, expected) in [
            (&tls, "127.0.0.1", server(&issued, None, versions), "is for localhost, not for 127.0.0.1"),
            (
                &trusting("old.pem", &expired),
                "localhost",
                server(&expired, None, versions),
                "expired at 2021-01-01T00:00:00Z",
            ),
            (&tls, "localhost", server(&other, None, versions), "an authority that is not in ca_file"),
            (&tls, "localhost", impostor(&issued, &other, versions), ""),
        ] {
            let error = greet(tls, host, &server).await.unwrap_err();
            assert!(error.to_string().contains(expected), "{expected}: {error}");
        }
    }
}

#[tokio::test]
async fn what_may_be_about_ciphers_or_versions_says_so() {
    let folder = tempdir().unwrap();
    let ours = Authority::new("ours");
    let plain = Tls::load(trusting(folder.path(), &ours)).unwrap();
    let shows = with_certificate(trusting(folder.path(), &ours), folder.path(), &ours.issue(&["paced"]));
    let shows = Tls::load(shows).unwrap();
    const CIPHERS: &str =
        "no cipher in common with paced, which needs TLS 1.3, or TLS 1.2 with forward secrecy";
    // handshake_failure, protocol_version, insufficient_security
    for (tls, alert, expected) in [
        (&plain, 40, ["maybe it requires a client certificate", CIPHERS]),
        (&shows, 40, ["maybe it does not accept the client certificate in cert_file", CIPHERS]),
        (&plain, 70, ["no version or no cipher of TLS in common (ProtocolVersion)", "TLS 1.3"]),
        (&shows, 71, ["no version or no cipher of TLS in common (InsufficientSecurity)", "ECDHE"]),
    ] {
        let (near, mut far) = duplex(64 * 1024);
        far.write_all(&[21, 3, 3, 0, 2, 2, alert]).await.unwrap();
        let error = tls.connect("localhost", near).await.unwrap_err().to_string();
        assert!(expected.iter().all(|part| error.contains(part)), "{alert}: {error}");
    }
}

#[tokio::test]
async fn refusals_are_distinguished() {
    let folder = tempdir().unwrap();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let options = trusting(folder.path(), &ours);
    let plain = Tls::load(options.clone()).unwrap();
    let known = Tls::load(with_certificate(options.clone(), folder.path(), &ours.issue(&["paced"]))).unwrap();
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let stranger = Tls::load(with_certificate(options.clone(), &other, &theirs.issue(&["paced"]))).unwrap();
    let past = folder.path().join("past");
    std::fs::create_dir(&past).unwrap();
    let late = Tls::load(with_certificate(options, &past, &ours.issue_expired(&["paced"]))).unwrap();
    let good = ours.issue(&["localhost"]);
    for versions in [BOTH, OLD] {
        let open = |issued: &Issued| server(issued, None, versions);
        let closed = server(&good, Some(&ours), versions);
        for (tls, server, expected) in [
            (&plain, open(&theirs.issue(&["localhost"])), "signed by an authority that is not in ca_file ("),
            (
                &plain,
                open(&ours.issue(&["a.example", "10.0.0.1"])),
                "is for a.example, 10.0.0.1, not for localhost; connect to one of its names, or set server_name",
            ),
            (
                &plain,
                open(&ours.issue_expired(&["localhost"])),
                "the server's certificate expired at 2021-01-01T00:00:00Z; renew it",
            ),
            (&plain, closed.clone(), "the server requires a client certificate; set cert_file and key_file"),
            (
                &stranger,
                closed.clone(),
                "does not trust the authority of the client certificate in cert_file",
            ),
            (&late, closed.clone(), "the client certificate in cert_file has expired"),
        ] {
            let error = greet(tls, "localhost", &server).await.unwrap_err();
            assert!(error.to_string().contains(expected), "{expected}: {error}");
            let of_client = refusal(&error).unwrap().is_of_client();
            assert_eq!(of_client, expected.contains("client certificate"), "{error}");
        }
        greet(&known, "localhost", &closed).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_without_tls_is_recognised() {
    let tls = Tls::load(trusting(tempdir().unwrap().path(), &Authority::new("ours"))).unwrap();
    for (answer, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "does not speak TLS on this port"),
        (b"AMQP\x00\x00\x09\x01", "does not speak TLS on this port"),
        (b"-ERR unknown command\r\n", "does not speak TLS on this port"),
        (b"", "closed the connection in the TLS handshake"),
    ] {
        let (near, mut far) = duplex(64 * 1024);
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        let error = tls.connect("localhost", near).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn files_that_cannot_be_used_say_why() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let ours = Authority::new("ours");
    let (one, two) = (ours.issue(&["one"]), ours.issue(&["two"]));
    let ca = put(path, "ca.pem", &ours.pem);
    let (certificate, key) = one.put(path, "one");
    let other_key = put(path, "two-key.pem", &two.key);
    let text = put(path, "text", "no PEM at all\n");
    let cut = put(path, "cut", &one.certificate[..one.certificate.len() / 2]);
    let no_certificate = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
    let no_certificate = put(path, "hello", no_certificate);
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\naGVsbG8=\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let encrypted = put(path, "encrypted", encrypted);
    let no_key = put(path, "no-key", "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n");
    let long = put(path, "long", &"x".repeat((4 << 20) + 1));
    let missing = path.join("missing");
    let trusts = |file: &Path| TlsOptions::default().with_ca_file(file);
    let shows = |certificate: &Path, key: &Path| trusts(&ca).with_certificate(certificate, key);
    for (options, at, part) in [
        (trusts(&missing), "ca_file", "cannot be read (No such file or directory); give the path"),
        (trusts(path), "ca_file", "cannot be read (it is no file)"),
        (trusts(&text), "ca_file", "has no certificate in it; "),
        (trusts(&key), "ca_file", "has no certificate in it; "),
        (trusts(&cut), "ca_file", "has a certificate in it that cannot be parsed"),
        (trusts(&no_certificate), "ca_file", "has a certificate in it that cannot be parsed"),
        (trusts(&long), "ca_file", "is longer than 4 MiB"),
        (shows(&missing, &key), "cert_file", "cannot be read"),
        (shows(&certificate, &missing), "key_file", "cannot be read"),
        (shows(&certificate, &certificate), "key_file", "has no private key in it; "),
        (shows(&certificate, &encrypted), "key_file", "give the key without one"),
        (shows(&certificate, &no_key), "key_file", "use an RSA, ECDSA or Ed25519 key"),
        (shows(&certificate, &other_key), "key_file", "does not fit the certificate in cert_file"),
        (TlsOptions { key_file: None, ..shows(&certificate, &key) }, "cert_file", "needs key_file"),
        (TlsOptions { cert_file: None, ..shows(&certificate, &key) }, "key_file", "needs cert_file"),
        (trusts(&ca).with_server_name("a b"), "server_name", "is no name that a certificate can have; "),
    ] {
        let error = Tls::load(options.clone()).expect_err(part);
        assert_eq!(error.key(), at, "{error}");
        let problem = error.problem().to_string();
        assert!(problem.contains(part) && problem.contains("; "), "{part}: {problem}");
        assert!(error.to_string().starts_with(at), "{error}");
    }
    Tls::load(shows(&certificate, &key)).unwrap();
}

#[tokio::test]
async fn files_that_are_replaced_are_used_by_new_connections() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let (before, after) = (Authority::new("before"), Authority::new("after"));
    let options = with_certificate(trusting(path, &before), path, &before.issue(&["paced"]));
    let tls = Tls::load(options).unwrap();
    let old = server(&before.issue(&["localhost"]), Some(&before), BOTH);
    let new = server(&after.issue(&["localhost"]), Some(&after), BOTH);
    greet(&tls, "localhost", &old).await.unwrap();
    greet(&tls, "localhost", &new).await.unwrap_err();

    // While what is there cannot be used, what was read before is.
    let client = after.issue(&["paced"]);
    put(path, "ca.pem", &after.pem);
    put(path, "client.pem", &client.certificate);
    for _ in 0..3 {
        tls.refresh();
        greet(&tls, "localhost", &old).await.unwrap();
    }
    put(path, "client-key.pem", &client.key);
    tls.refresh();
    greet(&tls, "localhost", &new).await.unwrap();
    greet(&tls, "localhost", &old).await.unwrap_err();

    // A connection looks itself; all clones see it.
    before.issue(&["paced"]).put(path, "client");
    put(path, "ca.pem", &before.pem);
    let clone = tls.clone();
    let seen = async {
        while greet(&clone, "localhost", &old).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), seen).await.unwrap();
    greet(&tls, "localhost", &old).await.unwrap();

    // A file that is gone changes nothing.
    std::fs::remove_file(path.join("ca.pem")).unwrap();
    tls.refresh();
    tls.refresh();
    greet(&tls, "localhost", &old).await.unwrap();
}
