//! Answers that arrive before their request was written.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::warm::pass;
use super::*;

/// More bytes than the system buffers.
const LONG: usize = 32 << 20;

/// Sends one request to a server for one connection, which `serve` acts as; returns the outcome and what `serve`
/// returns.
async fn send_to<F, S, T>(timeout: Duration, serve: F) -> (Outcome, T)
where
    F: FnOnce(TcpStream) -> S,
    S: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}/", listener.local_addr().expect("an address"));
    let sink = HttpSink::new(HttpOptions { timeout, ..options(&base) }).expect("a sink");
    let job = Job { content: Bytes::from(vec![b'x'; LONG]).into(), ..job() };
    let server = async {
        let (stream, _) = listener.accept().await.expect("a connection");
        tokio::spawn(serve(stream)).await.expect("no panic")
    };
    tokio::join!(sink.send(&job), server)
}

/// Reads the head, and returns the length of the part of the body that arrived with it.
async fn read_head(stream: &mut TcpStream) -> usize {
    let mut read = Vec::new();
    loop {
        assert!(stream.read_buf(&mut read).await.expect("a request") > 0);
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            return read.len() - end - 4;
        }
    }
}

/// Reads up to `bytes` of the body in all, of which `read` were read before.
async fn read_body(stream: &mut TcpStream, mut read: usize, bytes: usize) -> usize {
    let mut piece = vec![0; 65_536];
    while read < bytes {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(some) => read += some,
        }
    }
    read
}

#[tokio::test]
async fn an_early_2xx_waits_for_the_rest_of_its_request() {
    for head in [
        "content-length: 0\r\n\r\n",
        "content-length: 0\r\nconnection: close\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ] {
        let (is_half_read, half_read) = oneshot::channel();
        let (resume, resumed) = oneshot::channel();
        let outcome = send_to(SECOND * 3600, |mut stream| async move {
            let read = read_head(&mut stream).await;
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes()).await.expect("an answer");
            let read = read_body(&mut stream, read, LONG / 2).await;
            is_half_read.send(()).expect("the test waits");
            resumed.await.expect("the test resumes");
            read_body(&mut stream, read, LONG).await
        });
        let mut outcome = std::pin::pin!(outcome);
        tokio::select! {
            (outcome, _) = &mut outcome => panic!("{head}: {outcome:?}"),
            () = async {
                half_read.await.expect("no panic");
                for _ in 0..10 {
                    pass(SECOND * 10).await;
                    tokio::task::yield_now().await;
                }
            } => {}
        }
        resume.send(()).expect("the server waits");
        let (outcome, read) = outcome.await;
        assert_eq!(delivered(outcome).status, 200, "{head}");
        assert_eq!(read, LONG, "{head}");
    }
}

#[tokio::test]
async fn a_2xx_whose_request_is_cut_off_is_no_delivery() {
    for head in ["content-length: 0\r\n\r\n", "content-length: 0\r\nconnection: close\r\n\r\n"] {
        let (outcome, read) = send_to(PATIENT, |mut stream| async move {
            let read = read_head(&mut stream).await;
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes()).await.expect("an answer");
            read_body(&mut stream, read, LONG / 4).await
        })
        .await;
        let (reason, detail) = retry(outcome);
        assert_eq!(reason, "connection", "{detail}");
        assert!(detail.contains("before the whole request was sent"), "{detail}");
        assert!(read < LONG / 2, "{read}");
    }
}

#[tokio::test]
async fn a_2xx_whose_request_is_not_read_in_time_is_no_delivery() {
    let (is_answered, answered) = oneshot::channel();
    let sending = send_to(SECOND * 3, |mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").await.expect("an answer");
        is_answered.send(()).expect("the test waits");
        stream
    });
    let passing = async {
        answered.await.expect("no panic");
        settle().await;
        pass(SECOND * 3).await;
    };
    let ((outcome, _stream), ()) = tokio::join!(sending, passing);
    let (reason, detail) = retry(outcome);
    assert_eq!(reason, "timeout", "{detail}");
    assert!(detail.contains("202 Accepted"), "{detail}");
}

#[tokio::test]
async fn any_other_early_answer_counts_at_once() {
    // The first server keeps the connection and reads nothing more; the second closes it, which resets it.
    for keeps in [true, false] {
        let (outcome, _stream) = send_to(Duration::from_secs(3600), move |mut stream| async move {
            read_head(&mut stream).await;
            let answer = b"HTTP/1.1 413 Too Long\r\ncontent-length: 4\r\nconnection: close\r\n\r\nlong";
            stream.write_all(answer).await.expect("an answer");
            keeps.then_some(stream)
        })
        .await;
        let Outcome::Dead { reason: Reason::Status, status: Some(413), .. } = outcome else {
            panic!("{keeps}: {outcome:?}")
        };
    }
}

#[tokio::test]
async fn a_server_that_writes_its_answer_before_it_reads_on_is_not_waited_for() {
    let (outcome, read) = send_to(PATIENT, |mut stream| async move {
        let read = read_head(&mut stream).await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LONG}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("an answer");
        stream.write_all(&vec![b'y'; LONG]).await.expect("the answer's body");
        read_body(&mut stream, read, LONG).await
    })
    .await;
    assert_eq!((delivered(outcome).status, read), (200, LONG));
}

/// Sends requests to a server whose answers have this many headers; returns the last outcome and the number of
/// requests.
async fn answers_with_headers(headers: usize) -> (Outcome, usize) {
    let head = (0..headers).fold("HTTP/1.1 200 OK\r\n".to_owned(), |head, n| head + &format!("x-{n}: y\r\n"));
    let (outcome, requests) = send_to(PATIENT, move |mut stream| async move {
        let read = read_head(&mut stream).await;
        assert_eq!(read_body(&mut stream, read, LONG).await, LONG);
        stream
            .write_all(format!("{head}content-length: 0\r\nconnection: close\r\n\r\n").as_bytes())
            .await
            .expect("an answer");
        // No other request arrives, on this connection or another one.
        1 + stream.read(&mut [0; 1]).await.unwrap_or(0)
    })
    .await;
    (outcome, requests)
}

#[tokio::test]
async fn an_answer_of_many_headers_is_read() {
    for headers in [99, 150, 155] {
        let (outcome, requests) = answers_with_headers(headers).await;
        assert_eq!((delivered(outcome).status, requests), (200, 1), "{headers}");
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_parsed_is_distinguished() {
    let (outcome, requests) = answers_with_headers(200).await;
    let Outcome::Unreadable { detail } = outcome else { panic!("{outcome:?}") };
    assert!(detail.starts_with("the answer cannot be parsed: ") && requests == 1, "{detail}");
    let (outcome, ()) = send_to(PATIENT, |mut stream| async move {
        let read = read_head(&mut stream).await;
        read_body(&mut stream, read, LONG).await;
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n\r\n").await.expect("an answer");
    })
    .await;
    assert!(matches!(outcome, Outcome::Unreadable { .. }), "{outcome:?}");
}
