use std::time::Duration;

use paced::{RedisOptions, RedisStore, Shaper};

async fn shaper(redis: Option<&str>) -> Result<Shaper, Box<dyn std::error::Error>> {
    let mut builder = Shaper::builder("billing", "50/s".parse()?)
        .burst(5)
        .max_wait(Duration::from_secs(30)); // beyond: an error whose `retry_after()` names the wait
    if let Some(url) = redis {
        builder = builder.store(RedisStore::connect(url, RedisOptions::default()).await?);
    }
    Ok(builder.build()?)
}

async fn later(shaper: &Shaper) -> Result<(), Box<dyn std::error::Error>> {
    let reservation = shaper.reserve("tenant-42").await?; // never waits; far ahead only where nobody else waits in order
    reservation.wait().await; // until its slot on the store's clock, never early
    if !reservation.is_missed() {
        // ... call the API; had this process stood still, it would reserve again
    }
    Ok(())
}
