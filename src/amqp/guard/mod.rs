//! Stands between the broker's socket and lapin, whose parser a message can kill.
//!
//! RabbitMQ passes on what lapin cannot take: tables nested thousands deep overflow the stack of its I/O
//! thread, which aborts the process, and a short string that is not UTF-8 ends the connection. TLS, where
//! there is any, ends before the guard.

mod runtime;
mod stream;

pub(super) use runtime::runtime;
pub(super) use stream::GuardedStream;
