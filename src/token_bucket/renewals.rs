//! The holds of this process: their renewals, and the captures and releases that the store has not confirmed yet.
//!
//! One periodic task renews all holds of a namespace. Renewals that are due together are sent together, and the store
//! combines them into few calls. A capture or a release without a reply is sent again until the hold has ended in the
//! store by itself.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bucket::Bucket;
use crate::bucket::decision::micros as span;
use crate::bucket::hold::{HoldStep, HoldSteps, Outcome, Verb};
use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::scheduler::{PeriodicTask, Signal};
use crate::store::timer::until;
use crate::store::validity::Drift;
use crate::sync::lock;

/// The time until a capture without a reply is sent again. The pause doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The maximum number of captures that are kept while the store is unavailable. Holds beyond it end by themselves.
const MOST_OWED: usize = 100_000;

/// The part of a ttl by which two clocks may differ.
const DRIFT: Drift = Drift(0.01);

pub(crate) struct Renewals {
    pub(crate) client: Client<HoldSteps>,
    store: Store,
    table: Mutex<Table>,
    joined: OnceLock<()>,
    /// Renewal times are rounded to whole spans since this time.
    began: Instant,
    /// The first half of the ids of this process's holds.
    process: u64,
    count: AtomicU64,
}

#[derive(Default)]
struct Table {
    entries: HashMap<u128, Entry>,
    due: BTreeSet<(Instant, u128)>,
    owed: usize,
    /// While captures are unconfirmed, this keeps itself alive without its bucket.
    keep_alive: Option<Arc<Renewals>>,
}

struct Entry {
    key: Key,
    /// With the verb that is sent when the entry is due.
    step: HoldStep,
    validity: Arc<Validity>,
    due: Instant,
    /// `None`: the hold is renewed. Otherwise the pause before its capture is sent again.
    pause: Option<Duration>,
    /// The tokens to charge if the first call of a capture finds that the hold had ended. If it is not 0, the capture
    /// is not sent again: another copy may have ended the hold.
    late: u32,
}

/// The time until which a hold is certainly held.
#[derive(Debug)]
pub(crate) struct Validity {
    until: Mutex<Instant>,
    is_over: AtomicBool,
    changed: Notify,
}

