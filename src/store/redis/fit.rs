//! Whether a server can keep the state of limits, according to its INFO.

use super::RedisStore;
use super::errors::ServerAddress;
use crate::store::StoreError;

/// Refuses a server that is too old, or that is a replica, as one may be in the middle of a failover.
pub(super) fn check(at: &ServerAddress, server: &str, replication: &str) -> Result<(), StoreError> {
    let version = field(server, "redis_version");
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if !version.is_empty() && (parts.next(), parts.next()) < (Some(6), Some(2)) {
        return Err(at.refused(format!("version {version}; use Redis 6.2 or later")));
    }
    if field(replication, "role") == "slave" {
        return Err(at.unreachable("it is a replica, and slots come from its master alone"));
    }
    Ok(())
}

/// The policy by which a server may evict keys, if it has one: an eviction silently resets the pace of a limit.
pub(super) fn evicts(memory: &str) -> Option<&str> {
    let policy = field(memory, "maxmemory_policy");
    (policy.starts_with("volatile-") || policy.starts_with("allkeys-")).then_some(policy)
}

/// How a server keeps its keys, as far as it reports that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keeping {
    /// The policy by which it may evict keys.
    pub evicts: Option<String>,
    /// Whether it writes each change to its log (`appendonly`), so that a restart forgets next to nothing.
    pub appends: bool,
    /// What it could not write the last time.
    pub failed: Option<&'static str>,
}

/// How a server keeps its keys, according to these sections of INFO.
pub(super) fn keeping(memory: &str, persistence: &str) -> Keeping {
    let is_bad = |(name, _): &(&str, &str)| !matches!(field(persistence, name), "ok" | "");
    let writes = [("aof_last_write_status", "its log"), ("rdb_last_bgsave_status", "its snapshot")];
    Keeping {
        evicts: evicts(memory).map(str::to_owned),
        appends: field(persistence, "aof_enabled") == "1",
        failed: writes.into_iter().find(is_bad).map(|(_, what)| what),
    }
}

impl RedisStore {
    /// How the server of this downstream keeps its keys; `None` if the user may not ask for that.
    ///
    /// # Errors
    /// [`StoreError`] when the server is away or not suitable.
    #[doc(hidden)]
    pub async fn keeping(&self, downstream: &str) -> Result<Option<Keeping>, StoreError> {
        let mut commands = redis::pipe();
        commands.cmd("INFO").arg("memory").cmd("INFO").arg("persistence");
        match self.servers.read::<(String, String)>(downstream, &commands).await {
            Ok((memory, persistence)) => Ok(Some(keeping(&memory, &persistence))),
            Err(error) if error.is_unauthorized() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The id of the server's process: the first 52 bits of its run_id, as `reserve.lua` computes it; 0 if it has none.
pub(super) fn run(server: &str) -> i64 {
    let digits = field(server, "run_id").get(..13);
    digits.and_then(|digits| i64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// The value of a line `name:value` of INFO.
fn field<'a>(info: &'a str, name: &str) -> &'a str {
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| *key == name).map_or("", |(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_info() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrun_id:fffffffffffff01\r\n";
        assert_eq!((field(info, "redis_version"), field(info, "maxmemory_policy")), ("7.0.15", ""));
        assert_eq!((run(info), run("")), ((1 << 52) - 1, 0));
        assert_eq!(evicts("maxmemory:0\r\nmaxmemory_policy:volatile-lru\r\n"), Some("volatile-lru"));
        assert_eq!((evicts("maxmemory_policy:noeviction\r\n"), evicts("")), (None, None));
    }

    #[test]
    fn what_becomes_of_keys() {
        let evicting = "maxmemory_policy:allkeys-lru\r\n";
        let good = "aof_enabled:1\r\nrdb_last_bgsave_status:ok\r\naof_last_write_status:ok\r\n";
        assert_eq!(keeping("", good), Keeping { evicts: None, appends: true, failed: None });
        let bad = "aof_enabled:0\r\nrdb_last_bgsave_status:err\r\naof_last_write_status:ok\r\n";
        let evicts = Some("allkeys-lru".to_owned());
        assert_eq!(keeping(evicting, bad), Keeping { evicts, appends: false, failed: Some("its snapshot") });
    }

    #[test]
    fn old_servers_and_replicas_are_refused() {
        let at = ServerAddress("a:6379".to_owned());
        for (version, is_fit) in
            [("5.0.1", false), ("6.0.16", false), ("6.2.0", true), ("7.0.15", true), ("10.0", true)]
        {
            let checked = check(&at, &format!("redis_version:{version}\r\n"), "role:master\r\n");
            let Err(error) = checked else {
                assert!(is_fit, "{version}");
                continue;
            };
            assert!(
                !is_fit && error.to_string().contains(&format!("version {version}; use Redis 6.2")),
                "{error}"
            );
        }
        // Where INFO is not permitted, nothing is known of the server.
        assert!(check(&at, "", "").is_ok());
        let replica = check(&at, "redis_version:7.0.15\r\n", "# Replication\r\nrole:slave\r\n").unwrap_err();
        assert!(matches!(replica, StoreError::Unreachable { .. }), "{replica}");
    }
}
