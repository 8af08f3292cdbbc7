//! Replicas ask each other where jobs are, through their summaries in the store:
//!
//! ```text
//! asker    question in its summary ─▶ store ─▶ the others read it, and ask their dispatchers
//! others   answers in their summaries ─▶ store ─▶ the asker reads them
//! ```

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use paced::api::Millis;
use paced::api::find::{Job, Parked, Turn};
use paced::dispatch::{self, FoundJob, JobPlace, ParkedJob};
use paced::lock::lock;
use paced::time::{Micros, wall_now};
use tokio::time::{Instant, timeout};

use super::dispatchers::Dispatchers;
use super::estimate::bound_of_lane;
use super::summary::{Answer, Asked, Question, Summary};

/// The most questions that are answered at a time. Each replica has at most one question, while a client searches for
/// a job there.
const MOST_ANSWERED: usize = 4;

/// How long a dispatcher may take for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The most jobs of one answer that count.
const MOST_JOBS: usize = 10;

/// The questions and answers of this replica.
#[derive(Default)]
pub(crate) struct Asks {
    /// The dispatchers that answer.
    dispatchers: Dispatchers,
    asked: Mutex<Asked>,
}

/// The question of this replica, until it is dropped.
pub(super) struct Asking<'a> {
    asks: &'a Asks,
    /// Its number.
    pub(super) number: i64,
}

impl Asks {
    /// Creates the questions and answers, with these dispatchers to answer the other replicas.
    pub(crate) fn new(dispatchers: Dispatchers) -> Self {
        Self { dispatchers, asked: Mutex::default() }
    }

    /// The question and the answers for the summary of this replica.
    pub(super) fn current(&self) -> Asked {
        lock(&self.asked).clone()
    }

    /// Asks the other replicas from the next report on, in place of an earlier question.
    pub(super) fn ask(&self, downstream: &str, question: &dispatch::Question) -> Asking<'_> {
        let number = wall_now().0;
        let (id, lane) = match question {
            dispatch::Question::Id(id) => (id.clone(), None),
            dispatch::Question::Lane(lane) => (String::new(), Some(lane.clone())),
        };
        let question = Question { number, downstream: downstream.to_owned(), id, lane };
        lock(&self.asked).question = Some(question);
        Asking { asks: self, number }
    }

    /// Answers the questions of the other replicas, and forgets the answers to questions that they no longer ask.
    /// Returns whether an answer is new.
    pub(super) async fn answer(&self, others: &[Summary]) -> bool {
        let asked =
            others.iter().filter_map(|other| Some((&other.replica.id, other.asked.question.as_ref()?)));
        let mut asked: Vec<(&String, &Question)> = asked.collect();
        // The earliest question comes first, so that each has its turn even if other replicas ask often.
        asked.sort_by_key(|(_, question)| question.number);
        asked.truncate(MOST_ANSWERED);
        let (mut answers, mut is_new) = (Vec::new(), false);
        for (to, question) in asked {
            let known = self.known(to, question.number);
            is_new |= known.is_none();
            let answer = match known {
                Some(answer) => Some(answer),
                None => self.find(to, question).await,
            };
            answers.extend(answer);
        }
        lock(&self.asked).answers = answers;
        is_new
    }

    fn known(&self, to: &str, number: i64) -> Option<Answer> {
        let asked = lock(&self.asked);
        asked.answers.iter().find(|answer| answer.to == to && answer.number == number).cloned()
    }

    async fn find(&self, to: &str, question: &Question) -> Option<Answer> {
        let control = self.dispatchers.all().get(&question.downstream)?.control.clone();
        let meant = match &question.lane {
            Some(lane) => dispatch::Question::Lane(lane.clone()),
            None => dispatch::Question::Id(question.id.clone()),
        };
        let found = timeout(ANSWER_TIMEOUT, control.find(meant)).await.ok()?;
        let clock = (Instant::now(), wall_now());
        Some(Answer {
            to: to.to_owned(),
            number: question.number,
            jobs: found.jobs.iter().map(|job| shown_job(job, clock)).collect(),
            parked: found.parked.map(shown_parked),
        })
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut asked = lock(&self.asks.asked);
        // A later question stays.
        asked.question = asked.question.take().filter(|question| question.number != self.number);
    }
}

