//! Which daemon a tool asks, and how it is known to be that one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use paced::config::Admin;
use paced::tls::{Tls, TlsError, TlsOptions};
use url::Url;

use crate::cli::exit::Exit;
use crate::cli::{Global, out};

/// Why it is not known where the daemon is.
const NO_ADDRESS: &str = "admin.listen is not set, or the configuration is not in this directory; set it, name the file with \
                          -c FILE, or the daemon with --admin URL";

/// The option of the daemon's own certificate, in errors.
const PINNED: &str = "pinned_file";

/// Where the daemon is; by TLS if there is a handle for it.
pub(super) struct Address {
    pub(super) base: Url,
    pub(super) tls: Option<Tls>,
}

impl Address {
    /// The daemon that the arguments name, or else the one of the configuration. Errors are printed to stderr. It reads
    /// the files of TLS, so it blocks for a moment.
    pub(super) fn of(global: &Global, admin: &Admin) -> Result<Self, Exit> {
        let (base, certificate) = match &global.admin {
            Some(url) => (
                named(url).map_err(|problem| out::fail(Exit::Usage, format_args!("--admin: {problem}")))?,
                None,
            ),
            None => {
                let certificate = certificate(admin);
                let base = configured(admin.listen.as_deref(), certificate.is_some());
                (base.map_err(|problem| out::fail(Exit::Config, problem))?, certificate)
            }
        };
        let files = Files::of(global, |name| std::env::var_os(name));
        if base.scheme() != "https" {
            return match given(global) {
                Some(option) => Err(out::fail(Exit::Usage, without_tls(option, &base))),
                None => Ok(Self { base, tls: None }),
            };
        }
        match Tls::load_for_http(files.options(certificate)) {
            Ok(tls) => Ok(Self { base, tls: Some(tls) }),
            Err(error) if error.key() == PINNED => Err(out::fail(Exit::Config, unusable(&error))),
            Err(error) => Err(out::fail(Exit::Usage, unusable(&error))),
        }
    }
}

/// The certificate that the daemon of this configuration shows, if it speaks TLS.
fn certificate(admin: &Admin) -> Option<&Path> {
    admin.tls.as_ref().map(|tls| tls.cert_file.as_path())
}

/// The files of TLS of the tools: those of the arguments, or else of the environment.
struct Files {
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

impl Files {
    fn of(global: &Global, env: impl Fn(&str) -> Option<OsString>) -> Self {
        let file = |given: &Option<PathBuf>, name: &str| {
            let named = || env(name).filter(|path| !path.is_empty()).map(PathBuf::from);
            given.clone().or_else(named)
        };
        Self {
            ca_file: file(&global.ca_file, "PACED_CA_FILE"),
            cert_file: file(&global.cert_file, "PACED_CERT_FILE"),
            key_file: file(&global.key_file, "PACED_KEY_FILE"),
        }
    }

    /// For the daemon of the own configuration, the certificate need not have the address that is used here, and its
    /// authority need not be known here. But the configuration names the file of the certificate: exactly that
    /// certificate is trusted, unless an authority is named.
    fn options(self, certificate: Option<&Path>) -> TlsOptions {
        let mut options = TlsOptions::default();
        match (self.ca_file, certificate) {
            (Some(file), _) => options = options.with_ca_file(file),
            (None, Some(file)) => options = options.with_pinned_file(file),
            (None, None) => {}
        }
        (options.cert_file, options.key_file) = (self.cert_file, self.key_file);
        options
    }
}

/// The first option of TLS among the arguments.
fn given(global: &Global) -> Option<&'static str> {
    let files = [
        ("--ca-file", &global.ca_file),
        ("--cert-file", &global.cert_file),
        ("--key-file", &global.key_file),
    ];
    files.into_iter().find(|(_, file)| file.is_some()).map(|(option, _)| option)
}

fn without_tls(option: &str, base: &Url) -> String {
    format!(
        "{option}: would not be used, since {base} has no TLS; write --admin https://HOST:PORT, or leave it out"
    )
}

