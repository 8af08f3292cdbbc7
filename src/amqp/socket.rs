//! The socket of a connection to the broker, with or without TLS.

use std::io;

use async_rs::Runtime;
use lapin::AsyncTcpStream;
use lapin::tcp::{AMQPUriTcpExt, TLSConfig};
use lapin::uri::AMQPScheme;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::address::Address;
use super::guard::Wire;

/// A TCP connection, on tokio.
pub(super) type Plain = <async_rs::Tokio as async_rs::traits::Reactor>::TcpStream;

/// Opens a TCP connection to the broker.
///
/// Cancel safe: a dropped future closes it.
pub(super) async fn dial(address: &Address, runtime: &Runtime<async_rs::Tokio>) -> io::Result<Plain> {
    // TLS is begun by `wrap`, on the socket that the caller has seen.
    let mut plain = address.uri();
    plain.scheme = AMQPScheme::AMQP;
    match plain.connect_with_config_async(TLSConfig::default(), runtime).await? {
        AsyncTcpStream::Plain(socket) => Ok(socket),
        _ => Err(io::Error::other("a plain connection came with TLS")),
    }
}

/// Does the handshake of TLS on a new connection, if the address asks for TLS.
///
/// Cancel safe: a dropped future closes it.
pub(super) async fn wrap(address: &Address, socket: Plain) -> io::Result<Box<dyn Wire>> {
    let Some(tls) = address.tls() else { return Ok(Box::new(socket)) };
    let stream = tls.connect(&address.uri().authority.host, socket.into_inner()).await?;
    Ok(Box::new(stream.compat()))
}
