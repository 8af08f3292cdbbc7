//! Finds out at the start in which queues jobs wait, so that these can be consumed first. A passive declaration takes the broker
//! a tenth of the time of a consumer.

use std::time::Duration;

use futures_util::future::join_all;
use lapin::Connection;
use tokio::sync::mpsc;
use tracing::debug;

use super::Amqp;
use super::connection::{channel, close};
use super::error::Error;
use super::supervisor::{ConnectionWatch, up};
use super::topology::find_queue;

/// How many queues are asked for at a time.
const AT_ONCE: usize = 64;

/// The survey ends after this number of queues that cannot be looked up: each of them costs a channel.
const FAILURES: usize = 16;

/// How long the survey may take, with the wait for the connection.
const LONGEST: Duration = Duration::from_secs(10);

/// A queue, and the downstream that it belongs to.
struct Place {
    downstream: String,
    queue: String,
}

impl Amqp {
    /// Starts to look up in which queues jobs wait. The names of their downstreams come as they are found, and some come twice.
    /// The end of the names means that all queues were looked up, or that the broker does not answer in time, or that too many
    /// queues are missing.
    pub fn with_jobs(&self) -> mpsc::UnboundedReceiver<String> {
        let (names, downstreams) = (self.options.names(), self.options.downstreams.iter());
        let jobs = downstreams.clone().map(|downstream| (downstream, names.queue(downstream)));
        // Jobs that were parked may have come home meanwhile.
        let home = downstreams.map(|downstream| (downstream, names.home_queue(&downstream.name)));
        let place = |(downstream, queue): (&super::Downstream, String)| Place {
            downstream: downstream.name.clone(),
            queue,
        };
        let (sender, found) = mpsc::unbounded_channel();
        let survey = run(self.links.first().current, jobs.chain(home).map(place).collect(), sender);
        self.subscribers.tasks.spawn(self.subscribers.closing.clone().run_until_cancelled_owned(survey));
        found
    }

    /// Waits until this downstream is consumed, or there is none of this name.
    ///
    /// Cancel safe.
    pub async fn attached(&self, downstream: &str) {
        self.consumers.attached(downstream).await;
    }
}

/// Looks up these queues in their order, and sends the downstream of each queue in which jobs wait.
async fn run(mut current: ConnectionWatch, places: Vec<Place>, found: mpsc::UnboundedSender<String>) {
    let survey = async {
        match up(&mut current).await {
            Some(connection) => look_up(&connection, &places, &found).await,
            None => Ok(()),
        }
    };
    match tokio::time::timeout(LONGEST, survey).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "not all queues were looked up before they are consumed"),
        Err(_) => debug!("not all queues were looked up in time before they are consumed"),
    }
}

/// Asks for the lengths of some queues at a time, over one channel.
async fn look_up(
    connection: &Connection,
    mut places: &[Place],
    found: &mpsc::UnboundedSender<String>,
) -> Result<(), Error> {
    let mut failures = 0;
    let mut asking = channel(connection).await?;
    while !places.is_empty() {
        let now = &places[..places.len().min(AT_ONCE)];
        // Each name is sent as it is found: one queue that hangs does not keep back those before it.
        let ask = async |place: &Place| {
            let length = find_queue(&asking, &place.queue).await?;
            // Whether somebody still waits for the names is asked below.
            if length > 0 {
                let _ = found.send(place.downstream.clone());
            }
            Ok::<_, Error>(())
        };
        let mut lengths = join_all(now.iter().map(ask)).await;
        if found.is_closed() {
            break;
        }
        // The broker closes the channel at the first queue that is missing, and does not look up the next ones.
        let failed = lengths.iter().position(Result::is_err);
        places = &places[failed.map_or(now.len(), |failed| failed + 1)..];
        if let Some(Err(error)) = failed.map(|failed| lengths.swap_remove(failed)) {
            failures += 1;
            close(&asking).await;
            if failures > FAILURES || !connection.status().connected() {
                return Err(error);
            }
            asking = channel(connection).await?;
        }
    }
    close(&asking).await;
    Ok(())
}
