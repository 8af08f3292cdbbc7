//! TLS of the connections that this process opens, to the store, to the broker and to the downstreams, and of those that
//! its admin listener accepts.
//!
//! [`Tls`] is what connections are opened with. It reads its files again when they change, so that certificates can be
//! replaced while the process runs: connections opened from then on use the new ones, and open ones are kept.
//! [`ServerTls`] is the same for connections that are accepted.

#[cfg(feature = "tls")]
mod client;
#[cfg(feature = "tls")]
mod error;
#[cfg(feature = "tls")]
mod load;
mod options;
#[cfg(feature = "tls")]
mod pinned;
#[cfg(feature = "tls")]
mod refusal;
#[cfg(feature = "tls")]
mod replaced;
#[cfg(feature = "tls")]
mod server;
#[cfg(feature = "tls")]
mod stream;
#[cfg(feature = "tls")]
mod transport;
#[cfg(feature = "tls")]
mod validity;

#[cfg(feature = "tls")]
pub use client::Tls;
#[cfg(feature = "tls")]
pub use error::{TlsError, TlsProblem};
pub use options::{ServerTlsOptions, TlsOptions};
#[cfg(feature = "tls")]
#[doc(hidden)]
pub use refusal::Refused;
#[cfg(feature = "tls")]
pub(crate) use refusal::{Refusal, refusal};
#[cfg(feature = "tls")]
pub use server::ServerTls;
#[cfg(feature = "tls")]
#[doc(hidden)]
pub use stream::Stream;
#[cfg(feature = "tls")]
pub use validity::{Concern, Validity};

#[cfg(feature = "tls")]
#[cfg(test)]
#[path = "../../tests/support/authority.rs"]
pub(crate) mod authority;
#[cfg(feature = "tls")]
#[cfg(test)]
mod tests;
