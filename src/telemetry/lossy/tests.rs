use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// A writer that reports what it is to write, and then waits for the test to decide the result.
struct Scripted {
    begun: Sender<String>,
    ends: Receiver<io::Result<()>>,
}

impl Write for Scripted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.begun.send(String::from_utf8_lossy(bytes).into_owned());
        // Without a decision it blocks for ever, as a pipe does that nobody reads.
        let end = self.ends.recv().unwrap_or_else(|_| {
            loop {
                thread::park();
            }
        });
        end.map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn scripted(
    format: LogFormat,
    capacity: usize,
) -> (LossyWriter, Receiver<String>, SyncSender<io::Result<()>>) {
    let (begun, seen) = channel();
    let (end, ends) = sync_channel(1000);
    let log = LossyWriter::with_capacity(Scripted { begun, ends }, format, false, capacity).unwrap();
    (log, seen, end)
}

fn next(seen: &Receiver<String>) -> String {
    seen.recv_timeout(LONG).expect("a line")
}

#[test]
fn a_writer_that_blocks_costs_lines_and_no_time() {
    let (log, seen, end) = scripted(LogFormat::Text, 10 * (PER_LINE + 2));
    log.push(b"a\n");
    assert_eq!(next(&seen), "a\n", "it blocks in this one");
    for _ in 0..100 {
        log.push(b"b\n");
    }
    assert_eq!(log.dropped(), 91, "one is being written, nine wait");
    assert!(!log.flush(Duration::from_millis(10)), "the end does not wait for ever either");

    for _ in 0..12 {
        end.send(Ok(())).unwrap();
    }
    // One report follows as soon as lines can be written again.
    let report = next(&seen);
    assert!(report.ends_with("  WARN 91 log lines were dropped\n"), "{report}");
    for _ in 0..9 {
        assert_eq!(next(&seen), "b\n");
    }
    assert!(log.flush(LONG));
    log.push(b"c\n");
    assert_eq!(next(&seen), "c\n", "and only one");
    assert!(log.flush(LONG));
    assert_eq!((seen.try_recv().ok(), log.dropped()), (None, 91));
}

#[test]
fn failed_writes_are_counted_and_reported_once_they_succeed() {
    let (log, seen, end) = scripted(LogFormat::Json, CAPACITY);
    for _ in 0..3 {
        end.send(Err(ErrorKind::StorageFull.into())).unwrap();
        log.push(b"lost\n");
        assert_eq!(next(&seen), "lost\n");
    }
    assert!(log.flush(LONG));
    assert_eq!(log.dropped(), 3);
    end.send(Ok(())).unwrap();
    end.send(Ok(())).unwrap();
    log.push(b"kept\n");
    assert_eq!(next(&seen), "kept\n");
    let report: serde_json::Value = serde_json::from_str(&next(&seen)).unwrap();
    assert_eq!((&report["level"], &report["dropped"]), (&"WARN".into(), &3.into()));
    assert_eq!(report["message"], "3 log lines were dropped");
}

#[test]
fn a_line_that_was_cut_off_does_not_run_into_the_next() {
    struct Cut(u32, Sender<u8>);
    impl Write for Cut {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 => Err(ErrorKind::Interrupted.into()),
                2 => Err(ErrorKind::WouldBlock.into()),
                5 => Err(ErrorKind::StorageFull.into()),
                _ => {
                    let _ = self.1.send(bytes[0]);
                    Ok(1)
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (sender, written) = channel();
    let log = LossyWriter::start(Cut(0, sender), LogFormat::Text, false).unwrap();
    log.push(b"whole\n");
    assert!(log.flush(LONG));
    log.push(b"x\n");
    assert!(log.flush(LONG));
    let written: Vec<u8> = written.try_iter().collect();
    let written = String::from_utf8(written).unwrap();
    assert!(written.starts_with("wh\nx\n") && written.contains("1 log lines were dropped"), "{written}");
}

#[test]
fn a_line_stays_one_line_and_steers_no_terminal() {
    let line = "a\u{202e}b\u{1b}[2J\nfeigned\r\u{2028}\u{9b}ü\n".as_bytes();
    let (text, seen, _end) = scripted(LogFormat::Text, CAPACITY);
    text.push(line);
    assert_eq!(next(&seen), "a\\u{202e}b\\u{1b}[2J\\nfeigned\\r\\u{2028}\\u{9b}ü\n");
    let (json, seen, _end) = scripted(LogFormat::Json, CAPACITY);
    json.push("{\"a\":\"\u{202e}\u{7f}ü\"}\n".as_bytes());
    assert_eq!(next(&seen), "{\"a\":\"\\u202e\\u007fü\"}\n");
}

#[test]
fn a_coloured_line_keeps_its_colours_alone() {
    let (sender, written) = channel();
    struct Whole(std::sync::mpsc::Sender<Vec<u8>>);
    impl Write for Whole {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let log = LossyWriter::start(Whole(sender), LogFormat::Text, true).unwrap();
    log.push(b"\x1b[1;31mred\x1b[0m \x1b]52;c;x\x1b\\ \x1b[2J \x1b[31\n");
    assert!(log.flush(LONG));
    let written = String::from_utf8(written.recv().unwrap()).unwrap();
    assert_eq!(written, "\x1b[1;31mred\x1b[0m \\u{1b}]52;c;x\\u{1b}\\ \\u{1b}[2J \\u{1b}[31\n");
}
