//! Headers that are read again, and trial connections without a job.

use super::*;

#[tokio::test]
async fn headers_that_are_read_again_are_sent_from_then_on() {
    let server = Server::always(200).await;
    let kept = Arc::new(Mutex::new(Ok("old")));
    let given = vec![pair("authorization", "old"), pair("x-client", "paced")];
    let options = HttpOptions { headers: given, ..options(&server.base) };
    let source = Arc::clone(&kept);
    let read = move || {
        let text = *source.lock().expect("no panic");
        text.map(|text| vec![pair("authorization", text)]).map_err(str::to_owned)
    };
    let files = HeaderFiles { name: "billing".to_owned(), files: Vec::new(), read: Arc::new(read) };
    let sink = HttpSink::new(options).expect("a sink").reading_headers_again(files);
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
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}/", listener.local_addr().expect("an address"));
    drop(listener);
    let error = sink(&base).try_connection().await.expect_err("nobody listens");
    assert!(error.contains("refused"), "{error}");
}
