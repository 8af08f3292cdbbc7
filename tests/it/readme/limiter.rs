use paced::{Limit, Limiter, LimiterFallback};

// Made once, since it keeps what was taken; clones are one limiter.
fn limiter() -> Result<Limiter, Box<dyn std::error::Error>> {
    Ok(Limiter::builder("api")
        .limit(Limit::gcra("per-second", "10/s".parse()?, 20)?)
        .limit(Limit::sliding_log("per-hour", 1000, std::time::Duration::from_secs(3600))?)
        .on_unavailable(LimiterFallback::Local) // once a call has found Redis away
        .build()?)
}

async fn handle(limiter: &Limiter, caller: &str) -> Result<(), Box<dyn std::error::Error>> {
    let decision = limiter.check(caller).await?; // charged if it is allowed
    if !decision.allowed {
        println!("429, Retry-After: {:?}; {} remaining", decision.retry_after, decision.remaining);
    }
    Ok(())
}
