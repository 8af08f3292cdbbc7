//! The servers that a URL names: one server, the master of sentinels, or a cluster.

use std::sync::Arc;

use redis::FromRedisValue;
use redis::aio::PubSub;
use tokio::sync::watch;

use super::cluster::Cluster;
use super::dial::Dialer;
use super::errors::ServerAddress;
use super::link::Link;
use super::options::Options;
use super::scripts::Call;
use super::sentinel::Sentinels;
use super::url::Deployment;
use crate::store::StoreError;
use crate::time::Micros;
use crate::tls::Tls;

pub(super) enum Servers {
    /// All downstreams are on one server, which may be the master of sentinels.
    One(Arc<Link>),
    /// Each downstream is on the master of its slot.
    Cluster(Arc<Cluster>),
}

impl Servers {
    /// The servers of a URL. It does not connect yet.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the URL is wrong, or has no TLS where there are options for it; the text does not
    /// repeat it.
    pub(super) fn open(url: &str, options: Options) -> Result<Self, StoreError> {
        let Options { connect_timeout, response_timeout, tls, read_url, home, .. } = options;
        let deployment = Deployment::parse(url)?;
        if tls.is_some() && !url.starts_with("rediss") {
            let text =
                "the store's URL has no TLS, for which there are options; write rediss instead of redis";
            return Err(StoreError::Invalid(text.to_owned()));
        }
        let mut dial =
            Dialer::new((connect_timeout, response_timeout), tls.unwrap_or_else(Tls::system), home);
        if let Some(read) = read_url {
            dial = dial.reading_login_again(url, read);
        }
        Ok(match deployment {
            Deployment::One(info) => Self::One(Arc::new(Link::fixed(dial, info))),
            Deployment::Sentinels { sentinels, name, master } => {
                Self::One(Arc::new(Link::sentinels(dial, Sentinels::new(sentinels, name, master))))
            }
            Deployment::Cluster { seeds, login } => Self::Cluster(Arc::new(Cluster::new(dial, seeds, login))),
        })
    }

    /// The hosts and ports, without credentials.
    pub(super) fn address(&self) -> &str {
        &self.at().0
    }

    /// The error for a malformed answer.
    pub(super) fn unexpected(&self, detail: impl Into<String>) -> StoreError {
        self.at().unexpected(detail)
    }

    /// Runs a script once, on the server of the downstream. The call is built for the id of that server's process, and
    /// built again for the right node of a cluster if the first one has refused it.
    pub(super) async fn invoke<'c, T: FromRedisValue>(
        &self,
        downstream: &str,
        call: impl Fn(i64) -> Call<'c> + Send + Sync,
    ) -> Result<T, StoreError> {
        match self {
            Self::One(link) => link.invoke(call).await.map_err(|failure| failure.error),
            Self::Cluster(cluster) => cluster.invoke(downstream, call).await,
        }
    }

    /// Runs several commands that change nothing, on the server of the downstream.
    pub(super) async fn read<T: FromRedisValue>(
        &self,
        downstream: &str,
        commands: &redis::Pipeline,
    ) -> Result<T, StoreError> {
        match self {
            Self::One(link) => link.read(commands).await,
            Self::Cluster(cluster) => cluster.read(downstream, commands).await,
        }
    }

    /// The server's clock; of a cluster that of one of its masters, once all have answered.
    pub(super) async fn time(&self) -> Result<Micros, StoreError> {
        match self {
            Self::One(link) => link.time().await,
            Self::Cluster(cluster) => cluster.time().await,
        }
    }

    /// Opens a connection that subscribes to the channel, which serves all downstreams.
    pub(super) async fn listen(&self, channel: &str) -> Result<PubSub, StoreError> {
        match self {
            Self::One(link) => link.listen(channel).await,
            Self::Cluster(cluster) => cluster.listen(channel).await,
        }
    }

    /// Subscribes to openings of connections for calls after the last one broke.
    pub(super) fn reopened(&self) -> watch::Receiver<()> {
        match self {
            Self::One(link) => link.dial().reopened(),
            Self::Cluster(cluster) => cluster.dial().reopened(),
        }
    }

    fn at(&self) -> &ServerAddress {
        match self {
            Self::One(link) => link.at(),
            Self::Cluster(cluster) => cluster.at(),
        }
    }
}
