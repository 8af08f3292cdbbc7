//! A test for each arrow of the table.

use super::*;

const MS: Duration = Duration::from_millis(1);

/// The mark of a job that was refused in the first row.
const FIRST_ROW: Suspicion = Suspicion { row: 0, blamed: Some(0) };

/// A replica whose events are one millisecond apart.
struct Scene {
    health: Health,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        Self { health: Health::default(), now: Instant::now() }
    }

    fn tick(&mut self) -> Instant {
        self.now += MS;
        self.now
    }

    /// An attempt that ends so, and why the replica takes no jobs then.
    fn ended(&mut self, contact: Contact) -> Option<Reason> {
        let now = self.tick();
        self.health.ended(contact, now, now);
        self.health.halted()
    }

    /// The same of a delivery that was sent then.
    fn delivered_of(&mut self, sent: Instant) -> Option<Reason> {
        self.health.ended(Contact::Delivered, sent, self.now);
        self.health.halted()
    }

    fn refused(&mut self, before: Option<Suspicion>) -> (Verdict, Option<Reason>) {
        let now = self.tick();
        (self.health.refused(before, false, now, now), self.health.halted())
    }

    fn refused_blamelessly(&mut self, before: Option<Suspicion>) -> (Suspicion, Option<Reason>) {
        let now = self.tick();
        match self.health.refused(before, true, now, now) {
            Verdict::Waits(mark) => (mark, self.health.halted()),
            Verdict::Dead => panic!("it is blameless"),
        }
    }

    /// The mark of a job that is refused for the first time.
    fn suspected(&mut self) -> Suspicion {
        match self.refused(None) {
            (Verdict::Waits(mark), None) => mark,
            other => panic!("{other:?}"),
        }
    }

    fn is_serving(&self) -> bool {
        self.health.halted().is_none()
    }

    /// A replica that has stopped after failed connections.
    fn unreachable_for_good() -> Self {
        let mut scene = Self::new();
        assert_eq!((0..4).find_map(|_| scene.ended(Contact::Unreachable)), None);
        assert_eq!(scene.ended(Contact::Unreachable), Some(Reason::Unreachable));
        scene
    }

    /// A replica that has stopped after three refused jobs.
    fn unauthorized() -> Self {
        let mut scene = Self::new();
        scene.suspected();
        scene.suspected();
        assert!(matches!(scene.refused(None), (Verdict::Waits(_), Some(Reason::Unauthorized))));
        scene
    }

    /// The time until the next trial.
    fn due_in(&self) -> Duration {
        self.health.trial_due().expect("a trial") - self.now
    }
}

#[test]
fn the_fifth_failed_connection_in_a_row_stops() {
    let scene = Scene::unreachable_for_good();
    assert!(matches!(scene.health.state, State::Halted(Reason::Unreachable, Trial::Due(_))));
    assert!(scene.due_in() <= Reason::Unreachable.backoff().0, "{:?}", scene.due_in());
}

#[test]
fn a_request_that_was_sent_ends_the_row_of_failed_connections() {
    let mut scene = Scene::new();
    for _ in 0..10 {
        assert_eq!((0..4).find_map(|_| scene.ended(Contact::Unreachable)), None);
        scene.ended(Contact::Sent);
    }
    assert!(scene.is_serving());
}

#[test]
fn a_trial_connection_that_fails_is_followed_by_another_later_each_time() {
    let mut scene = Scene::unreachable_for_good();
    let mut longest = Duration::ZERO;
    for _ in 0..12 {
        scene.health.trial_begun();
        assert_eq!(scene.health.trial_due(), None, "one at a time");
        scene.health.tried_connection(false, scene.now);
        longest = longest.max(scene.due_in());
        assert!(!scene.is_serving());
    }
    assert!(longest > Duration::from_secs(1) && longest <= Reason::Unreachable.backoff().1, "{longest:?}");
}

#[test]
fn an_open_trial_connection_goes_on_and_a_new_row_begins() {
    let mut scene = Scene::unreachable_for_good();
    scene.health.trial_begun();
    scene.health.tried_connection(true, scene.now);
    assert!(scene.is_serving());
    assert_eq!((0..4).find_map(|_| scene.ended(Contact::Unreachable)), None);
    assert_eq!(scene.ended(Contact::Unreachable), Some(Reason::Unreachable));
}

#[test]
fn while_unreachable_nothing_else_counts() {
    let mut scene = Scene::unreachable_for_good();
    for contact in [Contact::Unreachable, Contact::Sent, Contact::Delivered] {
        assert_eq!(scene.ended(contact), Some(Reason::Unreachable));
    }
    for _ in 0..5 {
        assert!(matches!(scene.refused(None), (Verdict::Waits(_), Some(Reason::Unreachable))));
    }
    scene.health.secrets_read();
    scene.health.trial_job_failed(scene.now);
    scene.health.nothing_to_try();
    assert_eq!(scene.health.halted(), Some(Reason::Unreachable));
}

#[test]
fn a_job_that_is_refused_again_after_a_success_is_dead() {
    let mut scene = Scene::new();
    let mark = scene.suspected();
    assert_eq!(scene.ended(Contact::Delivered), None);
    assert_eq!(scene.refused(Some(mark)), (Verdict::Dead, None));
    assert!(scene.is_serving());
}

