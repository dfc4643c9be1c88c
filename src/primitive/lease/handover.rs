//! How a lease is handed on to the next waiter in this process, or released to the store.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::admission::Admission;
use super::key_state::Terms;
use super::kind::{Found, Kind};
use super::operations::Verb;
use super::options::{Holding, micros};
use super::releases::GiveBack;
use super::seat::Seat;
use super::state::LeaseState;
use super::table::{Left, Stage};
use crate::error::{Cause, Subject};
use crate::store::lock;
use crate::store::timer::sleep;
use crate::{Error, Key};

impl<K: Kind> Admission<K> {
    /// Hands a lease on to the next waiter in the line. If the lease must go to another process, the line asks for
    /// a new place instead. Returns `false` if no waiter is in line: then the caller releases the lease to the
    /// store.
    pub(super) fn hand_over(self: &Arc<Self>, state: &Arc<LeaseState>, is_held: bool) -> bool {
        let (now, tenure) = (Instant::now(), &state.tenure);
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(tenure.id) else { return false };
        let Some(front) = entry.line.front() else {
            table.remove(tenure.id);
            return false;
        };
        // The lease must be valid for long enough.
        let is_good = is_held && tenure.left() >= self.grant_time().min(tenure.ttl) / 2;
        let fits = is_good && tenure.suits(&front.holding.options);
        let next = match (fits, tenure.offered()) {
            (false, _) => None,
            (true, None) => entry.line.hand_over(now),
            (true, Some(_)) => entry.line.refused(now),
        };
        drop(table);
        match next {
            Some(seat) => {
                let next = LeaseState::new(Arc::clone(tenure), state.fence + 1, &seat.holding);
                self.renewals.hand_over(&next);
                self.offer(&seat, next, None);
            }
            None => self.ask_for_line(tenure.id, Some(GiveBack::of(tenure))),
        }
        true
    }

    /// Lets a line ask for a new place, after `back` is released. It retries while the store is unavailable.
    pub(super) fn ask_for_line(self: &Arc<Self>, id: u64, back: Option<GiveBack>) {
        self.renewals.forget(id);
        let mut table = lock(&self.table);
        let Some(mut entry) = table.remove(id) else { return };
        let Some(front) = entry.line.front() else {
            drop(table);
            return back.into_iter().for_each(|back| self.give_back(back));
        };
        let holding = Arc::clone(&front.holding);
        let (id, token) = self.token(&holding.options, "");
        let key = entry.key.clone();
        (entry.token, entry.holding, entry.stage) = (Arc::clone(&token), Arc::clone(&holding), Stage::Asking);
        (entry.driver, entry.nudged, entry.tenure, entry.due, entry.early) = (None, None, None, None, None);
        entry.twice = false;
        table.insert(id, entry);
        drop(table);
        if let Some(owed) = self.store.owed().filter(|_| back.is_some()) {
            owed.add(1);
        }
        let asking = Asking { admission: Arc::clone(self), id, back, is_over: false };
        let asking = asking.until_answered(key, token, holding);
        match self.store.background() {
            Some(background) => background.spawn(asking),
            // In memory the answer is ready at once.
            None => drop(asking.now_or_never()),
        }
    }

    /// Handles the end of a lease, whether or not its holder has let go of it. The line waits for it no longer.
    pub(super) fn tenure_over(self: &Arc<Self>, id: u64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(id) else { return };
        let Some(tenure) = &entry.tenure else { return };
        if tenure.is_valid() {
            // It was renewed in the meantime.
            entry.watch();
            return;
        }
        drop(table);
        self.ask_for_line(id, None);
    }

    /// Removes a waiter that has gone away.
    pub(super) fn leave(self: &Arc<Self>, key: &Key, id: Option<u64>, seat: &Arc<Seat<Found<K>>>) {
        let mut table = lock(&self.table);
        let left = table.leave(key, id, seat);
        drop(table);
        match left {
            Left::Nothing => {}
            Left::GiveBack(back) => self.give_back(back),
            Left::Abandoned(id, back) => self.ask_for_line(id, Some(back)),
        }
    }

    /// Checks whether the future that sends the line's call is polled. If not, the line asks again without it.
    pub(super) fn look_at_driver(self: &Arc<Self>, id: u64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(id).filter(|entry| entry.stage == Stage::Asking) else { return };
        let Some(driver) = entry.driver.take() else { return };
        let later = entry.nudged.filter(|later| *later > Instant::now() && driver.is_polled());
        if let Some(later) = later {
            (entry.driver, entry.due) = (Some(driver), Some(later));
            drop(table);
            return self.store.scheduler().schedule(later);
        }
        entry.line.leave(|other| Arc::ptr_eq(other, &driver));
        let back = entry.give_back(true);
        drop(table);
        // It asks again when it is polled.
        drop(driver.offer(Ok(None)));
        self.ask_for_line(id, Some(back));
    }
}

/// The call of a line, sent from the background runtime.
struct Asking<K: Kind> {
    admission: Arc<Admission<K>>,
    id: u64,
    /// What to release first.
    back: Option<GiveBack>,
    is_over: bool,
}

impl<K: Kind> Asking<K> {
    async fn until_answered(mut self, key: Key, token: Arc<str>, holding: Arc<Holding>) {
        let (admission, id) = (Arc::clone(&self.admission), self.id);
        let terms = Terms::usual(micros(holding.options.ttl));
        // The release is sent before the acquire, in the same call.
        self.give_back();
        loop {
            let sent = admission.sent();
            let acquire = admission.operation(Arc::clone(&token), Verb::Acquire, terms);
            let asked = admission.client().run(key.clone(), acquire).await;
            match asked {
                // Retry during an outage, if there is a background runtime.
                Err(error) if error.is_away() && admission.store.background().is_some() => {
                    match lock(&admission.table).get_mut(id) {
                        Some(entry) => {
                            // The failed call may still run, after a release.
                            entry.twice |= !error.is_not_sent();
                            entry.outage = Some(error);
                        }
                        None => self.is_over = true,
                    }
                }
                Err(error) => {
                    self.is_over = true;
                    admission.failed(id, &error);
                }
                Ok(answer) => {
                    self.is_over = true;
                    admission.answered(id, sent, answer, Subject::Lock, true);
                }
            }
            if self.is_over {
                return;
            }
            sleep(holding.options.ask_every).await;
        }
    }

    fn give_back(&mut self) {
        let Some(back) = self.back.take() else { return };
        self.admission.give_back(back);
        if let Some(owed) = self.admission.store.owed() {
            owed.done(1);
        }
    }
}

/// The background runtime may shut down before there is an answer.
impl<K: Kind> Drop for Asking<K> {
    fn drop(&mut self) {
        self.give_back();
        if !self.is_over {
            let text = "the background runtime has shut down";
            self.admission.failed(self.id, &Error::unavailable(Cause::Disconnected, text));
        }
    }
}
