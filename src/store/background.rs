//! The background thread, for work that must not depend on any caller.
//!
//! Renewals, heartbeats, releases without a waiting caller, and undo operations for dropped callers are sent from one
//! current_thread runtime per process. The subscription, and the look-up of a Cluster's masters, also run there. So do
//! calls of callers without a tokio runtime. `ProvideCredentials` is the only code of the user that runs on it.
//!
//! The thread starts when it is first needed and ends with the last store and lease, because every pending task on it
//! keeps its store alive. It is never joined, because the last clone of a store may be dropped on the thread itself.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, Weak};

use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::error::Error;
use crate::error::reasons::{Cause, Outage};
use crate::sync::lock;

/// The runtime for work that must not depend on callers. Clones share it.
#[derive(Clone)]
pub(crate) struct Background(Arc<Home>);

enum Home {
    /// The thread of this process, once it was needed.
    Thread(Mutex<Option<Arc<Thread>>>),
    /// A runtime of the user.
    Runtime(Handle),
}

impl Background {
    pub(crate) fn thread() -> Self {
        Self(Arc::new(Home::Thread(Mutex::new(None))))
    }

    /// Uses a runtime of the user, which must run without a `block_on`.
    pub(crate) fn runtime(handle: Handle) -> Result<Self, Error> {
        // A simulation in virtual time has one runtime, which never stops.
        if !cfg!(simulation) && handle.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Err(Error::invalid(
                "the background runtime must be a multi_thread runtime, is current_thread: that kind runs only during \
                 its block_on, so leases would not be renewed at other times",
            ));
        }
        Ok(Self(Arc::new(Home::Runtime(handle))))
    }

    /// Returns a handle for a task that keeps the thread running only while it holds this handle.
    pub(super) fn for_a_task(&self) -> Self {
        match &*self.0 {
            Home::Thread(_) => Self::thread(),
            Home::Runtime(_) => self.clone(),
        }
    }

    /// Returns the handle of the runtime. Starts the thread if it is not running.
    pub(crate) fn handle(&self) -> Result<Handle, Error> {
        match &*self.0 {
            Home::Runtime(handle) => Ok(handle.clone()),
            #[cfg(test)]
            Home::Thread(_) if tests::NO_THREAD.get() => {
                Err(Error::unavailable(Cause::NotSent, "no thread"))
            }
            Home::Thread(thread) => {
                let mut thread = lock(thread);
                if let Some(thread) = &*thread
                    && thread.is_alive()
                {
                    return Ok(thread.handle.clone());
                }
                let started = Thread::get().map_err(|error| Outage {
                    cause: Cause::NotSent,
                    text: format!("the store's background thread cannot be started: {error}")
                        .into(),
                    source: Some(Arc::new(error)),
                })?;
                Ok(thread.insert(started).handle.clone())
            }
        }
    }

    /// Runs a task and returns its output.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let ended =
            |_| Error::unavailable(Cause::NotSent, "the store's background thread has ended");
        self.handle()?.spawn(task).await.map_err(ended)
    }

    /// Runs a task. Drops it if no thread can be started.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Ok(handle) = self.handle() {
            handle.spawn(task);
        }
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &*self.0 {
            Home::Thread(_) => "thread",
            Home::Runtime(_) => "runtime",
        })
    }
}

/// A task that can be started again after it has ended. Dropping this value ends it.
#[derive(Debug, Default)]
pub(super) struct BackgroundTask(Mutex<Option<AbortHandle>>);

impl BackgroundTask {
    /// Starts the task, unless it is running.
    pub(super) fn start<F>(&self, home: &Background, task: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = lock(&self.0);
        if running.as_ref().is_none_or(AbortHandle::is_finished)
            && let Ok(home) = home.handle()
        {
            *running = Some(home.spawn(task()).abort_handle());
        }
    }

    /// Ends the task.
    pub(super) fn stop(&self) {
        if let Some(task) = lock(&self.0).take() {
            task.abort();
        }
    }
}

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The background thread. Dropping this value ends it.
struct Thread {
    handle: Handle,
    /// The process that started the thread. A forked child has no such thread.
    process: u32,
    /// Closed when the thread has ended, including by a panic.
    stop: oneshot::Sender<()>,
}

