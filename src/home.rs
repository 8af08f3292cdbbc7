//! The runtime of the tasks and connections of shapers, limiters and stores. Their callers may be on any other runtime, or on
//! none.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinHandle, JoinSet};
use tracing::Instrument as _;
use tracing::instrument::WithSubscriber as _;

/// A runtime for work that serves many callers. It is the process's own runtime, which a thread of its own drives,
/// unless the program gave another one.
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

    /// Does this work on the runtime, and returns the result. The work is broken off if the returned future is
    /// dropped.
    ///
    /// # Errors
    /// [`NoRuntime`] if the runtime has ended, or none could be started.
    ///
    /// # Panics
    /// If the work panics.
    pub(crate) async fn run<F>(&self, work: F) -> Result<F::Output, NoRuntime>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let Some(runtime) = self.runtime() else { return Err(NoRuntime) };
        if is_current(runtime) {
            return Ok(work.await);
        }
        // This set of one task aborts the task when it is dropped. Log lines of the task go where the caller's go.
        let mut task = JoinSet::new();
        task.spawn_on(work.in_current_span().with_current_subscriber(), runtime);
        match task.join_next().await {
            Some(Ok(done)) => Ok(done),
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Some(Err(_)) | None => Err(NoRuntime),
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
        let given = self.0.as_ref();
        given.filter(|given| is_current(given)).or_else(|| process_runtime()).or(given)
    }
}

/// No runtime does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runtime that was given has ended, or the process could start none of its own")]
pub(crate) struct NoRuntime;

fn is_current(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|current| current.id() == runtime.id())
}

/// Returns the process's own runtime, which is started by the first call. `None` if that failed.
fn process_runtime() -> Option<&'static Handle> {
    static RUNTIME: OnceLock<Option<Handle>> = OnceLock::new();
    let started = || match start() {
        Ok(runtime) => Some(runtime),
        Err(error) => {
            tracing::error!(%error, "no runtime for shapers and limiters; give the builders one, and restart");
            None
        }
    };
    RUNTIME.get_or_init(started).as_ref()
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
    // A task may continue for this many steps at most before it has to let others run, while a thread that may block has no
    // such bound.
    const STEPS: usize = u8::MAX as usize;
    let mut context = Context::from_waker(Waker::noop());
    let mut has_to_yield = || pin!(tokio::task::coop::consume_budget()).poll(&mut context).is_pending();
    Handle::try_current().is_ok() && (0..=STEPS).any(|_| has_to_yield())
}

/// Blocks this thread until the work is done. It must not need a runtime.
pub(crate) fn block_on<F: Future>(work: F) -> F::Output {
    struct Unpark {
        thread: Thread,
        /// Whether the work is to be polled again. Something else may have used up what `unpark` left.
        is_woken: AtomicBool,
    }

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.is_woken.store(true, Ordering::Release);
            self.thread.unpark();
        }
    }

    let unpark = Arc::new(Unpark { thread: thread::current(), is_woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&unpark));
    let (mut work, mut context) = (pin!(work), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
            return done;
        }
        while !unpark.is_woken.swap(false, Ordering::Acquire) {
            thread::park();
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
    fn work_is_done_on_every_runtime_of_its_caller() {
        let (idle, ended) = (current_thread(), current_thread().handle().clone());
        let sleep = || tokio::time::sleep(Duration::from_millis(1));
        let home = Home::default();
        for on_none in [true, false] {
            let work = async {
                home.run(async move { sleep().await }).await.unwrap();
                home.timed(async { sleep().await }).await;
                // Timers do not need the runtime that was given.
                Home::at(idle.handle().clone()).timed(async { sleep().await }).await;
                assert_eq!(Home::at(ended.clone()).run(async {}).await, Err(NoRuntime));
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
        let ended = ended.recv_timeout(Duration::from_secs(60));
        assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "its sender is dropped");
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
