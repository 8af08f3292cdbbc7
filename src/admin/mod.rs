//! The daemon's HTTP server: liveness, readiness and metrics, and the API for operators.
//!
//! It is in the binary, not in the library: it depends on every part of the daemon and nothing else uses it, and
//! programs that embed paced have a server of their own.

mod access;
mod api;
mod audit;
mod certificate;
mod connections;
mod health;
mod page;
mod pages;
mod reply;
mod routes;
mod server;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;

use health::Checks;
use routes::Route;

pub(crate) use access::{Access, Token, Tokens};
pub(crate) use api::{Api, Letters, Operations};
pub(crate) use audit::TARGET as AUDIT_LOG;
pub(crate) use health::{Missing, Readiness, StoreProbe, Stuck};
pub(crate) use server::{CHANGES_TIMEOUT, Server, bind};

/// Builds the routes of the server, with the rules of `access`: probes from `checks`, metrics from `render`, the page
/// and the API.
pub(crate) fn router(
    checks: impl Checks,
    render: impl Fn() -> String + Send + Sync + 'static,
    api: Api,
    access: &Arc<Access>,
) -> Router {
    routes::router(all_routes(checks, render, api), access)
}

/// All routes.
fn all_routes(
    checks: impl Checks,
    render: impl Fn() -> String + Send + Sync + 'static,
    api: Api,
) -> Vec<Route> {
    let mut all = pages::pages(checks, render);
    all.extend(page::page());
    all.extend(api::api(api));
    all
}
