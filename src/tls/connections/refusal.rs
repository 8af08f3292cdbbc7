//! Why a handshake failed, in words that say what to do.

use std::error::Error;
use std::io;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};

use super::trusted::is_of_authority;
use crate::tls::TlsOptions;

/// The most names of a certificate that are shown.
const MOST_NAMES: usize = 4;

/// Another possible reason of an alert that names none.
const OR_CIPHERS: &str =
    "or it has no cipher in common with paced, which needs TLS 1.3, or TLS 1.2 with forward secrecy (ECDHE)";

/// Why one side refuses the other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "the server's certificate is signed by an authority that is not {trusted}; set ca_file to the one that signed it"
    )]
    UnknownAuthority { trusted: String },
    #[error(
        "the server's certificate is for {names}, not for {wanted}; connect to one of its names, or set server_name to it"
    )]
    OtherName { wanted: String, names: String },
    #[error(
        "the server shows another certificate than the one in {file}; if that was replaced, has the server read it again?"
    )]
    OtherThanPinned { file: String },
    #[error("the server's certificate expired{since}; renew it")]
    Expired { since: String },
    #[error("the server's certificate is not valid yet{until}; check the clocks of both machines")]
    NotYetValid { until: String },
    #[error("the server's certificate was revoked; renew it")]
    Revoked,
    #[error(
        "the server's certificate is one of an authority (CA:TRUE, as `openssl req -x509` makes them), and is not itself \
         {trusted}; put it into ca_file, or make one with CA:FALSE"
    )]
    OfAuthority { trusted: String },
    #[error("the server's certificate is not acceptable ({0}); renew it")]
    OtherCertificate(String),
    #[error("the server requires a client certificate; set cert_file and key_file")]
    ClientCertificateMissing,
    #[error(
        "the server refuses the handshake ({alert}): maybe it requires a client certificate (cert_file, key_file), {or}",
        or = OR_CIPHERS
    )]
    PerhapsClientCertificate { alert: String },
    #[error(
        "the server refuses the handshake ({alert}): maybe it does not accept the client certificate in cert_file, \
         {or}",
        or = OR_CIPHERS
    )]
    PerhapsThisCertificate { alert: String },
    #[error(
        "the server and paced have no version or no cipher of TLS in common ({0}); have the server speak TLS 1.3, or TLS 1.2 \
         with forward secrecy (ECDHE) and AES-GCM or ChaCha20"
    )]
    NothingInCommon(String),
    #[error(
        "the server does not trust the authority of the client certificate in cert_file; use one that it trusts"
    )]
    ClientAuthorityUnknown,
    #[error("the client certificate in cert_file has expired, the server says; renew it")]
    ClientCertificateExpired,
    #[error("the server refuses the client certificate in cert_file ({0}); use one that it accepts")]
    ClientCertificateRefused(String),
    #[error("the server does not speak TLS on this port; use its port for TLS, or a URL without TLS")]
    NotTls,
    #[error("the server closed the connection in the TLS handshake; is it its port for TLS?")]
    Closed,
    #[error("the server closed the connection in the TLS handshake or right after it ({error}); {perhaps}")]
    ClosedWithoutAlert { error: String, perhaps: &'static str },
    #[error("no certificate can be for this host; set server_name to the name in the server's certificate")]
    NoName,
    #[error("TLS failed: {0}")]
    Other(String),
}

/// A refusal, for the tools of the daemon.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What is wrong, and what would be right.
    pub text: String,
    /// Whether the server refused this client, and not the other way round.
    pub is_of_client: bool,
}

impl Refused {
    /// The refusal that an error is about, if it is about one.
    #[must_use]
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        refusal(error).map(|refusal| Self { text: refusal.to_string(), is_of_client: refusal.is_of_client() })
    }
}

/// The refusal that an error is about, if it is about one.
pub(crate) fn refusal<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e Refusal> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(refusal) = error.downcast_ref() {
            return Some(refusal);
        }
        // An I/O error is not the source of what it wraps.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

impl Refusal {
    /// True where the server ended the handshake since it does not accept this client: it has taken nothing of what was
    /// sent to it.
    pub(crate) const fn is_of_client(&self) -> bool {
        matches!(
            self,
            Self::ClientCertificateMissing
                | Self::PerhapsClientCertificate { .. }
                | Self::PerhapsThisCertificate { .. }
                | Self::ClientAuthorityUnknown
                | Self::ClientCertificateExpired
                | Self::ClientCertificateRefused(_)
        )
    }

