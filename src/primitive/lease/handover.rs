//! How a lease is given back: to the next in line in this process, or to the store.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::admission::{Admission, GRANT};
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
    /// Hands a lease on to the next in line in this process, or lets the line take a new place, where it is the turn of
    /// another process. `false`: nobody waits here, and it is to be given back to the store.
    pub(super) fn hand_over(self: &Arc<Self>, state: &Arc<LeaseState>, is_held: bool) -> bool {
        let (now, tenure) = (Instant::now(), &state.tenure);
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(tenure.id) else { return false };
        let Some(front) = entry.line.front() else {
            table.remove(tenure.id);
            return false;
        };
        // It must be good for a while.
        let is_good = is_held && tenure.left() >= GRANT.min(tenure.ttl) / 2;
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

    /// Lets a line take a new place, after something was given back. It waits through outages.
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
            // In memory the answer is there at once.
            None => drop(asking.now_or_never()),
        }
    }

    /// What was held here is over, whether or not its holder lets go of it: those in line wait for it no longer.
    pub(super) fn tenure_over(self: &Arc<Self>, id: u64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(id) else { return };
        let Some(tenure) = &entry.tenure else { return };
        if tenure.is_valid() {
            // It was renewed since.
            entry.watch();
            return;
        }
        drop(table);
        self.ask_for_line(id, None);
    }

    /// One who waited goes away.
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

    /// It is to be looked at whether the future is polled by which somebody asks: if not, the line asks anew without it.
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
        // When it is polled, it asks anew.
        drop(driver.offer(Ok(None)));
        self.ask_for_line(id, Some(back));
    }
}

/// A line asks, in the background.
struct Asking<K: Kind> {
    admission: Arc<Admission<K>>,
    id: u64,
    /// What is given back before.
    back: Option<GiveBack>,
    is_over: bool,
}

impl<K: Kind> Asking<K> {
    async fn until_answered(mut self, key: Key, token: Arc<str>, holding: Arc<Holding>) {
        let (admission, id) = (Arc::clone(&self.admission), self.id);
        let terms = Terms::usual(micros(holding.options.ttl));
        // It leaves before what is asked next, in the same call.
        self.give_back();
        loop {
            let sent = admission.sent();
            let acquire = admission.operation(Arc::clone(&token), Verb::Acquire, terms);
            let asked = admission.client().run(key.clone(), acquire).await;
            match asked {
                // An outage is waited out, where there is somebody who can.
                Err(error) if error.is_away() && admission.store.background().is_some() => {
                    match lock(&admission.table).get_mut(id) {
                        Some(entry) => {
                            // It may run yet, after a release.
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

/// The runtime that works in the background may end before there is an answer.
impl<K: Kind> Drop for Asking<K> {
    fn drop(&mut self) {
        self.give_back();
        if !self.is_over {
            let text = "the runtime that works in the background has ended";
            self.admission.failed(self.id, &Error::unavailable(Cause::Disconnected, text));
        }
    }
}
