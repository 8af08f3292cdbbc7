//! Answers whose bodies take long, break off, or never end, before a whole daemon.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::support::daemon::Paced;
use crate::support::publish::{self, Job};
use crate::support::site::Site;
use crate::support::{LONG, eventually};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n";

/// An API that answers in pieces.
struct Api {
    url: String,
    /// The path of each request, in order.
    seen: Arc<Mutex<Vec<String>>>,
    /// Whether answers that wait may end.
    may_end: watch::Sender<bool>,
    _accept: AbortOnDropHandle<()>,
}

impl Api {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (seen, may_end) = (Arc::<Mutex<Vec<String>>>::default(), watch::Sender::new(false));
        let (record, end) = (Arc::clone(&seen), may_end.clone());
        let accept = tokio::spawn(async move {
            // They end with the server.
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(serve(stream, Arc::clone(&record), end.subscribe()));
            }
        });
        Self { url, seen, may_end, _accept: AbortOnDropHandle::new(accept) }
    }

    fn count(&self, path: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| *seen == path).count()
    }

    /// A replica whose jobs go here.
    async fn replica(&self, site: &Site) -> Paced {
        Paced::spawn(&site.config().replace(&site.api.url(), &self.url)).await
    }
}

/// Reads the head of a request, which has no body, and returns its path; `None` at the end of the connection.
async fn path(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).split_whitespace().nth(1)?.to_owned())
}

/// Answers the requests of a connection, until the client or the answer ends it.
async fn serve(
    mut stream: TcpStream,
    seen: Arc<Mutex<Vec<String>>>,
    mut may_end: watch::Receiver<bool>,
) -> Option<()> {
    while let Some(path) = path(&mut stream).await {
        let is_first = !seen.lock().unwrap().contains(&path);
        seen.lock().unwrap().push(path.clone());
        let kind: &[u8] =
            if path == "/events" { b"content-type: text/event-stream\r\n\r\n" } else { b"\r\n" };
        stream.write_all(&[HEAD, kind, b"5\r\nbegin\r\n"].concat()).await.ok()?;
        match path.as_str() {
            "/cut" if is_first => return None,
            "/slow" => drop(may_end.wait_for(|may| *may).await),
            "/events" => loop {
                stream.write_all(b"9\r\ndata: 1\n\n\r\n").await.ok()?;
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            },
            _ => {}
        }
        stream.write_all(b"3\r\nend\r\n0\r\n\r\n").await.ok()?;
    }
    None
}

#[tokio::test]
async fn a_success_is_read_to_its_end_and_asked_for_again_if_it_breaks_off() {
    let mut site =
        Site::shared("streams", "rate = '200/s'\n[downstreams.billing.retry]\nmin_backoff = '10ms'").await;
    site.http = "[reply]\nallow = ['replies-']".to_owned();
    let api = Api::start().await;
    let replies = format!("replies-{}", site.prefix);
    publish::declare_quorum(&site.amqp, &replies).await;
    let replica = api.replica(&site).await;
    let job = |path: &str| {
        let mut job = Job::new(path).header("paced-path", path);
        job.properties =
            job.properties.with_reply_to(replies.as_str().into()).with_correlation_id(path.into());
        job
    };
    site.publish(vec![job("slow"), job("cut"), job("whole")]).await;
    // The one that is still sent is not settled before its end.
    site.depth(&replies, 2, LONG).await;
    assert_eq!((api.count("/slow"), api.count("/cut"), api.count("/whole")), (1, 2, 1));
    api.may_end.send_replace(true);
    site.depth(&replies, 3, LONG).await;
    let answers: BTreeMap<String, Value> = publish::drain(&site.amqp, &replies)
        .await
        .into_iter()
        .map(|reply| {
            let id = reply.properties.correlation_id().as_ref().unwrap().to_string();
            (id, serde_json::from_slice(&reply.body).unwrap())
        })
        .collect();
    for path in ["slow", "cut", "whole"] {
        assert_eq!(
            (&answers[path]["status"], &answers[path]["body"]),
            (&200.into(), &"beginend".into()),
            "{path}"
        );
    }
    assert_eq!(api.seen.lock().unwrap().len(), 4);
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn an_endless_stream_of_events_is_delivered_once_at_a_stop_or_at_the_time_out() {
    let mut site = Site::shared("events", "rate = '200/s'").await;
    let api = Api::start().await;
    let replica = api.replica(&site).await;
    let job = || vec![Job::new("events").header("paced-path", "events")];
    site.publish(job()).await;
    eventually("the stream has begun", LONG, || api.count("/events") == 1).await;
    // The drain may take 25 s: it does not wait for events.
    assert_eq!(replica.stop().await, 0);
    replica.wait_line("had not ended", LONG).await;
    site.depth(&site.queue(), 0, LONG).await;

    // Long enough for the head of an answer on a busy machine.
    site.http = "timeout = '3s'".to_owned();
    let replica = api.replica(&site).await;
    site.publish(job()).await;
    replica.wait_line("had not ended", LONG).await;
    assert_eq!(replica.stop().await, 0);
    site.depth(&site.queue(), 0, LONG).await;
    assert_eq!((api.count("/events"), site.dead(0, LONG).await.len()), (2, 0));
}
