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
use crate::error::Subject;
use crate::store::lock;
use crate::store::timer::sleep;
use crate::{Error, Key};

impl<K: Kind> Admission<K> {
    /// Hands a lease on to the next in line in this process, or lets the line take a new place, where it is the turn of
    /// another process. Whether it was still held; `None`: nobody waits here, and it is to be given back to the store.
    pub(super) fn hand_over(self: &Arc<Self>, state: &Arc<LeaseState>) -> Option<bool> {
        let tenure = &state.tenure;
        let (now, is_held) = (Instant::now(), state.is_held());
        let mut table = lock(&self.table);
        let entry = table.get_mut(tenure.id)?;
        let Some(front) = entry.line.front() else {
            table.remove(tenure.id);
            return None;
        };
        // It must be good for a while, and of the time to live that was asked for.
        let is_good = is_held && tenure.left() >= GRANT.min(tenure.ttl) / 2;
        let fits = is_good && front.holding.options.ttl == tenure.ttl;
        let next = match (fits, tenure.offered()) {
            (false, _) => None,
            (true, None) => entry.line.hand_over(now),
            (true, Some(_)) => entry.line.refused(now),
        };
        drop(table);
        state.end_here();
        match next {
            Some(seat) => {
                let next = LeaseState::new(Arc::clone(tenure), state.fence + 1, &seat.holding);
                self.renewals.hand_over(&next);
                self.offer(&seat, next, None);
            }
            None => self.ask_for_line(tenure.id, Some(GiveBack::of(tenure))),
        }
        Some(is_held)
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
        (entry.driver, entry.tenure, entry.due, entry.early) = (None, None, None, None);
        entry.twice = false;
        table.insert(id, entry);
        drop(table);
        if let Some(owed) = self.store.owed() {
            owed.add(1);
        }
        let asking = Arc::clone(self).ask_until_answered(id, key, token, holding, back);
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

    async fn ask_until_answered(
        self: Arc<Self>,
        id: u64,
        key: Key,
        token: Arc<str>,
        holding: Arc<Holding>,
        back: Option<GiveBack>,
    ) {
        let terms = Terms::usual(micros(holding.options.ttl));
        // It leaves before what is asked next, in the same call.
        back.into_iter().for_each(|back| self.give_back(back));
        if let Some(owed) = self.store.owed() {
            owed.done(1);
        }
        loop {
            let sent = self.sent();
            let acquire = self.operation(Arc::clone(&token), Verb::Acquire, terms);
            let error = match self.client().run(key.clone(), acquire).await {
                Ok(answer) => return self.answered(id, sent, answer, Subject::Lock, true),
                Err(error) if self.store.background().is_none() => return self.failed(id, &error),
                Err(error) => error,
            };
            match lock(&self.table).get_mut(id) {
                Some(entry) => {
                    // It may run yet, after a release.
                    entry.twice |= !error.is_not_sent();
                    entry.outage = Some(error).filter(Error::is_away);
                }
                None => return,
            }
            sleep(holding.options.ask_every).await;
        }
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

    /// Nobody has polled the future for long by which somebody asked.
    pub(super) fn abandoned(self: &Arc<Self>, id: u64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(id).filter(|entry| entry.stage == Stage::Asking) else { return };
        let Some(driver) = entry.driver.take() else { return };
        entry.line.leave(|other| Arc::ptr_eq(other, &driver));
        let back = entry.give_back(true);
        drop(table);
        // When it is polled, it asks anew.
        drop(driver.offer(Ok(None)));
        self.ask_for_line(id, Some(back));
    }
}
