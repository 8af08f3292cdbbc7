//! Which tables lapin can parse, and which it should. It has no I/O.

use super::frame::Reader;

/// How deep tables and arrays may nest; the headers themselves are the first level. lapin recurses, and
/// some 1 000 levels overflow the stack of its thread.
pub(super) const MAX_DEPTH: usize = 32;

/// How many values headers may hold, those in nested tables and arrays included. A value takes one
/// octet on the wire and about 30 bytes once it is parsed.
pub(super) const MAX_VALUES: usize = 4096;

/// The reason why lapin cannot, or should not, parse a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The lengths do not add up.
    Broken,
    /// A name that is not UTF-8.
    Name,
    /// A type that lapin does not know.
    Type(u8),
    /// The nesting is deeper than [`MAX_DEPTH`].
    Depth,
    /// There are more values than [`MAX_VALUES`].
    Values,
}

/// How many values have been seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen(usize);

/// Checks the entries of the headers, without their length.
pub(super) fn check(entries: &[u8]) -> Result<(), Flaw> {
    table(Reader(entries), 1, &mut Seen::default())
}

/// Checks one value of the headers and its type.
pub(super) fn check_value(value: &[u8], seen: &mut Seen) -> Result<(), Flaw> {
    let mut reader = Reader(value);
    read_value(&mut reader, 1, seen)?;
    if reader.is_empty() { Ok(()) } else { Err(Flaw::Broken) }
}

/// Skips a value and its type without a check of its content.
pub(super) fn skip_value<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Flaw> {
    let all = reader.0;
    let kind = reader.u8().ok_or(Flaw::Broken)?;
    match width(kind).ok_or(Flaw::Type(kind))? {
        Width::Fixed(count) => reader.take(count),
        Width::Long | Width::Array | Width::Table => reader.long(),
    }
    .ok_or(Flaw::Broken)?;
    Ok(&all[..all.len() - reader.0.len()])
}

/// The layout of a value after its type.
enum Width {
    Fixed(usize),
    /// A length and as many bytes.
    Long,
    Array,
    Table,
}

/// `None` for a type that lapin does not know.
const fn width(kind: u8) -> Option<Width> {
    Some(match kind {
        b'V' => Width::Fixed(0),
        b't' | b'b' | b'B' => Width::Fixed(1),
        b's' | b'U' | b'u' => Width::Fixed(2),
        b'I' | b'i' | b'f' => Width::Fixed(4),
        b'D' => Width::Fixed(5),
        b'L' | b'l' | b'd' | b'T' => Width::Fixed(8),
        b'S' | b'x' => Width::Long,
        b'A' => Width::Array,
        b'F' => Width::Table,
        _ => return None,
    })
}

fn table(mut reader: Reader<'_>, depth: usize, seen: &mut Seen) -> Result<(), Flaw> {
    while !reader.is_empty() {
        let name = reader.short().ok_or(Flaw::Broken)?;
        std::str::from_utf8(name).map_err(|_| Flaw::Name)?;
        read_value(&mut reader, depth, seen)?;
    }
    Ok(())
}

fn array(mut reader: Reader<'_>, depth: usize, seen: &mut Seen) -> Result<(), Flaw> {
    while !reader.is_empty() {
        read_value(&mut reader, depth, seen)?;
    }
    Ok(())
}

/// Reads a value that is in a table or array at this depth. It recurses, but not below [`MAX_DEPTH`].
fn read_value(reader: &mut Reader<'_>, depth: usize, seen: &mut Seen) -> Result<(), Flaw> {
    seen.0 += 1;
    if seen.0 > MAX_VALUES {
        return Err(Flaw::Values);
    }
    let kind = reader.u8().ok_or(Flaw::Broken)?;
    match width(kind).ok_or(Flaw::Type(kind))? {
        Width::Fixed(count) => reader.take(count).map(drop).ok_or(Flaw::Broken),
        Width::Long => reader.long().map(drop).ok_or(Flaw::Broken),
        nested => {
            let inner = Reader(reader.long().ok_or(Flaw::Broken)?);
            if depth == MAX_DEPTH {
                return Err(Flaw::Depth);
            }
            match nested {
                Width::Table => table(inner, depth + 1, seen),
                _ => array(inner, depth + 1, seen),
            }
        }
    }
}
