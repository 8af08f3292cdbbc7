//! TLS of the connections that this process opens, to the store, to the broker and to the downstreams, and of those that
//! its admin listener accepts.
//!
//! [`Tls`] is what connections are opened with. It reads its files again when they change, so that certificates can be
//! replaced while the process runs: connections opened from then on use the new ones, and open ones are kept.
//! [`ServerTls`] is the same for connections that are accepted.

#[cfg(feature = "tls")]
mod connections;
mod options;

#[cfg(feature = "tls")]
pub use connections::*;
pub use options::{ServerTlsOptions, TlsOptions};
