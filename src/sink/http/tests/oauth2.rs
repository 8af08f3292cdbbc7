//! Tokens of OAuth2: which request has which, and what comes of a refusal.

use std::collections::BTreeMap;

use tokio_rustls::TlsAcceptor;

use super::server::full;
use super::tls::trusting;
use super::*;
use crate::ReadSecret;
use crate::tls::authority::Authority;

/// A token server whose n-th answer has the token `t-n`.
async fn token_server(tls: Option<TlsAcceptor>) -> Server {
    let token = |n| {
        full(200, format!("{{\"access_token\":\"t-{n}\",\"token_type\":\"Bearer\",\"expires_in\":3600}}"))
    };
    Server::start_with(tls, move |n| future::ready(token(n))).await
}

fn client_options(base: &str) -> OAuth2Options {
    OAuth2Options {
        token_url: format!("{base}token"),
        client_id: "paced".to_owned(),
        client_secret: "s3cret".to_owned(),
        read_secret: None,
        scopes: Vec::new(),
        params: BTreeMap::new(),
        client_auth: ClientAuth::Basic,
        timeout: PATIENT,
        tls: None,
        proxy: None,
        read_proxy: None,
    }
}

fn client(options: OAuth2Options) -> OAuth2Client {
    OAuth2Client::new(options).expect("a client")
}

fn with_tokens(server: &Server, client: &OAuth2Client) -> HttpSink {
    sink(&server.base).with_tokens_of(client.clone())
}

#[tokio::test]
async fn a_token_that_is_refused_is_replaced_once_and_then_the_job_is_at_fault() {
    let tokens = token_server(None).await;
    let api = Server::start(|n| future::ready(empty(if n == 0 { 200 } else { 401 }))).await;
    let sink = with_tokens(&api, &client(client_options(&tokens.base)));
    delivered(sink.send(&job()).await);
    let outcome = sink.send(&job()).await;
    assert!(matches!(outcome, Outcome::Outdated { status: 401, replaced: true, .. }), "{outcome:?}");
    let outcome = sink.send(&job()).await;
    assert!(matches!(outcome, Outcome::Unauthorized { status: 401, .. }), "{outcome:?}");
    let sent: Vec<_> =
        api.seen().iter().map(|seen| seen.header("authorization").map(str::to_owned)).collect();
    assert_eq!(sent, ["t-0", "t-0", "t-1"].map(|token| Some(format!("Bearer {token}"))));
    assert_eq!(tokens.seen().len(), 2);
    // That is as new as the last one.
    assert_eq!((sink.read_secrets().await, tokens.seen().len()), (Ok(false), 2));
}

#[tokio::test]
async fn sinks_of_one_client_ask_once_however_many_requests_wait() {
    let tokens = token_server(None).await;
    let api = Server::always(200).await;
    let client = client(client_options(&tokens.base));
    let sinks = [with_tokens(&api, &client), with_tokens(&api, &client)];
    let jobs: Vec<Job> = (0..20).map(|_| job()).collect();
    let sends = jobs.iter().enumerate().map(|(n, job)| sinks[n % 2].send(job));
    futures_util::future::join_all(sends).await.into_iter().for_each(|outcome| drop(delivered(outcome)));
    assert_eq!((tokens.seen().len(), api.seen().len()), (1, 20));
    let seen = tokens.only();
    // "paced:s3cret"
    assert_eq!(seen.header("authorization"), Some("Basic cGFjZWQ6czNjcmV0"));
    assert_eq!((seen.target.as_str(), &seen.body[..]), ("/token", &b"grant_type=client_credentials"[..]));
}

#[tokio::test]
async fn without_a_token_server_nothing_is_sent_and_nobody_is_blamed() {
    let (_silent, address) = silent();
    let base = format!("http://{address}/");
    let api = Server::always(200).await;
    let sink = with_tokens(&api, &client(client_options(&base)));
    for _ in 0..3 {
        let (outcome, peer) = sink.send_and_tell(&job()).await;
        let Outcome::Unreachable { detail } = outcome else { panic!("no token, and sent") };
        assert_eq!(peer, address.to_string(), "it is the token server that failed");
        assert!(detail.starts_with("no OAuth2 token: the token server cannot be reached"), "{detail}");
    }
    let error = sink.try_connection().await.expect_err("no token");
    assert!(error.contains("refused") && !error.contains("s3cret"), "{error}");
    assert_eq!(api.seen().len(), 0);
}

#[tokio::test]
async fn a_token_that_cannot_be_replaced_blames_no_job() {
    let tokens = Server::start(|n| {
        future::ready(match n {
            0 => full(200, "{\"access_token\":\"t\",\"expires_in\":3600}"),
            _ => empty(503),
        })
    })
    .await;
    let api = Server::always(401).await;
    let sink = with_tokens(&api, &client(client_options(&tokens.base)));
    for _ in 0..3 {
        let outcome = sink.send(&job()).await;
        assert!(matches!(outcome, Outcome::Outdated { replaced: false, .. }), "{outcome:?}");
    }
    let error = sink.read_secrets().await.expect_err("no token");
    assert!(error.contains("503"), "{error}");
}