    /// What an error of the library means, on a connection with these options to the server of this name.
    pub(super) fn of(error: &rustls::Error, options: &TlsOptions, wanted: &str) -> Self {
        match error {
            rustls::Error::InvalidCertificate(error) => Self::of_certificate(error, options, wanted),
            rustls::Error::PeerIncompatible(why) => Self::NothingInCommon(format!("{why:?}")),
            rustls::Error::AlertReceived(alert) => Self::of_alert(*alert, options.cert_file.is_some()),
            rustls::Error::InvalidMessage(
                rustls::InvalidMessage::InvalidContentType | rustls::InvalidMessage::UnknownProtocolVersion,
            ) => Self::NotTls,
            other => Self::Other(other.to_string()),
        }
    }

    /// What it means that the server ended the connection without an alert before it has accepted this client.
    /// Perhaps it failed instead, and perhaps it received what was sent to it.
    pub(super) fn ended(error: &io::Error, shows_certificate: bool) -> Self {
        let perhaps = if shows_certificate {
            "perhaps it does not accept the client certificate in cert_file, or has no cipher or version of TLS in common \
             with paced; its log may say why"
        } else {
            "perhaps it requires a client certificate (cert_file, key_file), or has no cipher or version of TLS in common \
             with paced; its log may say why"
        };
        Self::ClosedWithoutAlert { error: error.to_string(), perhaps }
    }

    fn of_certificate(error: &CertificateError, options: &TlsOptions, wanted: &str) -> Self {
        if let Some(file) = &options.pinned_file {
            return Self::OtherThanPinned { file: file.display().to_string() };
        }
        let trusted = || match &options.ca_file {
            Some(file) => format!("in ca_file ({})", file.display()),
            None => "among the system's".to_owned(),
        };
        match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::UnknownAuthority { trusted: trusted() }
            }
            CertificateError::NotValidForName => {
                Self::OtherName { wanted: wanted.to_owned(), names: "other names".to_owned() }
            }
            CertificateError::NotValidForNameContext { presented, .. } => {
                Self::OtherName { wanted: wanted.to_owned(), names: names(presented) }
            }
            CertificateError::Expired => Self::Expired { since: String::new() },
            CertificateError::ExpiredContext { not_after, .. } => {
                Self::Expired { since: format!(" at {}", instant(*not_after)) }
            }
            CertificateError::NotValidYet => Self::NotYetValid { until: String::new() },
            CertificateError::NotValidYetContext { not_before, .. } => {
                Self::NotYetValid { until: format!(", but from {} on", instant(*not_before)) }
            }
            CertificateError::Revoked => Self::Revoked,
            error if is_of_authority(error) => Self::OfAuthority { trusted: trusted() },
            other => Self::OtherCertificate(format!("{other:?}")),
        }
    }

    fn of_alert(alert: AlertDescription, has_certificate: bool) -> Self {
        use AlertDescription as Alert;
        match (alert, has_certificate) {
            (Alert::CertificateRequired | Alert::NoCertificate, _) => Self::ClientCertificateMissing,
            // Up to TLS 1.2 no alert says that a certificate is missing, and this one also says that no cipher
            // matches.
            (Alert::HandshakeFailure | Alert::BadCertificate, false) => {
                Self::PerhapsClientCertificate { alert: format!("{alert:?}") }
            }
            (Alert::HandshakeFailure, true) => Self::PerhapsThisCertificate { alert: format!("{alert:?}") },
            (Alert::ProtocolVersion | Alert::InsufficientSecurity, _) => {
                Self::NothingInCommon(format!("{alert:?}"))
            }
            (Alert::UnknownCA, true) => Self::ClientAuthorityUnknown,
            (Alert::CertificateExpired, true) => Self::ClientCertificateExpired,
            (
                Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateUnknown
                | Alert::AccessDenied,
                true,
            ) => Self::ClientCertificateRefused(format!("{alert:?}")),
            (other, _) => Self::Other(format!("the server sent the alert {other:?}")),
        }
    }
}

/// The names of a certificate as people write them. The server chose them, so nothing of them reaches a terminal as it
/// is.
fn names(presented: &[String]) -> String {
    let plain = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
        inner.trim_matches('"').chars().take(100).collect::<String>().escape_default().to_string()
    };
    let mut shown: Vec<String> = presented.iter().take(MOST_NAMES).map(plain).collect();
    if presented.len() > MOST_NAMES {
        shown.push(format!("{} more", presented.len() - MOST_NAMES));
    }
    if shown.is_empty() { "no name".to_owned() } else { shown.join(", ") }
}

/// An instant as people write it.
pub(super) fn instant(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let instant = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    instant.map_or_else(|| format!("{} s since 1970", time.as_secs()), |instant| instant.to_string())
}
