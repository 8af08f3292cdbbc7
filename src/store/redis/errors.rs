//! Errors of the redis crate, translated into errors that name the server and what to do.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::StoreError;

const WRONG_PASSWORD: &str = "the user or the password is wrong; correct them in its URL";

/// Codes of transient refusals: the server starts or fails over, lacks replicas, memory or disk, or is kept busy by
/// another script.
const TRANSIENT_CODES: [&str; 10] = [
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "ASK",
    "TRYAGAIN",
    "NOREPLICAS",
    "OOM",
    "MISCONF",
    "BUSY",
];

/// Codes of answers that end the connection: a new one may lead to another server, or log in again.
const ENDING_CODES: [&str; 3] = ["READONLY", "MASTERDOWN", "NOAUTH"];

/// Texts of transient refusals that have no code.
const TRANSIENT_TEXTS: [&str; 2] = ["max number of clients reached", "Script killed by user"];

/// The address of a server, or of several that act as one, by host and port and never with credentials. It builds the
/// errors about it.
#[derive(Clone, Debug)]
pub(super) struct ServerAddress(pub(super) String);

impl ServerAddress {
    /// The error for a malformed answer, in one line.
    pub(super) fn unexpected(&self, detail: impl Into<String>) -> StoreError {
        let detail: String = detail.into();
        let lines: Vec<&str> = detail.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        self.refused(format!("{}; is it Redis 6.2 or later, not a replica?", lines.join(", ")))
    }

    /// The error for an answer with a known remedy.
    pub(super) fn refused(&self, detail: impl Into<String>) -> StoreError {
        StoreError::Unexpected { address: self.0.clone(), detail: detail.into() }
    }

    /// The error for a login or a call that the server does not allow.
    fn unauthorized(&self, detail: impl Into<String>) -> StoreError {
        StoreError::Unauthorized { address: self.0.clone(), detail: detail.into() }
    }

    /// The error for a server that is away, or cannot serve at the moment.
    pub(super) fn unreachable(&self, detail: impl Into<String>) -> StoreError {
        StoreError::Unreachable { address: self.0.clone(), detail: detail.into() }
    }

    pub(super) fn explain(&self, error: &RedisError) -> StoreError {
        match error.kind() {
            ErrorKind::Io => self.unreachable(error.to_string()),
            _ if is_transient(error) => self.unreachable(error.to_string()),
            ErrorKind::Server(ServerErrorKind::Moved) => {
                self.refused(format!("{error}; it is a node of a cluster: write its URL as redis+cluster://"))
            }
            ErrorKind::AuthenticationFailed => self.unauthorized(WRONG_PASSWORD),
            _ if error.code() == Some("WRONGPASS") => self.unauthorized(WRONG_PASSWORD),
            _ if error.code() == Some("NOAUTH") => {
                self.unauthorized("it needs a password; put one into its URL, redis://[USER]:PASSWORD@HOST")
            }
            ErrorKind::Server(ServerErrorKind::NoPerm) => {
                self.unauthorized(format!("{error}; grant the user what paced needs"))
            }
            _ => self.explain_text(error.to_string()),
        }
    }

    /// In some versions the error of a command in a script has no code of its own.
    fn explain_text(&self, text: String) -> StoreError {
        if text.contains("user executing the script") || text.contains("ACL failure in script") {
            self.unauthorized(format!("{text}; grant the user what paced needs"))
        } else if lacks_scripts(&text) {
            self.refused(format!(
                "{text}; it has no scripting engine: load the module of Valkey that runs Lua, or use a server that does"
            ))
        } else {
            self.unexpected(text)
        }
    }
}

/// Whether the server reports that it cannot serve at the moment.
pub(super) fn is_transient(error: &RedisError) -> bool {
    if error.code().is_some_and(|code| TRANSIENT_CODES.contains(&code)) {
        return true;
    }
    let text = error.to_string();
    // Redis 6.2 wraps the error of a command in a script.
    let wrapped = |code: &str| text.contains(&format!("-{code} "));
    TRANSIENT_CODES.iter().any(|code| wrapped(code))
        || TRANSIENT_TEXTS.iter().any(|known| text.contains(known))
}

/// Whether a connection is of no further use after this error: it broke, leads to a server that is no longer a primary,
/// or is no longer authenticated. Any other error concerns the call alone.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => {
            let text = error.to_string();
            // Redis 6.2 wraps the error of a command in a script.
            let says = |code: &str| error.code() == Some(code) || text.contains(&format!("-{code} "));
            ENDING_CODES.into_iter().any(says)
        }
        ErrorKind::UnexpectedReturnType => false,
        _ => true,
    }
}

