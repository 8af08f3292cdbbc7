use super::*;
use crate::limit::Limit;

const NOW: Micros = Micros(1_760_000_000_000_000);

fn clocks(boot: &str) -> Clocks {
    let uptime = Uptime { boot: boot.to_owned(), since: Duration::from_secs(77) };
    Clocks { now: NOW, uptime: Some(uptime) }
}

/// An entry of each kind, and a state of each kind.
fn all() -> Vec<Entry> {
    let second = Duration::from_secs(1);
    let limits = [
        Limit::leaky_bucket("a limit", "700001/s".parse().unwrap(), 1).unwrap(),
        Limit::first_hit_window("w", 3, second).unwrap(),
        Limit::sliding_window("s", 3, second, 10).unwrap(),
        Limit::sliding_log("l", 3, second).unwrap(),
    ];
    let state = |limit: &Limit| {
        let state = limit.commit(&limit.commit(&limit.fresh(), NOW, 1), Micros(NOW.0 + 150_000), 2);
        let (downstream, key) = ("billing".to_owned(), "tenant\n\"42\"".to_owned());
        let kept = Some(KeptState { whole: limit.whole_at(&state), state, shift: -5 });
        Entry::State { downstream, limit: limit.name().to_owned(), key, kept }
    };
    let downstream = || "billing".to_owned();
    let status = Status {
        penalty: NOW,
        pause: Pause { until: Micros::MAX, version: u64::MAX },
        generation: 2,
        reset: 3,
        tombstones: 4,
    };
    let cool_down = CoolDown { level: 1, at: NOW, holder: Some("r".to_owned()), until: Micros(0) };
    let record = KeptRecord {
        downstream: downstream(),
        epoch: NOW,
        shift: 7,
        status,
        terms: Some("terms".to_owned()),
        note: Some((9, "é".to_owned())),
        cool_down: Some(cool_down),
    };
    let plain = KeptRecord { terms: None, note: None, cool_down: None, ..record.clone() };
    let tombstone = Tombstone { id: "id".into(), until: NOW, is_undone: true };
    let mut all: Vec<Entry> = limits.iter().map(state).collect();
    all.extend([
        Entry::State { downstream: downstream(), limit: "l".to_owned(), key: String::new(), kept: None },
        Entry::Record(Box::new(record)),
        Entry::Record(Box::new(plain)),
        Entry::Tombstone { downstream: downstream(), version: 4, tombstone },
        Entry::Parked { downstream: downstream(), jobs: 12 },
        Entry::History { downstream: downstream(), entry: HistoryEntry { at: NOW, text: "{}".to_owned() } },
        Entry::Served { prefix: "paced".to_owned(), name: downstream(), at: Some(NOW) },
        Entry::Served { prefix: "paced".to_owned(), name: downstream(), at: None },
    ]);
    all
}

/// A file with one batch.
fn file(entries: &[Entry], clocks: &Clocks) -> Vec<u8> {
    let mut bytes = begin(NOW).unwrap();
    add(&mut bytes, entries).unwrap();
    end(&mut bytes, BatchId::first(NOW), clocks).unwrap();
    bytes
}

/// A batch behind others in that file.
fn behind(number: u64, entries: &[Entry], clocks: &Clocks) -> Vec<u8> {
    encode(BatchId { begun: NOW, number }, entries, clocks).unwrap()
}

#[test]
fn a_file_is_known_by_its_first_bytes() {
    let good = file(&all(), &clocks("one"));
    assert!(begins(&good[..HEAD]) && !begins(&good[..HEAD - 1]));
    for at in 0..HEAD {
        let mut other = good.clone();
        other[at] = b'~';
        assert!(!begins(&other[..HEAD]), "{at}");
    }
}

#[test]
fn what_is_written_is_read() {
    let mut bytes = file(&all(), &clocks("one"));
    bytes.extend(behind(2, &[], &clocks("two")));
    let contents = Contents { entries: all(), clocks: clocks("two"), is_torn: false };
    assert_eq!(decode(&bytes), Ok(contents));
    let alone = file(&[], &Clocks::default());
    assert_eq!(decode(&alone), Ok(Contents::default()));
}

#[test]
fn a_batch_that_is_cut_anywhere_was_never_written() {
    let first = file(&all()[..2], &clocks("one"));
    let second = behind(2, &all()[2..], &clocks("two"));
    let whole = Contents { entries: all()[..2].to_vec(), clocks: clocks("one"), is_torn: false };
    for kept in 0..second.len() {
        let bytes = [&first, &second[..kept]].concat();
        let expected = Contents { entries: whole.entries.clone(), clocks: clocks("one"), is_torn: kept > 0 };
        assert_eq!(decode(&bytes), Ok(expected), "{kept} bytes of it");
        // A block of it that never reached the disk.
        let holes = [&first, &vec![0; kept], &second[kept..]].concat();
        let read = decode(&holes).unwrap();
        assert!(kept == 0 || (read.is_torn && read.entries == whole.entries), "{kept} bytes are zeros");
    }
}

/// As a file system may show it behind the end after a loss of power: blocks of the file that was replaced.
#[test]
fn a_batch_of_an_older_file_is_not_of_this_one() {
    let first = file(&all()[..2], &clocks("one"));
    let before = BatchId { begun: Micros(NOW.0 - 1), number: 2 };
    let older = encode(before, &all()[2..], &clocks("two")).unwrap();
    let further = encode(before.next(), &all()[2..], &clocks("two")).unwrap();
    let expected = Contents { entries: all()[..2].to_vec(), clocks: clocks("one"), is_torn: true };
    for behind in [older.clone(), further.clone(), [older, further].concat()] {
        assert_eq!(decode(&[first.clone(), behind].concat()), Ok(expected.clone()));
    }
}

#[test]
fn no_other_file_is_taken_for_a_store() {
    let good = file(&all(), &clocks("one"));
    assert_eq!(decode(b""), Err(FormatError::Empty));
    for foreign in [&b"\n"[..], b"[downstreams.billing]\n", &[0; 4096], b"0000000000000000 {}\n", &good[1..]]
    {
        assert_eq!(decode(foreign), Err(FormatError::Foreign));
    }
    let mut newer = Vec::new();
    push(&mut newer, &Line::PacedStore { version: VERSION + 1, begun: 0 }).unwrap();
    assert_eq!(decode(&newer), Err(FormatError::Newer(VERSION + 1)));
    let mut later = good.clone();
    later.extend(behind(2, &all(), &clocks("one")));
    let third = later.len();
    later.extend(behind(3, &[], &clocks("one")));
    assert!(decode(&later).is_ok());
    // Each byte before the last batch counts: behind a batch that was not completed there would be none.
    for at in (good.len()..third - 1).step_by(7) {
        let mut damaged = later.clone();
        damaged[at] ^= 1;
        assert!(matches!(decode(&damaged), Err(FormatError::Damaged(_))), "byte {at}");
    }
    // Nor may the end of one be lacking as a whole.
    let end = later[..third - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let unended = [&later[..end], &later[third..]].concat();
    assert!(matches!(decode(&unended), Err(FormatError::Damaged(_))));
    // The first batch is written together with its file.
    assert!(matches!(decode(&good[..good.len() - 1]), Err(FormatError::Damaged(_))));
    for error in [FormatError::Foreign, FormatError::Empty, FormatError::Newer(2), FormatError::Damaged(3)] {
        assert!(error.to_string().contains("; "), "it says what to do: {error}");
    }
}