/// The answers of the others that have this downstream to a question of the replica `me`, by their ids, and whether all of
/// them have answered.
pub(super) fn answers(
    others: &[Summary],
    (me, number): (&str, i64),
    downstream: &str,
) -> (BTreeMap<String, Answer>, bool) {
    let (mut answers, mut is_whole) = (BTreeMap::new(), true);
    for other in others.iter().filter(|other| other.downstreams.contains_key(downstream)) {
        let all = &other.asked.answers;
        match all.iter().find(|answer| answer.to == me && answer.number == number) {
            Some(answer) => {
                let replica = &other.replica.id;
                let mut answer = answer.clone();
                answer.jobs.truncate(MOST_JOBS);
                answer.jobs.iter_mut().for_each(|job| job.replica.clone_from(replica));
                answer.parked.iter_mut().for_each(|parked| parked.replica.clone_from(replica));
                answers.insert(replica.clone(), answer);
            }
            None => is_whole = false,
        }
    }
    (answers, is_whole)
}

/// A job as the API shows it, without the name of its replica. `clock` has an instant by both clocks. The time at
/// which the job goes is missing if it depends on other replicas, and `binding` considers only the job's lane.
pub(crate) fn shown_job(found: &FoundJob, clock: (Instant, Micros)) -> Job {
    let FoundJob { id, place, turn, first_seen, attempts } = found;
    let (place, at) = match *place {
        JobPlace::Waiting => ("waiting", None),
        JobPlace::Window(at) => ("waiting", Some(at)),
        JobPlace::Delayed(at) => ("delayed", Some(at)),
        JobPlace::Retrying(at) => ("retrying", Some(at)),
        JobPlace::Slot(at) => ("held", Some(at)),
        JobPlace::Working => ("sending", None),
        JobPlace::Halted => ("halted", None),
    };
    let count = |jobs: usize| u64::try_from(jobs).unwrap_or(u64::MAX);
    let shown_turn = |turn: &dispatch::Turn| Turn {
        lane: turn.lane.clone(),
        waiting: count(turn.waiting),
        ahead: count(turn.ahead),
        before: turn.before,
        next: millis(turn.next, clock),
        own: millis(turn.own, clock),
    };
    Job {
        replica: String::new(),
        id: id.clone(),
        place: place.to_owned(),
        at: at.map(|at| millis(at, clock)),
        turn: turn.as_ref().map(shown_turn),
        binding: turn.as_ref().and_then(|turn| turn.binding.as_ref()).map(bound_of_lane),
        attempts: *attempts,
        first_seen: first_seen.map(|at| at.0 / 1000),
    }
}

/// A parked job as the API shows it, without the name of its replica.
pub(crate) fn shown_parked(ParkedJob { at, until, reason }: ParkedJob) -> Parked {
    let reason = reason.as_str().to_owned();
    Parked { replica: String::new(), at: at.0 / 1000, until: until.0 / 1000, reason }
}

/// An instant by the wall clock.
fn millis(at: Instant, (now, wall): (Instant, Micros)) -> Millis {
    let (ahead, ago) = (at.saturating_duration_since(now), now.saturating_duration_since(at));
    wall.plus(ahead).minus(ago).0 / 1000
}

#[cfg(test)]
mod tests {
    use paced::dispatch::Binding;

    use super::super::summary::{Identity, Own};
    use super::*;

    const NOW: Millis = 1_764_000_000_000;

    fn summary(id: &str, asked: Asked) -> Summary {
        let identity = Identity { id: id.to_owned(), ..Identity::default() };
        let mut summary = Summary::new(identity, 0);
        summary.asked = asked;
        summary.downstreams.insert("billing".to_owned(), Own::default());
        summary
    }

    fn answer(to: &str, number: i64) -> Asked {
        let job = Job { place: "waiting".to_owned(), replica: "forged".to_owned(), ..Job::default() };
        let answer = Answer { to: to.to_owned(), number, jobs: vec![job; 12], parked: None };
        Asked { answers: vec![answer], ..Asked::default() }
    }