static THREAD: Mutex<Weak<Thread>> = Mutex::new(Weak::new());

impl Thread {
    fn get() -> std::io::Result<Arc<Self>> {
        let mut current = lock(&THREAD);
        match current.upgrade().filter(|thread| thread.is_alive()) {
            Some(thread) => Ok(thread),
            None => {
                let thread = Arc::new(Self::start()?);
                *current = Arc::downgrade(&thread);
                Ok(thread)
            }
        }
    }

    fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("tower-distributed".into())
            .spawn(move || {
                // Ends when the sender is dropped.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_background();
            })?;
        Ok(Self {
            handle,
            process: std::process::id(),
            stop,
        })
    }

    fn is_alive(&self) -> bool {
        !self.stop.is_closed() && self.process == std::process::id()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;

    use super::*;

    thread_local! {
        pub(super) static NO_THREAD: Cell<bool> = const { Cell::new(false) };
    }

    /// Polls a future as if the system could not start a thread.
    pub(crate) async fn without_a_thread<T>(future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|context| {
            NO_THREAD.set(true);
            let outcome = future.as_mut().poll(context);
            NO_THREAD.set(false);
            outcome
        })
        .await
    }

    /// All tests share the thread of this process. So this tests only properties that hold for any number of stores.
    #[test]
    fn tasks_run_without_a_runtime_and_the_thread_is_shared() {
        let (one, other) = (Background::thread(), Background::thread());
        let (sender, name) = std::sync::mpsc::channel();
        for background in [&one, &other] {
            let sender = sender.clone();
            background.spawn(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                sender.send(std::thread::current()).unwrap();
            });
        }
        let [first, second] = [(); 2].map(|()| name.recv_timeout(Duration::from_secs(60)).unwrap());
        assert_eq!(
            (first.id(), first.name()),
            (second.id(), Some("tower-distributed"))
        );
    }

    #[test]
    fn a_thread_ends_with_its_last_user_and_outlives_panics_of_tasks() {
        let thread = Arc::new(Thread::start().unwrap());
        let _ =
            futures_util::FutureExt::now_or_never(thread.handle.spawn(async { panic!("a task") }));
        let (sender, done) = std::sync::mpsc::channel();
        thread.handle.spawn(async move { sender.send(()).unwrap() });
        done.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(thread.is_alive());
        // The last reference may be dropped on the thread itself.
        let handle = thread.handle.clone();
        handle.spawn(async move { drop(thread) });
        // A runtime that has ended accepts no task.
        let has_ended = || handle.spawn(std::future::pending::<()>()).is_finished();
        support::eventually_blocking("the end of the thread", Duration::from_secs(60), has_ended);
    }

    /// A forked process has the value, but not the thread.
    #[test]
    fn a_thread_that_has_ended_or_is_of_another_process_is_not_alive() {
        let thread = Thread::start().unwrap();
        assert!(thread.is_alive());
        assert!(
            !Thread {
                process: thread.process + 1,
                ..thread
            }
            .is_alive()
        );
        let (stop, stopped) = oneshot::channel();
        let thread = Thread {
            stop,
            ..Thread::start().unwrap()
        };
        assert!(thread.is_alive());
        drop(stopped);
        assert!(!thread.is_alive());
    }

    #[test]
    fn a_task_runs_once_until_it_is_stopped_and_can_start_again() {
        let (home, task) = (Background::thread(), BackgroundTask::default());
        let start = || {
            let (sender, ended) = oneshot::channel::<()>();
            task.start(&home, || async move {
                let _sender = sender;
                std::future::pending().await
            });
            ended
        };
        let ends = |ended: oneshot::Receiver<()>| futures::executor::block_on(ended).is_err();
        let mut first = start();
        assert!(ends(start()), "the first runs still");
        assert_eq!(first.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        task.stop();
        assert!(ends(first));
        let second = start();
        drop(task);
        assert!(ends(second));
    }
}
