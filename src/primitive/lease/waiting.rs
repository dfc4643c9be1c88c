//! Getting a lease: asking for it, and waiting for one's turn.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Lease;
use super::admission::{Admission, CLAIM, unasked};
use super::held::Held;
use super::kind::{Found, Kind, Query};
use super::operations::At;
use super::record::Record;
use super::room::Standing;
use super::waiters::{Granted, Waiter};
use crate::error::{Busy, Cause, Subject, Why};
use crate::store::timer::sleep_until;
use crate::store::{HandOff, Woken};
use crate::{Error, Key};

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Ask<Q = ()> {
    pub(crate) subject: Subject,
    /// What the kind of lease adds to the token.
    pub(crate) suffix: String,
    /// Lower ones go first.
    pub(crate) rank: i64,
    /// `None`: now or not at all.
    pub(crate) wait: Option<Wait>,
    /// What is looked up on record.
    pub(crate) query: Q,
    /// Whether to take whatever is on record, as long as its place in the queue is not lost.
    pub(crate) insists: bool,
    /// Whether to wait no longer when the store is away.
    pub(crate) gives_up: bool,
}

impl Ask {
    /// Where nothing is on record.
    pub(crate) fn new(subject: Subject, suffix: String, rank: i64, wait: Option<Wait>) -> Self {
        Self { subject, suffix, rank, wait, query: (), insists: false, gives_up: false }
    }
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Got<F> {
    /// A lease, and what was on record.
    Lease(Lease, Option<F>),
    /// By what is on record, nothing is left to do.
    Done(F),
}

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// How long; `None`: as long as it takes.
    pub(crate) longest: Option<std::time::Duration>,
    /// A queue of so many takes no more.
    pub(crate) most: u32,
}

impl Wait {
    pub(crate) const FOR_EVER: Self = Self { longest: None, most: u32::MAX };
}

/// What came of one place in the queue.
enum Turn<F> {
    Got(Got<F>),
    /// The place is lost: by a process that stood still, or a server that forgot.
    AskAnew,
}

