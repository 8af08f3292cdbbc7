use super::super::ring;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rings_and_never_early() {
    let clock = ThreadClock::start().unwrap();
    let start = Instant::now();
    let (sender, mut rung) = tokio::sync::mpsc::unbounded_channel();
    // The latest alarm is set first, so that each next one is earlier than the instant for which the thread sleeps.
    for millis in (1..=20).rev() {
        let (mut alarm, sender) = (clock.alarm(), sender.clone());
        tokio::spawn(async move {
            alarm.set(Some(start + Duration::from_millis(millis * 5)));
            ring(&mut *alarm).await;
            sender.send((millis, start.elapsed())).unwrap();
        });
    }
    drop(sender);
    let mut seen = Vec::new();
    while let Some((millis, elapsed)) = rung.recv().await {
        assert!(elapsed >= Duration::from_millis(millis * 5), "{millis}: {elapsed:?}");
        seen.push(millis);
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_dropped_alarm_leaves_nothing() {
    let clock = ThreadClock::start().unwrap();
    let mut alarm = clock.alarm();
    alarm.set(Some(Instant::now() + Duration::from_secs(3600)));
    assert!(tokio::time::timeout(Duration::from_millis(5), ring(&mut *alarm)).await.is_err());
    assert_eq!(clock.handle.shared.lock().queue.len(), 1);
    drop(alarm);
    assert_eq!(clock.handle.shared.lock().queue.len(), 0);
    assert_eq!(clock.handle.shared.lock().queue.first(), None);
    let mut next = clock.alarm();
    next.set(Some(Instant::now()));
    ring(&mut *next).await;
}

const HOUR: Duration = Duration::from_secs(3600);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns whether the alarm rings within some 20 ms of activity of random length.
async fn rings_soon(alarm: &mut dyn Alarm) -> bool {
    tokio::time::timeout(ms(20), ring(alarm)).await.is_ok()
}

#[tokio::test]
async fn what_counts_is_the_instant_set_last() {
    let clock = ThreadClock::start().unwrap();
    let mut alarm = clock.alarm();
    assert!(!rings_soon(&mut *alarm).await, "it is not set");
    let start = Instant::now();
    alarm.set(Some(start + HOUR));
    assert!(!rings_soon(&mut *alarm).await);
    alarm.set(Some(start + ms(5)));
    ring(&mut *alarm).await;
    assert!(!rings_soon(&mut *alarm).await, "it has rung");
    let start = Instant::now();
    alarm.set(Some(start + ms(5)));
    alarm.set(Some(start + ms(50)));
    ring(&mut *alarm).await;
    assert!(start.elapsed() >= ms(50), "{:?}", start.elapsed());
    alarm.set(Some(Instant::now() + ms(5)));
    alarm.set(None);
    assert!(!rings_soon(&mut *alarm).await, "unset");
    alarm.set(Some(start));
    assert!(rings_soon(&mut *alarm).await, "past");
}

#[tokio::test]
async fn an_alarm_set_earlier_while_it_is_waited_for_elsewhere_rings_earlier() {
    let clock = ThreadClock::start().unwrap();
    let (mut far, mut near) = (clock.alarm(), clock.alarm());
    far.set(Some(Instant::now() + HOUR));
    assert!(!rings_soon(&mut *far).await, "the thread sleeps for an hour");
    near.set(Some(Instant::now() + ms(1)));
    tokio::time::timeout(HOUR / 60, ring(&mut *near)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_ring_each_at_its_instant() {
    let clock = ThreadClock::start().unwrap();
    let start = Instant::now() + ms(20);
    let tasks = (0..4000_u32).map(|index| {
        let mut alarm = clock.alarm();
        tokio::spawn(async move {
            for round in 0..3 {
                let at = start + Duration::from_micros(u64::from((index * 7919) % 30_000)) + round * ms(30);
                alarm.set(Some(at));
                ring(&mut *alarm).await;
                assert!(Instant::now() >= at, "early");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
    }
    assert_eq!(clock.handle.shared.lock().queue.len(), 0);
}

#[tokio::test]
async fn the_thread_ends_with_the_last_of_clock_and_alarms() {
    let clock = ThreadClock::start().unwrap();
    let (shared, mut alarm) = (Arc::downgrade(&clock.handle.shared), clock.alarm());
    drop(clock);
    alarm.set(Some(Instant::now() + ms(5)));
    ring(&mut *alarm).await;
    drop(alarm);
    // The thread's references to the alarm are dropped with the thread.
    let ended = async {
        while shared.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
}

#[test]
fn a_bell_rings_ahead_of_its_alarm_by_the_lead() {
    let shared = Shared::new();
    let bells: Vec<Arc<Bell>> = (0..2).map(|_| Arc::default()).collect();
    let now = Instant::now();
    for (bell, ahead) in bells.iter().zip([HOUR, HOUR * 2]) {
        let number = shared.lock().queue.add(Arc::clone(bell));
        shared.lock().queue.set(number, Some(Deadline::at(now + ahead)));
        bell.queued.store(true, Ordering::Release);
    }
    let queued = || bells.iter().map(|bell| bell.queued.load(Ordering::Acquire)).collect::<Vec<_>>();
    assert_eq!(shared.due(HOUR / 2, &mut Vec::new()), Some(Deadline::at(now + HOUR)));
    assert_eq!(queued(), [true, true]);
    assert_eq!(shared.due(HOUR + HOUR / 2, &mut Vec::new()), Some(Deadline::at(now + HOUR * 2)));
    assert_eq!(queued(), [false, true]);
    assert!(bells[0].rung.take() > 0 && bells[1].rung.take() == 0);
}

#[tokio::test]
async fn an_alarm_whose_bell_rang_much_too_early_is_set_again() {
    let clock = ThreadClock::start().unwrap();
    let mut alarm = clock.alarm();
    let at = Instant::now() + ms(60);
    alarm.set(Some(at));
    // As a thread does whose clock is ahead of the runtime's.
    clock.handle.shared.due(HOUR, &mut Vec::new());
    ring(&mut *alarm).await;
    assert!(Instant::now() >= at, "early");
}

#[test]
fn what_falls_due_in_a_suspend_is_taken() {
    let shared = Shared::new();
    let number = shared.lock().queue.add(Arc::default());
    let deadline = Deadline::at(Instant::now() + HOUR);
    shared.lock().queue.set(number, Some(deadline));
    assert_eq!(shared.due(Duration::ZERO, &mut Vec::new()), Some(deadline));
    crate::time::suspend(HOUR);
    assert_eq!(shared.due(Duration::ZERO, &mut Vec::new()), None);
}
