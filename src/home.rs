//! The runtime on which shapers, limiters and stores run their tasks and connections, whatever runtime their callers are
//! on.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinHandle, JoinSet};

/// A runtime for work that serves many callers: the process's own, which a thread of its own drives, unless another one was
/// given.
///
/// The runtime of a caller would not do: it may end, or stand still, while others wait for that work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Home(Option<Handle>);

impl PartialEq for Home {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref().map(Handle::id) == other.0.as_ref().map(Handle::id)
    }
}

impl Eq for Home {}

impl Home {
    /// Returns the process's own runtime.
    pub(crate) const fn of_process() -> Self {
        Self(None)
    }

    pub(crate) const fn at(runtime: Handle) -> Self {
        Self(Some(runtime))
    }

    /// Returns the runtime; `None` if the system has no thread left for it.
    fn runtime(&self) -> Option<&Handle> {
        self.0.as_ref().or_else(|| process_runtime())
    }

    /// Starts a task. It does not run if the runtime has ended. Returns `None` if the system has no thread left for it.
    pub(crate) fn spawn<F>(&self, work: F) -> Option<JoinHandle<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        Some(self.runtime()?.spawn(work))
    }

    /// Does this work there, and returns its result; `None` if the runtime has ended, or the system has no thread left for
    /// it. The work is broken off if the returned future is dropped.
    ///
    /// # Panics
    /// If the work panics.
    pub(crate) async fn run<F>(&self, work: F) -> Option<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let runtime = self.runtime()?;
        if is_current(runtime) {
            return Some(work.await);
        }
        // A set of one: it aborts its task when it is dropped.
        let mut task = JoinSet::new();
        task.spawn_on(work, runtime);
        match task.join_next().await? {
            Ok(done) => Some(done),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => None,
            },
        }
    }

    /// Awaits this work where the caller is, with timers that run there: callers may be on a runtime without any, or on
    /// none.
    pub(crate) async fn timed<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|context| {
            let _entered = self.timers().map(Handle::enter);
            work.as_mut().poll(context)
        })
        .await
    }

    /// Returns a runtime that is driven while the caller waits.
    fn timers(&self) -> Option<&Handle> {
        // One that was given may stand still, unless the caller itself is on it.
        self.0.as_ref().filter(|given| is_current(given)).or_else(|| process_runtime())
    }
}

fn is_current(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|current| current.id() == runtime.id())
}

/// Returns the process's own runtime, and starts it if it does not run yet. `None` if the system has no thread left.
fn process_runtime() -> Option<&'static Handle> {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(runtime) = RUNTIME.get() {
        return Some(runtime);
    }
    let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = RUNTIME.get() {
        return Some(runtime);
    }
    match start() {
        Ok(runtime) => Some(RUNTIME.get_or_init(|| runtime)),
        Err(error) => {
            tracing::warn!(%error, "no thread for the tasks of shapers and limiters");
            None
        }
    }
}

fn start() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let drive = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("paced".to_owned()).spawn(drive)?;
    Ok(handle)
}

/// Whether the caller is polled by a runtime, so that it must not block its thread. It is not within
/// [`tokio::task::spawn_blocking`].
pub(crate) fn is_polled() -> bool {
    // A task may go on for this many steps at most before it has to let others run, while a thread that may block has no
    // such bound.
    const STEPS: usize = u8::MAX as usize;
    let mut context = Context::from_waker(Waker::noop());
    let mut has_to_yield = || pin!(tokio::task::coop::consume_budget()).poll(&mut context).is_pending();
    Handle::try_current().is_ok() && (0..=STEPS).any(|_| has_to_yield())
}

/// Blocks this thread until the work is done. It must not need a runtime.
pub(crate) fn block_on<F: Future>(work: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(std::sync::Arc::new(Unpark(thread::current())));
    let (mut work, mut context) = (pin!(work), Context::from_waker(&waker));
    loop {
        match work.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn current_thread() -> tokio::runtime::Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn work_is_done_whatever_runtime_its_caller_is_on() {
        let (idle, ended) = (current_thread(), current_thread().handle().clone());
        let sleep = || tokio::time::sleep(Duration::from_millis(1));
        let home = Home::default();
        for on_none in [true, false] {
            let work = async {
                assert_eq!(home.run(async move { sleep().await }).await, Some(()));
                home.timed(async { sleep().await }).await;
                // Timers do not need the runtime that was given.
                Home::at(idle.handle().clone()).timed(async { sleep().await }).await;
                assert_eq!(Home::at(ended.clone()).run(async {}).await, None);
            };
            if on_none { block_on(work) } else { current_thread().block_on(work) }
        }
        assert!(home.spawn(async {}).is_some_and(|task| block_on(task).is_ok()));
    }

    #[test]
    fn work_is_broken_off_when_nobody_wants_it() {
        let (sender, ended) = std::sync::mpsc::channel::<()>();
        let home = Home::default();
        let work = home.run(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        let mut work = Box::pin(work);
        assert!(work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(work);
        assert!(ended.recv().is_err(), "its sender is dropped");
    }

    #[test]
    fn a_thread_may_block_unless_a_runtime_polls_on_it() {
        assert!(!is_polled());
        for runtime in [current_thread(), Builder::new_multi_thread().worker_threads(1).build().unwrap()] {
            runtime.block_on(async {
                assert!(is_polled());
                assert!(tokio::spawn(async { is_polled() }).await.unwrap());
                assert!(!tokio::task::spawn_blocking(is_polled).await.unwrap());
                tokio::task::LocalSet::new().run_until(async { assert!(is_polled()) }).await;
            });
            let _entered = runtime.enter();
            assert!(!is_polled(), "it is a thread of its own");
        }
    }
}
