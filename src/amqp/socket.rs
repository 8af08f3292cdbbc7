//! The socket of a connection to the broker, with or without TLS.

use std::io;
use std::net::SocketAddr;

use async_rs::Runtime;
use async_rs::traits::Reactor as _;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::address::Address;
use super::guard::Wire;

/// A TCP connection, on tokio.
pub(super) type Plain = <async_rs::Tokio as async_rs::traits::Reactor>::TcpStream;

/// Opens a TCP connection. [`wrap`] begins TLS, after the caller has taken what it needs from the plain socket.
///
/// Cancel safe: a dropped future closes it.
pub(super) async fn dial(at: SocketAddr, runtime: &Runtime<async_rs::Tokio>) -> io::Result<Plain> {
    runtime.tcp_connect_addr(at).await
}

/// Does the handshake of TLS on a new connection to the (only) host of the address, if it asks for TLS.
///
/// Cancel safe: a dropped future closes it.
pub(super) async fn wrap(address: &Address, socket: Plain) -> io::Result<Box<dyn Wire>> {
    let Some(tls) = address.tls() else { return Ok(Box::new(socket)) };
    let stream = tls.connect(&address.uri().authority.host, socket.into_inner()).await?;
    Ok(Box::new(stream.compat()))
}
