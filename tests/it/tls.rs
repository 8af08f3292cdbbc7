//! TLS against real servers, with authorities of the tests' own.

use std::path::PathBuf;

use paced::tls::{Tls, TlsOptions};
use tempfile::TempDir;

use crate::authority::{Authority, put};
use crate::support::daemon::scratch;

mod broker;
mod expiry;
mod own;
mod replaced;
mod servers;
mod store;
mod tools;

/// Two authorities, and the files of one server and of its clients.
struct Files {
    folder: TempDir,
    ours: Authority,
    theirs: Authority,
}

impl Files {
    /// `ca.pem` and `theirs.pem`: the authorities. `server`: for `localhost`. `client`, and `stranger` of the other
    /// authority, and `late`, which has expired: for clients.
    fn new() -> Self {
        // It goes with this process, also where a static variable has it.
        let folder = TempDir::new_in(scratch().unwrap()).unwrap();
        let files = Self { folder, ours: Authority::new("ours"), theirs: Authority::new("theirs") };
        files.put_all();
        files
    }

    /// Puts all files in place, in place of those that a test has put there.
    fn put_all(&self) {
        let (path, ours, theirs) = (self.folder.path(), &self.ours, &self.theirs);
        put(path, "ca.pem", &ours.pem);
        put(path, "theirs.pem", &theirs.pem);
        ours.issue(&["localhost"]).put(path, "server");
        ours.issue(&["paced"]).put(path, "client");
        ours.issue_expired(&["paced"]).put(path, "late");
        theirs.issue(&["paced"]).put(path, "stranger");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// TLS that trusts the authority in this file, and shows this certificate.
    fn tls(&self, authority: &str, client: Option<&str>) -> Tls {
        let options = TlsOptions::default().with_ca_file(self.path(authority));
        Tls::load(match client {
            Some(client) => {
                let file = |end: &str| self.path(&format!("{client}{end}"));
                options.with_certificate(file(".pem"), file("-key.pem"))
            }
            None => options,
        })
        .unwrap()
    }

    /// The lines of a table of TLS in a configuration.
    fn lines(&self) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        format!(
            "ca_file = '{}'\ncert_file = '{}'\nkey_file = '{}'\n",
            path("ca.pem"),
            path("client.pem"),
            path("client-key.pem")
        )
    }
}
