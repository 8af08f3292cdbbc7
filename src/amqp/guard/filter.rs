//! Rewrites the broker's frames one by one into what lapin can parse. It has no I/O.

use std::sync::Arc;

use super::bodies::{Admit, Bodies, Remains};
use super::content::{self, Oversized};
use super::frame::{self, BEAT, BODY, END, HEAD, HEADER, HEARTBEAT, Head, METHOD, OVERHEAD};
use super::method;

/// The longest method that is examined; RabbitMQ's have a few hundred bytes.
const MAX_METHOD: u64 = 64 * 1024;

/// A buffer of at least this capacity is freed as soon as it is empty.
const LARGE: usize = 64 * 1024;

/// Passes good frames on in place, and rewrites the others.
///
/// Bodies pass unexamined, or are cut: then each of their frames becomes a heartbeat, since what arrives shows that the
/// broker is alive. Methods and content headers are held back until they are complete.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// The beginning of an incomplete frame.
    held: Vec<u8>,
    /// Filtered bytes that did not fit the reader's buffer.
    out: Vec<u8>,
    /// The number of bytes of `out` that have been delivered.
    out_gone: usize,
    /// The number of bytes that pass unexamined: the rest of a frame, or bytes that are no frame.
    passing: u64,
    /// The number of bytes that are dropped: the rest of a frame of a body that is cut.
    dropping: u64,
    bodies: Bodies,
    /// A content header that is longer than a frame may be, with the head of its frame.
    oversized: Option<(Head, Oversized)>,
    /// Channels whose next content header belongs to a malformed method, with the trouble.
    tainted: Vec<(u16, String)>,
}

/// The decision on the next bytes.
enum Step {
    /// This many bytes pass as they are.
    Pass(usize),
    /// This many bytes are replaced by these.
    Replace(usize, Vec<u8>),
    /// The decision needs more bytes.
    Wait,
}

impl Filter {
    /// A filter that cuts the bodies that `admit` does not accept, if there is one.
    pub(super) fn new(admit: Option<Arc<dyn Admit>>) -> Self {
        Self { bodies: Bodies::new(admit), ..Self::default() }
    }

    /// The beginning of a frame that is held back. A reader copies it before the bytes that come next, or appends these
    /// to it.
    pub(super) const fn held(&mut self) -> &mut Vec<u8> {
        &mut self.held
    }

    /// Moves filtered bytes that are pending to `buf`.
    pub(super) fn drain(&mut self, buf: &mut [u8]) -> usize {
        let owed = &self.out[self.out_gone..];
        let count = owed.len().min(buf.len());
        buf[..count].copy_from_slice(&owed[..count]);
        self.out_gone += count;
        if self.out_gone == self.out.len() {
            self.out_gone = 0;
            clear(&mut self.out);
        }
        count
    }

    /// Filters the first `filled` bytes of `buf`, which follow all bytes filtered before and begin with those that were
    /// held. Returns how many may be delivered; further ones may be pending for [`Filter::drain`].
    ///
    /// `max` is the longest length of a frame.
    pub(super) fn filter(&mut self, buf: &mut [u8], filled: usize, max: usize) -> usize {
        clear(&mut self.held);
        let (mut read, mut written) = (0, 0);
        loop {
            match self.step(&mut buf[read..filled], max) {
                Step::Pass(count) => {
                    if read != written {
                        buf.copy_within(read..read + count, written);
                    }
                    read += count;
                    written += count;
                }
                Step::Replace(count, with) => {
                    read += count;
                    let end = written + with.len();
                    if end <= read {
                        buf[written..end].copy_from_slice(&with);
                        written = end;
                    } else {
                        // It would overwrite bytes that were not examined yet.
                        self.out = with;
                        self.held.extend_from_slice(&buf[read..filled]);
                        self.filter_held(max);
                        return written;
                    }
                }
                Step::Wait => {
                    self.held.extend_from_slice(&buf[read..filled]);
                    return written;
                }
            }
        }
    }

    /// Filters the bytes that are held; the result is pending for [`Filter::drain`].
    pub(super) fn filter_held(&mut self, max: usize) {
        let mut input = std::mem::take(&mut self.held);
        let mut read = 0;
        loop {
            match self.step(&mut input[read..], max) {
                Step::Pass(count) => {
                    self.out.extend_from_slice(&input[read..read + count]);
                    read += count;
                }
                Step::Replace(count, with) => {
                    self.out.extend_from_slice(&with);
                    read += count;
                }
                Step::Wait => break,
            }
        }
        input.drain(..read);
        if input.is_empty() {
            clear(&mut input);
        }
        self.held = input;
    }

