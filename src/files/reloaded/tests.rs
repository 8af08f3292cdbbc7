//! Time is paused: it stands still while files are read, which threads do.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use futures_util::poll;
use tempfile::{TempDir, tempdir};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::advance;

use super::*;

/// Two files that have to have the same text. All texts of a test differ in length, so that the stamps differ too.
struct Pair {
    files: Vec<PathBuf>,
    reads: AtomicUsize,
    log: std::sync::Mutex<Vec<String>>,
}

impl Pair {
    fn new(folder: &Path) -> Arc<Self> {
        let files = ["a", "b"].map(|name| folder.join(name)).to_vec();
        Arc::new(Self { files, reads: AtomicUsize::new(0), log: std::sync::Mutex::default() })
    }

    fn put(&self, texts: [&str; 2]) {
        self.files.iter().zip(texts).for_each(|(file, text)| fs::write(file, text).unwrap());
    }

    fn text(&self) -> Result<String, String> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let texts = self.files.iter().map(|file| fs::read_to_string(file).map_err(|_| "missing".to_owned()));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        if texts[0] == texts[1] { Ok(texts[0].clone()) } else { Err("no pair".to_owned()) }
    }

    /// Made of the files as they are.
    fn load(self: &Arc<Self>) -> Reloaded<String> {
        let theirs = Arc::clone(self);
        Reloaded::load(self.files.clone(), move || theirs.text(), self.log()).unwrap()
    }

    fn source(self: &Arc<Self>) -> Source<String> {
        let theirs = Arc::clone(self);
        let read = move |in_use: &String| theirs.text().map(|text| (text != *in_use).then_some(text));
        Source { files: self.files.clone(), read: Box::new(read), log: self.log() }
    }

    fn log(self: &Arc<Self>) -> Log {
        let theirs = Arc::clone(self);
        Box::new(move |read| theirs.log.lock().unwrap().push(read.err().unwrap_or("changed").to_owned()))
    }

    /// The number of reads, and the lines in the log, since the last call.
    fn seen(&self) -> (usize, Vec<String>) {
        (self.reads.swap(0, Ordering::SeqCst), mem::take(&mut self.log.lock().unwrap()))
    }
}

/// Files with this text, which are read once, and what is made of them.
fn loaded(text: &str) -> (TempDir, Arc<Pair>, Reloaded<String>) {
    let folder = tempdir().unwrap();
    let pair = Pair::new(folder.path());
    pair.put([text, text]);
    let reloaded = pair.load();
    assert_eq!((pair.seen().0, reloaded.current().as_str()), (1, text));
    (folder, pair, reloaded)
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn files_are_read_when_they_change_and_at_a_call() {
    let (_folder, pair, reloaded) = loaded("1");
    reloaded.refresh().await;
    reloaded.try_refresh();
    assert_eq!(pair.seen(), (0, vec![]), "they are as they were");
    assert_eq!(reloaded.read().await, Ok(true));
    assert_eq!(pair.seen(), (1, lines(&["changed"])), "they are not compared with the value");
    for (text, is_sync) in [("12", true), ("123", false)] {
        pair.put([text, text]);
        let clone = reloaded.clone();
        if is_sync {
            clone.try_refresh()
        } else {
            clone.refresh().await
        }
        assert_eq!(reloaded.current().as_str(), text);
        assert_eq!(pair.seen(), (1, lines(&["changed"])));
    }
    pair.put(["1234", "1234"]);
    assert_eq!(reloaded.read().await, Ok(true));
    reloaded.refresh().await;
    assert_eq!(pair.seen(), (1, lines(&["changed"])), "a change that was read is no change any more");
    // A value that is given is not known to be the files'.
    let given = Reloaded::new("1234".to_owned(), Some(pair.source()));
    given.refresh().await;
    given.refresh().await;
    assert_eq!(pair.seen(), (1, vec![]), "it is the same");
    assert_eq!(given.read().await, Ok(false));
    assert_eq!(pair.seen(), (1, vec![]));
    let fixed = Reloaded::new((), None);
    fixed.refresh().await;
    fixed.try_refresh();
    assert_eq!(fixed.read().await, Ok(false));
}

/// Files that become longer after each of the first `reads` reads, before the reader knows it.
fn changing(pair: &Arc<Pair>, reads: usize) -> Source<String> {
    let (theirs, left) = (Arc::clone(pair), AtomicUsize::new(reads));
    let read = move |_: &String| {
        let text = theirs.text()?;
        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            let longer = format!("{text}+");
            theirs.put([&longer, &longer]);
        }
        Ok(Some(text))
    };
    Source { files: pair.files.clone(), read: Box::new(read), log: pair.log() }
}

