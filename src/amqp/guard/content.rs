//! Content headers: decides which of them lapin can parse, and rebuilds the others without what it cannot. It has no
//! I/O.

use super::frame::{Reader, length};
use super::mark;
use super::table::{self, Flaw, MAX_DEPTH, MAX_VALUES, Seen, check_value, skip_value};

/// The bytes of class, weight and body size, which any content header must have.
const FIXED: usize = 12;

/// The properties in the order of their flags, from the highest bit on.
const PROPERTIES: [(&str, Kind); 14] = [
    ("content_type", Kind::Short),
    ("content_encoding", Kind::Short),
    ("headers", Kind::Table),
    ("delivery_mode", Kind::Octets(1)),
    ("priority", Kind::Octets(1)),
    ("correlation_id", Kind::Short),
    ("reply_to", Kind::Short),
    ("expiration", Kind::Short),
    ("message_id", Kind::Short),
    ("timestamp", Kind::Octets(8)),
    ("type", Kind::Short),
    ("user_id", Kind::Short),
    ("app_id", Kind::Short),
    ("cluster_id", Kind::Short),
];

/// The index of the headers in [`PROPERTIES`].
const HEADERS: usize = 2;

/// The beginning of the broker's record of its dead-letterings: the name of the entry, behind its length.
const DEATHS: &[u8] = b"\x07x-death";

/// The shortest entry of that name, without a value. It stands for a record that is lost, or that may have been
/// there. A letter with it counts as one of the broker, so that no header of its producer counts as a report.
const SOME_DEATHS: &[u8] = b"\x07x-deathV";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Short,
    Table,
    Octets(usize),
}

/// The flag of a property.
const fn flag(index: usize) -> u16 {
    1 << (15 - index)
}

/// The length of the body that follows a content header, by the payload of the header.
pub(super) fn body_size(payload: &[u8]) -> Option<u64> {
    payload.get(4..FIXED)?.try_into().ok().map(u64::from_be_bytes)
}

/// The payload for a message whose body, of this length, is cut: it announces no body, and has nothing but the mark.
pub(super) fn cut(body: u64) -> Vec<u8> {
    // Class 60, no weight, no body.
    let mut payload = vec![0; FIXED];
    payload[1] = 60;
    payload.extend_from_slice(&flag(HEADERS).to_be_bytes());
    let mark = mark::cut(body);
    payload.extend_from_slice(&length(&mark));
    payload.extend_from_slice(&mark);
    payload
}

/// True where lapin can and may parse this payload of a content header.
pub(super) fn is_sound(payload: &[u8]) -> bool {
    let mut reader = Reader(payload);
    let Some(flags) = reader.take(FIXED).and_then(|_| reader.u16()) else { return false };
    for (index, (_, kind)) in PROPERTIES.into_iter().enumerate() {
        if flags & flag(index) != 0 {
            let sound = match kind {
                Kind::Short => reader.short().is_some_and(|text| std::str::from_utf8(text).is_ok()),
                Kind::Octets(count) => reader.take(count).is_some(),
                Kind::Table => reader.long().is_some_and(|entries| table::check(entries).is_ok()),
            };
            if !sound {
                return false;
            }
        }
    }
    reader.is_empty()
}

/// The payload without what lapin cannot parse, with a mark, and of `max` bytes at most.
///
/// `trouble` is what is known to be wrong with the message already. `None` where the payload lacks even the size of
/// the body: that is no message.
pub(super) fn rebuild(payload: &[u8], trouble: Option<String>, max: usize) -> Option<Vec<u8>> {
    rebuild_from(payload, Parts { trouble, ..Parts::default() }, max)
}

/// As [`rebuild`]; `parts` has what is known already.
fn rebuild_from<'a>(payload: &'a [u8], mut parts: Parts<'a>, max: usize) -> Option<Vec<u8>> {
    let fixed = payload.get(..FIXED)?;
    parts.collect(Reader(&payload[FIXED..]));
    // Without other trouble, lapin refuses the payload by a rule that this code does not know.
    let trouble = parts.trouble.take().unwrap_or_else(|| "the message is malformed".to_owned());
    Some(parts.write(fixed, mark::entry(&trouble), max))
}

/// The payload for a message whose body is cut and whose properties are kept, as far as lapin can parse them. It
/// announces no body, has a mark with the length of the body, and is of `max` bytes at most.
pub(super) fn without_body(payload: &[u8], trouble: Option<String>, max: usize) -> Option<Vec<u8>> {
    let size = body_size(payload)?;
    let mut parts = Parts { trouble, ..Parts::default() };
    parts.collect(Reader(&payload[FIXED..]));
    let mut marks = mark::body(size);
    if let Some(trouble) = parts.trouble.take() {
        marks.extend_from_slice(&mark::entry(&trouble));
    }
    // Class and weight, and no body.
    let fixed = [&payload[..4], &[0; FIXED - 4]].concat();
    Some(parts.write(&fixed, marks, max))
}

