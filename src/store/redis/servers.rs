//! The servers behind a URL: one, the master that sentinels know, or a cluster.

use std::time::Duration;

use redis::FromRedisValue;
use redis::aio::PubSub;
use tokio::sync::watch;

use super::cluster::Cluster;
use super::dial::Dial;
use super::link::Link;
use super::scripts::Call;
use super::sentinel::Sentinels;
use super::trouble::At;
use super::url::Place;
use crate::store::StoreError;
use crate::time::Micros;

pub(super) enum Servers {
    /// All downstreams are on one server.
    One(Box<Link>),
    /// Each downstream is on the master of its slot.
    Cluster(Box<Cluster>),
}

impl Servers {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the URL is wrong; the text does not repeat it.
    pub(super) fn open(url: &str, connect: Duration, response: Duration) -> Result<Self, StoreError> {
        let place = Place::parse(url)?;
        if url.starts_with("rediss") {
            install_tls();
        }
        let dial = Dial::new(connect, response);
        Ok(match place {
            Place::One(info) => Self::One(Box::new(Link::fixed(dial, info))),
            Place::Sentinels { sentinels, name, master } => {
                Self::One(Box::new(Link::sentinels(dial, Sentinels::new(sentinels, name, master))))
            }
            Place::Cluster { seeds, login } => Self::Cluster(Box::new(Cluster::new(dial, seeds, login))),
        })
    }

    /// Hosts and ports, without credentials.
    pub(super) fn address(&self) -> &str {
        &self.at().0
    }

    /// An answer that is not what it should be.
    pub(super) fn unexpected(&self, detail: impl Into<String>) -> StoreError {
        self.at().unexpected(detail)
    }

    /// Runs a script once, on the server of the downstream. It is built with what is known of that server's
    /// process, and built anew for the right node of a cluster if the first one has refused it.
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

    /// Asks the server of the downstream several things that change nothing.
    pub(super) async fn read<T: FromRedisValue>(
        &self,
        downstream: &str,
        asked: &redis::Pipeline,
    ) -> Result<T, StoreError> {
        match self {
            Self::One(link) => link.read(asked).await,
            Self::Cluster(cluster) => cluster.read(downstream, asked).await,
        }
    }

    /// The server's clock; of a cluster that of one of its masters, once all have answered.
    pub(super) async fn time(&self) -> Result<Micros, StoreError> {
        match self {
            Self::One(link) => link.time().await,
            Self::Cluster(cluster) => cluster.time().await,
        }
    }

    /// A connection of its own that hears what is published on the channel, for whichever downstream.
    pub(super) async fn listen(&self, channel: &str) -> Result<PubSub, StoreError> {
        match self {
            Self::One(link) => link.listen(channel).await,
            Self::Cluster(cluster) => cluster.listen(channel).await,
        }
    }

    /// Tells from now on when another connection for calls was opened, since the last one broke.
    pub(super) fn reopened(&self) -> watch::Receiver<()> {
        match self {
            Self::One(link) => link.dial().reopened(),
            Self::Cluster(cluster) => cluster.dial().reopened(),
        }
    }

    fn at(&self) -> &At {
        match self {
            Self::One(link) => link.at(),
            Self::Cluster(cluster) => cluster.at(),
        }
    }
}

/// rustls panics without a process-wide provider; one that is installed already is kept.
fn install_tls() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails only if another thread was faster, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