impl Validity {
    /// The validity of a hold that was authorized or renewed by a call sent at `sent`.
    pub(crate) fn new(sent: Instant, ttl: i64) -> Arc<Self> {
        let until = Mutex::new(certain(sent, ttl));
        Arc::new(Self {
            until,
            is_over: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    fn until(&self) -> Instant {
        *lock(&self.until)
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.is_over.load(Ordering::Acquire) && clock::now() < self.until()
    }

    /// Waits until the hold has ended.
    pub(crate) async fn over(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.is_held() {
                return;
            }
            let at = clock::without_suspend(self.until());
            tokio::select! {
                () = until(Some(at)) => {}
                () = changed => {}
            }
        }
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Records a renewal. A lost hold stays lost.
    pub(crate) fn renewed(&self, sent: Instant, ttl: i64) {
        if self.is_held() {
            let mut until = lock(&self.until);
            *until = certain(sent, ttl).max(*until);
        }
    }
}

/// The time until which a hold is certainly held, after a call sent at `sent`.
fn certain(sent: Instant, ttl: i64) -> Instant {
    sent + DRIFT.certain(span(ttl))
}

impl Table {
    /// Adds an entry for a hold that has none.
    fn put(&mut self, id: u128, entry: Entry) {
        self.due.insert((entry.due, id));
        self.entries.insert(id, entry);
    }

    fn take(&mut self, id: u128) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.due.remove(&(entry.due, id));
        Some(entry)
    }
}

impl Renewals {
    pub(crate) fn new(store: &Store, namespace: &Namespace<Bucket>) -> Arc<Self> {
        let client = namespace.client();
        let store = store.clone();
        Arc::new(Self {
            client,
            store,
            table: Mutex::default(),
            joined: OnceLock::new(),
            began: clock::now(),
            process: clock::bits(),
            count: AtomicU64::new(0),
        })
    }

    /// The id of a new hold.
    pub(crate) fn next_id(&self) -> u128 {
        u128::from(self.process) << 64 | u128::from(self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// The time of the next renewal of a hold whose ttl counts from `from`: after a third of the ttl, rounded down so
    /// that holds that are due at about the same time are renewed together.
    fn renewal(&self, from: Instant, ttl: i64) -> Instant {
        let ttl = span(ttl);
        clock::together(self.began, from + ttl / 3, ttl / 24)
    }

    /// Renews a hold until it ends. `step` is its renewal.
    pub(crate) fn hold(
        self: &Arc<Self>,
        key: &Key,
        step: HoldStep,
        validity: &Arc<Validity>,
        sent: Instant,
    ) {
        let Verb::Extend { ttl, .. } = step.verb else {
            return;
        };
        let due = self.renewal(sent, ttl);
        let entry = Entry {
            key: key.clone(),
            validity: Arc::clone(validity),
            step,
            due,
            pause: None,
            late: 0,
        };
        self.put(entry);
    }

    /// Stops the renewal of a hold.
    pub(crate) fn stop(&self, id: u128) {
        lock(&self.table).take(id);
    }

    /// Ends a hold without a waiting caller. `step` is a capture, and `late` the number of tokens to charge if the hold
    /// had ended.
    pub(crate) fn settle(
        self: &Arc<Self>,
        key: Key,
        step: HoldStep,
        validity: &Arc<Validity>,
        late: u32,
    ) {
        self.owe(key.clone(), step.clone(), validity, late);
        self.send(Handle::try_current().ok(), key, step);
    }

    /// Records a capture that the caller sends. It is sent again until a reply is [processed](Self::answered).
    pub(crate) fn owe(
        self: &Arc<Self>,
        key: Key,
        step: HoldStep,
        validity: &Arc<Validity>,
        late: u32,
    ) {
        let validity = Arc::clone(validity);
        let pause = Some(FIRST_PAUSE);
        let due = clock::now() + FIRST_PAUSE;
        let mut table = lock(&self.table);
        table.take(step.id);
        if table.owed < MOST_OWED {
            table.owed += 1;
            table.keep_alive = Some(Arc::clone(self));
            if let Some(owed) = self.store.owed() {
                owed.add(1);
            }
            self.put_in(
                table,
                Entry {
                    key,
                    step,
                    validity,
                    due,
                    pause,
                    late,
                },
            );
        }
    }

    /// Charges the tokens of a capture whose hold had already ended.
    fn charge_late(
        self: &Arc<Self>,
        Entry {
            key, step, late, ..
        }: Entry,
    ) {
        let this = Arc::clone(self);
        let step = HoldStep {
            verb: Verb::late(late),
            ..step
        };
        self.client.send(None, key, HoldSteps::one(step), move |_| {
            this.settled(&mut lock(&this.table))
        });
    }

    fn put(self: &Arc<Self>, entry: Entry) {
        self.put_in(lock(&self.table), entry);
    }

    /// Adds an entry, and notifies the scheduler if the entry is due first.
    fn put_in(self: &Arc<Self>, mut table: MutexGuard<'_, Table>, entry: Entry) {
        let due = entry.due;
        let earliest = table.due.first().map(|(earliest, _)| *earliest);
        table.put(entry.step.id, entry);
        drop(table);
        self.joined
            .get_or_init(|| self.store.scheduler().join(self));
        if earliest.is_none_or(|earliest| due < earliest) {
            self.store.scheduler().schedule(clock::without_suspend(due));
        }
    }

    fn send(self: &Arc<Self>, from: Option<Handle>, key: Key, step: HoldStep) {
        let this = Arc::clone(self);
        let id = step.id;
        let sent = clock::now();
        let settles = matches!(step.verb, Verb::Capture { .. });
        self.client
            .send(from, key, HoldSteps::one(step), move |reply| {
                this.answered(
                    id,
                    sent,
                    settles,
                    reply.map(|replies| replies.one().outcome),
                );
            });
    }

    /// Processes the reply to a renewal, or to a capture if it `settles` a hold.
    pub(crate) fn answered(
        self: &Arc<Self>,
        id: u128,
        sent: Instant,
        settles: bool,
        reply: Result<Outcome, Error>,
    ) {
        let mut table = lock(&self.table);
        // The hold may have ended before the reply to its renewal.
        if table
            .entries
            .get(&id)
            .is_none_or(|entry| entry.pause.is_some() != settles)
        {
            return;
        }
        let Some(entry) = table.take(id) else { return };
        let Verb::Extend { ttl, .. } = entry.step.verb else {
            return match reply {
                Ok(Outcome::Ended) if entry.late > 0 => {
                    drop(table);
                    self.charge_late(entry);
                }
                Err(error) if !error.is_denied() => match entry.late {
                    // The capture is sent again when it is due.
                    0 => table.put(id, entry),
                    _ => self.put_in(
                        table,
                        Entry {
                            due: clock::now() + FIRST_PAUSE,
                            late: 0,
                            ..entry
                        },
                    ),
                },
                _ => self.settled(&mut table),
            };
        };
        let due = match reply {
            Ok(Outcome::Held) => {
                entry.validity.renewed(sent, ttl);
                self.renewal(sent, ttl)
            }
            Ok(_) => return entry.validity.end(),
            Err(_) => clock::now() + (span(ttl) / 9).min(LONGEST_PAUSE),
        };
        self.put_in(table, Entry { due, ..entry });
    }

    fn settled(&self, table: &mut Table) {
        table.owed -= 1;
        if table.owed == 0 {
            // The caller has a reference too.
            table.keep_alive = None;
        }
        if let Some(owed) = self.store.owed() {
            owed.done(1);
        }
    }

    /// Sends the renewals and the repeated captures that are due.
    fn send_due(self: &Arc<Self>, settle_all: bool) {
        let now = clock::now();
        let mut send = Vec::new();
        {
            let mut table = lock(&self.table);
            let is_due = |(due, id): &&(Instant, u128), table: &Table| {
                *due <= now
                    || settle_all
                        && table
                            .entries
                            .get(id)
                            .is_some_and(|entry| entry.pause.is_some())
            };
            let due: Vec<u128> = table
                .due
                .iter()
                .filter(|at| is_due(at, &table))
                .map(|(_, id)| *id)
                .collect();
            for id in due {
                let Some(mut entry) = table.take(id) else {
                    continue;
                };
                let is_over = now >= entry.validity.until();
                match &mut entry.pause {
                    // The first call is still pending.
                    Some(_) if entry.late > 0 => {
                        entry.due = now + LONGEST_PAUSE;
                        table.put(id, entry);
                        continue;
                    }
                    // The hold has ended in the store by itself.
                    Some(_) if is_over => {
                        self.settled(&mut table);
                        continue;
                    }
                    Some(pause) => {
                        *pause = (2 * *pause).min(LONGEST_PAUSE);
                        entry.due = now + *pause;
                    }
                    None if is_over => {
                        entry.validity.end();
                        continue;
                    }
                    // The renewal is repeated if there is no reply.
                    None => entry.due = self.renewal(now, ttl_of(&entry.step)),
                }
                send.push((entry.key.clone(), entry.step.clone()));
                table.put(id, entry);
            }
        }
        for (key, step) in send {
            self.send(None, key, step);
        }
    }
}

fn ttl_of(step: &HoldStep) -> i64 {
    match step.verb {
        Verb::Authorize { ttl, .. } | Verb::Extend { ttl, .. } => ttl,
        Verb::Capture { .. } => 0,
    }
}

impl PeriodicTask for Renewals {
    fn due(&self) -> Option<Instant> {
        lock(&self.table)
            .due
            .first()
            .map(|(due, _)| clock::without_suspend(*due))
    }

    fn signal(self: Arc<Self>, signal: Signal) {
        match signal {
            Signal::Due => self.send_due(false),
            Signal::Hurry => self.send_due(true),
            // Holds end by themselves, or their owners end them.
            Signal::Relinked | Signal::ShutDown => {}
        }
    }
}

debug!(Renewals);
