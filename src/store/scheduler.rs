//! The scheduler: one task per store runs all that is due at some time, such as renewals and heartbeats.
//!
//! Whoever has something that becomes due [joins](Scheduler::join) once, and says when; what is due at about the same
//! time is done together. The task ends when nothing is left to do.
//!
//! For a store on Redis it runs on the store's own thread, so that no lease depends on a runtime that stands still. For
//! one in memory it runs on the runtime of whoever needs it first, whose clock may be paused, and goes on on the thread
//! where that runtime ends.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::background::Background;
use super::in_memory::lock;
use super::notifier::Link;

/// Has things that become due.
pub(crate) trait PeriodicTask: Send + Sync {
    /// When the next is due.
    fn due(&self) -> Option<Instant>;

    /// Does what is due.
    fn run(self: Arc<Self>) -> BoxFuture<'static, ()>;

    /// Pushes may have been missed: makes due now what waits for one.
    fn relinked(&self);

    /// Makes due now what need not wait.
    fn hurry(&self) {}

    /// What was under way has ended with its runtime: makes it due now.
    fn interrupted(&self);
}

/// The periodic tasks of one store.
pub(crate) struct Scheduler {
    state: Mutex<State>,
    /// Something is due earlier than was known.
    earlier: Notify,
    link: watch::Receiver<Link>,
    /// Where it runs; `None`: where it is first needed.
    home: Option<Background>,
}

#[derive(Default)]
struct State {
    joined: Vec<Weak<dyn PeriodicTask>>,
    /// When the task looks next; `None` where there is no task.
    next: Option<Instant>,
}

impl State {
    fn joined(&self) -> Vec<Arc<dyn PeriodicTask>> {
        self.joined.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Scheduler {
    pub(crate) fn new(link: watch::Receiver<Link>, home: Option<Background>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), earlier: Notify::new(), link, home })
    }

    pub(crate) fn join(&self, task: Weak<dyn PeriodicTask>) {
        let joined = &mut lock(&self.state).joined;
        joined.retain(|task| task.strong_count() > 0);
        joined.push(task);
    }

    /// Something of those who joined is due at this time.
    pub(crate) fn schedule(self: &Arc<Self>, due: Instant) {
        let mut state = lock(&self.state);
        match state.next {
            Some(next) if next <= due => {}
            Some(_) => {
                state.next = Some(due);
                self.earlier.notify_one();
            }
            None => {
                state.next = Some(due);
                drop(state);
                self.start(Handle::try_current().ok().filter(|_| self.home.is_none()));
            }
        }
    }

    /// Makes due now what need not wait.
    pub(crate) fn hurry(self: &Arc<Self>) {
        self.joined().iter().for_each(|task| task.hurry());
        self.schedule(Instant::now());
    }

    /// Those who joined may be gone.
    pub(crate) fn look_again(&self) {
        self.earlier.notify_one();
    }

    /// Starts the task: on a runtime, or else at home.
    fn start(self: &Arc<Self>, runtime: Option<Handle>) {
        let mut task = Task { scheduler: Arc::clone(self), thread: None, done: false };
        match runtime {
            Some(runtime) => drop(runtime.spawn(task.go())),
            None => {
                let home = self.home.clone().unwrap_or_else(Background::thread);
                task.thread = Some(home.clone());
                home.spawn(task.go());
            }
        }
    }

    /// When to look next; `None`: there is nothing to do, and the task is gone from here on.
    fn plan(&self, busy: bool) -> Option<Instant> {
        // All under one lock: who comes later finds the time that is set here, or no task. Let go of after it.
        let (joined, next);
        {
            let mut state = lock(&self.state);
            joined = state.joined();
            let due = joined.iter().filter_map(|task| task.due()).min();
            next = due.or_else(|| busy.then(far_off));
            state.next = next;
        }
        drop(joined);
        next
    }

    fn joined(&self) -> Vec<Arc<dyn PeriodicTask>> {
        lock(&self.state).joined()
    }
}

/// The task, which another follows where its runtime ends first.
struct Task {
    scheduler: Arc<Scheduler>,
    /// Kept as long as the task runs on it.
    thread: Option<Background>,
    done: bool,
}

impl Task {
    async fn go(mut self) {
        let scheduler = Arc::clone(&self.scheduler);
        let mut link = scheduler.link.clone();
        let mut work = FuturesUnordered::new();
        while let Some(next) = scheduler.plan(!work.is_empty()) {
            tokio::select! {
                () = sleep_until(next) => {
                    let now = Instant::now();
                    for task in scheduler.joined() {
                        if task.due().is_some_and(|due| due <= now) {
                            work.push(task.run());
                        }
                    }
                }
                () = scheduler.earlier.notified() => {}
                Some(()) = work.next() => {}
                Ok(()) = link.changed() => {
                    if matches!(*link.borrow_and_update(), Link::Up(_)) {
                        scheduler.joined().iter().for_each(|task| task.relinked());
                    }
                }
            }
        }
        self.done = true;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.scheduler.joined().iter().for_each(|task| task.interrupted());
        match self.thread {
            None => self.scheduler.start(None),
            // Whoever schedules next starts it anew.
            Some(_) => lock(&self.scheduler.state).next = None,
        }
    }
}

fn far_off() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").finish_non_exhaustive()
    }
}
