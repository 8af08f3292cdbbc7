//! Changes the options of a running dispatcher, asks for jobs and what one waits for, and whether its loop still turns.

use tokio::sync::{oneshot, watch};

use super::Options;
use super::explain::{Busy, Explained, Question};
use super::find::{Found, Sought};

/// The most questions about jobs that wait for their answers.
const MAX_ASKED: usize = 16;

/// A question about a job, and where the answer goes.
type Asked = (Question, oneshot::Sender<Option<Explained>>);

/// The options and questions that a dispatcher has not given yet.
#[derive(Debug, Default)]
struct Pending {
    options: Option<Box<Options>>,
    /// The number of questions whether its loop turns.
    questions: u64,
    /// The questions about ids of jobs.
    sought: Vec<Sought>,
    /// The questions about jobs.
    asked: Vec<Asked>,
}

impl Pending {
    /// Forgets the questions about jobs whose answers nobody waits for any more.
    fn forget_those_who_left(&mut self) {
        self.asked.retain(|(_, sender)| !sender.is_closed());
    }
}

/// What was given to a dispatcher: options, and questions about ids of jobs.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) options: Option<Box<Options>>,
    pub(super) sought: Vec<Sought>,
}

/// A handle on a dispatcher, which may outlive the dispatcher.
#[derive(Clone, Debug)]
pub struct Control {
    pending: watch::Sender<Pending>,
    /// The number of the last question that the loop has answered.
    answered: watch::Sender<u64>,
}

/// The dispatcher's end of its handles.
#[derive(Debug)]
pub(super) struct ControlEnd {
    control: Control,
    pending: watch::Receiver<Pending>,
    /// Whether there are questions about jobs.
    is_asked: bool,
}

impl Control {
    /// Gives the dispatcher these options: its limits and its plans' (as many plans as before, in the same order),
    /// revision, horizon, concurrency and when failed jobs are tried again. They apply to every job that was not yet
    /// handed to the sink. All other options stay as they are.
    ///
    /// The last of several calls in quick succession applies. Nothing happens once the dispatcher has ended.
    pub fn reload(&self, options: Options) {
        self.pending.send_modify(|pending| pending.options = Some(Box::new(options)));
    }

    /// Waits for a turn of the dispatcher's loop that begins after this call. A dispatcher that is not stuck takes one at
    /// once, also while its jobs wait; before [`Dispatcher::run`](super::Dispatcher::run), while it drains and after its
    /// end there is none, and this never returns. It does not wait until options are in force. Cancel safe.
    pub async fn turn(&self) {
        let mut answered = self.answered.subscribe();
        let mut number = 0;
        self.pending.send_modify(|pending| {
            pending.questions += 1;
            number = pending.questions;
        });
        // The sender is a field of `self`, so that this ends with an answer only.
        let _ = answered.wait_for(|answered| *answered >= number).await;
    }

