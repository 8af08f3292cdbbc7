//! The daemon's HTTP server: liveness, readiness and metrics, and the API for operators.
//!
//! It is in the binary, not in the library: it depends on every part of the daemon and nothing else uses it, and
//! programs that embed paced have a server of their own.

mod api;
mod health;
mod page;
mod pages;
mod server;

pub(crate) use api::{Access, Api, Letters, Operations, OwnTerms, api};
pub(crate) use health::{Readiness, StoreProbe};
pub(crate) use page::page;
pub(crate) use pages::pages;
pub(crate) use server::{Server, bind};
