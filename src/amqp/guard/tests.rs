//! Tests of the guard against the parser that it protects, and against arbitrary input.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use amq_protocol::frame::{AMQPFrame, parse_frame};
use fastrand::Rng;
use futures_io::AsyncRead;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use super::frame::{self, BODY, END, HEADER, HEARTBEAT, Head, METHOD, OVERHEAD};
use super::table::{MAX_DEPTH, MAX_VALUES};
use super::*;

mod cut;
mod generate;
mod parser;
mod poison;
mod split;

/// The frames' longest length in these tests.
const MAX: u32 = 16 * 1024;

/// A whole frame.
fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend_from_slice(&channel.to_be_bytes());
    frame.extend_from_slice(&frame::length(payload));
    frame.extend_from_slice(payload);
    frame.push(END);
    frame
}

fn frame_max() -> FrameMax {
    let frame_max = FrameMax::default();
    frame_max.set(MAX);
    frame_max
}

/// What lapin reads when all of `input` comes at once.
fn guarded(input: &[u8]) -> Vec<u8> {
    guarded_with(input, frame_max())
}

fn guarded_with(input: &[u8], frame_max: FrameMax) -> Vec<u8> {
    let mut stream = GuardedStream::new(Script::of([input.to_vec()]), frame_max);
    let mut buf = vec![0; input.len() + 8 * 1024];
    let (mut out, mut cx) = (Vec::new(), Context::from_waker(Waker::noop()));
    loop {
        match Pin::new(&mut stream).poll_read(&mut cx, &mut buf) {
            Poll::Ready(Ok(0)) => return out,
            Poll::Ready(Ok(count)) => out.extend_from_slice(&buf[..count]),
            // It has read often enough, and asks to be polled again.
            Poll::Pending => {}
            Poll::Ready(Err(error)) => panic!("{error}"),
        }
    }
}

/// A socket that delivers these pieces, each by one read or several, and then ends.
struct Script {
    pieces: VecDeque<Vec<u8>>,
    /// The number of bytes of the first piece that were read.
    gone: usize,
    /// Answers `Pending` before each piece.
    pauses: bool,
    paused: bool,
}

impl Script {
    fn of(pieces: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        Self { pieces, gone: 0, pauses: false, paused: false }
    }
}

impl AsyncRead for Script {
    fn poll_read(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        if this.pauses && !this.pieces.is_empty() {
            this.paused = !this.paused;
            if this.paused {
                return Poll::Pending;
            }
        }
        let Some(piece) = this.pieces.front() else { return Poll::Ready(Ok(0)) };
        let rest = &piece[this.gone..];
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        this.gone += count;
        if this.gone == piece.len() {
            this.gone = 0;
            this.pieces.pop_front();
        }
        Poll::Ready(Ok(count))
    }
}

/// The one content header in `frame`, as lapin parses it, and the mark that it bore.
fn parsed(frame: &[u8]) -> Option<(u64, BasicProperties, Option<String>)> {
    let (rest, AMQPFrame::Header(_, header)) = parse_frame(frame).ok()? else { return None };
    if !rest.is_empty() {
        return None;
    }
    let mut properties: BasicProperties = header.properties;
    let mark = take_mark(&mut properties).and_then(Mark::malformed);
    Some((header.body_size, properties, mark))
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn headers(properties: &BasicProperties) -> &FieldTable {
    properties.headers().as_ref().expect("headers")
}
