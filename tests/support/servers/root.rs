//! The location of the servers' programs: this machine, or a root folder with other versions of them
//! (`tests/support/test-servers.sh` makes such folders).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Names the folder. The programs are run in it by `chroot`, so the user must be root, and the folder must have this
/// machine's `/dev`, `/proc` and folder for temporary files at the same places.
const VARIABLE: &str = "PACED_TEST_ROOT";

static ROOT: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let root = std::env::var_os(VARIABLE).filter(|root| !root.is_empty()).map(PathBuf::from)?;
    let text = root.to_str().filter(|text| root.is_absolute() && !text.contains('\''));
    assert!(text.is_some(), "{VARIABLE} is no absolute path without quotes: {}", root.display());
    assert!(root.join("usr/bin").is_dir(), "{VARIABLE} names no root folder: {}", root.display());
    Some(root)
});

/// Whether the servers are those of a root folder.
pub fn is_set() -> bool {
    ROOT.is_some()
}

/// The version of the Debian package that contains the servers' programs.
pub fn package_version(package: &str) -> String {
    let mut query = command("dpkg-query");
    let answer = query.args(["-W", "-f", "${Version}", package]).output().expect("dpkg-query runs");
    String::from_utf8_lossy(&answer.stdout).into_owned()
}

/// The path outside of the root folder for this path, as the servers see it.
pub fn path(path: &str) -> PathBuf {
    match &*ROOT {
        Some(root) => root.join(path.trim_start_matches('/')),
        None => Path::new(path).to_owned(),
    }
}

/// A command line of a shell that begins with a program of the servers. The process that runs it is the
/// program's own if it is the last thing that the shell does (`exec`).
pub fn shell(line: &str) -> String {
    match &*ROOT {
        Some(root) => format!("chroot '{}' {line}", root.display()),
        None => line.to_owned(),
    }
}

/// A program of the servers.
pub fn command(program: &str) -> Command {
    match &*ROOT {
        Some(root) => {
            let mut command = Command::new("chroot");
            command.arg(root).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// `redis-server`, or Valkey's where the root folder has that alone.
pub fn redis_server() -> &'static str {
    if is_valkey() { "valkey-server" } else { "redis-server" }
}

/// `redis-cli`, or Valkey's where the root folder has that alone.
pub fn redis_cli() -> &'static str {
    if is_valkey() { "valkey-cli" } else { "redis-cli" }
}

/// Whether it is Valkey; without a root folder it is always Redis.
fn is_valkey() -> bool {
    let has = |root: &Path, program: &str| root.join("usr/bin").join(program).exists();
    ROOT.as_deref().is_some_and(|root| has(root, "valkey-server") && !has(root, "redis-server"))
}
