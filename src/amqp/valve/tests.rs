use std::sync::atomic::AtomicUsize;
use std::task::{Wake, Waker};

use proptest::prelude::*;

use super::super::budget::accounts;
use super::*;

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend(channel.to_be_bytes());
    frame.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    frame.extend(payload);
    frame.push(0xce);
    frame
}

/// A socket that holds these bytes, and then is empty.
struct Socket(Vec<u8>);

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.0.is_empty() {
            return Poll::Pending;
        }
        let count = buf.len().min(self.0.len());
        buf[..count].copy_from_slice(&self.0[..count]);
        self.0.drain(..count);
        Poll::Ready(Ok(count))
    }
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn read(valve: &mut Valve<Socket>, waker: &Waker, most: usize) -> Poll<io::Result<Vec<u8>>> {
    let mut buf = vec![0; most];
    let read = Pin::new(valve).poll_read(&mut Context::from_waker(waker), &mut buf);
    read.map_ok(|count| buf[..count].to_vec())
}

/// Everything that can be read, by reads of this size.
fn read_all(valve: &mut Valve<Socket>, waker: &Waker, most: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while let Poll::Ready(Ok(bytes)) = read(valve, waker, most) {
        all.extend(bytes);
    }
    all
}

proptest! {
    #[test]
    fn bodies_are_counted_however_the_stream_is_cut(
        frames in prop::collection::vec((prop_oneof![1..4_u8, Just(8)], 0..4_u16, 0..300_usize), 0..30),
        cut in 1..200_usize,
    ) {
        let mut stream = Vec::new();
        let (mut bodies, mut channels) = (0, BTreeSet::new());
        for (kind, channel, size) in frames {
            stream.extend(frame(kind, channel, &vec![3; size]));
            bodies += if kind == 3 { size as u64 } else { 0 };
            if kind < 8 && channel > 0 {
                channels.insert(channel);
            }
        }
        let mut known = Frames::default();
        let (mut counted, mut seen) = (0, Vec::new());
        for bytes in stream.chunks(cut) {
            counted += known.advance(bytes, &mut seen);
        }
        prop_assert_eq!((counted, known.left()), (bodies, 0));
        prop_assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), channels);
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_downstream_is_read_to_the_end_of_a_frame_and_then_gets_heartbeats() {
    let account = accounts(1000, &[100]).remove(0);
    let meter = Meter::own(Arc::clone(&account));
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let bodies = [frame(3, 1, &[1; 60]), frame(3, 1, &[2; 60]), frame(3, 1, &[3; 60])];
    let mut valve = Valve::metered(Socket(bodies.concat()), Arc::clone(&meter));
    // The valve stops nothing while the connection is set up.
    assert_eq!(read(&mut valve, &waker, 10).map(Result::unwrap), Poll::Ready(bodies[0][..10].to_vec()));
    meter.arm();
    // Where nothing is held, one message is read whatever its size.
    let one = account.charge(1);
    let rest = read_all(&mut valve, &waker, 1);
    assert_eq!(rest, bodies[..2].concat()[10..], "to the end of the frame that made it too many");
    assert!(meter.is_closed());
    // lapin must not take the connection for lost.
    tokio::time::advance(HEARTBEAT_INTERVAL).await;
    assert_eq!(read(&mut valve, &waker, 5).map(Result::unwrap), Poll::Ready(HEARTBEAT[..5].to_vec()));
    assert_eq!(read(&mut valve, &waker, 50).map(Result::unwrap), Poll::Ready(HEARTBEAT[5..].to_vec()));
    assert!(read(&mut valve, &waker, 50).is_pending());
    // The messages are claimed, and settled: the reader is woken, and goes on.
    meter.claim(120);
    let both = account.charge(120);
    assert!(read(&mut valve, &waker, 50).is_pending());
    let before = woken.0.load(Ordering::SeqCst);
    drop(both);
    assert!(woken.0.load(Ordering::SeqCst) > before, "woken");
    assert_eq!(read_all(&mut valve, &waker, 50), bodies[2]);
    assert!(!meter.is_closed());
    drop(one);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_taken_over_yet_bounds_what_is_read() {
    let account = accounts(1000, &[100]).remove(0);
    let meter = Meter::own(account);
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let bodies = [frame(3, 1, &[1; 60]), frame(3, 1, &[2; 60]), frame(3, 1, &[3; 60])];
    let mut valve = Valve::metered(Socket(bodies.concat()), Arc::clone(&meter));
    meter.arm();
    let two = bodies[..2].concat();
    assert_eq!(
        read(&mut valve, &waker, two.len()).map(Result::unwrap),
        Poll::Ready(two),
        "of one message, perhaps"
    );
    meter.unclaimed.store(MAX_UNCLAIMED, Ordering::SeqCst);
    assert!(read(&mut valve, &waker, 50).is_pending());
    let before = woken.0.load(Ordering::SeqCst);
    meter.claim(1);
    assert!(woken.0.load(Ordering::SeqCst) > before, "woken");
    assert_eq!(read_all(&mut valve, &waker, 1), bodies[2]);
}

#[tokio::test(start_paused = true)]
async fn one_message_longer_than_all_is_read() {
    let account = accounts(1000, &[100]).remove(0);
    let meter = Meter::own(account);
    let long = frame(3, 1, &[1; 5000]);
    let mut valve = Valve::metered(Socket(long.clone()), Arc::clone(&meter));
    meter.arm();
    assert_eq!(read_all(&mut valve, Waker::noop(), 64), long);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_is_read_again_and_one_that_is_cut_is_not() {
    let account = accounts(1000, &[10]).remove(0);
    let meter = Meter::own(Arc::clone(&account));
    let held = account.charge(10);
    let bytes = frame(3, 1, &[1; 10]);
    let mut valve = Valve::metered(Socket(bytes.clone()), Arc::clone(&meter));
    meter.arm();
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    assert!(read(&mut valve, &waker, 50).is_pending());
    meter.disarm();
    assert!(woken.0.load(Ordering::SeqCst) > 0, "woken");
    assert_eq!(read_all(&mut valve, &waker, 50), bytes);
    meter.cut();
    assert!(matches!(read(&mut valve, &waker, 50), Poll::Ready(Err(_))));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_shared_connection_waits_for_its_downstreams_and_not_for_long() {
    let meter = Meter::shared();
    let bytes = frame(3, 2, &[1; 10]);
    let mut valve = Valve::metered(Socket(bytes.repeat(2)), Arc::clone(&meter));
    assert_eq!(read(&mut valve, Waker::noop(), 18).map(Result::unwrap), Poll::Ready(bytes.clone()));
    meter.unclaimed.store(MAX_UNCLAIMED, Ordering::SeqCst);
    assert!(read(&mut valve, Waker::noop(), 50).is_pending());
    meter.claim(1);
    assert_eq!(read(&mut valve, Waker::noop(), 9).map(Result::unwrap), Poll::Ready(bytes[..9].to_vec()));
    meter.unclaimed.store(MAX_UNCLAIMED, Ordering::SeqCst);
    assert_eq!(read_all(&mut valve, Waker::noop(), 50), bytes[9..], "to the end of the frame");
    // The channels that received something last, and their downstreams.
    meter.assign(2, "billing");
    meter.assign(3, "search");
    assert_eq!(meter.recent(), BTreeSet::from(["billing".to_owned()]));
    tokio::time::advance(CLAIM_TIMEOUT).await;
    assert_eq!(read_all(&mut valve, Waker::noop(), 50), HEARTBEAT, "it goes on after all");
    assert_eq!(meter.unclaimed.load(Ordering::SeqCst), 0);
}
