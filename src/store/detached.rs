//! Work that continues when its callers leave: a [shutdown](crate::Store::shutdown) waits for it. Work that still runs
//! when the time of the shutdown is over keeps its leases until their ttl.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::Error;
use crate::error::reasons::Cause;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Notify, lock};

tokio::task_local! {
    /// The work that is being polled.
    static CURRENT: WorkMark;
}

/// The detached work of a store.
#[derive(Debug, Default)]
pub(crate) struct DetachedWork {
    running: Mutex<Running>,
    none: Notify,
}

#[derive(Debug, Default)]
struct Running {
    begun: u64,
    by_number: HashMap<u64, Arc<Kind>>,
}

#[derive(Debug)]
struct Kind {
    /// Its kind and name: `idempotency "payments"`.
    name: Arc<str>,
    /// Whether a shutdown has left it running.
    is_left: AtomicBool,
    /// Whether it is being polled now. Leases that are dropped while it is not polled may belong to work that was cut
    /// off.
    is_polled: AtomicBool,
    /// The work around it, whose leases last as long.
    within: Option<Arc<Kind>>,
}

/// Running work. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Work {
    of: Arc<DetachedWork>,
    number: u64,
    kind: Arc<Kind>,
}

/// Identifies the work that a lease is held for.
#[derive(Clone, Debug)]
pub(crate) struct WorkMark(Weak<Kind>);

/// The work that a shutdown has left running, counted by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftWork(BTreeMap<Arc<str>, usize>);

impl DetachedWork {
    /// Begins work of this name.
    pub(crate) fn begin(self: &Arc<Self>, name: &Arc<str>) -> Work {
        let within = WorkMark::current().and_then(|mark| mark.0.upgrade());
        let kind = Arc::new(Kind {
            name: Arc::clone(name),
            is_left: AtomicBool::new(false),
            is_polled: AtomicBool::new(false),
            within,
        });
        let mut running = lock(&self.running);
        running.begun += 1;
        let number = running.begun;
        running.by_number.insert(number, Arc::clone(&kind));
        drop(running);
        Work {
            of: Arc::clone(self),
            number,
            kind,
        }
    }

    /// Waits until no work is running.
    pub(super) async fn none(&self) {
        loop {
            let none = self.none.notified();
            if lock(&self.running).by_number.is_empty() {
                return;
            }
            none.await;
        }
    }

    /// Marks all work that still runs as left running by a shutdown, and returns its names.
    pub(super) fn leave(&self) -> LeftWork {
        let mut left = LeftWork::default();
        for kind in lock(&self.running).by_number.values() {
            kind.leave();
            *left.0.entry(Arc::clone(&kind.name)).or_default() += 1;
        }
        left
    }
}

impl Kind {
    fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        if let Some(within) = &self.within {
            within.leave();
        }
    }
}

impl Work {
    pub(crate) fn mark(&self) -> WorkMark {
        WorkMark(Arc::downgrade(&self.kind))
    }

    /// Runs the work, or a part of it. The leases that it acquires are bound to the work.
    pub(crate) fn run<F: Future>(&self, part: F) -> impl Future<Output = F::Output> + use<F> {
        let mark = self.mark();
        async move {
            let mut part = pin!(CURRENT.scope(mark.clone(), part));
            poll_fn(|context| {
                mark.is_polled(true);
                let polled = part.as_mut().poll(context);
                mark.is_polled(false);
                polled
            })
            .await
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut running = lock(&self.of.running);
        running.by_number.remove(&self.number);
        let is_last = running.by_number.is_empty();
        drop(running);
        if is_last {
            self.of.none.notify_waiters();
        }
    }
}

impl WorkMark {
    /// The work that is being polled, if there is any.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Whether the work still runs.
    pub(crate) fn runs(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Whether a shutdown has left the work running, and it was then cut off, so that its leases are not dropped by the
    /// work itself.
    pub(crate) fn is_cut_off(&self) -> bool {
        let is = |kind: Arc<Kind>| {
            kind.is_left.load(Ordering::Relaxed) && !kind.is_polled.load(Ordering::Relaxed)
        };
        self.0.upgrade().is_some_and(is)
    }

    fn is_polled(&self, is_polled: bool) {
        if let Some(kind) = self.0.upgrade() {
            kind.is_polled.store(is_polled, Ordering::Relaxed);
        }
    }
}

impl LeftWork {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writes `1 of idempotency "payments", 2 of flight "prices"`.
impl fmt::Display for LeftWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, count)) in self.0.iter().enumerate() {
            let before = if at > 0 { ", " } else { "" };
            write!(f, "{before}{count} of {name}")?;
        }
        Ok(())
    }
}

/// The work and the operations that a shutdown has left.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) work: LeftWork,
    pub(crate) operations: usize,
}

impl Left {
    /// Returns an error that names what is left, if anything is.
    pub(crate) fn check(&self, limit: Duration) -> Result<(), Error> {
        let Self { work, operations } = self;
        let text = match (work.is_empty(), operations) {
            (true, 0) => return Ok(()),
            (false, 0) => format!("still running within {limit:?}: {work}"),
            (true, _) => {
                format!(
                    "{operations} releases and other background operations were not done within {limit:?}"
                )
            }
            (false, _) => format!(
                "still running within {limit:?}: {work}; and {operations} releases and other background operations \
                 were not done"
            ),
        };
        Err(Error::unavailable(Cause::TimedOut, text))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn whoever_waits_is_woken_by_the_last_and_told_what_is_left() {
        let (work, name) = (Arc::new(DetachedWork::default()), |name: &str| {
            Arc::<str>::from(name)
        });
        assert!(work.none().now_or_never().is_some() && work.leave().is_empty());
        let [a, b, c] = ["x", "y", "x"].map(|text| work.begin(&name(text)));
        let mut none = tokio_test::task::spawn(work.none());
        assert!(none.poll().is_pending());
        assert!(
            [&a, &b]
                .iter()
                .all(|work| work.mark().runs() && !work.mark().is_cut_off())
        );
        let (left, mark) = (work.leave(), a.mark());
        assert_eq!(left.to_string(), "2 of x, 1 of y");
        let later = work.begin(&name("y"));
        assert_eq!(
            (mark.is_cut_off(), later.mark().is_cut_off()),
            (true, false)
        );
        drop((a, b, c));
        assert!(
            !mark.runs() && !mark.is_cut_off() && !none.is_woken(),
            "one is left"
        );
        drop(later);
        assert!(none.is_woken() && none.poll().is_ready());
    }

    #[test]
    fn leases_are_held_for_the_work_that_acquires_them() {
        let work = Arc::new(DetachedWork::default()).begin(&"x".into());
        assert!(WorkMark::current().is_none());
        work.of.leave();
        let within = work.run(async { WorkMark::current().map(|mark| (mark.is_cut_off(), mark)) });
        let (is_cut_off, mark) = within
            .now_or_never()
            .flatten()
            .expect("it is within the work");
        assert!(mark.runs() && !is_cut_off && WorkMark::current().is_none());
        assert!(mark.is_cut_off(), "it is not being polled");
    }
}
