//! The daemon: [`Daemon::build`] makes all parts and binds its address, [`Daemon::spawn`] starts them, and
//! [`Running::run`](running::Running::run) ends with them.

mod build;
mod certificates;
mod dynamic;
mod error;
mod factory;
mod liveness;
mod manager;
mod parts;
mod reload;
mod reload_log;
mod running;
mod secrets;
mod serving;
mod signals;
mod starts;
mod tokens;
mod watches;

pub(crate) use build::{Daemon, single};
pub(crate) use certificates::Handles;
pub(crate) use error::Error;
pub(crate) use parts::{MEMORY, amqp as amqp_options, clock, rules, store};
pub(crate) use running::End;
pub(crate) use secrets::Clients;
pub(crate) use signals::{Hangups, Signals};
