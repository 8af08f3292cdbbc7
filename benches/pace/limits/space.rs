//! Bytes per key, in Redis.

use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use super::figure;
use super::remote::{Paced, connect};
use crate::figures::{Bound, Figure, Section, Unit};
use crate::support::servers::Redis;

const SPACE: Figure = figure("memory per key", Unit::Bytes);

const COLUMN: &str = "100 000 keys";
const KEYS: usize = 100_000;
const FILLERS: usize = 64;

/// Measures the memory that Redis reports before and after the keys are written, and whether each expires. The server
/// is dedicated: nothing else is written or expires meanwhile.
pub async fn measure(section: &mut Section) -> Result<(), String> {
    let redis = Redis::try_dedicated().await?;
    let url = redis.url();
    let paced = Paced::connect(&url, &[1]).await?;
    let mut connection = connect(&url).await?;
    let before = Held::by(&mut connection).await?;
    fill(&paced).await?;
    let after = Held::by(&mut connection).await?;
    if after.lasting != before.lasting + 1.0 {
        return Err(format!(
            "{} keys without a TTL, then {}; only the record may have none",
            before.lasting, after.lasting
        ));
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    section.judge(COLUMN, SPACE, (after.bytes - before.bytes) / KEYS as f64, Bound::AtMost(256.0));
    Ok(())
}

/// Makes one call for each key, some of them in parallel.
async fn fill(paced: &Paced) -> Result<(), String> {
    let mut fillers = JoinSet::new();
    for filler in 0..FILLERS {
        let paced = paced.clone();
        fillers.spawn(async move {
            for key in (filler..KEYS).step_by(FILLERS) {
                paced.reserve(&format!("tenant-{key:05}")).await?;
            }
            Ok::<_, String>(())
        });
    }
    while let Some(done) = fillers.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    Ok(())
}

/// The memory and the keys of a server.
struct Held {
    bytes: f64,
    /// The number of keys without a TTL.
    lasting: f64,
}

impl Held {
    async fn by(connection: &mut MultiplexedConnection) -> Result<Self, String> {
        let mut info = async |section| {
            let answer = redis::cmd("INFO").arg(section).query_async::<String>(connection).await;
            answer.map_err(|error| format!("INFO {section}: {error}"))
        };
        let (memory, keyspace) = (info("memory").await?, info("keyspace").await?);
        let bytes = number(&memory, "used_memory:")?;
        // A server without keys has no such line.
        let lasting = match keyspace.contains("db0:") {
            true => number(&keyspace, "keys=")? - number(&keyspace, "expires=")?,
            false => 0.0,
        };
        Ok(Self { bytes, lasting })
    }
}

/// The number that follows `name`.
fn number(text: &str, name: &str) -> Result<f64, String> {
    let rest = text.split_once(name).map(|(_, rest)| rest);
    let digits = rest.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| format!("no `{name}` in the answer to INFO"))
}
