//! A guard between the broker's socket and lapin, whose parser a message can crash.
//!
//! RabbitMQ forwards what lapin cannot parse: tables nested a thousand deep overflow the stack of lapin's I/O thread,
//! which aborts the process; a short string that is not UTF-8, or a content header that is longer than a frame may
//! be, ends the connection, and the next one too, since the message is delivered again.
//!
//! The guard reads the frames as they come, after TLS. Frames that lapin can parse pass as they are. Of other content
//! headers the guard keeps what can be parsed, and adds a mark that no producer can set. The handler of the delivery
//! learns from [`take_mark`] that the message is malformed, and how. The guard repairs texts of methods. Where the
//! framing itself is broken, lapin receives it and fails on it.
//!
//! Where there is no room for a body ([`Admit`]), the guard cuts it as it arrives: the delivery comes without it, and
//! with a mark that says so. [`HeadsOnly`] cuts all bodies and keeps the properties.

mod bodies;
mod content;
mod filter;
mod frame;
mod mark;
mod method;
mod runtime;
mod stream;
mod table;
#[cfg(test)]
mod tests;

pub(super) use bodies::{Admit, HeadsOnly};
pub(super) use mark::{Mark, take_body_length, take_mark};
pub(super) use runtime::runtime;
pub(super) use stream::{FrameMax, GuardedStream, IS_OFF, Wire};
