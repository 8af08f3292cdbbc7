//! Exact, shared pacing of jobs towards rate-limited APIs.

pub mod limit;
pub mod rate;
pub mod store;
pub mod time;

#[cfg(feature = "amqp")]
pub mod amqp;
#[cfg(feature = "dispatch")]
pub mod dispatch;
#[cfg(feature = "dispatch")]
pub mod job;
#[cfg(feature = "dispatch")]
pub mod sink;

#[cfg(feature = "config")]
pub mod config;

pub use limit::{Limit, LimitError, LimitSet};
#[cfg(feature = "daemon")]
pub mod pipe;

pub use rate::{Rate, RateError};
pub use store::{MemoryStore, Store, StoreError};
#[cfg(feature = "redis")]
pub use store::{RedisOptions, RedisStore};
