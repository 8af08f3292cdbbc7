//! Finds the beginnings of frames in a stream, and counts the bytes of bodies.

/// The bytes of type, channel and size.
const HEAD: usize = 7;
const BODY: u8 = 3;
/// The types of frames with content: a method, a header or a body. Others, such as a heartbeat, have none.
const CONTENT: std::ops::RangeInclusive<u8> = 1..=BODY;

/// Follows a stream of frames, however it is cut into reads.
#[derive(Debug, Default)]
pub(super) struct Frames {
    head: [u8; HEAD],
    filled: usize,
    /// The bytes that are left of the payload and of its end octet.
    left: u64,
}

impl Frames {
    /// The number of bytes until the next decision: the rest of a frame that was begun, or of its head. It is 0 between
    /// two frames.
    pub(super) const fn left(&self) -> u64 {
        match self.filled {
            0 => 0,
            HEAD => self.left,
            filled => (HEAD - filled) as u64,
        }
    }

    /// Advances by these bytes. Returns how many of them belong to bodies, and lists the channels of the frames that
    /// begin in them.
    pub(super) fn advance(&mut self, mut bytes: &[u8], channels: &mut Vec<u16>) -> u64 {
        let mut bodies = 0;
        while !bytes.is_empty() {
            if self.filled < HEAD {
                let count = (HEAD - self.filled).min(bytes.len());
                self.head[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
                self.filled += count;
                bytes = &bytes[count..];
                if self.filled == HEAD {
                    self.begin(channels);
                }
                continue;
            }
            let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            self.left -= count as u64;
            if self.head[0] == BODY {
                // The end octet of a frame does not belong to the body.
                bodies += count as u64 - u64::from(self.left == 0);
            }
            bytes = &bytes[count..];
            if self.left == 0 {
                self.filled = 0;
            }
        }
        bodies
    }

    fn begin(&mut self, channels: &mut Vec<u16>) {
        let [kind, high, low, size @ ..] = self.head;
        self.left = u64::from(u32::from_be_bytes(size)) + 1;
        let channel = u16::from_be_bytes([high, low]);
        if channel != 0 && CONTENT.contains(&kind) && channels.last() != Some(&channel) {
            channels.push(channel);
        }
    }
}