    /// Asks where the jobs with this id are. The loop goes over all of its jobs for the answer, so that callers bound how often
    /// they ask. It answers as [`Control::turn`] does: before the dispatcher runs, while it drains and after its end it never
    /// does, and callers need a time-out. Cancel safe.
    pub async fn find(&self, id: &str) -> Found {
        let (answer, found) = oneshot::channel();
        let sought = Sought { id: id.to_owned(), answer };
        self.pending.send_modify(|pending| {
            // Those that nobody waits for any more must not gather in a loop that does not run.
            pending.sought.retain(|sought| !sought.answer.is_closed());
            pending.sought.push(sought);
        });
        match found.await {
            Ok(found) => found,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Control {
    /// Asks what a job of this replica waits for. The answer is `None` if no such job waits here: it may be in another replica,
    /// in the broker, on its way to the sink, or gone. Before [`Dispatcher::run`](super::Dispatcher::run) and while the
    /// dispatcher drains there is no answer. Cancel safe.
    ///
    /// # Errors
    /// Too many questions wait for an answer.
    pub async fn explain(&self, question: Question) -> Result<Option<Explained>, Busy> {
        let (sender, answer) = oneshot::channel();
        let mut asked = Some((question, sender));
        self.pending.send_modify(|pending| {
            pending.forget_those_who_left();
            if pending.asked.len() < MAX_ASKED {
                pending.asked.extend(asked.take());
            }
        });
        match asked {
            Some(_) => Err(Busy),
            None => Ok(answer.await.unwrap_or_default()),
        }
    }
}

impl Default for ControlEnd {
    fn default() -> Self {
        let (pending, receiver) = watch::channel(Pending::default());
        let control = Control { pending, answered: watch::Sender::new(0) };
        Self { control, pending: receiver, is_asked: false }
    }
}

impl ControlEnd {
    pub(super) fn control(&self) -> Control {
        self.control.clone()
    }

    /// Answers who asked for a turn, and returns what else was given since the last call, if there is any. The loop calls it
    /// in each turn, so it takes a lock only if there is anything.
    pub(super) fn take(&mut self) -> Option<Given> {
        // There is always a sender, since this struct has one.
        if !self.pending.has_changed().unwrap_or(false) {
            return None;
        }
        let questions = self.pending.borrow_and_update().questions;
        self.control.answered.send_replace(questions);
        let mut given = Given::default();
        self.control.pending.send_if_modified(|pending| {
            given = Given { options: pending.options.take(), sought: std::mem::take(&mut pending.sought) };
            self.is_asked = !pending.asked.is_empty();
            false
        });
        (given.options.is_some() || !given.sought.is_empty()).then_some(given)
    }

    /// Answers one of the questions about jobs. Each may look through all jobs, so that the others wait for the next turns of
    /// the loop, which are then at once.
    pub(super) fn answer(&mut self, explain: impl Fn(&Question) -> Option<Explained>) {
        if !std::mem::take(&mut self.is_asked) {
            return;
        }
        let mut next = None;
        self.control.pending.send_if_modified(|pending| {
            pending.forget_those_who_left();
            next = (!pending.asked.is_empty()).then(|| pending.asked.remove(0));
            !pending.asked.is_empty()
        });
        if let Some((question, sender)) = next {
            // The one who asked may be gone by now.
            let _ = sender.send(explain(&question));
        }
    }

    /// Waits until there is anything to [take](Self::take). Cancel safe.
    pub(super) async fn changed(&mut self) {
        if self.pending.changed().await.is_err() {
            std::future::pending().await
        }
        self.pending.mark_changed();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn only_a_turn_that_follows_a_question_answers_it() {
        let mut end = ControlEnd::default();
        let control = end.control();
        assert!(end.take().is_none());
        assert!(end.changed().now_or_never().is_none());
        let mut turn = Box::pin(control.turn());
        assert!(turn.as_mut().now_or_never().is_none());
        // Until it is answered, each wait ends at once.
        assert!(end.changed().now_or_never().is_some() && end.changed().now_or_never().is_some());
        assert!(turn.as_mut().now_or_never().is_none());
        assert!(end.take().is_none());
        assert!(turn.now_or_never().is_some());
        // That answer is not one to the next question.
        assert!(control.turn().now_or_never().is_none());
        assert!(end.changed().now_or_never().is_some());
    }

    #[test]
    fn questions_about_ids_are_taken_unless_nobody_waits_for_the_answer() {
        let mut end = ControlEnd::default();
        let control = end.control();
        drop(Box::pin(control.find("gone")).as_mut().now_or_never());
        let mut finding = Box::pin(control.find("a"));
        assert!(finding.as_mut().now_or_never().is_none());
        let Given { options, mut sought } = end.take().unwrap();
        assert!(options.is_none() && end.take().is_none());
        let ids: Vec<&str> = sought.iter().map(|sought| sought.id.as_str()).collect();
        assert_eq!(ids, ["a"]);
        let found = Found { is_cancelled: true, ..Found::default() };
        sought.remove(0).answer.send(found.clone()).unwrap();
        assert_eq!(finding.now_or_never(), Some(found));
    }

    #[test]
    fn one_turn_answers_all_who_asked() {
        let mut end = ControlEnd::default();
        let control = end.control();
        let (mut one, mut two) = (Box::pin(control.turn()), Box::pin(control.turn()));
        assert!(one.as_mut().now_or_never().is_none() && two.as_mut().now_or_never().is_none());
        assert!(end.take().is_none());
        assert!(one.now_or_never().is_some() && two.now_or_never().is_some());
    }

    fn about(id: &str) -> Question {
        Question::Job(id.to_owned())
    }

    #[test]
    fn each_turn_answers_one_question_about_a_job_in_their_order() {
        let mut end = ControlEnd::default();
        let control = end.control();
        let mut asked = ["a", "b", "c"].map(|id| Box::pin(control.explain(about(id))));
        assert!(asked.iter_mut().all(|asked| asked.as_mut().now_or_never().is_none()));
        let [a, b, c] = asked;
        drop(b);
        let answered = std::cell::RefCell::new(Vec::new());
        let turn = |end: &mut ControlEnd| {
            assert!(end.take().is_none());
            end.answer(|question| {
                answered.borrow_mut().push(question.clone());
                None
            });
        };
        turn(&mut end);
        assert_eq!(*answered.borrow(), [about("a")]);
        assert_eq!(a.now_or_never(), Some(Ok(None)));
        assert!(end.changed().now_or_never().is_some(), "the next turn is at once");
        turn(&mut end);
        assert_eq!(*answered.borrow(), [about("a"), about("c")], "nobody waits for the other one");
        assert_eq!(c.now_or_never(), Some(Ok(None)));
        assert!(end.changed().now_or_never().is_none());
        turn(&mut end);
        assert_eq!(answered.borrow().len(), 2);
    }

    #[test]
    fn no_more_questions_about_jobs_wait_than_there_may_be() {
        let mut end = ControlEnd::default();
        let control = end.control();
        let mut asked: Vec<_> = (0..MAX_ASKED).map(|_| Box::pin(control.explain(about("a")))).collect();
        assert!(asked.iter_mut().all(|asked| asked.as_mut().now_or_never().is_none()));
        assert_eq!(control.explain(about("b")).now_or_never(), Some(Err(Busy)));
        asked.pop();
        assert_eq!(control.explain(about("b")).now_or_never(), None, "one has left");
        assert!(end.take().is_none());
    }
}
