//! The errors of options.

use crate::tls::TlsError;

/// The reason why options are invalid. Neither the URL nor a header's value is in the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The base URL is invalid.
    #[error("the base URL {0}; use one such as https://api.example.com/v1/")]
    BaseUrl(String),
    /// The host is an address or a name that no request may reach.
    #[error(
        "{0} is a link-local or metadata address, which paced never connects to; use the API's own address"
    )]
    ForbiddenAddress(String),
    /// A configured header cannot be sent.
    #[error("the header `{name}` {why}")]
    Header {
        /// Its name.
        name: String,
        /// The problem, and what would be right.
        why: &'static str,
    },
    /// The time-out is zero.
    #[error("a time-out of zero lets no request through; use one such as 30s")]
    NoTimeout,
    /// The URL of the token server is invalid.
    #[error("the URL of the token server {0}; use one such as https://login.example.com/oauth2/token")]
    TokenUrl(&'static str),
    /// The proxy cannot be used.
    #[error("the proxy {0}; write http://USER:PASSWORD@HOST:PORT, or without credentials http://HOST:PORT")]
    Proxy(&'static str),
    /// The certificates cannot be used.
    #[error("no TLS: {0}")]
    Tls(#[from] TlsError),
}
