use super::*;
use crate::store::Change;

const NOW: Micros = Micros(1_760_000_000_000_000);

fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

fn refused(replica: &str) -> CoolDownCall<'_> {
    CoolDownCall::Refused { replica, first: ms(1000), most: ms(60_000) }
}

fn again(replica: &str) -> CoolDownCall<'_> {
    CoolDownCall::Again { replica, first: ms(1000), most: ms(60_000) }
}

fn probe(replica: &str) -> CoolDownCall<'_> {
    CoolDownCall::Probe { replica, ttl: ms(5000) }
}

fn waiting(level: u32, at: Micros) -> Option<CoolDown> {
    Some(CoolDown { level, at, holder: None, until: Micros(0) })
}

fn held(level: u32, at: Micros, by: &str, until: Micros) -> Option<CoolDown> {
    Some(CoolDown { level, at, holder: Some(by.to_owned()), until })
}

/// Each call of the holder and of another replica, in each state.
#[test]
fn each_call_in_each_state() {
    let (early, due) = (NOW.plus(ms(999)), NOW.plus(ms(1000)));
    let (before_end, end) = (due.plus(ms(4999)), due.plus(ms(5000)));
    let (free, taken) = (waiting(2, due), held(2, due, "one", end));
    let over = |replica| CoolDownCall::Over { replica };
    for (state, call, now, expected) in [
        (None, refused("one"), NOW, waiting(0, due)),
        (None, again("one"), NOW, None),
        (None, probe("one"), NOW, None),
        (None, over("one"), NOW, None),
        (free.clone(), refused("one"), due, free.clone()),
        (free.clone(), again("one"), due, free.clone()),
        (free.clone(), over("one"), due, free.clone()),
        (free.clone(), probe("one"), early, free.clone()),
        (free, probe("one"), due, taken.clone()),
        (taken.clone(), refused("two"), before_end, taken.clone()),
        (taken.clone(), again("two"), before_end, taken.clone()),
        (taken.clone(), over("two"), before_end, taken.clone()),
        (taken.clone(), probe("two"), before_end, taken.clone()),
        (taken.clone(), probe("two"), end, held(2, due, "two", end.plus(ms(5000)))),
        (taken.clone(), probe("one"), before_end, held(2, due, "one", before_end.plus(ms(5000)))),
        (taken.clone(), refused("one"), before_end, waiting(3, before_end.plus(ms(8000)))),
        // The result of a probe counts although its lease has ended.
        (taken.clone(), refused("one"), end, waiting(3, end.plus(ms(8000)))),
        (taken.clone(), again("one"), before_end, waiting(2, before_end.plus(ms(4000)))),
        (taken.clone(), over("one"), before_end, None),
        (taken, over("one"), end, None),
    ] {
        assert_eq!(call.apply(state.clone(), now), expected, "{call:?} at {now}, {state:?}");
    }
}

#[test]
fn the_wait_doubles_up_to_the_longest() {
    let mut state = refused("one").apply(None, NOW);
    let mut waits = vec![];
    for _ in 0..8 {
        let at = state.as_ref().unwrap().at;
        waits.push(at.since(NOW).as_secs());
        state = refused("one").apply(held(state.unwrap().level, at, "one", at), NOW);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    for level in [62, 63, 64, 1000, u32::MAX] {
        let state = refused("one").apply(held(level, NOW, "one", NOW), NOW).unwrap();
        assert_eq!((state.level, state.at), (level.saturating_add(1), NOW.plus(ms(60_000))));
    }
}

#[test]
fn it_ends_by_itself_and_lies_never_far_ahead() {
    let at = NOW.plus(ms(1000));
    for (state, end) in
        [(waiting(0, at), NOW.plus(ms(61_000))), (held(0, at, "one", at.plus(ms(1))), NOW.plus(ms(61_001)))]
    {
        let state = state.unwrap();
        assert_eq!(state.current(end.minus(Duration::from_micros(1))), Some(state.clone()));
        assert_eq!(state.current(end), None);
    }
    let far = held(1, NOW.plus(ms(9_000_000)), "one", NOW.plus(ms(9_000_000))).unwrap();
    let near = held(1, NOW.plus(LONGEST_WAIT), "one", NOW.plus(LONGEST_PROBE));
    assert_eq!(far.current(NOW), near);
}

#[test]
fn arguments_that_no_store_accepts() {
    let longest = "x".repeat(128);
    let hour = Duration::from_secs(3600);
    let shortest = |replica| CoolDownCall::Refused { replica, first: ms(1), most: ms(1) };
    for call in [
        shortest(longest.as_str()),
        CoolDownCall::Again { replica: "ä b", first: hour, most: hour },
        CoolDownCall::Probe { replica: "one", ttl: ms(100) },
        CoolDownCall::Probe { replica: "one", ttl: ms(600_000) },
        CoolDownCall::Over { replica: "one" },
    ] {
        assert!(Change::CoolDown(call).check().is_ok(), "{call:?}");
    }
    let longer = format!("{longest}x");
    let micro = Duration::from_micros(1);
    for (call, expected) in [
        (CoolDownCall::Over { replica: "" }, "the replica's name \"\""),
        (CoolDownCall::Probe { replica: &longer, ttl: ms(100) }, "use 1 to 128 bytes"),
        (shortest("a:b"), "the replica's name \"a:b\""),
        (CoolDownCall::Over { replica: "a\nb" }, "the replica's name \"a\\nb\""),
        (CoolDownCall::Refused { replica: "one", first: ms(1) - micro, most: ms(1) }, "a cool-down of 999µs"),
        (CoolDownCall::Again { replica: "one", first: hour, most: hour + micro }, "up to 3600.000001s"),
        (CoolDownCall::Again { replica: "one", first: ms(2), most: ms(1) }, "a cool-down of 2ms up to 1ms"),
        (CoolDownCall::Probe { replica: "one", ttl: ms(100) - micro }, "a lease of 99.999ms"),
        (CoolDownCall::Probe { replica: "one", ttl: ms(600_000) + micro }, "a lease of 600.000001s"),
    ] {
        let error = Change::CoolDown(call).check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