impl<K: Kind> Admission<K> {
    /// Gets a lease, or a refusal, or what is on record. Cancel safe: who goes away leaves the queue, and gives back
    /// what was granted.
    pub(crate) async fn acquire_or_find(
        self: Arc<Self>,
        key: Key,
        mut ask: Ask<Query<K>>,
    ) -> Result<Got<Found<K>>, Error> {
        // What is too long to be told is for ever.
        let longest = ask.wait.and_then(|wait| wait.longest);
        let deadline = longest.and_then(|longest| Instant::now().checked_add(longest));
        loop {
            match self.line_up(&key, &ask, deadline).await? {
                Turn::Got(got) => return Ok(got),
                // Whoever is next is let go first. Something else may be on record by now.
                Turn::AskAnew => {
                    ask.insists = false;
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    async fn line_up(
        self: &Arc<Self>,
        key: &Key,
        ask: &Ask<Query<K>>,
        deadline: Option<Instant>,
    ) -> Result<Turn<Found<K>>, Error> {
        let mut closed = self.closed();
        if *closed.borrow_and_update() {
            return Err(Error::interrupted());
        }
        let (number, token) = self.token(&ask.suffix);
        let mut listener = ask.wait.map(|_| self.store.notifier().listen(number));
        let mut withdrawal = Withdrawal::new(self, number, key, &token);
        let sent = Instant::now();
        let asked = self.ask(key.clone(), Arc::clone(&token), ask).await;
        let (At { now, what }, found) = asked.inspect_err(|error| {
            if error.is_not_sent() {
                withdrawal.disarm();
            }
        })?;
        let busy = |why, soonest: i64| {
            let left = u64::try_from(soonest - now).ok().filter(|left| *left > 0);
            let retry_after = left.map(std::time::Duration::from_micros);
            Error::from(Busy { subject: ask.subject, why, retry_after })
        };
        let soonest = match (what, &mut listener) {
            (Standing::Held { expiry, fence }, _) => {
                let until = self.terms.drift.until(sent, now, expiry);
                return match self.take_on(withdrawal, until, fence, None) {
                    Some(lease) => Ok(Turn::Got(Got::Lease(lease, found))),
                    None => Err(Error::unavailable(Cause::TimedOut, "granted, and run out on its way")),
                };
            }
            (Standing::Done, _) => {
                withdrawal.disarm();
                return found.map(|found| Turn::Got(Got::Done(found))).ok_or_else(unasked);
            }
            (Standing::Refused { soonest, .. }, listener) => {
                withdrawal.disarm();
                let why = if listener.is_some() { Why::QueueFull } else { Why::Taken };
                return Err(busy(why, soonest));
            }
            (Standing::Queued { soonest, .. }, Some(_)) => soonest,
            // Nobody else knows this token, so it was neither withdrawn nor queued before.
            (Standing::Withdrawn | Standing::Queued { .. }, _) => return Ok(Turn::AskAnew),
        };
        withdrawal.is_known = true;
        self.store.subscribe();
        let (sender, news) = oneshot::channel();
        let waiter = Waiter {
            key: key.clone(),
            token: Arc::clone(&token),
            anchor: (sent, now),
            behind: None,
            due: None,
            news: Some(sender),
            gives_up: ask.gives_up,
            outage: None,
        };
        self.wait(number, waiter, soonest);
        let push = async {
            match &mut listener {
                Some(listener) => listener.heard().await,
                None => std::future::pending().await,
            }
        };
        let granted = tokio::select! {
            biased;
            woken = push => match woken {
                Woken::Granted { expiry, fence, line } => {
                    // The server's time, by the last call of ours that it answered: never by when the push came.
                    let (sent, now) = self.stop_waiting(number).map_or((sent, now), |waiter| waiter.anchor);
                    let until = self.terms.drift.until(sent, now, expiry).min(Instant::now() + CLAIM);
                    self.take_on(withdrawal, until, fence, Some(line))
                }
                Woken::Handed(handed) => {
                    self.stop_waiting(number);
                    withdrawal.disarm();
                    let handed = handed.downcast::<Handed>().ok();
                    // What has run out on its way is given back.
                    let handed = handed.filter(|handed| handed.lease.is_held());
                    handed.map(|handed| self.take_over(number, *handed))
                }
                Woken::Gone => {
                    self.stop_waiting(number);
                    withdrawal.disarm();
                    None
                }
                Woken::Told(told) => {
                    self.stop_waiting(number);
                    withdrawal.disarm();
                    match K::Record::hear(&self.scene.scope, &told) {
                        Some(found) => return Ok(Turn::Got(Got::Done(found))),
                        None => None,
                    }
                }
            },
            news = news => match news {
                Ok(Ok(Granted { until, fence })) => self.take_on(withdrawal, until, fence, None),
                Ok(Err(outage)) => return Err(outage),
                Err(_) => {
                    self.stop_waiting(number);
                    withdrawal.disarm();
                    None
                }
            },
            () = at(deadline) => {
                let outage = self.stop_waiting(number).and_then(|waiter| waiter.outage);
                return Err(outage.unwrap_or_else(|| busy(Why::WaitedTooLong, 0)));
            }
            _ = closed.changed() => return Err(Error::interrupted()),
        };
        Ok(granted.map_or(Turn::AskAnew, |lease| Turn::Got(Got::Lease(lease, None))))
    }

    fn take_over(&self, number: u64, Handed { lease, due }: Handed) -> Lease {
        self.renewals.resume(number, &lease.held, due);
        lease
    }

    /// Makes a lease of what was granted; `None` where it has run out on its way. A `line` comes with a claim.
    fn take_on(
        self: &Arc<Self>,
        mut withdrawal: Withdrawal<K>,
        until: Instant,
        fence: i64,
        line: Option<HandOff>,
    ) -> Option<Lease> {
        if until <= Instant::now() {
            return None;
        }
        withdrawal.disarm();
        let is_claim = line.is_some();
        let followers: Vec<_> = line.iter().flat_map(HandOff::numbers).collect();
        let (key, token) = (withdrawal.key.clone(), Arc::clone(&withdrawal.token));
        let held = Held::new(key, token, fence, until, line, &self.leases);
        self.line_up_behind(&held.tenure, followers);
        Some(self.lease(withdrawal.number, held, is_claim))
    }
}

impl<K: Kind<Record = ()>> Admission<K> {
    /// Gets a lease, or a refusal.
    pub(crate) async fn acquire(self: Arc<Self>, key: Key, ask: Ask) -> Result<Lease, Error> {
        match self.acquire_or_find(key, ask).await? {
            Got::Lease(lease, _) => Ok(lease),
            Got::Done(never) => match never {},
        }
    }
}

/// A lease that is handed on within the process, and when it is to be renewed: by whom it reaches, for where nobody
/// takes it, it is to run out.
pub(super) struct Handed {
    pub(super) lease: Lease,
    pub(super) due: Instant,
}

/// Ends at a deadline, if there is one.
async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Takes back what was asked for when it is dropped, whatever has come of it.
struct Withdrawal<K: Kind> {
    admission: Arc<Admission<K>>,
    number: u64,
    key: Key,
    token: Arc<str>,
    armed: bool,
    /// Whether the store is known to have got it, so that it cannot come after its withdrawal.
    is_known: bool,
}

impl<K: Kind> Withdrawal<K> {
    fn new(admission: &Arc<Admission<K>>, number: u64, key: &Key, token: &Arc<str>) -> Self {
        Self {
            admission: Arc::clone(admission),
            number,
            key: key.clone(),
            token: Arc::clone(token),
            armed: true,
            is_known: false,
        }
    }

    fn disarm(&mut self) {
        self.armed = false;
    }
}

impl<K: Kind> Drop for Withdrawal<K> {
    fn drop(&mut self) {
        if self.armed {
            self.admission.stop_waiting(self.number);
            let until = self.admission.place_until();
            self.admission.release_detached(self.key.clone(), self.token.clone(), !self.is_known, until);
        }
    }
}
