//! Headers, base URLs and proxies that are read again, and trial connections without a job.

use super::*;

#[tokio::test]
async fn headers_that_are_read_again_are_sent_from_then_on() {
    let server = Server::always(200).await;
    let kept = Arc::new(Mutex::new(Ok("old")));
    let given = vec![pair("authorization", "old"), pair("x-client", "paced")];
    let options = HttpOptions { headers: given, ..options(&server.base) };
    let (source, base_url) = (Arc::clone(&kept), server.base.clone());
    let sink = HttpSink::new(options).expect("a sink").reading_again(files(move || {
        let text = source.lock().expect("no panic").map_err(str::to_owned)?;
        let headers = vec![pair("authorization", text)];
        Ok(TargetTexts { base_url: base_url.clone(), proxy: None, headers })
    }));
    let sent = async |expected: [Option<&str>; 2]| {
        delivered(sink.send(&job()).await);
        let seen = server.seen();
        let last = seen.last().expect("a request");
        assert_eq!(["authorization", "x-client"].map(|name| last.header(name)), expected);
    };
    sent([Some("old"), Some("paced")]).await;
    assert_eq!(sink.read_secrets().await, Ok(true), "one header is gone");
    assert_eq!(sink.read_secrets().await, Ok(false));
    sent([Some("old"), None]).await;
    *kept.lock().expect("no panic") = Ok("new");
    assert_eq!(sink.read_secrets().await, Ok(true));
    sent([Some("new"), None]).await;
    // Headers that cannot be read, or cannot be sent, change nothing and are not shown.
    for wrong in [Err("the file is gone"), Ok("s3cret\n")] {
        *kept.lock().expect("no panic") = wrong;
        let error = sink.read_secrets().await.expect_err("no headers");
        assert!(!error.contains("s3cret") && !error.is_empty(), "{error}");
        sent([Some("new"), None]).await;
    }
}

/// Files that are read so.
fn files(read: impl Fn() -> Result<TargetTexts, String> + Send + Sync + 'static) -> TargetFiles {
    TargetFiles { name: "billing".to_owned(), files: Vec::new(), read: Arc::new(read) }
}

#[tokio::test]
async fn a_base_url_and_a_proxy_that_are_read_again_lead_elsewhere_from_then_on() {
    let [old, new, proxy] = [Server::always(200).await, Server::always(200).await, Server::always(200).await];
    let texts =
        |base_url: String, proxy: Option<String>| TargetTexts { base_url, proxy, headers: Vec::new() };
    let kept = Arc::new(Mutex::new(texts(old.base.clone(), None)));
    let source = Arc::clone(&kept);
    let sink = sink(&old.base).reading_again(files(move || Ok(source.lock().expect("no panic").clone())));
    let read = async |texts: TargetTexts| {
        *kept.lock().expect("no panic") = texts;
        sink.read_secrets().await
    };
    let send = async || drop(delivered(sink.send(&job()).await));
    send().await;
    // Another path and login of the same server, as where a webhook's URL is a secret: the connection stays.
    let with_login = old.base.replace("http://", "http://me:hunter2@");
    assert_eq!(read(texts(format!("{with_login}hook/t0ken/"), None)).await, Ok(true));
    send().await;
    let seen = old.seen();
    assert_eq!([seen[0].target.as_str(), seen[1].target.as_str()], ["/", "/hook/t0ken/"]);
    // "me:hunter2"
    assert_eq!(seen[1].header("authorization"), Some("Basic bWU6aHVudGVyMg=="));
    assert_eq!(old.connections(), 1);
    // Another server.
    assert_eq!(read(texts(new.base.clone(), None)).await, Ok(true));
    assert_eq!(read(texts(new.base.clone(), None)).await, Ok(false));
    assert_eq!(sink.try_connection().await, Ok(()));
    send().await;
    assert_eq!((old.seen().len(), new.seen().len(), new.connections()), (2, 1, 1));
    assert_eq!(
        (new.seen()[0].header("authorization"), new.seen()[0].header("host")),
        (None, new.base.split('/').nth(2))
    );
    // A proxy, by which the same server is reached.
    let by = proxy.base.replace("http://", "http://me:hunter2@");
    assert_eq!(read(texts(new.base.clone(), Some(by))).await, Ok(true));
    send().await;
    assert_eq!(proxy.only().target, new.base);
    assert_eq!(proxy.only().header("proxy-authorization"), Some("Basic bWU6aHVudGVyMg=="));
    // What cannot be used changes nothing, and is not shown.
    for wrong in ["s3cret", "http://169.254.169.254/s3cret/", "http://me:s3cret@localhost/#a"] {
        let error = read(texts(wrong.to_owned(), None)).await.expect_err("no target");
        assert!(!error.contains("s3cret"), "{error}");
        send().await;
    }
    assert_eq!((old.seen().len(), new.seen().len(), proxy.seen().len()), (2, 1, 4));
}

