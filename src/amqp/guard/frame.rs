//! The layout of AMQP 0-9-1 frames. It has no I/O.

pub(super) const METHOD: u8 = 1;
pub(super) const HEADER: u8 = 2;
pub(super) const BODY: u8 = 3;
pub(super) const HEARTBEAT: u8 = 8;

/// The octet that ends every frame.
pub(super) const END: u8 = 0xce;

/// Type, channel and length come before the payload.
pub(super) const HEAD: usize = 7;

/// The bytes of a frame besides its payload.
pub(super) const OVERHEAD: usize = HEAD + 1;

/// A whole heartbeat frame. It has no payload, so no frame is shorter.
pub(super) const BEAT: [u8; OVERHEAD] = [HEARTBEAT, 0, 0, 0, 0, 0, 0, END];

/// The fields before the payload of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: u8,
    pub(super) channel: u16,
    /// Length of the payload.
    pub(super) payload: u32,
}

impl Head {
    /// `None` where there are too few bytes.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        Some(Self { kind: reader.u8()?, channel: reader.u16()?, payload: reader.u32()? })
    }

    /// Length of the whole frame.
    pub(super) fn total(self) -> u64 {
        u64::from(self.payload) + OVERHEAD as u64
    }
}

/// A whole content header frame.
pub(super) fn header(channel: u16, payload: &[u8], end: u8) -> Vec<u8> {
    let mut frame = Vec::with_capacity(payload.len() + OVERHEAD);
    frame.push(HEADER);
    frame.extend_from_slice(&channel.to_be_bytes());
    frame.extend_from_slice(&length(payload));
    frame.extend_from_slice(payload);
    frame.push(end);
    frame
}

/// The length of `bytes`, as it precedes long strings, tables and payloads. Nothing that the guard
/// writes is longer than its limit on a frame.
pub(super) fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

/// Takes one field after another off a payload; `None` where it has not enough bytes left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A short string's bytes.
    pub(super) fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// The bytes of a long string, a table or an array.
    pub(super) fn long(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(usize::try_from(length).ok()?)
    }
}
