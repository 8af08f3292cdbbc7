//! Answers, and the gate that holds them back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use super::super::apart;

/// The answer of the API to one request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) delay: Duration,
    pub(super) gate: Option<Gate>,
    pub(super) hang_up: bool,
}

impl Answer {
    /// This status with an empty body.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
            delay: Duration::ZERO,
            gate: None,
            hang_up: false,
        }
    }

    /// 200.
    pub fn ok() -> Self {
        Self::status(200)
    }

    /// Closes the connection instead of answering.
    pub fn hang_up() -> Self {
        Self { hang_up: true, ..Self::ok() }
    }

    /// Adds this header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets this body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Delays the answer by this time after the request.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Holds the answer back until the gate lets it through.
    #[must_use]
    pub fn gated(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }
}

/// Holds answers back until the test lets them go.
#[derive(Clone, Debug)]
pub struct Gate {
    permits: Arc<Semaphore>,
    waiting: Arc<watch::Sender<usize>>,
}

impl Gate {
    /// Creates a closed gate.
    pub fn closed() -> Self {
        Self { permits: Arc::new(Semaphore::new(0)), waiting: Arc::new(watch::Sender::new(0)) }
    }

    /// Lets `count` answers through, now or later.
    pub fn let_through(&self, count: usize) {
        self.permits.add_permits(count);
    }

    /// Lets all answers through, for good.
    pub fn open(&self) {
        self.permits.close();
    }

    /// The number of answers that are held at present.
    pub fn waiting(&self) -> usize {
        *self.waiting.borrow()
    }

    /// Waits until at least `count` answers are held; panics after `within`.
    pub async fn wait_for(&self, count: usize, within: Duration) {
        let held = reaches(&self.waiting, count, within).await;
        assert!(held, "{} requests, not {count}, are held at the gate after {within:?}", self.waiting());
    }

    pub(super) async fn pass(&self) {
        self.waiting.send_modify(|count| *count += 1);
        // An answer whose client went away is dropped while it waits.
        let _leave = Leave(&self.waiting);
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
    }
}

/// Decrements the count when dropped.
pub(super) struct Leave<'a>(pub(super) &'a watch::Sender<usize>);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Waits, in real time, until the count is reached.
pub(super) async fn reaches(count: &watch::Sender<usize>, least: usize, within: Duration) -> bool {
    let mut receiver = count.subscribe();
    apart(async move {
        let reached = receiver.wait_for(|count| *count >= least);
        matches!(tokio::time::timeout(within, reached).await, Ok(Ok(_)))
    })
    .await
}