#[tokio::test]
async fn what_a_request_went_by_is_compared_with_what_is_in_use() {
    let server = Server::start(|_| future::ready(empty(401))).await;
    let kept = Arc::new(Mutex::new(server.base.clone()));
    let source = Arc::clone(&kept);
    let sink = sink(&server.base).reading_again(files(move || {
        let base_url = source.lock().expect("no panic").clone();
        Ok(TargetTexts { base_url, proxy: None, headers: Vec::new() })
    }));
    let outcome = sink.send(&job()).await;
    assert!(matches!(outcome, Outcome::Unauthorized { .. }), "{outcome:?}");
    for base in ["new/", "newer/", "newer/?key=1", "newer/?key=2"] {
        *kept.lock().expect("no panic") = format!("{}{base}", server.base);
        let outcome = sink.send(&job()).await;
        assert!(matches!(outcome, Outcome::Outdated { replaced: true, .. }), "{base} {outcome:?}");
    }
}

#[tokio::test]
async fn a_header_that_is_replaced_with_its_host_never_goes_to_the_old_one() {
    let [old, new] = [Server::always(200).await, Server::always(200).await];
    let sink = sink(&old.base);
    delivered(sink.send(&job()).await);
    let headers = vec![pair("authorization", "new")];
    let texts = TargetTexts { base_url: new.base.clone(), proxy: None, headers };
    assert_eq!(sink.target().replace(texts, None), Ok(()));
    delivered(sink.send(&job()).await);
    assert_eq!(old.only().header("authorization"), None);
    assert_eq!(new.only().header("authorization"), Some("new"));
    // What cannot be used changes nothing, the headers with it neither.
    let headers = vec![pair("authorization", "newer")];
    let wrong = TargetTexts { base_url: "ftp://localhost/".to_owned(), proxy: None, headers };
    assert!(sink.target().replace(wrong, None).is_err());
    delivered(sink.send(&job()).await);
    assert_eq!(new.seen()[1].header("authorization"), Some("new"));
}

#[tokio::test]
async fn without_a_way_to_read_them_headers_stay() {
    let server = Server::always(200).await;
    assert_eq!(sink(&server.base).read_secrets().await, Ok(false));
}

#[tokio::test]
async fn a_connection_is_tried_without_a_request_and_kept_for_the_next() {
    let server = Server::always(200).await;
    let sink = sink(&server.base);
    assert_eq!(sink.try_connection().await, Ok(()));
    until(|| server.connections() == 1).await;
    assert_eq!(server.seen().len(), 0);
    delivered(sink.send(&job()).await);
    assert_eq!((server.connections(), server.seen().len()), (1, 1));
}

#[tokio::test]
async fn a_connection_that_cannot_be_opened_is_explained() {
    let (_silent, address) = silent();
    let error = sink(&format!("http://{address}/")).try_connection().await.expect_err("nobody listens");
    assert!(error.contains("refused"), "{error}");
}