/// The parts of a content header that can be kept.
#[derive(Default)]
struct Parts<'a> {
    /// Each property except the headers, with its length where it has one.
    fields: [Option<&'a [u8]>; PROPERTIES.len()],
    /// The entries of the headers.
    headers: Vec<&'a [u8]>,
    /// Whether a header that cannot be kept, or whose name is not known, may be the broker's record of dead-letterings.
    hides_deaths: bool,
    /// The first thing that is wrong.
    trouble: Option<String>,
}

impl<'a> Parts<'a> {
    /// The payload of these parts, with the marks among its headers. Headers for which `max` leaves no room are left out; of the
    /// broker's record of dead-letterings its name stays.
    fn write(&self, fixed: &[u8], marks: Vec<u8>, max: usize) -> Vec<u8> {
        let mut table = marks;
        let others: usize = self.fields.iter().flatten().map(|field| field.len()).sum();
        let mut room = max.saturating_sub(FIXED + 2 + 4 + others + table.len());
        // The broker's record of dead-letterings (`x-death`) grows with each one, and no job is made of it.
        let (brokers, jobs): (Vec<&[u8]>, Vec<&[u8]>) =
            self.headers.iter().partition(|entry| entry.starts_with(DEATHS));
        let reserved = if self.hides_deaths || !brokers.is_empty() { SOME_DEATHS.len() } else { 0 };
        room = room.saturating_sub(reserved);
        for entry in jobs {
            if entry.len() <= room {
                room -= entry.len();
                table.extend_from_slice(entry);
            }
        }
        room += reserved;
        match brokers.into_iter().find(|entry| entry.len() <= room) {
            Some(entry) => table.extend_from_slice(entry),
            None if reserved > 0 => table.extend_from_slice(SOME_DEATHS),
            None => {}
        }
        let mut new = Vec::with_capacity(FIXED + 2 + 4 + others + table.len());
        new.extend_from_slice(fixed);
        let flags = |flags: u16, index: usize| match self.fields[index] {
            Some(_) => flags | flag(index),
            None => flags,
        };
        new.extend_from_slice(&(0..PROPERTIES.len()).fold(flag(HEADERS), flags).to_be_bytes());
        for (index, field) in self.fields.iter().enumerate() {
            if index == HEADERS {
                new.extend_from_slice(&length(&table));
                new.extend_from_slice(&table);
            }
            new.extend_from_slice(field.unwrap_or_default());
        }
        new
    }

    fn note(&mut self, trouble: impl FnOnce() -> String) {
        self.trouble.get_or_insert_with(trouble);
    }

    /// Collects the properties, of which the flags come first, as far as they can be read.
    fn collect(&mut self, mut reader: Reader<'a>) {
        if self.collect_fields(&mut reader).is_none() {
            self.note(|| "the properties are broken: a length in them is wrong".to_owned());
        } else if !reader.is_empty() {
            self.note(|| "the properties are broken: there are bytes behind them".to_owned());
        }
    }

    fn collect_fields(&mut self, reader: &mut Reader<'a>) -> Option<()> {
        let flags = reader.u16()?;
        for (index, (name, kind)) in PROPERTIES.into_iter().enumerate() {
            if flags & flag(index) == 0 {
                continue;
            }
            let all = reader.0;
            match kind {
                Kind::Table => {
                    let long = reader.long();
                    // Where the length is wrong, the entries still begin at the usual place.
                    self.collect_headers(Reader(long.or_else(|| all.get(4..)).unwrap_or_default()));
                    long?;
                    continue;
                }
                Kind::Octets(count) => drop(reader.take(count)?),
                Kind::Short => {
                    let text = reader.short()?;
                    if std::str::from_utf8(text).is_err() {
                        self.note(|| format!("`{name}` is not UTF-8: `{}`; send text", escaped(text)));
                        continue;
                    }
                }
            }
            self.fields[index] = Some(&all[..all.len() - reader.0.len()]);
        }
        Some(())
    }

    fn collect_headers(&mut self, mut reader: Reader<'a>) {
        let mut seen = Seen::default();
        while !reader.is_empty() {
            let all = reader.0;
            let Some(name) = reader.short() else {
                self.hides_deaths = true;
                return self.note(|| "the headers are broken: a length in them is wrong".to_owned());
            };
            let value = skip_value(&mut reader);
            // Values of dropped entries do not count.
            let mut counted = seen;
            let mut sound = value.and_then(|value| check_value(value, &mut counted));
            if std::str::from_utf8(name).is_err() {
                sound = Err(Flaw::Name);
            }
            match sound {
                Ok(()) => {
                    seen = counted;
                    self.headers.push(&all[..all.len() - reader.0.len()]);
                }
                Err(flaw) => {
                    // If its value cannot be read, the beginning of the next entry is not known.
                    self.hides_deaths |= value.is_err() || all.starts_with(DEATHS);
                    self.note(|| describe(name, flaw));
                }
            }
            if value.is_err() {
                return;
            }
        }
    }
}

