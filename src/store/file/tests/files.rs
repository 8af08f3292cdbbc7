//! By threads and files as they are.

use std::sync::mpsc;

use super::*;

/// No test waits so long.
const HANGS: Duration = Duration::from_secs(30);

#[tokio::test]
async fn ten_a_day_are_ten_over_orderly_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pace");
    let (_, clock) = manual();
    let (limits, costs) = (set(vec![daily(10)]), [1; 3]);
    let mut taken = 0;
    for _ in 0..8 {
        let store = FileStore::with_clock(&path, Arc::clone(&clock)).unwrap();
        let scope = Scope { downstream: "d", key: "" };
        let call = Reserve::new(scope, &limits, Costs::Each(&costs), Duration::ZERO);
        taken += store.reserve(call).await.unwrap().slots.len();
        store.finish().await.unwrap();
        assert!(store.reserve(call).await.is_err(), "it is closed");
    }
    assert_eq!(taken, 10);
}

#[tokio::test]
async fn another_process_is_named_and_may_be_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pace");
    let first = FileStore::open(&path).unwrap();
    let error = FileStore::open(&path).unwrap_err().to_string();
    let expected =
        format!("the store in {} cannot be used: process {} uses it; ", path.display(), std::process::id());
    assert!(error.starts_with(&expected), "{error}");
    let waiting = FileStore::waiting(&path).unwrap();
    let error = waiting.ping().await.unwrap_err();
    assert!(error.is_away(), "{error}");
    first.finish().await.unwrap();
    tokio::time::timeout(HANGS, waiting.journal.until_ready()).await.unwrap();
    assert!(waiting.ping().await.is_ok());
    waiting.finish().await.unwrap();
    // One that waits can be closed too.
    let _held = FileStore::open(&path).unwrap();
    let waiting = FileStore::waiting(&path).unwrap();
    assert!(waiting.finish().await.is_ok());
}

/// One that is dropped is closed in its own time, and nothing of it is lost.
#[tokio::test]
async fn one_that_is_dropped_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pace");
    let limits = set(vec![Limit::gcra("g", "10/h".parse().unwrap(), 10).unwrap()]);
    let scope = Scope { downstream: "d", key: "" };
    let call = Reserve::new(scope, &limits, Costs::Each(&[1; 4]), Duration::ZERO);
    let mut taken = Vec::new();
    for _ in 0..4 {
        let store = FileStore::waiting(&path).unwrap();
        tokio::time::timeout(HANGS, store.journal.until_ready()).await.unwrap();
        taken.push(store.reserve(call).await.unwrap().slots.len());
    }
    assert_eq!(taken, [4, 4, 2, 0]);
}

#[tokio::test]
async fn a_check_changes_nothing_and_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pace");
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    FileStore::probe(&path).unwrap();
    assert_eq!(files(), 0);
    let store = FileStore::open(&path).unwrap();
    let error = FileStore::probe(&path).unwrap_err().to_string();
    assert!(error.contains(" uses it; "), "{error}");
    store.finish().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    FileStore::probe(&path).unwrap();
    assert_eq!((std::fs::read(&path).unwrap(), files()), (before.clone(), 2), "the file and its lock");
    for (bytes, expected) in [
        (&before[..before.len() - 1], "line 2 of it is damaged"),
        (&b"a letter"[..], "it is no store of paced"),
        (&b""[..], "it is empty"),
    ] {
        std::fs::remove_file(folder.path().join("pace.paced-lock")).unwrap_or_default();
        std::fs::write(&path, bytes).unwrap();
        let error = FileStore::probe(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!((std::fs::read(&path).unwrap().as_slice(), files()), (bytes, 1));
    }
}

#[tokio::test]
async fn files_that_are_no_stores_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pace");
    for (bytes, expected) in [
        (&b"[amqp]\nurl = 'amqp://a'\n"[..], "it is no store of paced; name another file in store.url"),
        (&b""[..], "it is empty, as by a copy that failed"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = FileStore::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "it is as it was");
    }
    let error = FileStore::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("it is no store of paced"), "a directory: {error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was made beside it");
    let error = FileStore::open(folder.path().join("none/pace")).unwrap_err().to_string();
    assert!(error.contains("in a directory that it may write"), "{error}");
}

/// A disk on which a write to the file is reported as it begins, and continues once the gate is open.
struct Gated {
    disk: SimDisk,
    begun: mpsc::Sender<()>,
    gate: mpsc::Receiver<()>,
}

impl Disk for Gated {
    fn read(&mut self) -> Result<Option<Vec<u8>>, OpenError> {
        self.disk.read()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.begun.send(()).unwrap();
        // It is open once the other end is gone.
        assert!(self.gate.recv().is_err());
        self.disk.append(bytes)
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.disk.replace(bytes)
    }
}

/// Calls are refused until it answers, and what was charged for them is given back.
#[tokio::test]
async fn no_call_waits_for_a_disk_that_hangs() {
    let (disk, (_, clock)) = (SimDisk::default(), manual());
    let ((begun, begins), (open, gate)) = (mpsc::channel(), mpsc::channel());
    let store = FileStore::new(Path::new("simulated"), Arc::clone(&clock));
    let gated = Gated { disk: disk.clone(), begun, gate };
    let mut writer = Writer::on(Box::new(gated), &store.memory, &store.journal).unwrap();
    writer.step(&store.journal.take()).unwrap();
    writer::spawn(writer, &store.path).unwrap();
    let (limits, scope) = (set(vec![daily(10)]), Scope { downstream: "d", key: "" });
    let call = Reserve::new(scope, &limits, Costs::Each(&[1; 4]), Duration::ZERO);
    let mut waiting = store.reserve(call);
    assert!((&mut waiting).now_or_never().is_none());
    begins.recv_timeout(HANGS).unwrap();
    assert!(!store.journal.refuse_after(Duration::MAX), "it may take some time");
    assert!(store.journal.refuse_after(Duration::ZERO));
    let error = waiting.await.unwrap_err();
    assert!(error.is_away() && error.to_string().contains("its disk has not answered for 0 s"), "{error}");
    for _ in 0..2 {
        assert!(store.reserve(call).await.is_err() && store.ping().await.is_err());
    }
    drop(open);
    tokio::time::timeout(HANGS, store.journal.until_ready()).await.unwrap();
    let all = Reserve::new(scope, &limits, Costs::Each(&[1; 20]), Duration::ZERO);
    assert_eq!(store.reserve(all).await.unwrap().slots.len(), 10);
    store.finish().await.unwrap();
    assert_eq!(Bench::open(&disk, &clock).take(&limits, 20, Duration::ZERO).0.unwrap().len(), 0);
}
