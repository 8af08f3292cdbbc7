use std::io::Write as _;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

use super::*;

const MOST: usize = 64 * 1024;

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn raw_deflate(body: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn br(body: &[u8]) -> Vec<u8> {
    br_with(body, 22, false)
}

fn br_with(mut body: &[u8], lgwin: i32, large_window: bool) -> Vec<u8> {
    let params = brotli::enc::BrotliEncoderParams { quality: 2, lgwin, large_window, ..Default::default() };
    let mut out = Vec::new();
    brotli::BrotliCompress(&mut body, &mut out, &params).unwrap();
    out
}

fn zstd(body: &[u8]) -> Vec<u8> {
    ::zstd::encode_all(body, 1).unwrap()
}

/// `count` times 16 MiB of zeros: one part of the coder's output, repeated.
fn br_zeros(count: usize) -> Vec<u8> {
    let zeros = vec![0; 16 << 20];
    let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4096, 2, 22);
    let mut ends = Vec::new();
    // The second part refers to the first one, and so could any other.
    for _ in 0..2 {
        encoder.write_all(&zeros).unwrap();
        encoder.flush().unwrap();
        ends.push(encoder.get_ref().len());
    }
    let whole = encoder.into_inner();
    let (first, second, last) = (&whole[..ends[0]], &whole[ends[0]..ends[1]], &whole[ends[1]..]);
    [first, &second.repeat(count - 1), last].concat()
}

/// `count` zeros, which are not in memory.
fn zstd_zeros(count: u64) -> Vec<u8> {
    ::zstd::encode_all(io::repeat(0).take(count), 1).unwrap()
}

fn codings(names: &[&str]) -> Result<Codings, CodingError> {
    let mut headers = HeaderMap::new();
    for name in names {
        headers.append(CONTENT_ENCODING, name.parse().unwrap());
    }
    Codings::of(&headers)
}

fn decoded(names: &str, body: &[u8], is_whole: bool) -> Result<Bytes, CodingError> {
    codings(&[names]).unwrap().decoded(body, MOST, is_whole)
}

#[test]
fn the_fields_name_the_codings_in_order() {
    use Coding::{Brotli, Deflate, Gzip, Zstd};
    for (names, expected) in [
        (&[][..], &[][..]),
        (&["identity"], &[]),
        (&[""], &[]),
        (&["gzip"], &[Gzip]),
        (&["GZip , BR"], &[Gzip, Brotli]),
        (&["x-gzip", "deflate,,zstd"], &[Gzip, Deflate, Zstd]),
    ] {
        assert_eq!(codings(names), Ok(Codings(expected.to_vec())), "{names:?}");
    }
    assert_eq!(codings(&["gzip, compress"]), Err(CodingError::Unknown));
    assert_eq!(codings(&["UTF-8"]), Err(CodingError::Unknown));
    assert_eq!(codings(&["gzip, gzip", "gzip, gzip"]), Err(CodingError::TooMany));
}

#[test]
fn each_coding_and_several_after_each_other() {
    let body = "0123456789 ".repeat(500).into_bytes();
    for (names, coded) in [
        ("gzip", gzip(&body)),
        ("deflate", zlib(&body)),
        ("deflate", raw_deflate(&body)),
        ("br", br(&body)),
        ("zstd", zstd(&body)),
        ("gzip, br", br(&gzip(&body))),
        ("zstd, deflate, gzip", gzip(&zlib(&zstd(&body)))),
        ("gzip, gzip", gzip(&gzip(&body))),
        // A body may have several parts.
        ("gzip", [gzip(&body[..1000]), gzip(&body[1000..])].concat()),
        ("zstd", [zstd(&body[..1000]), zstd(&body[1000..])].concat()),
    ] {
        assert_eq!(decoded(names, &coded, true).as_deref(), Ok(&body[..]), "{names}");
    }
    for name in ["gzip", "deflate", "br", "zstd"] {
        let empty = match name {
            "gzip" => gzip(b""),
            "deflate" => zlib(b""),
            "br" => br(b""),
            _ => zstd(b""),
        };
        assert_eq!(decoded(name, &empty, true).as_deref(), Ok(&b""[..]), "{name}");
    }
}

#[test]
fn what_is_broken_is_not_decoded() {
    let body = "0123456789 ".repeat(500).into_bytes();
    for (name, coded) in
        [("gzip", gzip(&body)), ("br", br(&body)), ("zstd", zstd(&body)), ("deflate", zlib(&body))]
    {
        let mut damaged = coded.clone();
        let middle = damaged.len() / 2;
        damaged[middle..].iter_mut().for_each(|byte| *byte = !*byte);
        let plain = b"{\"code\": \"no such coding\"}";
        for wrong in [&damaged[..], &plain[..]] {
            assert!(decoded(name, wrong, true).is_err(), "{name}");
        }
        if name != "deflate" {
            assert!(decoded(name, &coded[..middle], true).is_err(), "{name}: half of it");
        }
    }
    assert_eq!(decoded("br, gzip", &gzip(b"x"), true), Err(CodingError::Broken(Coding::Brotli)));
}