/// Whether a server cannot run scripts at all: Valkey 9.1 without its module for Lua says so, others do not know the
/// command.
fn lacks_scripts(text: &str) -> bool {
    let text = text.to_lowercase();
    let unknown =
        text.split_once("unknown command").map(|(_, rest)| rest.trim_start_matches([' ', ':', '\'', '`']));
    text.contains("scripting engine")
        || unknown.is_some_and(|command| command.starts_with("script") || command.starts_with("eval"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_not_understood_has_one_line() {
        let at = ServerAddress("store.example:6379".to_owned());
        let error = at.unexpected("Parse error at 1\nUnexpected `77`\n").to_string();
        let expected = "answered unexpectedly: Parse error at 1, Unexpected `77`; is it Redis 6.2";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn the_refusal_of_a_server_says_what_to_do() {
        let at = ServerAddress("store.example:6379".to_owned());
        for (answer, hint) in [
            ("-NOAUTH Authentication required.\r\n", "put one into its URL"),
            ("-WRONGPASS invalid username-password pair or user is disabled.\r\n", "correct them in its URL"),
            ("-NOPERM this user has no permissions to run the 'evalsha' command\r\n", "grant the user"),
            (
                "-ERR The user executing the script can't run this command or subcommand script: 99, on @user_script:1.\r\n",
                "grant the user",
            ),
            // Redis 7.2 and later, Valkey.
            (
                "-ERR ACL failure in script: User paced has no permissions to run the 'get' command script: 99, on @user_script:1.\r\n",
                "grant the user",
            ),
            ("-ERR Could not find scripting engine 'lua'\r\n", "load the module"),
            ("-ERR unknown command 'SCRIPT', with args beginning with: 'LOAD' 'x' \r\n", "load the module"),
            ("-ERR unknown command `evalsha`, with args beginning with: \r\n", "load the module"),
            ("-MOVED 5798 10.0.0.1:6379\r\n", "write its URL as redis+cluster://"),
            ("-ERR unknown command\r\n", "is it Redis 6.2 or later"),
            (
                "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
                "is it Redis 6.2 or later",
            ),
        ] {
            let value = redis::parse_redis_value(answer.as_bytes()).unwrap();
            let text = at.explain(&value.extract_error().unwrap_err()).to_string();
            assert!(text.contains(hint) && text.contains("store.example:6379"), "{text}");
            let odd = answer == "-ERR unknown command\r\n" || answer.starts_with("-WRONGTYPE");
            assert_eq!(text.contains("Redis 6.2"), odd, "{text}");
            let is_about_rights =
                ["put one into", "correct them", "grant the user"].iter().any(|part| hint.starts_with(part));
            assert_eq!(text.contains("refuses:"), is_about_rights, "{text}");
        }
        for answer in [
            "-READONLY You can't write\r\n",
            // A script's, of Redis 6.2.
            "-ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write\r\n",
            "-CLUSTERDOWN Hash slot not served\r\n",
            "-LOADING Redis is loading the dataset in memory\r\n",
            "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
            "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
            // As Redis 7.0 answers a command, and a script that ran into it.
            "-NOREPLICAS Not enough good replicas to write.\r\n",
            "-NOREPLICAS Not enough good replicas to write. script: f925, on @user_script:1.\r\n",
            "-OOM command not allowed when used memory > 'maxmemory'. script: f925, on @user_script:1.\r\n",
            "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n",
            "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
            "-ERR Script killed by user with SCRIPT KILL... script: dca7, on @user_script:1.\r\n",
            "-ERR max number of clients reached\r\n",
            // As Redis 6.2 does.
            "-ERR Error running script (call to f_1): @user_script:1: -NOREPLICAS Not enough good replicas\r\n",
            "-ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed\r\n",
        ] {
            let value = redis::parse_redis_value(answer.as_bytes()).unwrap();
            let error = at.explain(&value.extract_error().unwrap_err());
            assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        }
    }

    #[test]
    fn answers_about_the_call_alone_end_no_connection() {
        for (answer, ends) in [
            ("-READONLY You can't write against a read only replica.\r\n", true),
            ("-ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write\r\n", true),
            ("-MASTERDOWN Link with MASTER is down\r\n", true),
            ("-NOAUTH Authentication required.\r\n", true),
            ("-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", false),
            ("-NOREPLICAS Not enough good replicas to write.\r\n", false),
            ("-OOM command not allowed when used memory > 'maxmemory'.\r\n", false),
            ("-BUSY Redis is busy running a script.\r\n", false),
            ("-MOVED 5798 10.0.0.1:6379\r\n", false),
            ("-CLUSTERDOWN Hash slot not served\r\n", false),
            ("-NOPERM this user has no permissions\r\n", false),
            ("-ERR Script killed by user with SCRIPT KILL...\r\n", false),
        ] {
            let error = redis::parse_redis_value(answer.as_bytes()).unwrap().extract_error().unwrap_err();
            assert_eq!(ends_connection(&error), ends, "{answer}");
        }
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        assert!(ends_connection(&broken), "its answer may still come");
        assert!(ends_connection(&(ErrorKind::Parse, "no reply").into()));
    }
}
