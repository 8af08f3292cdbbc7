use super::*;

const START: Micros = Micros(1_760_000_000_000_000);
/// The batch of the submitted state, and a later one.
const BATCH: u64 = 7;
const LATER: u64 = 8;

fn limit() -> Limit {
    Limit::gcra("g", "10/s".parse().unwrap(), 100).unwrap()
}

/// The state once this many units were taken.
fn used(units: u32) -> State {
    limit().commit(&limit().fresh(), START, units)
}

fn place(batch: u64) -> Place {
    Place { batch, index: 0 }
}

/// A lease of which these numbers of units are on disk, and submitted.
fn lease(held: Option<u32>, next: Option<u32>) -> Lease {
    let next = next.map(|units| (used(units), place(BATCH)));
    Lease { held: held.map(used), next, ..Lease::unknown(0) }
}

/// A call is answered at once only where the state on disk covers it, and the one that may be there at any time does too.
#[test]
fn what_is_on_disk_and_what_is_to_be_both_count() {
    let (narrow, wide) = (Some(10), Some(50));
    for (held, next, batch) in [
        (None, None, None),
        (narrow, None, None),
        (wide, None, Some(0)),
        // Any older state may be on disk until the next one is.
        (None, narrow, None),
        (None, wide, Some(BATCH)),
        (narrow, narrow, None),
        (narrow, wide, Some(BATCH)),
        // As after slots were given back: the state on disk covers it, until it is replaced.
        (wide, narrow, None),
        (wide, wide, Some(0)),
    ] {
        assert_eq!(lease(held, next).covers(&limit(), &used(30)), batch, "{held:?} {next:?}");
    }
}

#[test]
fn what_is_submitted_is_on_disk_once_its_batch_is_written() {
    let submitted = Box::new(lease(Some(50), Some(10)));
    let before = Lease::settled(Some(submitted.clone()), 0, BATCH - 1);
    assert_eq!((before.held.as_ref(), before.place()), (Some(&used(50)), Some(place(BATCH))));
    assert_eq!(before.latest(), Some(&used(10)));
    let after = Lease::settled(Some(submitted.clone()), 0, BATCH);
    assert_eq!((after.held.as_ref(), after.place()), (Some(&used(10)), None));
    // On another clock nothing of it counts.
    for none in [Lease::settled(Some(submitted), 1, BATCH), Lease::settled(None, 1, BATCH)] {
        assert_eq!((none.latest(), none.shift), (None, 1));
    }
}

/// What one batch has of a state is replaced in it; two batches may both be on disk.
#[test]
fn what_is_on_disk_is_known_while_one_batch_may_replace_it() {
    let mut lease = lease(Some(50), None);
    lease.follow(used(60), place(BATCH), START);
    lease.follow(used(40), place(BATCH), START);
    assert_eq!(lease.covers(&limit(), &used(30)), Some(0));
    // A new file does not have what may still be replaced.
    assert_eq!((lease.kept_in(BATCH - 1), lease.kept_in(BATCH)), (Some(&used(50)), Some(&used(40))));
    lease.follow(used(45), place(LATER), START);
    assert_eq!(lease.covers(&limit(), &used(30)), Some(LATER), "40 may be there, or 45");
    assert_eq!((lease.latest(), lease.kept_in(BATCH)), (Some(&used(45)), Some(&used(45))));
}
