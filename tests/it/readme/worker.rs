async fn work(config: &str) -> Result<(), Box<dyn std::error::Error>> {
    let shaper = paced::Shaper::from_config(config, "billing")?; // "paced.toml"
    shaper.acquire("tenant-42").await?; // returns when its slot has come; a dropped call takes none
    // ... call the API ...
    shaper.schedule("tenant-42", async { /* or both in one */ }).await?;

    // The API answered 429: no worker and no daemon calls it for 5 s.
    shaper.penalize(std::time::Duration::from_secs(5)).await?;
    shaper.set_rate("20/s".parse()?, None).await?; // as `paced rate set` does
    Ok(())
}
