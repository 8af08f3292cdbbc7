//! Shows that the loop of a dispatcher still turns: the loop itself answers those who ask.

use tokio::sync::watch;

/// The side of those who ask.
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    /// The number of questions so far.
    asked: watch::Sender<u64>,
    /// The number of the last question that the loop has seen.
    answered: watch::Sender<u64>,
}

/// The side of the loop.
#[derive(Debug)]
pub(super) struct Beat {
    asked: watch::Receiver<u64>,
    answered: watch::Sender<u64>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { asked: watch::Sender::new(0), answered: watch::Sender::new(0) }
    }
}

impl Pulse {
    /// The loop's side of it.
    pub(super) fn beat(&self) -> Beat {
        Beat { asked: self.asked.subscribe(), answered: self.answered.clone() }
    }

    /// Waits for a turn of the loop that begins after this call; forever, if there is none. Cancel safe.
    pub(super) async fn turn(&self) {
        let mut answered = self.answered.subscribe();
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        // The sender is a field of `self`, so that this ends with an answer only.
        let _ = answered.wait_for(|answered| *answered >= number).await;
    }
}

impl Beat {
    /// Answers what was asked until now. The loop calls it in each turn.
    pub(super) fn answer(&mut self) {
        let number = *self.asked.borrow();
        if *self.answered.borrow() < number {
            self.answered.send_replace(number);
        }
    }

    /// Waits for a question that is not answered yet. Cancel safe.
    pub(super) async fn asked(&mut self) {
        let last = *self.answered.borrow();
        // It fails once nobody can ask any more.
        if self.asked.wait_for(|asked| *asked > last).await.is_err() {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn only_a_turn_that_follows_a_question_answers_it() {
        let pulse = Pulse::default();
        let mut beat = pulse.beat();
        beat.answer();
        assert!(beat.asked().now_or_never().is_none());
        let mut turn = Box::pin(pulse.turn());
        assert!(turn.as_mut().now_or_never().is_none());
        assert!(beat.asked().now_or_never().is_some());
        assert!(turn.as_mut().now_or_never().is_none());
        beat.answer();
        assert!(turn.now_or_never().is_some());
        // That answer is not one to the next question.
        assert!(pulse.turn().now_or_never().is_none());
        assert!(beat.asked().now_or_never().is_some());
    }

    #[test]
    fn one_turn_answers_all_who_asked() {
        let pulse = Pulse::default();
        let mut beat = pulse.beat();
        let (mut one, mut two) = (Box::pin(pulse.turn()), Box::pin(pulse.turn()));
        assert!(one.as_mut().now_or_never().is_none() && two.as_mut().now_or_never().is_none());
        beat.answer();
        assert!(one.now_or_never().is_some() && two.now_or_never().is_some());
    }
}