#[tokio::test(start_paused = true)]
async fn files_that_change_while_they_are_read_are_read_to_the_end_and_reported_once() {
    let (_folder, pair, _) = loaded("1");
    let reloaded = Reloaded::new(String::new(), Some(changing(&pair, 1)));
    reloaded.refresh().await;
    assert_eq!((reloaded.current().as_str(), pair.seen()), ("1+", (2, lines(&["changed"]))));
    reloaded.refresh().await;
    assert_eq!(pair.seen(), (0, vec![]), "it was read to the end");
    // Files that always change keep nobody waiting, and are read again in the next turn.
    let reloaded = Reloaded::new(String::new(), Some(changing(&pair, 4)));
    reloaded.refresh().await;
    assert_eq!(pair.seen(), (3, lines(&["changed"])));
    reloaded.refresh().await;
    assert_eq!(pair.seen(), (2, lines(&["changed"])));
    reloaded.refresh().await;
    assert_eq!(pair.seen(), (0, vec![]));
}

#[tokio::test(start_paused = true)]
async fn files_that_are_replaced_one_by_one_are_no_failure() {
    let (_folder, pair, reloaded) = loaded("1");
    pair.put(["12", "1"]);
    reloaded.refresh().await;
    advance(PATIENCE).await;
    // Another state, however long the one before has lasted.
    pair.put(["12", "123"]);
    reloaded.refresh().await;
    advance(PATIENCE - Duration::from_millis(1)).await;
    reloaded.refresh().await;
    assert_eq!((pair.seen(), reloaded.current().as_str()), ((3, vec![]), "1"));
    pair.put(["123", "123"]);
    reloaded.refresh().await;
    assert_eq!((pair.seen(), reloaded.current().as_str()), ((1, lines(&["changed"])), "123"));
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_gone_is_logged_once_and_read_when_it_is_back() {
    let (_folder, pair, reloaded) = loaded("1");
    for (text, other) in [("12", "12"), ("123", "123")] {
        fs::remove_file(&pair.files[1]).unwrap();
        let before = reloaded.current();
        for _ in 0..5 {
            reloaded.refresh().await;
            advance(PATIENCE).await;
        }
        assert_eq!(pair.seen(), (5, lines(&["missing"])));
        assert_eq!(reloaded.read().await, Err("missing".to_owned()));
        assert_eq!((pair.seen(), reloaded.current()), ((1, vec![]), before));
        pair.put([text, other]);
        reloaded.refresh().await;
        assert_eq!((pair.seen(), reloaded.current().as_str()), ((1, lines(&["changed"])), text));
    }
}

#[cfg(unix)]
#[tokio::test(start_paused = true)]
async fn a_link_that_is_exchanged_is_followed() {
    let folder = tempdir().unwrap();
    let link = folder.path().join("current");
    let exchange = |target: &str| {
        std::os::unix::fs::symlink(folder.path().join(target), folder.path().join("new")).unwrap();
        fs::rename(folder.path().join("new"), &link).unwrap();
    };
    for (name, texts) in [("one", ["1", "1"]), ("two", ["12", "12"]), ("wrong", ["123", "1"])] {
        fs::create_dir(folder.path().join(name)).unwrap();
        Pair::new(&folder.path().join(name)).put(texts);
    }
    exchange("one");
    let pair = Pair::new(&link);
    let reloaded = pair.load();
    for (target, text, seen) in [
        ("one", "1", (1, vec![])),
        ("two", "12", (1, lines(&["changed"]))),
        ("wrong", "12", (1, vec![])),
        // Back to what is in use: there is nothing to read, and the failure is over.
        ("two", "12", (0, vec![])),
        ("wrong", "12", (1, vec![])),
        ("one", "1", (1, lines(&["changed"]))),
    ] {
        exchange(target);
        reloaded.refresh().await;
        assert_eq!((reloaded.current().as_str(), pair.seen()), (text, seen), "{target}");
        advance(PATIENCE * 2).await;
    }
}

/// Files that are read when the test answers.
struct Gated {
    begins: UnboundedReceiver<()>,
    answer: mpsc::Sender<Result<&'static str, &'static str>>,
}

impl Gated {
    fn new() -> (Self, Source<String>) {
        let ((begun, begins), (answer, answers)) = (unbounded_channel(), mpsc::channel());
        let answers = std::sync::Mutex::new(answers);
        let read = move |_: &String| {
            let _ = begun.send(());
            let answer: Result<&str, &str> = answers.lock().unwrap().recv().unwrap();
            answer.map(|text| Some(text.to_owned())).map_err(str::to_owned)
        };
        (Self { begins, answer }, Source { files: vec![], read: Box::new(read), log: Box::new(|_| {}) })
    }

    /// Waits until a thread reads.
    async fn begun(&mut self) {
        self.begins.recv().await.unwrap();
    }

    fn answer(&self, answer: Result<&'static str, &'static str>) {
        self.answer.send(answer).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_system_that_hangs_keeps_one_thread_and_no_reader_of_the_value() {
    let (mut gated, source) = Gated::new();
    let reloaded = Reloaded::new("old".to_owned(), Some(source));
    let mut first = Box::pin(reloaded.refresh());
    assert!(poll!(&mut first).is_pending());
    gated.begun().await;
    // Its caller gives up; the thread stays.
    drop(first);
    let (mut refresh, mut read) = (Box::pin(reloaded.refresh()), Box::pin(reloaded.read()));
    assert!(poll!(&mut refresh).is_pending() && poll!(&mut read).is_pending());
    reloaded.try_refresh();
    assert_eq!(reloaded.current().as_str(), "old");
    assert!(gated.begins.try_recv().is_err(), "one thread reads");
    // Both follow in their turn. No file has changed, so that the refresh reads nothing.
    gated.answer(Ok("new"));
    refresh.await;
    assert_eq!(reloaded.current().as_str(), "new");
    gated.answer(Ok("newer"));
    assert_eq!(read.await, Ok(true));
    assert_eq!(reloaded.current().as_str(), "newer");
}

#[tokio::test(start_paused = true)]
async fn callers_share_a_read_that_began_after_they_asked() {
    for (answer, expected) in [(Ok("new"), Ok(true)), (Err("gone"), Err("gone".to_owned()))] {
        let (mut gated, source) = Gated::new();
        let reloaded = Reloaded::new("old".to_owned(), Some(source));
        let mut first = Box::pin(reloaded.read());
        assert!(poll!(&mut first).is_pending());
        gated.begun().await;
        // What the first one reads may be older than what these ask for.
        let mut others: Vec<_> = (0..3).map(|_| Box::pin(reloaded.read())).collect();
        for other in &mut others {
            assert!(poll!(other).is_pending());
        }
        advance(Duration::from_millis(1)).await;
        gated.answer(Ok("older"));
        assert_eq!(first.await, Ok(true));
        gated.answer(answer);
        for other in others {
            assert_eq!(other.await, expected);
        }
        gated.begun().await;
        assert!(gated.begins.try_recv().is_err(), "one read for all of them");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_while_files_are_read_takes_effect_at_once_and_stays() {
    let (mut old, source) = Gated::new();
    let reloaded = Reloaded::new("old".to_owned(), Some(source));
    let mut reading = Box::pin(reloaded.read());
    assert!(poll!(&mut reading).is_pending());
    old.begun().await;
    let (mut new, source) = Gated::new();
    reloaded.replace("configured".to_owned(), Some(source));
    assert_eq!(reloaded.current().as_str(), "configured");
    let mut refresh = Box::pin(reloaded.refresh());
    assert!(poll!(&mut refresh).is_pending());
    old.answer(Ok("outdated"));
    assert_eq!(reading.await, Ok(false));
    assert_eq!(reloaded.current().as_str(), "configured");
    // The refresh that has waited reads the new files.
    new.answer(Ok("new"));
    refresh.await;
    new.begun().await;
    assert_eq!(reloaded.current().as_str(), "new");
    reloaded.refresh().await;
    assert!(new.begins.try_recv().is_err(), "they did not change");
    // Another source alone leaves the value until it is read.
    let (other, source) = Gated::new();
    reloaded.follow(source);
    assert_eq!(reloaded.current().as_str(), "new");
    other.answer(Ok("other"));
    reloaded.refresh().await;
    assert_eq!(reloaded.current().as_str(), "other");
}
