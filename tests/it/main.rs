//! All tests that need servers, files or whole processes, in one binary, so that they share the servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking; helpers of tests too"
)]

#[cfg(feature = "daemon")]
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "daemon")]
#[path = "../support/authority.rs"]
mod authority;

#[cfg(feature = "daemon")]
mod admin;
#[cfg(feature = "daemon")]
mod amqp;
#[cfg(feature = "daemon")]
mod apis;
#[cfg(feature = "daemon")]
mod changes;
#[cfg(feature = "daemon")]
mod check;
mod config;
#[cfg(feature = "daemon")]
mod dead;
#[cfg(feature = "daemon")]
mod deploy;
#[cfg(feature = "daemon")]
mod fault;
#[cfg(feature = "config")]
mod house;
#[cfg(feature = "daemon")]
mod init;
#[cfg(all(feature = "daemon", feature = "failpoints"))]
mod kills;
#[cfg(feature = "daemon")]
mod lanes;
#[cfg(feature = "daemon")]
mod limits;
#[cfg(feature = "daemon")]
mod log;
#[cfg(feature = "daemon")]
mod manual;
#[cfg(feature = "daemon")]
mod messages;
#[cfg(feature = "daemon")]
mod monitoring;
#[cfg(feature = "daemon")]
mod nodes;
#[cfg(feature = "daemon")]
mod notify;
#[cfg(feature = "daemon")]
mod pace;
#[cfg(feature = "daemon")]
mod park;
#[cfg(feature = "daemon")]
mod pipe;
#[cfg(feature = "daemon")]
mod readme;
#[cfg(feature = "daemon")]
mod reference;
mod reload;
#[cfg(feature = "daemon")]
mod secrets;
#[cfg(feature = "daemon")]
mod states;
#[cfg(feature = "daemon")]
mod store;
#[cfg(feature = "daemon")]
mod strangers;
#[cfg(feature = "daemon")]
mod streams;
#[cfg(feature = "daemon")]
mod support_selftest;
#[cfg(feature = "daemon")]
mod systems;
#[cfg(feature = "daemon")]
mod throttling;
#[cfg(feature = "daemon")]
mod tls;
#[cfg(feature = "daemon")]
mod tools;
#[cfg(feature = "daemon")]
mod waits;
