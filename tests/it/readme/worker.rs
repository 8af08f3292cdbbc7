use paced::Shaper;

async fn work(config: &str) -> Result<(), Box<dyn std::error::Error>> {
    let shaper = Shaper::from_config(config, "billing")?; // "paced.toml"
    shaper.acquire("tenant-42").await?; // returns when its slot has come; dropped, it takes none
    // ... call the API ...

    shaper.schedule("tenant-42", async { /* or all in one */ }).await?;

    // The API answered 429: nobody calls it for so long, daemons and other workers neither.
    shaper.penalize(std::time::Duration::from_secs(5)).await?;
    shaper.set_rate("20/s".parse()?, None).await?; // as `paced rate set` does
    Ok(())
}
