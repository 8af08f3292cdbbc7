//! Recognises by its first line an input that is not in the format that was named: one message instead of one for
//! each of its lines.

use std::io::{self, Cursor};

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, Chain};

use super::records::Format;
use crate::job::csv::Columns;
use crate::job::template::Template;

/// How much of the first line is examined, in bytes.
const EXAMINED: usize = 4096;

/// A form of an input that is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Text in UTF-16, as PowerShell and some exports write it.
    #[error(
        "it is UTF-16, and UTF-8 is read; convert it (`iconv -f UTF-16 -t UTF-8`), or export it as UTF-8 \
         (in PowerShell `Out-File -Encoding utf8`)"
    )]
    Utf16,
    /// Something compressed.
    #[error("it is compressed ({0}); give its content: {1} FILE | paced ... -")]
    Compressed(&'static str, &'static str),
    /// An archive: also the files of spreadsheets.
    #[error(
        "it is a zip archive, as .xlsx files are; give a file in it, or export the sheet as CSV in UTF-8"
    )]
    Zip,
    /// A table where lines of JSON were to be.
    #[error("it begins with names of columns and not with a line of JSON; add --csv")]
    Csv,
    /// Lines of JSON where a table was to be.
    #[error("it begins with JSON and not with names of columns; leave --csv out")]
    Json,
    /// An array of jobs, or one value over several lines, where each line was to be an object.
    #[error(
        "it is one JSON document, and an object on each line is read; convert it: {0} FILE | paced ... -"
    )]
    Document(&'static str),
}

/// An input from its beginning.
pub type Whole<R> = Chain<Cursor<Vec<u8>>, R>;

/// Examines the first line of an input, and returns the input from its beginning. It waits for the first line.
///
/// # Errors
/// An error of the reader; inside, the form of the input where it is not the one that was asked for.
pub async fn recognise<R: AsyncBufRead + Unpin>(
    mut reader: R,
    format: &Format,
) -> io::Result<Result<Whole<R>, Unreadable>> {
    let mut begin = Vec::new();
    loop {
        let available = reader.fill_buf().await?;
        if available.is_empty() {
            break;
        }
        let end = available.iter().position(|&byte| byte == b'\n').map(|feed| feed + 1);
        let more = end.unwrap_or(available.len()).min(EXAMINED - begin.len());
        begin.extend_from_slice(&available[..more]);
        reader.consume(more);
        // Empty lines say nothing.
        let is_blank = begin.trim_ascii().is_empty();
        if begin.len() >= EXAMINED || (end.is_some() && !is_blank) {
            break;
        }
    }
    if begin.ends_with(b"\n")
        && matches!(examine(&begin, format), Some(Unreadable::Csv | Unreadable::Document(_)))
    {
        // With a line of JSON behind it, the first line is a bad one among others.
        let mut is_blank = true;
        while is_blank && begin.len() < 2 * EXAMINED {
            let available = reader.fill_buf().await?;
            let Some(&byte) = available.first() else { break };
            is_blank = byte.is_ascii_whitespace();
            begin.push(byte);
            reader.consume(1);
        }
    }
    Ok(match examine(&begin, format) {
        Some(wrong) => Err(wrong),
        None => Ok(Cursor::new(begin).chain(reader)),
    })
}

/// What an input with this beginning is, if it is not in the format that was named.
fn examine(begin: &[u8], format: &Format) -> Option<Unreadable> {
    match begin {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return Some(Unreadable::Utf16),
        // A character of ASCII in UTF-16 has a zero byte, before or behind it.
        [0, other, ..] | [other, 0, ..] if *other != 0 => return Some(Unreadable::Utf16),
        [0x1f, 0x8b, ..] => return Some(Unreadable::Compressed("gzip", "gunzip -c")),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => return Some(Unreadable::Compressed("zstd", "zstdcat")),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => return Some(Unreadable::Compressed("bzip2", "bzcat")),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => return Some(Unreadable::Compressed("xz", "xzcat")),
        [b'P', b'K', 3, 4, ..] => return Some(Unreadable::Zip),
        _ => {}
    }
    let text = begin.strip_prefix(super::lines::BYTE_ORDER_MARK).unwrap_or(begin).trim_ascii();
    let (line, rest) = first_line(text);
    match (format, line.first()) {
        (Format::Csv(_), Some(b'{')) => Some(Unreadable::Json),
        (Format::Ndjson, Some(b'{')) if line == b"{" && rest.first() != Some(&b'{') => {
            Some(Unreadable::Document("jq -c ."))
        }
        (Format::Ndjson, Some(b'{')) => None,
        (Format::Ndjson, Some(b'[')) => is_array_of_jobs(line).then_some(Unreadable::Document("jq -c '.[]'")),
        (Format::Ndjson, Some(_)) => is_table(text).then_some(Unreadable::Csv),
        _ => None,
    }
}

/// Whether a line that begins an array has an object next, or nothing: other arrays are bad lines.
fn is_array_of_jobs(line: &[u8]) -> bool {
    matches!(line[1..].trim_ascii_start().first(), None | Some(b'{'))
}

/// Whether the line has the names of columns: several cells, the first of them a name, or one known name.
fn is_names(line: &[u8]) -> bool {
    let cells: Vec<&[u8]> = line.split(|byte| matches!(byte, b',' | b';' | b'\t')).collect();
    let is_whole = |cell: &&[u8]| cell.iter().filter(|byte| **byte == b'"').count() % 2 == 0;
    let names: Vec<&[u8]> = cells.iter().map(|cell| unquoted(cell)).collect();
    match &*names {
        [name] => is_name(name) && Columns::parse([*name], &Template::default()).is_ok(),
        [first, ..] => begins_name(first) && cells.iter().all(is_whole),
        [] => false,
    }
}