#[test]
fn a_blameless_refusal_kills_neither_at_once_nor_later() {
    let mut scene = Scene::new();
    let (mark, _) = scene.refused_blamelessly(None);
    assert_eq!(scene.ended(Contact::Delivered), None);
    let (mark, _) = scene.refused_blamelessly(Some(mark));
    assert_eq!(scene.ended(Contact::Delivered), None);
    let (verdict, _) = scene.refused(Some(mark));
    let Verdict::Waits(mark) = verdict else { panic!("it was never to blame before") };
    assert_eq!(scene.ended(Contact::Delivered), None);
    let (mark, _) = scene.refused_blamelessly(Some(mark));
    assert_eq!(scene.refused(Some(mark)), (Verdict::Dead, None), "to blame twice, with a success in between");
}

#[test]
fn a_job_that_is_refused_blamelessly_counts_once_in_each_row() {
    let mut scene = Scene::new();
    let (mut mark, mut change) = (None, None);
    for _ in 0..2 {
        for _ in 0..4 {
            assert_eq!(change, None);
            let (this, then) = scene.refused_blamelessly(mark);
            (mark, change) = (Some(this), then);
            assert_eq!(scene.health.refused_jobs(), 1);
        }
        assert_eq!((change, scene.ended(Contact::Delivered)), (None, None));
    }
    scene.refused_blamelessly(mark);
    scene.refused_blamelessly(None);
    let third = scene.refused_blamelessly(None).1;
    assert_eq!(third, Some(Reason::Unauthorized), "three different jobs");
}

#[test]
fn one_job_that_is_refused_over_and_over_has_the_secrets_read() {
    let mut scene = Scene::new();
    let mark = scene.suspected();
    for _ in 0..3 {
        assert_eq!(scene.refused(Some(mark)), (Verdict::Waits(mark), None));
    }
    assert_eq!(scene.refused(Some(mark)), (Verdict::Waits(mark), Some(Reason::Unauthorized)));
    assert_eq!(scene.health.state, State::Halted(Reason::Unauthorized, Trial::Due(scene.now)));
}

#[test]
fn the_third_different_job_in_a_row_stops_and_the_secrets_are_read_at_once() {
    let scene = Scene::unauthorized();
    assert_eq!(scene.health.state, State::Halted(Reason::Unauthorized, Trial::Due(scene.now)));
}

#[test]
fn a_success_between_them_ends_the_row() {
    let mut scene = Scene::new();
    for _ in 0..10 {
        scene.suspected();
        scene.suspected();
        assert_eq!(scene.ended(Contact::Delivered), None);
    }
    assert!(scene.is_serving());
}

#[test]
fn a_success_that_was_sent_before_them_proves_nothing() {
    let mut scene = Scene::new();
    let before = scene.now;
    let mark = scene.suspected();
    assert_eq!(scene.delivered_of(before), None);
    assert_eq!(scene.refused(Some(mark)), (Verdict::Waits(mark), None), "not dead");
    scene.suspected();
    assert_eq!(scene.delivered_of(before), None);
    assert!(matches!(scene.refused(None), (Verdict::Waits(_), Some(Reason::Unauthorized))));
    assert_eq!(scene.delivered_of(before), Some(Reason::Unauthorized), "nor does it continue");
}

#[test]
fn a_trial_job_goes_once_the_secrets_were_read_and_later_each_time() {
    let mut scene = Scene::unauthorized();
    let mut longest = Duration::ZERO;
    for _ in 0..12 {
        assert!(!scene.health.wants_trial_job());
        scene.health.trial_begun();
        assert_eq!((scene.health.trial_due(), scene.health.wants_trial_job()), (None, false));
        scene.health.secrets_read();
        assert!(scene.health.wants_trial_job());
        assert!(matches!(scene.refused(Some(FIRST_ROW)).0, Verdict::Waits(_)));
        scene.health.trial_job_failed(scene.now);
        longest = longest.max(scene.due_in());
    }
    assert!(longest > Duration::from_secs(2) && longest <= Reason::Unauthorized.backoff().1, "{longest:?}");
}

#[test]
fn a_delivered_trial_ends_the_halt_and_a_job_that_is_refused_again_is_dead() {
    let mut scene = Scene::unauthorized();
    scene.health.trial_begun();
    scene.health.secrets_read();
    assert_eq!(scene.ended(Contact::Delivered), None);
    assert_eq!(scene.refused(Some(FIRST_ROW)), (Verdict::Dead, None));
    scene.suspected();
    scene.suspected();
    assert!(matches!(scene.refused(None), (Verdict::Waits(_), Some(Reason::Unauthorized))));
}

#[test]
fn a_failed_connection_while_unauthorized_is_no_stop_of_its_own() {
    let mut scene = Scene::unauthorized();
    for _ in 0..10 {
        assert_eq!(scene.ended(Contact::Unreachable), Some(Reason::Unauthorized));
    }
}

#[test]
fn without_anything_to_try_it_goes_on() {
    let mut scene = Scene::unauthorized();
    for _ in 0..2 {
        scene.health.nothing_to_try();
        assert!(scene.is_serving());
    }
}
