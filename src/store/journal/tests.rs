use futures_util::FutureExt as _;

use super::*;

fn parked(jobs: i64) -> Entry {
    Entry::Parked { downstream: "a".to_owned(), jobs }
}

#[test]
fn callers_wait_for_their_batch_and_no_longer() {
    let journal = Journal::new("it is opened");
    assert_eq!(journal.ready().unwrap_err().as_ref(), "it is opened");
    journal.succeed(0);
    assert!(journal.ready().is_ok() && journal.durable(0).now_or_never().is_some());
    assert_eq!((journal.submit(parked(1)), journal.submit(parked(2))), (1, 1), "they are written together");
    let Batch { number, entries, is_last } = journal.next();
    assert_eq!((number, entries, is_last), (1, vec![parked(1), parked(2)], false));
    let mut first = Box::pin(journal.durable(1));
    assert!(first.as_mut().now_or_never().is_none());
    assert_eq!(journal.submit(parked(3)), 2, "the first is being written");
    journal.succeed(1);
    assert!(first.now_or_never().is_some_and(|written| written.is_ok()));
    assert!(journal.durable(2).now_or_never().is_none());
    assert_eq!(journal.written(), 1);
}

#[test]
fn what_waits_is_replaced_until_it_is_written() {
    let journal = Journal::new("");
    journal.submit(parked(1));
    let place = journal.submit_over(parked(2), None);
    assert_eq!(journal.submit_over(parked(3), Some(place)), place);
    journal.submit(parked(4));
    assert_eq!(journal.submit_over(parked(5), Some(place)), place);
    assert_eq!(journal.take().entries, [parked(1), parked(5), parked(4)]);
    // It is being written.
    let next = journal.submit_over(parked(6), Some(place));
    assert_eq!((next.batch, next.index), (place.batch + 1, 0));
    assert_eq!(journal.take().entries, [parked(6)]);
}

#[test]
fn what_cannot_be_written_is_refused_until_it_can() {
    let journal = Journal::new("");
    journal.succeed(0);
    let batch = journal.submit(parked(1));
    journal.take();
    let mut waiting = Box::pin(journal.durable(batch));
    assert!(waiting.as_mut().now_or_never().is_none());
    journal.fail("no space");
    assert_eq!(waiting.now_or_never().unwrap().unwrap_err().as_ref(), "no space");
    assert!(journal.ready().is_err() && journal.durable(batch).now_or_never().unwrap().is_err());
    journal.succeed(batch);
    assert!(journal.ready().is_ok() && journal.durable(batch).now_or_never().unwrap().is_ok());
}

#[test]
fn the_writer_is_woken_by_what_is_urgent_and_by_the_end() {
    let journal = Arc::new(Journal::new(""));
    let writer = std::thread::spawn({
        let journal = Arc::clone(&journal);
        move || std::iter::repeat_with(|| journal.next()).take_while(|batch| !batch.is_last).count()
    });
    journal.submit_unhurried(parked(1));
    journal.submit(parked(2));
    journal.close();
    assert!(writer.join().unwrap() <= 2);
    journal.succeed(9);
    assert!(journal.ready().is_err(), "it stays closed");
    assert!(journal.ended().now_or_never().is_none());
    journal.end(Err("no space".into()));
    journal.end(Ok(()));
    assert!(journal.ended().now_or_never().unwrap().is_err(), "the first report counts");
}