#[tokio::test]
async fn a_client_may_show_its_secret_in_the_body_by_a_proxy() {
    let proxy = token_server(None).await;
    let api = Server::always(200).await;
    let sink = with_tokens(
        &api,
        &client(OAuth2Options {
            proxy: Some(proxy.base.replace("http://", "http://me:hunter2@")),
            client_auth: ClientAuth::Post,
            scopes: vec!["a".to_owned(), "b".to_owned()],
            params: [("audience".to_owned(), "https://api.example.com/?a&b".to_owned())].into(),
            ..client_options("http://login.invalid/")
        }),
    );
    delivered(sink.send(&job()).await);
    let seen = proxy.only();
    assert_eq!(seen.target, "http://login.invalid/token");
    assert_eq!(
        &seen.body[..],
        b"grant_type=client_credentials&scope=a+b&audience=https%3A%2F%2Fapi.example.com%2F%3Fa%26b&client_id=paced&client_secret=s3cret"
    );
    assert_eq!((seen.header("host"), seen.header("authorization")), (Some("login.invalid"), None));
    // "me:hunter2"
    assert_eq!(seen.header("proxy-authorization"), Some("Basic bWU6aHVudGVyMg=="));
}

#[tokio::test]
async fn a_host_that_is_left_meanwhile_does_not_cost_the_token() {
    let (tokens, new) = (token_server(None).await, Server::always(200).await);
    let target = Arc::new(std::sync::OnceLock::<Target>::new());
    let (left, base_url) = (Arc::clone(&target), new.base.clone());
    let old = Server::start(move |_| {
        let texts = TargetTexts { base_url: base_url.clone(), proxy: None, headers: Vec::new() };
        left.get().expect("it is set").replace(texts, None).expect("a target");
        future::ready(empty(401))
    })
    .await;
    let sink = with_tokens(&old, &client(client_options(&tokens.base)));
    target.set(sink.target()).expect("it is not set yet");
    let outcome = sink.send(&job()).await;
    assert!(matches!(outcome, Outcome::Outdated { replaced: true, .. }), "{outcome:?}");
    delivered(sink.send(&job()).await);
    assert_eq!((old.seen().len(), new.seen().len(), tokens.seen().len()), (1, 1, 1));
}

#[tokio::test]
async fn a_proxy_is_read_again_for_each_token_and_stays_while_it_cannot_be() {
    let [old, new] = [token_server(None).await, token_server(None).await];
    let api = Server::always(200).await;
    for (read, by) in [(Ok(new.base.clone()), &new), (Err("the file is gone".to_owned()), &old)] {
        let options = OAuth2Options {
            proxy: Some(old.base.clone()),
            read_proxy: Some(ReadSecret::new(move || read.clone())),
            ..client_options("http://login.invalid/")
        };
        delivered(with_tokens(&api, &client(options)).send(&job()).await);
        assert_eq!(by.only().target, "http://login.invalid/token");
    }
}

#[tokio::test]
async fn a_token_server_with_an_authority_of_its_own() {
    let authority = Authority::new("ours");
    let (_folder, tls) = trusting(&authority, None);
    let issued = authority.issue(&["127.0.0.1"]);
    let tokens = token_server(Some(TlsAcceptor::from(issued.server(None, rustls::ALL_VERSIONS)))).await;
    let good = OAuth2Options { tls: Some(tls), ..client_options(&tokens.base) };
    assert_eq!(client(good).check().await, Ok(()));
    let error = client(client_options(&tokens.base)).check().await.expect_err("not trusted");
    assert!(error.contains("certificate") && !error.contains("s3cret"), "{error}");
}

#[tokio::test]
async fn a_file_that_has_changed_when_a_request_is_refused_is_sent_with_the_next() {
    let kept = Arc::new(Mutex::new("old"));
    let api = Server::start(|n| future::ready(empty(if n == 0 { 200 } else { 401 }))).await;
    let source = Arc::clone(&kept);
    let base = api.base.clone();
    let read = move || {
        let headers = vec![pair("authorization", *source.lock().expect("no panic"))];
        Ok(TargetTexts { base_url: base.clone(), proxy: None, headers })
    };
    let files = TargetFiles { name: "billing".to_owned(), files: Vec::new(), read: Arc::new(read) };
    let options = HttpOptions { headers: vec![pair("authorization", "old")], ..options(&api.base) };
    let sink = HttpSink::new(options).expect("a sink").reading_again(files);
    delivered(sink.send(&job()).await);
    let outcome = sink.send(&job()).await;
    assert!(matches!(outcome, Outcome::Unauthorized { status: 401, .. }), "it is the same: {outcome:?}");
    *kept.lock().expect("no panic") = "new";
    let outcome = sink.send(&job()).await;
    assert!(matches!(outcome, Outcome::Outdated { replaced: true, .. }), "{outcome:?}");
    let outcome = sink.send(&job()).await;
    assert!(matches!(outcome, Outcome::Unauthorized { status: 401, .. }), "it was sent: {outcome:?}");
    assert_eq!(api.seen().last().expect("a request").header("authorization"), Some("new"));
}
