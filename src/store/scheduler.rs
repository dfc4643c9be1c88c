//! Scheduler: one task per store sees to all that must be done in time, such as renewals.
//!
//! Whoever has something to see to [joins](Scheduler::join) once, and says when it is due; what is due at about the
//! same time is done together. The task ends when nothing is left to do; where its runtime ends first, it goes on on
//! another. While its runtime stands still, it does too.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::detached::see_to_the_end;
use super::in_memory::lock;
use super::notifier::Link;

/// Has things to be seen to.
pub(crate) trait PeriodicTask: Send + Sync {
    /// When the next is due.
    fn due(&self) -> Option<Instant>;

    /// Does what is due.
    fn attend(self: Arc<Self>) -> BoxFuture<'static, ()>;

    /// Pushes may have been missed: makes due now what waits for one.
    fn relinked(&self);

    /// What was under way has ended with its runtime: makes it due now.
    fn interrupted(&self);
}

/// The scheduler of one store.
pub(crate) struct Scheduler {
    state: Mutex<State>,
    /// Something is due earlier than was known.
    earlier: Notify,
    link: watch::Receiver<Link>,
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
    pub(crate) fn new(link: watch::Receiver<Link>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), earlier: Notify::new(), link })
    }

    pub(crate) fn join(&self, attendant: Weak<dyn PeriodicTask>) {
        let joined = &mut lock(&self.state).joined;
        joined.retain(|attendant| attendant.strong_count() > 0);
        joined.push(attendant);
    }

    /// Something that was joined for is due at this time, not earlier.
    pub(crate) fn see_to(self: &Arc<Self>, due: Instant) {
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
                let scheduler = Arc::clone(self);
                see_to_the_end(None, move || Arc::clone(&scheduler).go());
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
            let due = joined.iter().filter_map(|attendant| attendant.due()).min();
            next = due.or_else(|| busy.then(far_off));
            state.next = next;
        }
        drop(joined);
        next
    }

    /// The task.
    async fn go(self: Arc<Self>) {
        // Whoever began before has ended with its runtime.
        let joined = lock(&self.state).joined();
        joined.iter().for_each(|attendant| attendant.interrupted());
        drop(joined);
        let mut link = self.link.clone();
        let mut work = FuturesUnordered::new();
        while let Some(next) = self.plan(!work.is_empty()) {
            tokio::select! {
                () = sleep_until(next) => {
                    let now = Instant::now();
                    let joined = lock(&self.state).joined();
                    for attendant in joined {
                        if attendant.due().is_some_and(|due| due <= now) {
                            work.push(attendant.attend());
                        }
                    }
                }
                () = self.earlier.notified() => {}
                Some(()) = work.next() => {}
                Ok(()) = link.changed() => {
                    if matches!(*link.borrow_and_update(), Link::Up(_)) {
                        let joined = lock(&self.state).joined();
                        joined.iter().for_each(|attendant| attendant.relinked());
                    }
                }
            }
        }
    }
}

fn far_off() -> Instant {
    Instant::now() + std::time::Duration::from_secs(3600)
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").finish_non_exhaustive()
    }
}
