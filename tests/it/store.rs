//! The stores: all backends answer alike, and Redis comes through losses without a burst.

#[path = "../support/redis_for_store.rs"]
mod redis_for_store;

mod examples;
mod losses;
mod parity;
