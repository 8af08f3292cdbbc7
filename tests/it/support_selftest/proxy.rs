//! Tests of the proxy: its delay, its silence and its cut.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::support::proxy::Proxy;
use crate::support::{LONG, real_now};

/// A server that sends everything back, on a thread that ends with its listener's connections.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                stream.set_nodelay(true).unwrap();
                let mut back = stream.try_clone().unwrap();
                std::io::copy(&mut stream, &mut back)
            });
        }
    });
    port
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// How long one byte took there and back.
fn round_trip(stream: &mut TcpStream) -> Duration {
    let start = real_now();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    start.elapsed()
}

#[test]
fn a_proxy_adds_its_delay() {
    let port = echo();
    let proxy = Proxy::start(port, Duration::from_millis(2)).unwrap();
    let mut far = connect(proxy.port());
    for _ in 0..20 {
        let took = round_trip(&mut far);
        assert!(took >= Duration::from_millis(2), "{took:?}");
    }
}

#[test]
fn a_silent_proxy_holds_back_and_a_restored_one_delivers() {
    let proxy = Proxy::start(echo(), Duration::ZERO).unwrap();
    let mut stream = connect(proxy.port());
    round_trip(&mut stream);
    proxy.silence();
    stream.write_all(b"held").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut answer = [0; 4];
    assert!(stream.read(&mut answer).is_err(), "nothing comes through");
    proxy.restore();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"held");
}

#[test]
fn a_cut_proxy_closes_what_there_is_and_what_comes() {
    let proxy = Proxy::start(echo(), Duration::ZERO).unwrap();
    let mut stream = connect(proxy.port());
    round_trip(&mut stream);
    proxy.cut();
    // The read ends with the end of the stream or a reset.
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
    assert!(!matches!(connect(proxy.port()).read(&mut [0]), Ok(1..)));
    proxy.restore();
    round_trip(&mut connect(proxy.port()));
    let mut last = connect(proxy.port());
    round_trip(&mut last);
    drop(proxy);
    assert!(!matches!(last.read(&mut [0]), Ok(1..)), "it ends with its proxy");
}
