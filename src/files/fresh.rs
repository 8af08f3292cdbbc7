//! A secret that is read again whenever it is needed.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::timeout;

use super::{ReadSecret, Reloaded, Source};
use crate::episode::Episode;
use crate::lock::lock;

/// A secret that is read again whenever it is needed, such as for a new connection.
pub(crate) struct FreshSecret {
    /// Its name in the log.
    name: &'static str,
    text: Reloaded<String>,
    failure: Mutex<Episode>,
}

impl FreshSecret {
    pub(crate) fn new(name: &'static str, text: String, read: ReadSecret) -> Self {
        let ReadSecret(read) = read;
        let read = Box::new(move |_: &String| read().map(Some));
        // The secret is read each time, and this type logs failures.
        let source = Source { files: Vec::new(), read, log: Box::new(|_| {}) };
        Self { name, text: Reloaded::new(text, Some(source)), failure: Mutex::default() }
    }

    /// The secret as it is now, or as it was read last if it cannot be read within `patience`. That must be well below the
    /// time-out of the caller, which would otherwise give up before it has the last one.
    ///
    /// Cancel safe.
    pub(crate) async fn current(&self, patience: Duration) -> String {
        let late = || Err(format!("its file system does not answer within {patience:?}"));
        let read = timeout(patience, self.text.read()).await.unwrap_or_else(|_| late());
        let mut failure = lock(&self.failure);
        match read {
            Ok(_) => drop(failure.end()),
            Err(error) if failure.note(()) => tracing::error!(
                secret = self.name,
                error,
                "a secret cannot be read again: the old one is used until it can be read"
            ),
            Err(_) => {}
        }
        String::clone(&self.text.current())
    }
}

impl fmt::Debug for FreshSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FreshSecret").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_cannot_be_read_leaves_what_was_read_before() {
        let kept = Arc::new(Mutex::new(Ok("new")));
        let source = Arc::clone(&kept);
        let read = move || source.lock().unwrap().map(str::to_owned).map_err(str::to_owned);
        let secret = FreshSecret::new("a secret", "old".to_owned(), ReadSecret::new(read));
        assert_eq!(secret.current(PATIENCE).await, "new");
        *kept.lock().unwrap() = Err("it is gone");
        assert_eq!(secret.current(PATIENCE).await, "new");
        *kept.lock().unwrap() = Ok("newer");
        assert_eq!(secret.current(PATIENCE).await, "newer");
        assert!(!format!("{secret:?}").contains("new"));
    }

    #[tokio::test]
    async fn a_file_system_that_does_not_answer_keeps_one_thread_and_nobody_for_long() {
        const SHORT: Duration = Duration::from_millis(50);
        let (answer, answers) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let (answers, threads) = (Mutex::new(answers), Arc::new(Mutex::new(0)));
        let count = Arc::clone(&threads);
        let read = move || {
            *count.lock().unwrap() += 1;
            let _ = begun.send(());
            let _ = answers.lock().unwrap().recv();
            Ok("new".to_owned())
        };
        let secret = FreshSecret::new("a secret", "old".to_owned(), ReadSecret::new(read));
        let both = tokio::join!(secret.current(SHORT), secret.current(SHORT));
        assert_eq!((both.0.as_str(), both.1.as_str()), ("old", "old"));
        begins.recv_timeout(PATIENCE).unwrap();
        assert_eq!(*threads.lock().unwrap(), 1);
        drop(answer);
        assert_eq!(secret.current(PATIENCE).await, "new");
    }
}
