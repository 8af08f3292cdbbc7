//! Changes the options of a running dispatcher, asks it where jobs are and what they wait for, and checks that its
//! loop is not stuck.

use tokio::sync::{oneshot, watch};

use super::Options;
use super::find::{Found, Question, Sought};

/// The options and questions that a dispatcher has not taken yet.
#[derive(Debug, Default)]
struct Pending {
    options: Option<Box<Options>>,
    /// The number of requests for a turn of its loop.
    questions: u64,
    /// The questions about jobs.
    sought: Vec<Sought>,
}

/// What was given to a dispatcher: options, and questions about jobs.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) options: Option<Box<Options>>,
    pub(super) sought: Vec<Sought>,
}

/// A handle on a dispatcher, which may outlive the dispatcher.
#[derive(Clone, Debug)]
pub struct Control {
    pending: watch::Sender<Pending>,
    /// The number of the last request for a turn that the loop has answered.
    answered: watch::Sender<u64>,
}

/// The dispatcher's end of its handles.
#[derive(Debug)]
pub(super) struct ControlEnd {
    control: Control,
    pending: watch::Receiver<Pending>,
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

    /// Asks where jobs are, and what the first one that waits for a slot waits for. For the answer the loop visits
    /// all of its jobs and lanes, so callers must bound how often they ask. It answers as [`Control::turn`] does:
    /// before the dispatcher runs, while it drains and after its end it never does, and callers need a time-out.
    /// Cancel safe.
    pub async fn find(&self, question: Question) -> Found {
        let (answer, found) = oneshot::channel();
        let sought = Sought { question, answer };
        self.pending.send_modify(|pending| {
            // Questions whose askers are gone must not accumulate while the loop does not run.
            pending.sought.retain(|sought| !sought.answer.is_closed());
            pending.sought.push(sought);
        });
        match found.await {
            Ok(found) => found,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Default for ControlEnd {
    fn default() -> Self {
        let (pending, receiver) = watch::channel(Pending::default());
        let control = Control { pending, answered: watch::Sender::new(0) };
        Self { control, pending: receiver }
    }
}

impl ControlEnd {
    pub(super) fn control(&self) -> Control {
        self.control.clone()
    }

    /// Answers the requests for a turn, and returns all else that was given since the last call, if there is any. The
    /// loop calls it in each turn, so it takes a lock only if there is anything.
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
            false
        });
        (given.options.is_some() || !given.sought.is_empty()).then_some(given)
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
    fn questions_about_jobs_are_taken_unless_nobody_waits_for_the_answer() {
        let mut end = ControlEnd::default();
        let control = end.control();
        let about = |id: &str| Question::Id(id.to_owned());
        drop(Box::pin(control.find(about("gone"))).as_mut().now_or_never());
        let mut finding = Box::pin(control.find(about("a")));
        assert!(finding.as_mut().now_or_never().is_none());
        let Given { options, mut sought } = end.take().unwrap();
        assert!(options.is_none() && end.take().is_none());
        let questions: Vec<&Question> = sought.iter().map(|sought| &sought.question).collect();
        assert_eq!(questions, [&about("a")]);
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
}
