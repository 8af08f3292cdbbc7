//! Pacing inside a worker: four tasks share 20 calls a second, with each other and, given a
//! Redis, with every other process that runs this. Given a file, the pace survives the process.
//!
//!     cargo run --features redis --example embed -- [memory:|file:PATH|redis://HOST] [COUNT] [RATE]
//!
//! Prints the slot of each call, in µs on the store's clock.

use std::error::Error;
use std::sync::Arc;

use paced::{FileStore, MemoryStore, Rate, RedisOptions, RedisStore, Shaper, Store};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "memory:".to_owned());
    let count: usize = args.next().map_or(Ok(10), |count| count.parse())?;
    let rate: Rate = args.next().unwrap_or_else(|| "20/s".to_owned()).parse()?;

    let store: Arc<dyn Store> = match url.strip_prefix("file:") {
        Some(path) => Arc::new(FileStore::open(path)?),
        None if url == "memory:" => Arc::new(MemoryStore::new()),
        None => Arc::new(RedisStore::connect(&url, RedisOptions::default()).await?),
    };
    let shaper = Shaper::builder("embed-example", rate).store(Arc::clone(&store)).build()?;

    let mut workers = JoinSet::new();
    for worker in 0..4 {
        let shaper = shaper.clone();
        workers.spawn(async move {
            for _job in (worker..count).step_by(4) {
                let reservation = shaper.reserve("tenant-42").await?;
                reservation.wait().await;
                println!("{}", reservation.slot()); // here the API would be called
            }
            Ok::<_, paced::ReserveError>(())
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    store.finish().await?;
    Ok(())
}
