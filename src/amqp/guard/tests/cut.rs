//! Bodies for which there is no room are cut, and nothing else is.

use std::sync::{Arc, Mutex};

use super::super::content::body_size;
use super::generate::{deliver, entry, long, payload, short, with_headers};
use super::*;

/// Accepts a body that is no longer than this, and records each question.
#[derive(Debug, Default)]
struct Room {
    longest: u64,
    asked: Mutex<Vec<(u16, u64, bool)>>,
    cut: Mutex<usize>,
}

impl Admit for Room {
    fn admit(&self, channel: u16, body: u64, redelivered: bool) -> bool {
        self.asked.lock().unwrap().push((channel, body, redelivered));
        body <= self.longest
    }

    fn cut(&self) {
        *self.cut.lock().unwrap() += 1;
    }
}

/// Reads all input while the socket delivers pieces of random lengths, through buffers of random lengths.
fn read(input: &[u8], room: &Arc<Room>, rng: &mut Rng) -> Vec<u8> {
    let most = 1 << rng.u32(1..14);
    let mut rest = input;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rng.usize(1..=most).min(rest.len()));
        pieces.push(piece.to_vec());
        rest = behind;
    }
    let admit = Arc::clone(room) as Arc<dyn Admit>;
    let mut stream = GuardedStream::new(Script::of(pieces), frame_max()).admitting(Some(admit));
    let (mut out, mut cx) = (Vec::new(), Context::from_waker(Waker::noop()));
    let mut buf = vec![0; 1 << rng.u32(1..14)];
    loop {
        match Pin::new(&mut stream).poll_read(&mut cx, &mut buf) {
            Poll::Ready(Ok(0)) => return out,
            Poll::Ready(Ok(count)) => out.extend_from_slice(&buf[..count]),
            Poll::Pending => {}
            Poll::Ready(Err(error)) => panic!("{error}"),
        }
    }
}

/// A content header for a body of this length.
fn header(channel: u16, body: usize) -> Vec<u8> {
    let id = short(b"id-1");
    frame(HEADER, channel, &payload(body as u64, 1 << 7, &id))
}

/// A message whose body takes frames of 1 kB.
fn message(channel: u16, body: usize) -> Vec<u8> {
    let body: Vec<u8> = (0..body).map(|n| (n % 251) as u8).collect();
    let mut bytes =
        [frame(METHOD, channel, &deliver(b"jobs", b"billing")), header(channel, body.len())].concat();
    body.chunks(1_000).for_each(|part| bytes.extend_from_slice(&frame(BODY, channel, part)));
    bytes
}

/// The mark of the one content header in `frame`, and the length of the body that it announces.
fn mark(frame: &[u8]) -> (u64, Option<Mark>, BasicProperties) {
    let Ok((_, AMQPFrame::Header(_, header))) = parse_frame(frame) else { panic!("no content header") };
    let mut properties: BasicProperties = header.properties;
    let mark = take_mark(&mut properties);
    (header.body_size, mark, properties)
}

fn frames(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let Some(head) = Head::read(bytes) {
        let (frame, rest) = bytes.split_at(usize::try_from(head.total()).unwrap());
        frames.push(frame);
        bytes = rest;
    }
    assert!(bytes.is_empty());
    frames
}

#[test]
fn a_body_without_room_is_cut_however_its_bytes_come() {
    let beat = frame(HEARTBEAT, 0, &[]);
    let (small, large) = (message(1, 2_500), message(2, 3_501));
    let input = [&small[..], &large, &small, &message(2, 0), &large, &small].concat();
    for seed in 0..300 {
        let room = Arc::new(Room { longest: 3_000, ..Room::default() });
        let out = read(&input, &room, &mut Rng::with_seed(seed));
        let out = out.strip_prefix(&small[..]).expect("it has room");
        let first = frames(out)[..6].to_vec();
        let [method, header, beats @ ..] = &first[..] else { panic!() };
        assert_eq!(*method, frame(METHOD, 2, &deliver(b"jobs", b"billing")));
        assert_eq!(
            mark(header),
            (0, Some(Mark::Cut(3_501)), BasicProperties::default().with_headers(FieldTable::default()))
        );
        assert!(beats.iter().all(|frame| *frame == beat), "one heartbeat for each frame, seed {seed}");
        let cut: usize = first.iter().map(|frame| frame.len()).sum();
        let rest = [&small[..], &message(2, 0), &out[..cut], &small].concat();
        assert_eq!(&out[cut..], rest, "seed {seed}");
        let bodies: [(u16, u64); 6] = [(1, 2_500), (2, 3_501), (1, 2_500), (2, 0), (2, 3_501), (1, 2_500)];
        assert_eq!(*room.asked.lock().unwrap(), bodies.map(|(channel, body)| (channel, body, false)));
        assert_eq!(*room.cut.lock().unwrap(), 8);
    }
}

