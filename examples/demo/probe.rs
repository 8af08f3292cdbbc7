//! What this machine itself adds between a client that sends and an API that stamps: measured
//! all along, so that its pauses are not taken for a daemon's.

use std::io;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::support::api::{Api, stamp};
use crate::support::http_client;

const EVERY: Duration = Duration::from_millis(10);
const SENT: &str = "x-sent";

/// Sends requests to an API of its own.
pub struct Probe {
    api: Api,
    task: JoinHandle<()>,
}

/// One request's way: ns, from when it was handed over until it was stamped.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    pub sent: u64,
    pub arrived: u64,
}

impl Delay {
    pub fn length(self) -> Duration {
        Duration::from_nanos(self.arrived.saturating_sub(self.sent))
    }
}

impl Probe {
    pub fn start() -> io::Result<Self> {
        let api = Api::try_start(0)?;
        let (client, url) = (http_client(), api.url());
        let task = tokio::spawn(async move {
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                ticks.tick().await;
                let request = client.get(&url).header(SENT, stamp().to_string());
                // One that fails measures nothing.
                let _ = request.send().await;
            }
        });
        Ok(Self { api, task })
    }

    /// Ends it; what it measured.
    pub fn end(self) -> Vec<Delay> {
        self.task.abort();
        let arrivals = self.api.arrivals();
        let delay = |arrival: &crate::support::api::Arrival| {
            Some(Delay { sent: arrival.header(SENT)?.parse().ok()?, arrived: arrival.at })
        };
        // The first one connects, as no daemon does at a slot.
        arrivals.iter().skip(1).filter_map(delay).collect()
    }
}
