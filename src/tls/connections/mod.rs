//! What connections are encrypted with, by rustls, and why a handshake is refused.

mod client;
mod error;
mod load;
mod pinned;
mod refusal;
mod replaced;
mod server;
mod stream;
mod transport;
mod trusted;
mod validity;

pub use client::Tls;
pub use error::{TlsError, TlsProblem};
#[doc(hidden)]
pub use refusal::Refused;
pub(crate) use refusal::{Refusal, refusal};
pub use server::ServerTls;
#[doc(hidden)]
pub use stream::Stream;
pub use validity::{Concern, Validity};

#[cfg(test)]
#[path = "../../../tests/support/authority.rs"]
pub(crate) mod authority;
#[cfg(test)]
mod tests;