    #[test]
    fn places_and_instants_are_shown_by_the_wall_clock() {
        let (now, wall) = (Instant::now(), Micros(NOW * 1000));
        let second = Duration::from_secs(1);
        let found = |place, turn| {
            let (id, first_seen, attempts) = ("a".to_owned(), Some(wall), Some(2));
            FoundJob { id, place, turn, first_seen, attempts }
        };
        let shown = |place| {
            let Job { place, at, .. } = shown_job(&found(place, None), (now, wall));
            (place, at)
        };
        let text = str::to_owned;
        assert_eq!(shown(JobPlace::Waiting), (text("waiting"), None));
        assert_eq!(shown(JobPlace::Window(now + second)), (text("waiting"), Some(NOW + 1000)));
        assert_eq!(shown(JobPlace::Delayed(now + second)), (text("delayed"), Some(NOW + 1000)));
        assert_eq!(shown(JobPlace::Retrying(now + second)), (text("retrying"), Some(NOW + 1000)));
        assert_eq!(shown(JobPlace::Slot(now)), (text("held"), Some(NOW)));
        assert_eq!(shown(JobPlace::Working), (text("sending"), None));
        assert_eq!(shown(JobPlace::Halted), (text("halted"), None));
        let binding = Binding::Limit { name: "lane.l".to_owned(), next: None };
        let turn = dispatch::Turn {
            lane: Some("tenant=a".to_owned()),
            waiting: 5,
            ahead: 3,
            before: 7,
            next: now + second,
            own: now + 2 * second,
            binding: Some(binding),
        };
        let shown = shown_job(&found(JobPlace::Waiting, Some(turn)), (now, wall));
        let turn = Turn {
            lane: Some("tenant=a".to_owned()),
            waiting: 5,
            ahead: 3,
            before: 7,
            next: NOW + 1000,
            own: NOW + 2000,
        };
        assert_eq!((shown.turn, shown.id.as_str()), (Some(turn), "a"));
        let bound = shown.binding.unwrap();
        assert_eq!((bound.of_lane, bound.text.as_str()), (true, "the limit lane.l of its lane"));
    }

    #[test]
    fn answers_are_taken_from_those_that_have_the_downstream() {
        let mut others = vec![summary("a", answer("me", 7)), summary("b", answer("me", 6))];
        let (found, is_whole) = answers(&others, ("me", 7), "billing");
        assert_eq!(
            (found.keys().collect::<Vec<_>>(), is_whole),
            (vec![&"a".to_owned()], false),
            "one to an earlier question"
        );
        assert_eq!(found["a"].jobs.len(), MOST_JOBS);
        assert!(found["a"].jobs.iter().all(|job| job.replica == "a"), "also where it says otherwise");
        others[1].asked = answer("other", 7);
        assert!(!answers(&others, ("me", 7), "billing").1, "it is to somebody else");
        others[1].asked = answer("me", 7);
        assert!(answers(&others, ("me", 7), "billing").1);
        let (found, is_whole) = answers(&others, ("me", 7), "mail");
        assert_eq!((found.len(), is_whole), (0, true), "nobody else has it");
    }

    #[test]
    fn a_question_is_asked_until_nobody_waits_for_answers() {
        let asks = Asks::default();
        let first = asks.ask("billing", &dispatch::Question::Id("a".to_owned()));
        let question = asks.current().question.unwrap();
        assert_eq!(
            (question.number, question.downstream.as_str(), question.id.as_str(), &question.lane),
            (first.number, "billing", "a", &None)
        );
        let later = Asking { asks: &asks, number: first.number + 1 };
        lock(&asks.asked).question = Some(Question { number: later.number, ..question });
        drop(first);
        assert!(asks.current().question.is_some(), "it is a later one");
        drop(later);
        assert_eq!(asks.current(), Asked::default());
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_answered_is_not_and_what_nobody_asks_is_forgotten() {
        let asks = Asks::default();
        let question = |number| Question {
            number,
            downstream: "billing".to_owned(),
            id: "a".to_owned(),
            ..Question::default()
        };
        let asking = |number| Asked { question: Some(question(number)), ..Asked::default() };
        assert!(asks.answer(&[summary("a", asking(7))]).await, "it was looked for");
        assert!(asks.current().answers.is_empty(), "it is no downstream of this replica");
        lock(&asks.asked).answers = answer("a", 7).answers;
        assert!(!asks.answer(&[summary("a", asking(7))]).await, "it has its answer");
        assert_eq!(asks.current().answers.len(), 1);
        let six: Vec<Summary> = (0..6).map(|n| summary(&n.to_string(), asking(9 - n))).collect();
        lock(&asks.asked).answers = (0..6).flat_map(|n: i64| answer(&n.to_string(), 9 - n).answers).collect();
        asks.answer(&six).await;
        let answered: Vec<String> = asks.current().answers.into_iter().map(|answer| answer.to).collect();
        assert_eq!(answered, ["5", "4", "3", "2"], "those who asked first");
        asks.answer(&[summary("a", Asked::default())]).await;
        assert!(asks.current().answers.is_empty());
    }
}
