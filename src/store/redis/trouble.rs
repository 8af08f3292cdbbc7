//! Errors of the redis crate, told with the server's address and what to do.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::StoreError;

const WRONG_PASSWORD: &str = "the user or the password is wrong; correct them in its URL";

/// A server, or several that stand for one, by host and port: never with credentials.
#[derive(Clone, Debug)]
pub(super) struct At(pub(super) String);

impl At {
    /// An answer that is not what it should be.
    pub(super) fn unexpected(&self, detail: impl Into<String>) -> StoreError {
        self.refused(format!("{}; is it Redis 6.2 or later, not a replica?", detail.into()))
    }

    /// An answer of which it is known what to do.
    pub(super) fn refused(&self, detail: impl Into<String>) -> StoreError {
        StoreError::Unexpected { address: self.0.clone(), detail: detail.into() }
    }

    /// Away, or not able to serve just now.
    pub(super) fn unreachable(&self, detail: impl Into<String>) -> StoreError {
        StoreError::Unreachable { address: self.0.clone(), detail: detail.into() }
    }

    pub(super) fn explain(&self, error: &RedisError) -> StoreError {
        match error.kind() {
            ErrorKind::Io => self.unreachable(error.to_string()),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain,
            ) => self.unreachable(error.to_string()),
            ErrorKind::Server(ServerErrorKind::Moved) => {
                self.refused(format!("{error}; it is a node of a cluster: write its URL as redis+cluster://"))
            }
            ErrorKind::AuthenticationFailed => self.refused(WRONG_PASSWORD),
            _ if error.code() == Some("WRONGPASS") => self.refused(WRONG_PASSWORD),
            _ if error.code() == Some("NOAUTH") => {
                self.refused("it wants a password; put one into its URL, redis://[USER]:PASSWORD@HOST")
            }
            ErrorKind::Server(ServerErrorKind::NoPerm) => {
                self.refused(format!("{error}; grant the user what paced needs"))
            }
            _ => self.explain_text(error.to_string()),
        }
    }

    /// What a script ran into has no code of its own in every version.
    fn explain_text(&self, text: String) -> StoreError {
        if text.contains("READONLY") {
            self.unreachable(text)
        } else if text.contains("user executing the script") || text.contains("ACL failure in script") {
            self.refused(format!("{text}; grant the user what paced needs"))
        } else {
            self.unexpected(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_refuses_is_told_with_what_to_do() {
        let at = At("store.example:6379".to_owned());
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
            ("-MOVED 5798 10.0.0.1:6379\r\n", "write its URL as redis+cluster://"),
            ("-ERR unknown command\r\n", "is it Redis 6.2 or later"),
        ] {
            let value = redis::parse_redis_value(answer.as_bytes()).unwrap();
            let text = at.explain(&value.extract_error().unwrap_err()).to_string();
            assert!(text.contains(hint) && text.contains("store.example:6379"), "{text}");
            assert_eq!(text.contains("Redis 6.2"), answer.starts_with("-ERR unknown"), "{text}");
        }
        for answer in [
            "-READONLY You can't write\r\n",
            // A script's, of Redis 6.2.
            "-ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write\r\n",
            "-CLUSTERDOWN Hash slot not served\r\n",
        ] {
            let value = redis::parse_redis_value(answer.as_bytes()).unwrap();
            let error = at.explain(&value.extract_error().unwrap_err());
            assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        }
    }
}