fn describe(name: &[u8], flaw: Flaw) -> String {
    let name = escaped(name);
    match flaw {
        Flaw::Broken => format!("the header `{name}` is broken: a length in it is wrong"),
        Flaw::Name => format!("a name in the header `{name}` is not UTF-8; send text"),
        Flaw::Type(kind) => format!("the header `{name}` has a value of the unknown type 0x{kind:02x}"),
        Flaw::Depth => format!("the header `{name}` nests deeper than {MAX_DEPTH}; send it flatter"),
        Flaw::Values => {
            format!("the headers have over {MAX_VALUES} values; send less in headers, more in the body")
        }
    }
}

/// The beginning of bytes from a peer, escaped for people.
pub(super) fn escaped(bytes: &[u8]) -> String {
    const SHOWN: usize = 40;
    let dots = if bytes.len() > SHOWN { "..." } else { "" };
    format!("{}{dots}", bytes[..bytes.len().min(SHOWN)].escape_ascii())
}

/// A content header that is longer than a frame may be, which is received piece by piece.
///
/// Only the beginning of its headers is kept, and all properties behind them.
#[derive(Debug)]
pub(super) struct Oversized {
    /// Length of the payload.
    length: usize,
    /// Bytes of the payload that have come.
    seen: usize,
    /// The beginning of the payload.
    start: Vec<u8>,
    /// The last bytes of the payload that are not in `start`.
    end: Vec<u8>,
    max: usize,
}

/// All properties behind the headers take at most this many bytes.
const REST: usize = 4096;

impl Oversized {
    /// Starts a payload of this length where at most `max` bytes are allowed.
    pub(super) const fn new(length: usize, max: usize) -> Self {
        Self { length, seen: 0, start: Vec::new(), end: Vec::new(), max }
    }

    /// Appends the available part of the payload; returns the number of bytes taken.
    pub(super) fn take(&mut self, input: &[u8]) -> usize {
        let input = &input[..input.len().min(self.length - self.seen)];
        let (start, rest) = input.split_at(input.len().min(self.max - self.start.len()));
        self.start.extend_from_slice(start);
        self.end.extend_from_slice(&rest[rest.len().saturating_sub(REST)..]);
        self.end.drain(..self.end.len().saturating_sub(REST));
        self.seen += input.len();
        input.len()
    }

    /// The most bytes of the payload that replaces it.
    pub(super) const fn max(&self) -> usize {
        self.max
    }

    /// True once the whole payload has come.
    pub(super) const fn is_complete(&self) -> bool {
        self.seen == self.length
    }

    /// The payload that replaces it.
    pub(super) fn rebuild(&self, trouble: Option<String>) -> Option<Vec<u8>> {
        let (is, max) = (self.length, self.max);
        let trouble = trouble.unwrap_or_else(|| {
            format!(
                "the properties take {is} bytes and must fit {max}; send less in headers, more in the body"
            )
        });
        // What is cut off may contain the broker's record, since only that record makes a content header longer than
        // a frame.
        let parts = Parts { trouble: Some(trouble), hides_deaths: true, ..Parts::default() };
        rebuild_from(&self.shortened().unwrap_or_else(|| self.start.clone()), parts, max)
    }

    /// The payload with as many of its headers as were kept.
    fn shortened(&self) -> Option<Vec<u8>> {
        let mut reader = Reader(&self.start);
        reader.take(FIXED)?;
        let flags = reader.u16()?;
        for index in 0..HEADERS {
            if flags & flag(index) != 0 {
                reader.short()?;
            }
        }
        if flags & flag(HEADERS) == 0 {
            return None;
        }
        let before = self.start.len() - reader.0.len();
        let headers = usize::try_from(reader.u32()?).ok()?;
        let after = before.checked_add(4)?.checked_add(headers)?;
        let headers = &reader.0[..headers.min(reader.0.len())];
        // The properties after the headers can be used only where all of them were kept.
        let behind = self.length.checked_sub(after)?;
        let (first, last) = match self.end.len().checked_sub(behind) {
            Some(from) => (&[][..], &self.end[from..]),
            None if self.start.len() + self.end.len() == self.length => (&self.start[after..], &self.end[..]),
            None => return None,
        };
        let mut payload = self.start[..before].to_vec();
        payload.extend_from_slice(&length(headers));
        for part in [headers, first, last] {
            payload.extend_from_slice(part);
        }
        Some(payload)
    }
}

#[cfg(test)]
impl Oversized {
    /// The capacity of its buffers.
    pub(super) const fn memory(&self) -> usize {
        self.start.capacity() + self.end.capacity()
    }
}
