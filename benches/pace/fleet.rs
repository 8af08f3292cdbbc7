//! Several replicas of one configuration, each a process that names itself at the API.

use std::collections::BTreeMap;

use crate::stage::{Site, stop};
use crate::support::api::Arrival;
use crate::support::daemon::Paced;

/// The header that names the replica.
pub const REPLICA: &str = "x-replica";

/// Starts a daemon for each of these stores, and waits until all are ready. `tables` writes the downstreams of a
/// replica by its number, from 1 on.
pub async fn start(
    site: &Site,
    stores: &[String],
    tables: impl Fn(usize) -> String,
) -> Result<Vec<Paced>, String> {
    let mut replicas: Vec<Paced> = Vec::new();
    for (index, store) in stores.iter().enumerate() {
        let site = Site { store: store.clone(), ..site.clone() };
        replicas.push(Paced::try_start(&site.config(&tables(index + 1)), &[], &[]).await?);
    }
    for replica in &replicas {
        replica.try_ready().await?;
    }
    Ok(replicas)
}

/// The table of a downstream at this rate, for the replica of this number.
pub fn table(name: &str, rate: u32, url: &str, replica: usize) -> String {
    format!(
        "[downstreams.{name}]\nrate = '{rate}/s'\nhttp.base_url = '{url}'\n\
         http.headers = {{ {REPLICA} = '{replica}' }}\n"
    )
}

/// Ends all of them. Jobs that would come twice come before they have stopped.
pub async fn end(replicas: Vec<Paced>) -> Result<(), String> {
    for replica in replicas {
        stop(replica).await?;
    }
    Ok(())
}

/// The smallest and the largest share that one of the replicas released, in percent.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub fn shares(arrivals: &[Arrival], replicas: usize) -> (f64, f64) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for arrival in arrivals {
        *counts.entry(arrival.header(REPLICA).unwrap_or_default()).or_default() += 1;
    }
    let share = |count: usize| 100.0 * count as f64 / arrivals.len().max(1) as f64;
    let most = share(counts.values().copied().max().unwrap_or(0));
    let least = if counts.len() < replicas { 0 } else { counts.values().copied().min().unwrap_or(0) };
    (share(least), most)
}
