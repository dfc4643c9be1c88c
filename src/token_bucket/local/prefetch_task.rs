//! Prefetches tokens of a hot key, and gives unused tokens back. This is a task on the store's own thread that
//! runs while the key is hot.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::bucket::ahead::{LEAST, Prefetch, Prefetched};
use crate::bucket::give_back::GiveBack;
use crate::clock;
use crate::store::timer::sleep;
use crate::sync::atomic::Ordering;
use crate::token_bucket::calls::Clients;
use crate::token_bucket::local::Table;
use crate::token_bucket::local::entry::{Entry, MOST, SLOTS};

pub(super) struct PrefetchTask {
    entry: Arc<Entry>,
    table: Arc<Table>,
    clients: Arc<Clients>,
    /// How long tokens are held, µs.
    hold: i64,
    batches: [Option<Batch>; SLOTS],
}

/// Prefetched tokens.
struct Batch {
    prefetched: Prefetched,
    /// The time before the prefetch was sent.
    sent: i64,
    /// The number of tokens known to be used.
    used: i64,
}

impl PrefetchTask {
    /// Starts a task, unless one runs. Requests needed `count` tokens within the last `span` µs.
    pub(super) fn start(
        entry: Arc<Entry>,
        table: Arc<Table>,
        clients: &Arc<Clients>,
        hold: i64,
        count: i64,
        span: i64,
    ) {
        let Some(background) = clients.store.background().cloned() else {
            return;
        };
        let rests = clock::micros() < entry.no_prefetch_until.load(Ordering::Relaxed);
        if rests || entry.has_prefetch_task.swap(true, Ordering::AcqRel) {
            return;
        }
        entry.missed.store(count, Ordering::Relaxed);
        entry.wants.store(true, Ordering::Relaxed);
        let task = Self {
            entry,
            table,
            clients: Arc::clone(clients),
            hold,
            batches: [None, None],
        };
        background.spawn(task.run(span));
    }

    async fn run(mut self, span: i64) {
        let (mut previous, mut charged, mut used) = (0, clock::micros() - span, 0);
        // Whether to prefetch again.
        let mut goes_on = true;
        loop {
            let now = clock::micros();
            used += self.collect(now);
            if let Some(slot) = self.batches.iter().position(Option::is_none)
                && goes_on
                && self.entry.wants.load(Ordering::Relaxed)
            {
                let missed = self.entry.missed.swap(0, Ordering::Relaxed);
                let most = worth(self.hold, now - charged, used, missed, previous);
                (charged, used) = (now, 0);
                previous = if most > 0 {
                    self.charge(slot, most, now).await
                } else {
                    0
                };
                goes_on = previous > 0;
                if !goes_on {
                    self.entry
                        .no_prefetch_until
                        .store(now + self.hold, Ordering::Relaxed);
                }
                continue;
            }
            let deadlines = self
                .batches
                .iter()
                .flatten()
                .map(|batch| batch.sent + self.hold);
            let Some(deadline) = deadlines.min() else {
                return;
            };
            let left = Duration::from_micros((deadline - clock::micros()).max(0).unsigned_abs());
            tokio::select! {
                () = self.entry.more.notified() => {}
                () = sleep(left) => {}
            }
        }
    }

    /// Prefetches tokens. Returns the number of tokens.
    async fn charge(&mut self, slot: usize, most: i64, now: i64) -> i64 {
        let entry = &self.entry;
        let prefetch = Prefetch {
            quotas: entry.quotas.clone(),
            most,
        };
        let Ok(prefetched) = self.clients.prefetch.run(entry.key.clone(), prefetch).await else {
            return 0;
        };
        entry.learn(&self.table, now, &prefetched.state, None);
        let count = prefetched.count;
        if count > 0 && (self.table.is_outdated(now) || entry.is_gone()) {
            // The bucket was blocked or reset in the meantime.
            self.give_back(&prefetched, count, now);
            return 0;
        }
        if count > 0 {
            self.batches[slot] = Some(Batch {
                prefetched,
                sent: now,
                used: 0,
            });
            // If the reply came too late, no token can be taken, and all tokens are given back.
            entry.batch.store(count, Ordering::Relaxed);
            entry.slots.0.put(slot, count, now + self.hold);
            entry.wants.store(false, Ordering::Relaxed);
        }
        count
    }

    /// Counts the tokens used since the last call, and gives back the rest of expired batches. If a batch expires
    /// with tokens left, the next batch is not needed, and ends as well.
    fn collect(&mut self, now: i64) -> i64 {
        let (entry, hold) = (&self.entry, self.hold);
        let is_over = |batch: &Batch| now >= batch.sent + hold;
        let ends = |slot: usize| {
            self.batches[slot].as_ref().is_some_and(is_over) && entry.slots.0.left(slot) > 0
        };
        let all_end = (0..SLOTS).any(ends);
        let (mut used, mut over) = (0, Vec::new());
        // The newest batch first, so that no batch that is given back later depends on one given back earlier.
        let mut order: [usize; SLOTS] = std::array::from_fn(|slot| slot);
        order.sort_by_key(|slot| {
            std::cmp::Reverse(self.batches[*slot].as_ref().map(|batch| batch.sent))
        });
        for slot in order {
            let Some(batch) = &mut self.batches[slot] else {
                continue;
            };
            let ends = all_end || is_over(batch);
            let left = if ends {
                entry.slots.0.empty(slot)
            } else {
                entry.slots.0.left(slot)
            };
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

    /// Gives back tokens of a prefetch that was sent at `sent`.
    fn give_back(&self, prefetched: &Prefetched, tokens: i64, sent: i64) {
        if !self.clients.give_back.may_repeat() {
            let unused = GiveBack::unused(&prefetched.state, tokens, clock::micros() - sent);
            let key = self.entry.key.clone();
            self.clients.give_back.detach(key, unused);
            // The bucket now has more tokens than in the last reply.
            self.entry.open();
        }
    }
}

/// How many tokens to prefetch, if `used` tokens were used and `missed` ones were requested from the store in the
/// `passed` µs since the previous prefetch: as many as are needed in half of the hold time.
fn worth(hold: i64, passed: i64, used: i64, missed: i64, previous: i64) -> i64 {
    let per_half_hold = (used + missed).saturating_mul(hold / 2) / passed.max(100);
    let most = per_half_hold.min(2 * previous + missed).min(MOST);
    if most < LEAST { 0 } else { most }
}

/// Also runs if the thread ends first. Prefetched tokens are not used after that.
impl Drop for PrefetchTask {
    fn drop(&mut self) {
        self.entry.drop_tokens();
        self.entry.has_prefetch_task.store(false, Ordering::Release);
    }
}
