//! Sentinels, which know the current master.

use std::sync::atomic::{AtomicUsize, Ordering};

use redis::{Cmd, ConnectionInfo, ErrorKind, FromRedisValue as _, RedisError};

use super::address::Address;
use super::dial::{Dialer, first};
use super::errors::ServerAddress;
use crate::store::StoreError;

pub(super) struct Sentinels {
    sentinels: Vec<ConnectionInfo>,
    name: String,
    master: ConnectionInfo,
    /// The index of the sentinel that is asked first: another one each time, since one may be wrong for long.
    rotation: AtomicUsize,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<ConnectionInfo>, name: String, master: ConnectionInfo) -> Self {
        Self { sentinels, name, master, rotation: AtomicUsize::new(0) }
    }

    /// The addresses of all sentinels, and the master's name.
    pub(super) fn address(&self) -> String {
        let all: Vec<String> = self.sentinels.iter().map(|info| Address::of(info).to_string()).collect();
        format!("{} ({})", self.name, all.join(","))
    }

    /// The address of the master, as the first sentinel reports that knows it. It may have been deposed since.
    pub(super) async fn master(&self, dial: &Dialer) -> Result<ConnectionInfo, StoreError> {
        let start = self.rotation.fetch_add(1, Ordering::Relaxed) % self.sentinels.len().max(1);
        let (late, early) = self.sentinels.split_at(start);
        let dial = dial.to_sentinels();
        let asked =
            early.iter().chain(late).map(|info| ask(dial.clone(), info.clone(), self.name.clone())).collect();
        let address: Address = first(asked).await.map_err(|errors| self.no_answer(&errors))?;
        Ok(address.with(&self.master))
    }

    /// The error when no sentinel knows the master: one that answers is more informative than those that are away.
    fn no_answer(&self, errors: &[StoreError]) -> StoreError {
        let answered = errors.iter().find(|error| !error.is_away());
        let cause = answered.or(errors.first()).cloned();
        cause.unwrap_or_else(|| ServerAddress(self.address()).unreachable("there is no sentinel to ask"))
    }
}

async fn ask(dial: Dialer, info: ConnectionInfo, name: String) -> Result<Address, StoreError> {
    let at = ServerAddress(format!("{} (sentinel)", Address::of(&info)));
    let mut question = Cmd::new();
    question.arg("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&name);
    let answer = dial.ask(info, question).await.map_err(|error| explain(&at, &error))?;
    match Option::<(String, u16)>::from_redis_value(answer) {
        Ok(Some((host, port))) => Ok(Address { host, port }),
        Ok(None) => Err(
            at.refused(format!("it monitors no master `{name}`; correct MASTER_NAME at the end of its URL"))
        ),
        Err(error) => Err(at.refused(format!("{error}; is it a sentinel?"))),
    }
}

fn explain(at: &ServerAddress, error: &RedisError) -> StoreError {
    let login = error.kind() == ErrorKind::AuthenticationFailed
        || ["NOAUTH", "WRONGPASS"].contains(&error.code().unwrap_or_default());
    if login {
        return at.refused(
            "it wants a user or a password of its own; write ?sentinel_user=USER&sentinel_password=PASSWORD at the \
             end of its URL",
        );
    }
    match error.code() {
        Some("ERR") => at.refused(format!("{error}; is it a sentinel?")),
        _ => at.explain(error),
    }
}
