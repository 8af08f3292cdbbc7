//! Exact, shared pacing of calls to rate-limited APIs.
//!
//! A [`Shaper`] reserves a slot for each call: the first instant at which it keeps every limit. A
//! [`Limiter`] takes the same limits and tells at once whether a call may go. The state of the limits
//! lives in a [`Store`]: in this process, or in Redis, where all processes that use one name share it.
//! All is counted in exact integers, so no rate drifts.
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
//! | module | what it holds |
//! |---|---|
//! | [`rate`], [`time`] | exact rates; instants on the store's clock |
//! | [`limit`] | the kernel: algorithms as pure functions over a compact state |
//! | [`store`] | where state lives, and the mapping of slots to the local clock |
//! | [`shaper`] | [`Shaper`]: reserve, wait, run; [`Limiter`]: check; for programs that embed paced |
//! | `headers` | HTTP header fields from a decision; feature `headers` |
//! | `job`, `sink`, `dispatch` | the way of a job in the daemon; feature `dispatch` |
//! | `terms` | what replicas agree on: the limits in force, and rates that operators set; feature `dispatch` |
//! | `bounded_log` | log lines that strangers cause; feature `dispatch` |
//! | `text` | foreign text before people's eyes; feature `dispatch` |
//! | `metric` | what is measured on that way; feature `dispatch` |
//! | `amqp`, `config`, `pipe` | the daemon's broker, settings and NDJSON source, each a feature |
//!
//! Without default features the library needs no broker, no HTTP client and no server; feature
//! `redis` adds the shared store.

pub mod limit;
pub mod rate;
pub mod shaper;
pub mod store;
pub mod time;

#[cfg(feature = "amqp")]
pub mod amqp;
#[cfg(feature = "dispatch")]
pub mod bounded_log;
#[cfg(feature = "config")]
pub mod config;
#[cfg(feature = "dispatch")]
pub mod dispatch;
#[cfg(feature = "headers")]
pub mod headers;
#[cfg(feature = "dispatch")]
pub mod job;
#[cfg(feature = "dispatch")]
pub mod metric;
#[cfg(feature = "dispatch")]
mod pace;
#[cfg(feature = "daemon")]
pub mod pipe;
mod retry_after;
#[cfg(feature = "dispatch")]
pub mod sink;
#[cfg(feature = "dispatch")]
pub mod terms;
#[cfg(feature = "dispatch")]
pub mod text;

pub use limit::{Combine, Costs, Decision, Limit, LimitError, LimitSet, Standing};
pub use rate::{Amount, Period, Rate, RateError};
pub use retry_after::retry_after;
pub use shaper::{
    BuildError, CheckError, Limiter, LimiterBuilder, NextSlot, Reservation, ReserveError, Shaper,
    ShaperBuilder,
};
pub use store::{MemoryHandle, MemoryStore, Store, StoreError};
#[cfg(feature = "redis")]
pub use store::{RedisOptions, RedisStore};

/// The README's snippets, compiled.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