/// The frames of two messages come by turns, each on its channel.
#[test]
fn channels_do_not_mix() {
    let (small, large) = (message(1, 40_000), message(2, 40_001));
    let (small, large) = (frames(&small), frames(&large));
    let input: Vec<u8> = small.iter().zip(&large).flat_map(|(one, other)| [*one, *other].concat()).collect();
    let room = Arc::new(Room { longest: 40_000, ..Room::default() });
    let out = read(&input, &room, &mut Rng::with_seed(7));
    let out: Vec<&[u8]> = frames(&out).into_iter().filter(|frame| frame[2] == 1).collect();
    assert_eq!(out, small);
}

#[test]
fn the_flag_of_a_redelivery_is_known() {
    let mut again = deliver(b"jobs", b"billing");
    let at = 4 + 1 + usize::from(again[4]) + 8;
    again[at] = 1;
    let again = [frame(METHOD, 1, &again), header(1, 0)].concat();
    let input = [&again[..], &message(1, 0), &again].concat();
    let room = Arc::<Room>::default();
    assert_eq!(read(&input, &room, &mut Rng::with_seed(1)), input);
    assert_eq!(*room.asked.lock().unwrap(), [(1, 0, true), (1, 0, false), (1, 0, true)]);
}

/// Malformed content headers, and one that is longer than a frame, announce bodies too.
#[test]
fn whatever_the_header_is_its_body_is_cut() {
    let large = with_headers(&entry(b"large", &long(b'x', &[7; 20_000])));
    let malformed = with_headers(&entry(b"\xff", b"V"));
    for payload in [large, malformed] {
        let message = [frame(HEADER, 1, &payload), frame(BODY, 1, &[7; 7])].concat();
        let out = read(&[&message[..], &message].concat(), &Arc::default(), &mut Rng::with_seed(3));
        let frames = frames(&out);
        assert_eq!(frames.len(), 4);
        assert_eq!(mark(frames[0]).1, Some(Mark::Cut(7)));
        assert_eq!(frames[..2], frames[2..]);
    }
}

/// A reader of nothing but properties gets all of these, and the length of each body.
#[test]
fn a_body_may_be_cut_and_its_properties_kept() {
    let entries =
        [entry(b"reason", &long(b'S', b"status")), entry(b"x-death", &long(b'S', b"long ago"))].concat();
    let sound = with_headers(&entries);
    let malformed = with_headers(&[&entries[..], &entry(b"\xff", b"V")].concat());
    let oversized = with_headers(&[&entries[..], &entry(b"large", &long(b'x', &[7; 20_000]))].concat());
    for (payload, is_malformed) in [(&sound, false), (&malformed, true), (&oversized, true)] {
        let size = body_size(payload).unwrap();
        let body = vec![7; usize::try_from(size).unwrap()];
        let message = [
            frame(METHOD, 1, &deliver(b"jobs", b"billing")),
            frame(HEADER, 1, payload),
            frame(BODY, 1, &body),
        ]
        .concat();
        let admit = Arc::new(HeadsOnly) as Arc<dyn Admit>;
        let input = [&message[..], &message].concat();
        let mut stream = GuardedStream::new(Script::of([input]), frame_max()).admitting(Some(admit));
        let (mut out, mut buf) = (Vec::new(), vec![0; 64 * 1024]);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match Pin::new(&mut stream).poll_read(&mut cx, &mut buf) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(read) => out.extend_from_slice(&buf[..read.unwrap()]),
                Poll::Pending => {}
            }
        }
        let frames = frames(&out);
        assert_eq!((frames.len(), &frames[..3]), (6, &frames[3..]));
        let Ok((_, AMQPFrame::Header(_, header))) = parse_frame(frames[1]) else {
            panic!("no content header")
        };
        let mut properties: BasicProperties = header.properties;
        // To others it is no message with an empty body.
        assert_eq!(take_mark(&mut properties.clone()), Some(Mark::Cut(size)));
        assert_eq!((header.body_size, take_body_length(&mut properties)), (0, Some(size)));
        assert_eq!(take_mark(&mut properties).is_some(), is_malformed);
        assert_eq!(headers(&properties).inner().get("reason"), Some(&text("status")));
        assert_eq!(headers(&properties).inner().len(), 2, "nothing else remains of the marks");
        assert_eq!(frames[2], frame(HEARTBEAT, 0, &[]));
    }
}

/// What is dropped takes no memory.
#[test]
fn a_body_of_four_gibibytes_is_dropped_as_it_comes() {
    let input = [header(1, 4 << 30), [&[BODY, 0, 1, 255, 255, 255, 255][..], &vec![7; 4 << 20]].concat()];
    let admit = Arc::<Room>::default() as Arc<dyn Admit>;
    let mut stream = GuardedStream::new(Script::of([input.concat()]), frame_max()).admitting(Some(admit));
    let (mut out, mut buf) = (0, vec![0; 64 * 1024]);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        match Pin::new(&mut stream).poll_read(&mut cx, &mut buf) {
            Poll::Ready(Ok(0)) => break,
            Poll::Ready(read) => out += read.unwrap(),
            Poll::Pending => {}
        }
        assert!(stream.memory() < 256 * 1024, "{}", stream.memory());
    }
    assert!(out < 200, "{out} bytes");
}
