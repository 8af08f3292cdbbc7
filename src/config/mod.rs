//! `paced.toml`: read, checked, and every mistake named with its place.

mod settings;

pub use settings::{Amqp, Downstream, Http, Queue, Secret, Settings, Shutdown, Store};
