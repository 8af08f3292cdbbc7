//! The guard works for any input, and for any division of it into reads.

use super::generate::{entry, long, traffic, with_headers};
use super::*;

/// Reads all input through buffers of random lengths, while the socket delivers random pieces.
fn in_pieces(input: &[u8], rng: &mut Rng) -> Vec<u8> {
    let most = 1 << rng.u32(1..15);
    let mut rest = input;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rng.usize(1..=most).min(rest.len()));
        pieces.push(piece.to_vec());
        rest = behind;
    }
    let script = Script { pauses: rng.bool(), ..Script::of(pieces) };
    let mut stream = GuardedStream::new(script, frame_max());
    let (mut out, mut cx) = (Vec::new(), Context::from_waker(Waker::noop()));
    let most = 1 << rng.u32(1..16);
    let mut buf = vec![0; most];
    loop {
        let room = rng.usize(1..=most);
        match Pin::new(&mut stream).poll_read(&mut cx, &mut buf[..room]) {
            Poll::Ready(Ok(0)) => return out,
            Poll::Ready(Ok(count)) => out.extend_from_slice(&buf[..count]),
            Poll::Pending => {}
            Poll::Ready(Err(error)) => panic!("{error}"),
        }
        // A whole frame, and what was read with it.
        assert!(stream.memory() < 160 * 1024, "{}", stream.memory());
    }
}

#[test]
fn how_the_bytes_are_cut_changes_nothing() {
    for seed in 0..500 {
        let mut rng = Rng::with_seed(seed);
        let input = traffic(&mut rng);
        let whole = guarded(&input);
        assert_eq!(in_pieces(&input, &mut rng), whole, "seed {seed}");
    }
}

/// All frames but those that lapin cannot parse come out unchanged, in their order.
#[test]
fn good_frames_come_through_byte_for_byte() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..500 {
        let mut rng = Rng::with_seed(seed);
        let input = traffic(&mut rng);
        let out = in_pieces(&input, &mut rng);
        let (mut input, mut out) = (&input[..], &out[..]);
        while !input.is_empty() {
            let total = Head::read(input).unwrap().total() as usize;
            let (frame, rest) = input.split_at(total);
            input = rest;
            if let Ok((_, expected)) = parse_frame(frame)
                && let Some(rest) = out.strip_prefix(frame)
            {
                assert!(!matches!(expected, AMQPFrame::ProtocolHeader(_)));
                good += 1;
                out = rest;
            } else {
                assert_eq!(frame[0], HEADER, "seed {seed}: only content headers are bad");
                let total = Head::read(out).unwrap().total() as usize;
                let (_, _, mark) = parsed(&out[..total]).expect("a frame that lapin takes");
                assert!(mark.is_some(), "seed {seed}");
                bad += 1;
                out = &out[total..];
            }
        }
        assert!(out.is_empty(), "seed {seed}");
    }
    assert!(good > 2_500 && bad > 100, "{good} good, {bad} bad");
}

fn frames_in(mut input: &[u8]) -> u32 {
    let mut count = 0;
    while let Some(head) = Head::read(input) {
        input = &input[usize::try_from(head.total()).unwrap()..];
        count += 1;
    }
    count
}

/// Frames with a few bytes changed, and bytes that never were frames.
#[test]
fn a_hundred_thousand_random_and_mutated_frames_harm_nothing() {
    let mut frames = 0;
    let mut seed = 0;
    while frames < 100_000 {
        seed += 1;
        let mut rng = Rng::with_seed(seed);
        let mut input = traffic(&mut rng);
        frames += frames_in(&input);
        match rng.u8(..10) {
            0 => input.iter_mut().for_each(|byte| *byte = rng.u8(..)),
            1 => input.truncate(rng.usize(..input.len())),
            _ => {
                for _ in 0..rng.usize(1..4) {
                    let at = rng.usize(..input.len());
                    input[at] = rng.u8(..);
                }
            }
        }
        let whole = guarded(&input);
        if seed.is_multiple_of(32) {
            assert_eq!(in_pieces(&input, &mut rng), whole, "seed {seed}");
        }
    }
}

/// Each frame becomes longer, so that none fits where it was.
#[test]
fn one_read_may_bring_thousands_of_malformed_messages() {
    let bad = frame(HEADER, 1, &with_headers(&entry(b"\xff", b"V")));
    let body = frame(BODY, 1, b"body");
    let input = [bad, body.clone()].concat().repeat(10_000);
    let mut out = &guarded(&input)[..];
    for _ in 0..10_000 {
        let total = Head::read(out).unwrap().total() as usize;
        assert!(parsed(&out[..total]).is_some_and(|(_, _, mark)| mark.is_some()));
        out = out[total..].strip_prefix(&body[..]).expect("its body");
    }
    assert!(out.is_empty());
}

/// The headers of a message of which only the id is bad become shorter, and all that follows moves up.
#[test]
fn shorter_frames_move_what_follows() {
    let bad = with_headers(&entry(b"large", &long(b'A', &vec![b'V'; 6_000])));
    let good = frame(HEADER, 2, &with_headers(&[]));
    let body = frame(BODY, 1, &[7; 3_000]);
    let input = [frame(HEADER, 1, &bad), body.clone(), good.clone()].concat().repeat(50);
    let mut out = &guarded(&input)[..];
    for _ in 0..50 {
        let total = Head::read(out).unwrap().total() as usize;
        assert!(total < 200 && parsed(&out[..total]).is_some());
        out = out[total..].strip_prefix(&body[..]).and_then(|out| out.strip_prefix(&good[..])).unwrap();
    }
    assert!(out.is_empty());
}
