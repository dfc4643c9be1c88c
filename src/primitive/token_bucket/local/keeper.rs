//! Sees to it that a hot key has tokens in memory, and gives back those that were not used: a task on the store's own thread,
//! while the key is hot.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Table;
use super::entry::Entry;
use super::slots::{MOST, SLOTS};
use crate::primitive::clock;
use crate::primitive::token_bucket::Clients;
use crate::primitive::token_bucket::ahead::{Prefetch, Prefetched};
use crate::store::timer::sleep;

pub(super) struct Keeper {
    entry: Arc<Entry>,
    table: Arc<Table>,
    clients: Arc<Clients>,
    /// How long tokens are held, µs.
    hold: i64,
    batches: [Option<Batch>; SLOTS],
}

/// Tokens that were charged ahead.
struct Batch {
    prefetched: Prefetched,
    /// Before they were asked for.
    sent: i64,
    /// How many of them are known to be used.
    used: i64,
}

impl Keeper {
    /// Begins, where nobody does it yet. `count` tokens have been asked for within `span` µs.
    pub(super) fn start(
        entry: Arc<Entry>,
        table: Arc<Table>,
        clients: &Arc<Clients>,
        hold: i64,
        count: i64,
        span: i64,
    ) {
        let Some(background) = clients.store.background().cloned() else { return };
        let rests = clock::micros() < entry.rests_until.load(Ordering::Relaxed);
        if rests || entry.is_kept.swap(true, Ordering::AcqRel) {
            return;
        }
        entry.missed.store(count, Ordering::Relaxed);
        entry.wants.store(true, Ordering::Relaxed);
        let keeper = Self { entry, table, clients: Arc::clone(clients), hold, batches: [None, None] };
        background.spawn(keeper.keep(span));
    }

    async fn keep(mut self, span: i64) {
        let (mut previous, mut charged, mut used) = (0, clock::micros() - span, 0);
        // While more are to be charged ahead.
        let mut goes_on = true;
        loop {
            let now = clock::micros();
            used += self.collect(now);
            if let Some(slot) = self.batches.iter().position(Option::is_none)
                && goes_on
                && self.entry.wants.load(Ordering::Relaxed)
            {
                let missed = self.entry.missed.swap(0, Ordering::Relaxed);
                let per_half_hold = (used + missed).saturating_mul(self.hold / 2) / (now - charged).max(100);
                let most = per_half_hold.min(2 * previous + missed).min(MOST);
                (charged, used) = (now, 0);
                previous = if most < 8 { 0 } else { self.charge(slot, most, now).await };
                goes_on = previous > 0;
                if !goes_on {
                    self.entry.rests_until.store(now + self.hold, Ordering::Relaxed);
                }
                continue;
            }
            let deadlines = self.batches.iter().flatten().map(|batch| batch.sent + self.hold);
            let Some(deadline) = deadlines.min() else { return };
            let left = Duration::from_micros((deadline - clock::micros()).max(0).unsigned_abs());
            tokio::select! {
                () = self.entry.more.notified() => {}
                () = sleep(left) => {}
            }
        }
    }

    /// Charges tokens ahead. How many.
    async fn charge(&mut self, slot: usize, most: i64, now: i64) -> i64 {
        let entry = &self.entry;
        let prefetch = Prefetch { quotas: entry.quotas.clone(), most };
        let Ok(prefetched) = self.clients.prefetch.run(entry.key.clone(), prefetch).await else { return 0 };
        entry.told.learn(now, &prefetched.state);
        let count = prefetched.count;
        if count > 0 && (self.table.is_outdated(now) || entry.is_gone()) {
            // Blocked or reset meanwhile.
            self.give_back(&prefetched, count, now);
            return 0;
        }
        if count > 0 {
            self.batches[slot] = Some(Batch { prefetched, sent: now, used: 0 });
            // Of what came too late nothing can be taken, and all is given back.
            entry.batch.store(count, Ordering::Relaxed);
            entry.slots.0.put(slot, count, now + self.hold);
            entry.wants.store(false, Ordering::Relaxed);
        }
        count
    }

    /// Counts what has been used since the last time, and gives back what is left of batches that have ended. Where one ends
    /// before it is used up, nobody needs the one after it: that ends as well.
    fn collect(&mut self, now: i64) -> i64 {
        let (entry, hold) = (&self.entry, self.hold);
        let is_over = |batch: &Batch| now >= batch.sent + hold;
        let ends =
            |slot: usize| self.batches[slot].as_ref().is_some_and(is_over) && entry.slots.0.left(slot) > 0;
        let all_end = (0..SLOTS).any(ends);
        let (mut used, mut over) = (0, Vec::new());
        // The last first: what is given back must not have been built upon by what is given back next.
        let mut order: [usize; SLOTS] = std::array::from_fn(|slot| slot);
        order.sort_by_key(|slot| std::cmp::Reverse(self.batches[*slot].as_ref().map(|batch| batch.sent)));
        for slot in order {
            let Some(batch) = &mut self.batches[slot] else { continue };
            let ends = all_end || is_over(batch);
            let left = if ends { entry.slots.0.empty(slot) } else { entry.slots.0.left(slot) };
            let so_far = batch.prefetched.count - left;
            used += so_far - batch.used;
            batch.used = so_far;
            if left > 0 && !ends {
                continue;
            }
            if left > 0 {
                over.extend(self.batches[slot].take().map(|batch| (batch, left)));
            }
            self.batches[slot] = None;
        }
        for (batch, left) in over {
            self.give_back(&batch.prefetched, left, batch.sent);
        }
        used
    }

    /// Gives back what was asked for at `sent`.
    fn give_back(&self, prefetched: &Prefetched, tokens: i64, sent: i64) {
        if !self.clients.give_back.may_repeat() {
            let give_back = prefetched.give_back(tokens, clock::micros() - sent);
            self.clients.give_back.detach(self.entry.key.clone(), give_back);
            // There are more than was told last.
            self.entry.open();
        }
    }
}

/// Also where the thread ends first: what is held then is not used any more.
impl Drop for Keeper {
    fn drop(&mut self) {
        self.entry.drop_tokens();
        self.entry.is_kept.store(false, Ordering::Release);
    }
}
