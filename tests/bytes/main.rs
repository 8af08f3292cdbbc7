//! Hundreds of MiB through a whole daemon: in a binary of its own, since the load would cost other tests the
//! slots that they count.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking; helpers of tests too"
)]

#[path = "../support/mod.rs"]
mod support;

mod mix;
mod wide;