/// Whether the text begins with a row of names, and not with a bad line before lines of JSON.
fn is_table(text: &[u8]) -> bool {
    let (line, rest) = first_line(text);
    rest.first() != Some(&b'{') && is_names(line)
}

/// The first line, and what follows it, both without the spaces around them.
fn first_line(text: &[u8]) -> (&[u8], &[u8]) {
    let mut lines = text.splitn(2, |&byte| byte == b'\n');
    let line = lines.next().unwrap_or_default().trim_ascii();
    (line, lines.next().unwrap_or_default().trim_ascii_start())
}

fn unquoted(name: &[u8]) -> &[u8] {
    let name = name.trim_ascii();
    name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or(name)
}

/// Whether it may be the name of a column, and is no number and no word of JSON.
fn is_name(name: &[u8]) -> bool {
    let is_word =
        name.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"_-.: ".contains(&byte) || byte >= 0x80);
    is_word && begins_name(name)
}

fn begins_name(name: &[u8]) -> bool {
    let is_json = matches!(name, b"true" | b"false" | b"null");
    !is_json && name.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_' || *byte >= 0x80)
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    fn csv() -> Format {
        Format::Csv(Template::default())
    }

    #[test]
    fn what_is_no_line_of_json_and_no_row_of_names() {
        let utf16 = |text: &str, big: bool| -> Vec<u8> {
            text.encode_utf16()
                .flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() })
                .collect()
        };
        for format in &[Format::Ndjson, csv()] {
            for text in ["\u{feff}{\"id\": 1}", "{\"id\": 1}\n", "id,body\n", "\u{feff}id"] {
                for big in [false, true] {
                    assert_eq!(examine(&utf16(text, big), format), Some(Unreadable::Utf16), "{text} {big}");
                }
            }
            for (begin, expected) in [
                (&b"\x1f\x8b\x08\x00"[..], "gunzip -c FILE | paced"),
                (b"PK\x03\x04\x14", ".xlsx"),
                (b"\x28\xb5\x2f\xfd\x04", "zstdcat"),
                (b"BZh91AY", "bzcat"),
                (b"\xfd7zXZ\x00", "xzcat"),
            ] {
                let found = examine(begin, format).expect("recognised").to_string();
                assert!(found.contains(expected), "{begin:?}: {found}");
            }
            assert_eq!(examine(b"", format), None);
            assert_eq!(examine(b"\n\r\n  ", format), None);
        }
    }

    #[test]
    fn a_table_and_lines_of_json_are_distinguished() {
        for names in [
            "id,path,body\n",
            "\u{feff}customer_id,name\n1,x",
            "id",
            "\"id\",\"body\"\r\n",
            "Kunde;Betrag\n",
            "größe,id",
            "Order ID,Amount (EUR)\n1,2\n",
            "id,2024",
            "\"Order ID\",\"Amount (EUR)\"\n",
            "Name\tNo.\n\n",
        ] {
            assert_eq!(examine(names.as_bytes(), &Format::Ndjson), Some(Unreadable::Csv), "{names}");
        }
        for line in [
            "{}",
            "{\"a\": 1}\n",
            "[1, 2]",
            "[1, 2]\n{}",
            "{\n{\"id\": 1}\n",
            "\"text\"",
            "\"a\", \"b",
            "1,2,3",
            "true",
            "nope",
            "nope\nid,body",
            "a note, and one more\n{\"id\": 1}\n",
            "a note, and one more\n\n  {",
            "null,1",
            "-",
        ] {
            assert_eq!(examine(line.as_bytes(), &Format::Ndjson), None, "{line}");
        }
        assert_eq!(examine(b"{\"id\": 1}\n", &csv()), Some(Unreadable::Json));
        for (begin, command) in [
            ("[{\"id\": 1},\n{\"id\": 2}]", "jq -c '.[]'"),
            ("\u{feff}[\r\n  {\n", "jq -c '.[]'"),
            (" [ { \"id\"", "jq -c '.[]'"),
            ("{\n  \"id\": 1\n}\n{\n", "jq -c ."),
            ("{\r\n", "jq -c ."),
        ] {
            let found = Some(Unreadable::Document(command));
            assert_eq!(examine(begin.as_bytes(), &Format::Ndjson), found, "{begin}");
        }
        for names in ["id,path", "id", "a;b", "a;b,c", "nope!"] {
            assert_eq!(examine(names.as_bytes(), &csv()), None, "{names}");
        }
    }

    #[tokio::test]
    async fn nothing_of_the_input_is_lost() {
        let long = format!("{{\"body\": \"{}\"}}\n{{}}\n", "x".repeat(3 * EXAMINED));
        for text in ["", "a, b\n \n{}\n", "\n\n{}\n{}", "{}\n{}\n", "{}", &long] {
            for buffer in [1, 2, 7, 100_000] {
                let reader = BufReader::with_capacity(buffer, text.as_bytes());
                let mut whole = recognise(reader, &Format::Ndjson).await.expect("readable").expect("lines");
                let mut read = String::new();
                whole.read_to_string(&mut read).await.expect("readable");
                assert_eq!(read, text, "by {buffer}");
            }
        }
    }
}