    /// Decides on the first bytes of `input`, at most one frame, which it may repair in place.
    fn step(&mut self, input: &mut [u8], max: usize) -> Step {
        if input.is_empty() {
            return Step::Wait;
        }
        if self.passing > 0 {
            return self.pass(input.len());
        }
        if self.dropping > 0 {
            let count = usize::try_from(self.dropping).map_or(input.len(), |left| left.min(input.len()));
            self.dropping -= count as u64;
            return Step::Replace(count, Vec::new());
        }
        if self.oversized.is_some() {
            return self.take_oversized(input);
        }
        let Some(head) = Head::read(input) else { return Step::Wait };
        match head.kind {
            METHOD if head.total() <= MAX_METHOD => match whole(input, head) {
                Some(frame) => self.method(head, frame),
                None => Step::Wait,
            },
            HEADER if head.total() <= max as u64 => match whole(input, head) {
                Some(frame) => self.header(head, frame, max),
                None => Step::Wait,
            },
            HEADER => {
                let length = usize::try_from(head.payload).unwrap_or(usize::MAX);
                self.oversized = Some((head, Oversized::new(length, max.saturating_sub(OVERHEAD))));
                Step::Replace(HEAD, Vec::new())
            }
            BODY if self.bodies.is_cut(head.channel) => match input.get_mut(..OVERHEAD) {
                Some(start) => {
                    start.copy_from_slice(&BEAT);
                    self.bodies.cut(head);
                    self.dropping = head.payload.into();
                    Step::Pass(OVERHEAD)
                }
                None => Step::Wait,
            },
            // lapin refuses a method that is too long.
            METHOD | BODY | HEARTBEAT => {
                self.passing = head.total();
                self.pass(input.len())
            }
            _ => self.give_up(input.len()),
        }
    }

    fn pass(&mut self, available: usize) -> Step {
        let count = usize::try_from(self.passing).map_or(available, |passing| passing.min(available));
        self.passing -= count as u64;
        Step::Pass(count)
    }

    /// The bytes are not AMQP: lapin receives them, and fails on them.
    fn give_up(&mut self, available: usize) -> Step {
        self.passing = u64::MAX;
        self.pass(available)
    }

    fn method(&mut self, head: Head, frame: &mut [u8]) -> Step {
        let (total, end) = (frame.len(), frame[frame.len() - 1]);
        if end != END {
            return self.give_up(total);
        }
        if !self.tainted.is_empty() {
            self.tainted.retain(|(channel, _)| *channel != head.channel);
        }
        self.bodies.method(head.channel, &frame[HEAD..total - 1]);
        if let Some(trouble) = method::repair(&mut frame[HEAD..total - 1]) {
            self.tainted.push((head.channel, trouble));
        }
        Step::Pass(total)
    }

    fn header(&mut self, head: Head, frame: &[u8], max: usize) -> Step {
        let (payload, end) = (&frame[HEAD..frame.len() - 1], frame[frame.len() - 1]);
        if end != END {
            return self.give_up(frame.len());
        }
        let (trouble, max) = (self.taint(head.channel), max.saturating_sub(OVERHEAD));
        let replaced = match self.bodies.header(head.channel, payload) {
            Some(Remains::Length(size)) => Some(content::cut(size)),
            Some(Remains::Properties) => content::without_body(payload, trouble, max),
            None if trouble.is_none() && content::is_sound(payload) => return Step::Pass(frame.len()),
            None => content::rebuild(payload, trouble, max),
        };
        match replaced {
            Some(payload) => Step::Replace(frame.len(), frame::header(head.channel, &payload, END)),
            None => self.give_up(frame.len()),
        }
    }

    fn take_oversized(&mut self, input: &[u8]) -> Step {
        let Some((head, mut oversized)) = self.oversized.take() else { return Step::Wait };
        let count = oversized.take(input);
        let Some(end) = input.get(count).filter(|_| oversized.is_complete()) else {
            self.oversized = Some((head, oversized));
            return if count == 0 { Step::Wait } else { Step::Replace(count, Vec::new()) };
        };
        if *end != END {
            self.passing = u64::MAX;
        }
        let trouble = self.taint(head.channel);
        let mut payload = oversized.rebuild(trouble).unwrap_or_default();
        match self.bodies.header(head.channel, &payload) {
            Some(Remains::Length(size)) => payload = content::cut(size),
            Some(Remains::Properties) => {
                payload = content::without_body(&payload, None, oversized.max()).unwrap_or_default();
            }
            None => {}
        }
        Step::Replace(count + 1, frame::header(head.channel, &payload, *end))
    }

    /// The trouble with the method that this channel's content header belongs to.
    fn taint(&mut self, channel: u16) -> Option<String> {
        let index = self.tainted.iter().position(|(tainted, _)| *tainted == channel)?;
        Some(self.tainted.swap_remove(index).1)
    }
}

#[cfg(test)]
impl Filter {
    /// The capacity of all of its buffers.
    pub(super) fn memory(&self) -> usize {
        let oversized = self.oversized.as_ref().map_or(0, |(_, oversized)| oversized.memory());
        self.held.capacity() + self.out.capacity() + oversized
    }
}

/// The whole frame, if it is complete.
fn whole(input: &mut [u8], head: Head) -> Option<&mut [u8]> {
    input.get_mut(..usize::try_from(head.total()).ok()?)
}

fn clear(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > LARGE {
        *buffer = Vec::new();
    }
}
