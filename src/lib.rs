//! Exact, shared pacing of calls to rate-limited APIs.
//!
//! A [`Shaper`] reserves a slot for each call: the first instant at which it keeps every limit. A [`Limiter`] takes the
//! same limits and decides at once whether a call may go. The state of the limits is kept in a [`Store`]: in this
//! process, or in Redis, where all processes that use the same name share it. All arithmetic is in exact integers, so
//! no rate drifts.
//!
//! ```
//! use std::time::Duration;
//! use paced::{Limit, Limiter, Shaper};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let shaper = Shaper::builder("billing", "50/s".parse()?).max_wait(Duration::from_secs(30)).build()?;
//! let answer = shaper.schedule("tenant-42", async { "called" }).await?;
//! assert_eq!(answer, "called");
//!
//! let limiter = Limiter::builder("api").limit(Limit::gcra("calls", "10/s".parse()?, 20)?).build()?;
//! let decision = limiter.check("tenant-42").await?;
//! assert!(decision.allowed && decision.remaining == 19);
//! # Ok(()) }
//! ```
//!
//! The [`guide`] has the concepts, and says which algorithm to choose.
//!
//! | module | contents |
//! |---|---|
//! | [`rate`], [`time`] | exact rates; instants on the store's clock |
//! | [`limit`] | the kernel: algorithms as pure functions over a compact state |
//! | [`store`] | the stores of the state |
//! | [`shaper`] | [`Shaper`]: reserve, wait, run; [`Limiter`]: check; for programs that embed paced |
//! | `headers` | HTTP header fields from a decision |
//! | `tls` | certificates for connections to Redis |
//!
//! | feature | addition |
//! |---|---|
//! | `headers` (default) | HTTP header fields from a decision |
//! | `redis` | the store that several processes share |
//! | `config` | [`Shaper`]s from the daemon's configuration |
//! | `daemon` | the `paced` binary, with all the others but `headers` |

#[doc = include_str!("guide.md")]
pub mod guide {}
mod home;
pub mod limit;
#[cfg_attr(
    not(feature = "dispatch"),
    allow(
        dead_code,
        unused_imports,
        reason = "the daemon's dispatcher asks more of the engine than the library does"
    )
)]
mod pace;
pub mod rate;
mod retry_after;
pub mod shaper;
pub mod store;
pub mod time;
#[cfg(any(feature = "config", feature = "tls"))]
#[cfg_attr(
    not(all(feature = "amqp", feature = "http", feature = "redis")),
    allow(dead_code, unused_imports, reason = "each kind of connection uses a part of it")
)]
pub mod tls;

// The daemon's parts, for its binary, tests and benches. They are not a stable interface.
#[cfg(feature = "amqp")]
#[doc(hidden)]
pub mod amqp;
#[cfg(feature = "daemon")]
#[doc(hidden)]
pub mod api;
#[cfg(feature = "dispatch")]
#[doc(hidden)]
pub mod bounded_log;
#[cfg(feature = "config")]
#[doc(hidden)]
pub mod config;
#[cfg(feature = "dispatch")]
#[doc(hidden)]
pub mod dispatch;
#[cfg(any(feature = "config", feature = "dispatch", feature = "tls"))]
#[doc(hidden)]
pub mod episode;
#[doc(hidden)]
pub mod failpoint;
#[cfg(any(feature = "config", feature = "tls"))]
#[doc(hidden)]
pub mod files;
#[cfg(feature = "headers")]
pub mod headers;
#[cfg(feature = "dispatch")]
#[doc(hidden)]
pub mod job;
#[doc(hidden)]
pub mod lock;
#[doc(hidden)]
pub mod metric;
#[cfg(feature = "daemon")]
#[doc(hidden)]
pub mod pipe;
#[cfg(feature = "dispatch")]
#[doc(hidden)]
pub mod sink;
#[doc(hidden)]
pub mod terms;
#[cfg(feature = "dispatch")]
#[doc(hidden)]
pub mod text;

#[cfg(feature = "config")]
pub use config::{ConfigError, ConfigErrors, FromConfigError};
#[cfg(feature = "tls")]
pub use files::ReadSecret;
pub use limit::{Combine, Costs, Decision, Limit, LimitError, LimitSet, Standing};
pub use pace::OnUnavailable;
pub use pace::release::clock::Precision;
pub use rate::{Amount, Period, Rate, RateError};
pub use retry_after::retry_after;
pub use shaper::{
    BuildError, CheckError, Limiter, LimiterBuilder, LimiterFallback, Reservation, ReserveError,
    SetRateError, Shaper, ShaperBuilder,
};
pub use store::{FileStore, MemoryHandle, MemoryStore, Store, StoreError};
#[cfg(feature = "redis")]
pub use store::{RedisOptions, RedisStore};

/// The snippets of the README and of the page on embedding, which are compiled as doctests.
#[cfg(all(doctest, feature = "config", feature = "redis"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/embed.md")]
pub struct Readme;
