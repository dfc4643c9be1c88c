//! The thread of our own: what must not depend on any caller runs there.
//!
//! Renewals, heartbeats, the subscription, releases that nobody awaits and the undoing of operations whose callers went
//! away are tasks on one current_thread runtime per process. Callers without a tokio runtime are served by it too. User
//! code never runs on it.
//!
//! The thread is started on first need and ends with the last store and lease: every task on it that is owed holds its
//! store. It is never joined, since the last clone of a store may be dropped on it.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::in_memory::lock;
use crate::Error;
use crate::error::{Cause, Outage};

/// Where a store runs what must not depend on its callers. Clones share.
#[derive(Clone)]
pub(crate) struct Background(Arc<Home>);

enum Home {
    /// The thread of this process, once it was needed.
    Thread(Mutex<Option<Arc<Thread>>>),
    /// A runtime of the user's.
    Runtime(Handle),
}

impl Background {
    pub(crate) fn thread() -> Self {
        Self(Arc::new(Home::Thread(Mutex::new(None))))
    }

    /// On a runtime of the user's, which must go on by itself.
    pub(crate) fn runtime(handle: Handle) -> Result<Self, Error> {
        if handle.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Err(Error::invalid(
                "the background runtime must be a multi_thread runtime, is current_thread: that one runs only while \
                 somebody is in its block_on, so leases would not be renewed in between",
            ));
        }
        Ok(Self(Arc::new(Home::Runtime(handle))))
    }

    /// The runtime. Starts the thread where it is not running.
    pub(crate) fn handle(&self) -> Result<Handle, Error> {
        match &*self.0 {
            Home::Runtime(handle) => Ok(handle.clone()),
            Home::Thread(thread) => {
                let mut thread = lock(thread);
                if let Some(thread) = &*thread
                    && thread.is_alive()
                {
                    return Ok(thread.handle.clone());
                }
                let started = Thread::get().map_err(|error| Outage {
                    cause: Cause::NotSent,
                    text: format!("the store's background thread cannot be started: {error}").into(),
                    source: Some(Arc::new(error)),
                })?;
                Ok(thread.insert(started).handle.clone())
            }
        }
    }

    /// Runs a task; drops it where there is no thread to be had.
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

/// The thread of this process. It ends when this value is dropped.
struct Thread {
    handle: Handle,
    /// The process that started it: a forked child has none.
    process: u32,
    alive: Arc<AtomicBool>,
    _stop: oneshot::Sender<()>,
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
        let alive = Arc::new(AtomicBool::new(true));
        let ended = Ended(Arc::clone(&alive));
        std::thread::Builder::new().name("tower-distributed".into()).spawn(move || {
            let _ended = ended;
            // Ends when the value is dropped that would send.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, process: std::process::id(), alive, _stop: stop })
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire) && self.process == std::process::id()
    }
}

/// Notes that the thread is over, also after a panic.
struct Ended(Arc<AtomicBool>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The thread of this process is shared by all tests, so only what holds for any number of stores is tested.
    #[test]
    fn tasks_run_without_a_runtime_and_the_thread_is_shared() {
        let (one, other) = (Background::thread(), Background::thread());
        let (sender, name) = std::sync::mpsc::channel();
        for background in [&one, &other] {
            let sender = sender.clone();
            background.spawn(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                sender
                    .send((std::thread::current().id(), std::thread::current().name().map(str::to_owned)))
                    .unwrap();
            });
        }
        let (first, second) = (
            name.recv_timeout(Duration::from_secs(10)).unwrap(),
            name.recv_timeout(Duration::from_secs(10)).unwrap(),
        );
        assert_eq!(first, second);
        assert_eq!(first.1.as_deref(), Some("tower-distributed"));
    }

    #[test]
    fn a_thread_ends_with_its_last_user_and_outlives_panics_of_tasks() {
        let thread = Arc::new(Thread::start().unwrap());
        let alive = Arc::clone(&thread.alive);
        let _ = futures_util::FutureExt::now_or_never(thread.handle.spawn(async { panic!("a task") }));
        let (sender, done) = std::sync::mpsc::channel();
        thread.handle.spawn(async move { sender.send(()).unwrap() });
        done.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(thread.is_alive());
        // The last clone may be dropped on the thread itself.
        let handle = thread.handle.clone();
        handle.spawn(async move { drop(thread) });
        for _ in 0..1000 {
            if !alive.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the thread goes on");
    }

    #[test]
    fn a_current_thread_runtime_is_refused() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let error = Background::runtime(runtime.handle().clone()).unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains("current_thread"), "{error}");
    }
}