/// The error of a file, at the option that names the file.
fn unusable(error: &TlsError) -> String {
    let (option, problem) = (error.key(), error.problem());
    match option {
        PINNED => {
            format!("admin.tls.cert_file {problem}; or name the authority that signed it with --ca-file")
        }
        option => format!("--{}: {problem}", option.replace('_', "-")),
    }
}

/// Parses the URL that `--admin` names.
fn named(text: &str) -> Result<Url, String> {
    const RIGHT: &str = "write https://HOST:PORT or http://HOST:PORT, such as http://127.0.0.1:9750";
    let url: Url = text.parse().map_err(|error| format!("no URL ({error}); {RIGHT}"))?;
    if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
        return Err(format!("no http URL; {RIGHT}"));
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(format!("credentials and queries do not belong in it; {RIGHT}"));
    }
    Ok(url)
}

/// The URL of the daemon that listens there, on this machine.
fn configured(listen: Option<&str>, has_tls: bool) -> Result<Url, String> {
    let Some(listen) = listen else {
        return Err(NO_ADDRESS.to_owned());
    };
    // A server that listens on every address listens on this machine's own too.
    let (host, port) = listen.rsplit_once(':').unwrap_or((listen, ""));
    if port.parse() == Ok(0_u16) {
        return Err("admin.listen has port 0, which is any; name the daemon with --admin URL".to_owned());
    }
    let host = match host {
        "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        host => host,
    };
    let scheme = if has_tls { "https" } else { "http" };
    named(&format!("{scheme}://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_daemon_is_asked() {
        let of = |listen: &str, has_tls| configured(Some(listen), has_tls).map(String::from);
        for (listen, has_tls, expected) in [
            ("127.0.0.1:9750", false, "http://127.0.0.1:9750/"),
            ("0.0.0.0:9750", false, "http://127.0.0.1:9750/"),
            ("[::]:80", false, "http://[::1]/"),
            ("[::1]:9750", false, "http://[::1]:9750/"),
            ("paced.internal:9750", false, "http://paced.internal:9750/"),
            ("0.0.0.0:9750", true, "https://127.0.0.1:9750/"),
        ] {
            assert_eq!(of(listen, has_tls).as_deref(), Ok(expected), "{listen}");
        }
        assert!(configured(None, false).unwrap_err().contains("--admin URL"));
        assert!(of("127.0.0.1:0", false).unwrap_err().contains("--admin URL"));
        assert_eq!(named("http://a:1/x/").unwrap().as_str(), "http://a:1/x/");
        assert_eq!(named("https://a").unwrap().as_str(), "https://a/");
        for text in
            ["", "127.0.0.1:9750", "amqps://a", "http://", "http://u:p@a", "https://a/?x", "file:///a"]
        {
            assert!(named(text).unwrap_err().contains("write https://HOST:PORT"), "{text}");
        }
    }

    #[test]
    fn whom_it_is_trusted_by() {
        let files = |ca_file: Option<&str>| Files {
            ca_file: ca_file.map(PathBuf::from),
            cert_file: Some("client.pem".into()),
            key_file: Some("client-key.pem".into()),
        };
        let known = TlsOptions::default().with_certificate("client.pem", "client-key.pem");
        assert_eq!(files(None).options(None), known);
        assert_eq!(files(Some("ca.pem")).options(None), known.clone().with_ca_file("ca.pem"));
        let own = Some(Path::new("admin.pem"));
        assert_eq!(files(None).options(own), known.clone().with_pinned_file("admin.pem"));
        assert_eq!(files(Some("ca.pem")).options(own), known.with_ca_file("ca.pem"));
    }

    #[test]
    fn options_come_before_the_environment() {
        use clap::Parser as _;
        let cli = crate::cli::Cli::parse_from(["paced", "--ca-file", "ca.pem", "check"]);
        let env = |name: &str| Some(OsString::from(if name == "PACED_KEY_FILE" { "" } else { name }));
        let files = Files::of(&cli.global, env);
        assert_eq!(files.ca_file, Some("ca.pem".into()));
        assert_eq!(files.cert_file, Some("PACED_CERT_FILE".into()));
        assert_eq!(files.key_file, None, "an empty variable is none");
    }
}
