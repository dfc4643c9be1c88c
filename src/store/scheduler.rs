//! The scheduler runs periodic tasks when they are due, such as renewals and heartbeats.
//!
//! A periodic task [joins](Scheduler::join) once and returns when it is due next. Tasks that are due at about the same
//! time run together. The scheduler stops when nothing is left to do.
//!
//! It runs on the background thread, so that no lease depends on a runtime that is blocked. There is one exception, for
//! a store in memory: on a runtime whose clock a test has paused, the work runs on that runtime, by that clock. If that
//! runtime ends, the background thread continues the work.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, Weak};

use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::store::background::Background;
use crate::store::memory::clock::callers_clock_is_the_systems;
use crate::store::notifier::Link;
use crate::sync::lock;

/// Work that becomes due from time to time.
pub(crate) trait PeriodicTask: Send + Sync {
    /// Returns when the work is due next.
    fn due(&self) -> Option<Instant>;

    /// Handles a signal. It must not block.
    fn signal(self: Arc<Self>, signal: Signal);
}

/// A request to the tasks of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Work may be due.
    Due,
    /// Pushes may have been missed, or no longer arrive: tasks that wait for a push are due.
    Relinked,
    /// Delayed work is due now.
    Hurry,
    /// The process shuts down and releases its leases.
    ShutDown,
}

/// The periodic tasks of one store.
pub(crate) struct Scheduler {
    state: Mutex<State>,
    link: watch::Receiver<Link>,
    background: Background,
    /// Whether it follows clocks that tests have paused.
    follows_paused: bool,
}

#[derive(Default)]
struct State {
    joined: Vec<Weak<dyn PeriodicTask>>,
    tasks: Vec<Running>,
}

/// A running task of the scheduler.
struct Running {
    /// The runtime with a paused clock that it runs on; `None`: the background thread.
    runtime_id: Option<Id>,
    /// When it wakes up next.
    next: Instant,
    /// Notified when work is due earlier than `next`.
    earlier: Arc<Notify>,
}

impl State {
    fn joined(&self) -> Vec<Arc<dyn PeriodicTask>> {
        self.joined.iter().filter_map(Weak::upgrade).collect()
    }

    fn forget(&mut self, runtime_id: Option<Id>) {
        self.tasks
            .retain(|running| running.runtime_id != runtime_id);
    }
}

impl Scheduler {
    pub(crate) fn new(
        link: watch::Receiver<Link>,
        background: Background,
        follows_paused: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            link,
            background,
            follows_paused,
        })
    }

    /// Adds a task, until it is dropped.
    pub(crate) fn join<T: PeriodicTask + 'static>(&self, task: &Arc<T>) {
        let task: Weak<dyn PeriodicTask> = Arc::<T>::downgrade(task);
        let joined = &mut lock(&self.state).joined;
        joined.retain(|task| task.strong_count() > 0);
        joined.push(task);
    }

    /// Schedules the periodic tasks at `due`.
    pub(crate) fn schedule(self: &Arc<Self>, due: Instant) {
        let is_paused = self.follows_paused && !callers_clock_is_the_systems();
        self.schedule_on(
            is_paused.then(Handle::try_current).and_then(Result::ok),
            due,
        );
    }

    /// Schedules on a runtime; `None`: on the background thread.
    fn schedule_on(self: &Arc<Self>, runtime: Option<Handle>, due: Instant) {
        let runtime_id = runtime.as_ref().map(Handle::id);
        let mut state = lock(&self.state);
        for running in &mut state.tasks {
            if running.runtime_id == runtime_id {
                if due < running.next {
                    running.next = due;
                    running.earlier.notify_one();
                }
                return;
            }
        }
        let earlier = Arc::new(Notify::new());
        state.tasks.push(Running {
            runtime_id,
            next: due,
            earlier: Arc::clone(&earlier),
        });
        drop(state);
        // The original is never read, so all earlier changes would be new for its clone. Only later ones matter.
        let mut link = self.link.clone();
        link.mark_unchanged();
        let task = Task {
            scheduler: Arc::clone(self),
            runtime_id,
            earlier,
            link,
            done: false,
        };
        match runtime {
            Some(runtime) => drop(runtime.spawn(task.run())),
            None => self.background.spawn(task.run()),
        }
    }

    /// Sends a signal to all tasks; [`Signal::Due`] only to those that are due by now.
    fn signal(&self, signal: Signal) {
        // The tasks are called without the lock.
        let joined = lock(&self.state).joined();
        let now = Instant::now();
        for task in joined {
            if signal != Signal::Due || task.due().is_some_and(|due| due <= now) {
                task.signal(signal);
            }
        }
    }

    /// Makes delayed work due now.
    pub(crate) fn hurry(self: &Arc<Self>) {
        self.signal(Signal::Hurry);
        self.schedule(Instant::now());
    }

    /// Makes the tasks release the leases of the process.
    pub(crate) fn shut_down(&self) {
        self.signal(Signal::ShutDown);
    }

    /// Wakes the running tasks, because periodic tasks may have been dropped.
    pub(crate) fn look_again(&self) {
        lock(&self.state)
            .tasks
            .iter()
            .for_each(|running| running.earlier.notify_one());
    }

    /// Returns when a task wakes up next. `None`: there is nothing to do, and the task is removed from the list.
    fn next_wake(&self, runtime_id: Option<Id>) -> Option<Instant> {
        // All of this is under one lock: a later `schedule` finds either the time that is set here or no task. The
        // tasks are dropped after the lock.
        let (joined, next);
        {
            let mut state = lock(&self.state);
            joined = state.joined();
            next = joined.iter().filter_map(|task| task.due()).min();
            match (
                next,
                state
                    .tasks
                    .iter_mut()
                    .find(|running| running.runtime_id == runtime_id),
            ) {
                (Some(next), Some(running)) => running.next = next,
                _ => state.forget(runtime_id),
            }
        }
        drop(joined);
        next
    }
}

/// A running task. If its runtime ends first, another task continues the work.
struct Task {
    scheduler: Arc<Scheduler>,
    runtime_id: Option<Id>,
    earlier: Arc<Notify>,
    /// Reports each change of the link after the work was scheduled.
    link: watch::Receiver<Link>,
    done: bool,
}

impl Task {
    async fn run(mut self) {
        let scheduler = Arc::clone(&self.scheduler);
        while let Some(next) = scheduler.next_wake(self.runtime_id) {
            tokio::select! {
                () = sleep_until(next) => scheduler.signal(Signal::Due),
                () = self.earlier.notified() => {}
                Ok(()) = self.link.changed() => scheduler.signal(Signal::Relinked),
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
        lock(&self.scheduler.state).forget(self.runtime_id);
        // On the background thread the next `schedule` starts a new task.
        if self.runtime_id.is_some() {
            self.scheduler.schedule_on(None, Instant::now());
        }
    }
}