#[test]
fn the_beginning_of_a_body_gives_the_beginning_of_what_it_holds() {
    let body: Vec<u8> =
        (0..40_000_u32).flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 20).to_le_bytes()).collect();
    for (names, coded) in [
        ("gzip", gzip(&body)),
        ("deflate", zlib(&body)),
        ("deflate", raw_deflate(&body)),
        ("br", br(&body)),
        ("zstd", zstd(&body)),
        ("gzip, zstd", zstd(&gzip(&body))),
    ] {
        let start = decoded(names, &coded[..coded.len() / 3], false).expect(names);
        assert!(body.starts_with(&start), "{names}");
        // zstd has blocks of 128 KiB.
        assert!(names.contains("zstd") || start.len() > 1000, "{names}: {}", start.len());
    }
}

#[test]
fn a_bomb_of_brotli_is_as_long_as_it_is_meant_to_be() {
    let all = codings(&["br"]).unwrap().decoded(&br_zeros(3), usize::MAX, true).unwrap();
    assert_eq!(all.len(), 48 << 20);
    assert!(all.iter().all(|byte| *byte == 0));
}

#[test]
fn a_bomb_makes_no_more_than_is_wanted() {
    let zeros = gzip(&vec![0; 1 << 20]);
    let gzip_bomb = zeros.repeat(1024);
    for (names, bomb) in [
        ("zstd", zstd_zeros(1 << 30)),
        ("gzip", gzip_bomb.clone()),
        ("br", br_zeros(64)),
        // The beginning of what is between holds all that is wanted.
        ("gzip, zstd", zstd(&gzip_bomb)),
    ] {
        let out = decoded(names, &bomb, true).expect(names);
        assert_eq!(out.len(), MOST, "{names}");
        assert!(out.iter().all(|byte| *byte == 0));
    }
    // 64 MiB of parts that hold nothing: much work, and nothing comes of it.
    let nothing = gzip(b"");
    let much = nothing.repeat((1 << 20) / nothing.len()).repeat(64);
    assert_eq!(decoded("gzip, zstd", &zstd(&much), true), Err(CodingError::Broken(Coding::Gzip)));
}

/// Random bytes are longer when they are coded, and a block of zstd is taken in whole.
#[test]
fn what_is_between_holds_all_that_is_wanted() {
    let body: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(300_000).collect();
    for (names, coded) in [
        ("zstd, gzip", gzip(&zstd(&body))),
        ("gzip, br", br(&gzip(&body))),
        ("br, deflate, zstd", zstd(&zlib(&br(&body)))),
    ] {
        assert_eq!(decoded(names, &coded, true).as_deref(), Ok(&body[..MOST]), "{names}");
    }
}

#[test]
fn windows_that_take_much_memory_are_refused() {
    let body = "0123456789 ".repeat(500).into_bytes();
    let window = |log: u32| {
        let mut encoder = ::zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(log).unwrap();
        encoder.write_all(&body).unwrap();
        encoder.finish().unwrap()
    };
    assert_eq!(decoded("zstd", &window(23), true).as_deref(), Ok(&body[..]));
    for log in [24, 27] {
        assert_eq!(decoded("zstd", &window(log), true), Err(CodingError::Broken(Coding::Zstd)), "{log}");
    }
    assert_eq!(decoded("br", &br_with(&body, 24, false), true).as_deref(), Ok(&body[..]));
    let large = br_with(&body, 30, true);
    assert_eq!(large[0] & 0x7f, LARGE_WINDOW);
    assert_eq!(decoded("br", &large, true), Err(CodingError::Broken(Coding::Brotli)));
}

#[tokio::test]
async fn those_who_give_up_leave_their_turn_to_others() {
    let coded = Bytes::from(gzip(b"body"));
    for _ in 0..20 {
        let given_up = codings(&["gzip"]).unwrap().decode(coded.clone(), MOST, true);
        drop(tokio::time::timeout(std::time::Duration::ZERO, given_up).await);
    }
    let kept = codings(&["gzip"]).unwrap().decode(coded.clone(), 2, true).await;
    assert_eq!(kept.as_deref(), Ok(&b"bo"[..]));
    assert_eq!(Codings::default().decode(coded.clone(), MOST, true).await, Ok(coded));
}
