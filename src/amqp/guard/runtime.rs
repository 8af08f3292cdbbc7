//! A runtime for lapin on tokio, with [`GuardedStream`] as the type of its sockets.

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use async_rs::Runtime;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::Stream;

use super::{FrameMax, GuardedStream, Wire};

/// tokio's timers and sockets; each socket is guarded.
#[derive(Clone, Debug)]
pub(crate) struct Sockets(async_rs::Tokio);

/// The runtime for a guarded connection, on the current tokio runtime, without which it panics.
pub(crate) fn runtime() -> Runtime<RuntimeParts<async_rs::Tokio, Sockets>> {
    let tokio = async_rs::Tokio::current();
    Runtime::new(RuntimeParts::new(tokio.clone(), Sockets(tokio)))
}

impl Reactor for Sockets {
    type TcpStream = GuardedStream;
    type Sleep = <async_rs::Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    /// lapin does not call it: the connector opens the socket, since TLS has to end inside the guard.
    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<GuardedStream>> + Send + 'static {
        let connecting = self.0.tcp_connect_addr(address);
        async move {
            let socket: Box<dyn Wire> = Box::new(connecting.await?);
            Ok(GuardedStream::new(socket, FrameMax::default()))
        }
    }
}
