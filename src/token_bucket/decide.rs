//! Decides a request under several limits: immediately in memory, in one call, or one limit after the other.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::bucket::charge::{Charge, Charged, Price, Terms};
use crate::bucket::decision::Decision;
use crate::bucket::hold::{HoldReplies, HoldStep, HoldSteps};
use crate::bucket::{Ask, Bucket};
use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::store::client::Client;
use crate::store::memory::cells::Cells;
use crate::store::operation::Operation;
use crate::store::timer;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::acquire::{AskedOfEach, Decide};
use crate::token_bucket::limits::{Several, Together, keys_of};

impl Several {
    /// Starts the decision under all limits. `key` combines the keys of the limits.
    pub(crate) fn decide(&self, key: &Key, price: Price) -> Decide {
        match self.max_wait.is_zero() {
            true => self.decide_once(key, price),
            false => Decide::Later(Box::pin(self.clone().decide_within(key.clone(), price))),
        }
    }

    fn decide_once(&self, key: &Key, price: Price) -> Decide {
        let mut keys = keys_of(key);
        let count = keys.len();
        let limits = self.limits.buckets.len();
        if count != limits {
            let text = format!("the number of keys must be {limits}, is {count}");
            return Err(Error::invalid(text)).into();
        }
        if matches!(price, Price::Each(_)) {
            let free = keys
                .iter_mut()
                .enumerate()
                .filter(|(limit, _)| price.of(*limit) == 0);
            free.for_each(|(_, key)| *key = None);
        }
        if keys.iter().all(Option::is_none) {
            return Ok(self.free()).into();
        }
        if keys.iter().all(Option::is_some) {
            return self.decide_all(key, keys.into_iter().flatten().collect(), price);
        }
        let some = self.with_keys(&keys);
        let price = Price::new(
            (0..limits)
                .filter(|limit| keys[*limit].is_some())
                .map(|limit| price.of(limit)),
        );
        let there: SmallVec<[Key; 3]> = keys.into_iter().flatten().collect();
        some.decide_all(&Key::of(&there), there, price)
    }

    /// Like `decide_once`, for limits that all have a key.
    fn decide_all(&self, key: &Key, keys: SmallVec<[Key; 3]>, price: Price) -> Decide {
        if let Some(decided) = self.without_state(price) {
            return decided.into();
        }
        match &self.limits.places.together {
            Together::Redis(client, _) if self.are_in_one_place(&keys) => {
                self.decide_on(client, key, keys, price)
            }
            Together::InMemory(cells) => self.decide_in(cells, &keys, price).into(),
            _ => {
                let this = self.clone();
                Decide::Later(Box::pin(
                    async move { this.decide_in_order(&keys, price).await },
                ))
            }
        }
    }

    /// Decides without the state: a cost of zero, any other cost under a closed limit, and the error for a cost above
    /// the burst.
    fn without_state(&self, price: Price) -> Option<Result<Decision, Error>> {
        let terms = &self.limits.terms;
        let closed = (0..terms.each.len())
            .find(|limit| price.of(*limit) > 0 && terms.each[*limit].are_closed());
        if let Some(limit) = closed {
            return Some(Ok(self.alone(
                limit,
                Decision::closed(&terms.each[limit], price.of(limit)),
            )));
        }
        match price {
            Price::Same(cost) => Decision::without_state(&terms.all, cost),
            Price::Each(costs) => {
                let mut each = costs.into_iter().zip(&terms.each);
                each.find_map(|(cost, quotas)| Decision::without_state(quotas, cost))
            }
        }
    }

    /// Whether one script may access all keys.
    pub(crate) fn are_in_one_place(&self, keys: &[Key]) -> bool {
        let slot = |(bucket, key): (&TokenBucket, &Key)| -> Option<u16> {
            bucket.clients.namespace.slot(key)
        };
        let mut slots = self.limits.buckets.iter().zip(keys).map(slot);
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// Decides in one call, unless a limit has a cached refusal.
    fn decide_on(
        &self,
        client: &Client<Charge>,
        key: &Key,
        keys: SmallVec<[Key; 3]>,
        price: Price,
    ) -> Decide {
        let now = clock::micros();
        let mut asked = AskedOfEach::new();
        let mut ends = SmallVec::<[_; 1]>::new();
        for (limit, (bucket, key)) in self.limits.buckets.iter().zip(keys).enumerate() {
            ends.extend(bucket.clients.returning.end(&key));
            let ask = Ask {
                cost: price.of(limit).into(),
                wait: 0,
            };
            match bucket.local.answer(
                &bucket.clients,
                &bucket.quotas,
                Cow::Owned(key),
                || now,
                ask,
                false,
            ) {
                ControlFlow::Break(refusal) => return Ok(self.alone(limit, refusal)).into(),
                ControlFlow::Continue(one) => asked.push(one),
            }
        }
        Decide::Calling(client.run(key.clone(), self.charge(price)), asked).after(ends)
    }

    fn charge(&self, price: Price) -> Charge {
        Charge {
            terms: Terms::All(Arc::clone(&self.limits.terms)),
            price,
            wait: 0,
        }
    }

    /// Decides in memory.
    fn decide_in(
        &self,
        cells: &[Arc<Cells<Bucket>>],
        keys: &[Key],
        price: Price,
    ) -> Result<Decision, Error> {
        let take_back = |limit: usize, charged: &Charged| {
            if charged.admitted {
                let state = charged.state(limit);
                let cost = price.of(limit).into();
                let bucket = &self.limits.buckets[limit];
                bucket.take_back(&keys[limit], &state, cost, clock::micros());
            }
        };
        self.step(cells, keys, &self.charge(price), take_back)
            .map(Charged::decision)
    }

    /// Runs one operation with the states of all buckets locked. If the store is full, `take_back` is called for the
    /// limits whose states were already changed.
    pub(crate) fn step<O: Operation<Cell = Bucket> + Clone>(
        &self,
        cells: &[Arc<Cells<Bucket>>],
        keys: &[Key],
        operation: &O,
        take_back: impl Fn(usize, &O::Reply),
    ) -> Result<O::Reply, Error> {
        // Cells are locked in one global order, independent of the order of the limits, to prevent deadlocks.
        let mut order: SmallVec<[usize; 3]> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|limit| Arc::as_ptr(&cells[*limit]).addr());
        let mut full = Error::invalid("no limits");
        // A full store removes expired keys at the second attempt.
        for _ in 0..2 {
            let mut buckets: SmallVec<[Bucket; 3]> = smallvec![Bucket::default(); keys.len()];
            let mut reply = None;
            let mut apply = |buckets: &mut [Bucket], now| {
                reply = Some(operation.clone().apply_to_each(buckets, now));
            };
            let stepped = step_all(&order, cells, keys, &mut buckets, 0, &mut apply);
            let Err((error, changed)) = stepped else {
                return reply.ok_or(full);
            };
            full = error;
            let Some(reply) = reply else { continue };
            for limit in &order[order.len() - changed..] {
                take_back(*limit, &reply);
            }
        }
        cells[order[0]].tell_refused();
        Err(full)
    }

    /// Decides one limit after the other.
    async fn decide_in_order(&self, keys: &[Key], price: Price) -> Result<Decision, Error> {
        let mut charged = ChargedInOrder {
            of: self,
            keys,
            decisions: SmallVec::new(),
        };
        for (limit, (bucket, key)) in self.limits.buckets.iter().zip(keys).enumerate() {
            let sent = clock::micros();
            let decision = Decide::begin(bucket, &bucket.quotas, key, price.of(limit), 0).await?;
            if !decision.is_admitted() {
                return Ok(self.alone(limit, decision));
            }
            charged.decisions.push((decision, sent));
        }
        let decisions = std::mem::take(&mut charged.decisions);
        let states = decisions.into_iter().map(|(decision, _)| decision.state);
        let states: SmallVec<[_; 3]> = states.collect();
        Ok(self.limits.terms.decision(price, None, &states))
    }

    /// Tries again when tokens may be available, until `max_wait` has passed.
    async fn decide_within(self, key: Key, price: Price) -> Result<Decision, Error> {
        let began = Instant::now();
        loop {
            let decision = self.decide_once(&key, price).await?;
            match decision.retry_after() {
                Some(after) if began.elapsed() + after <= self.max_wait => {
                    timer::sleep(after).await
                }
                _ => return Ok(decision),
            }
        }
    }
}

/// Locks the cells one after the other, applies the operation to all of them, and unlocks them. If the store is full,
/// returns the error and the number of cells that were already changed, which are the last ones.
fn step_all(
    order: &[usize],
    cells: &[Arc<Cells<Bucket>>],
    keys: &[Key],
    buckets: &mut [Bucket],
    now: i64,
    apply: &mut impl FnMut(&mut [Bucket], i64),
) -> Result<(), (Error, usize)> {
    let [limit, rest @ ..] = order else {
        apply(buckets, now);
        return Ok(());
    };
    let stepped = cells[*limit].step_among(keys[*limit].as_bytes(), 0, |cell, now| {
        buckets[*limit].clone_from(cell);
        step_all(rest, cells, keys, buckets, now, apply)?;
        cell.clone_from(&buckets[*limit]);
        Ok(())
    });
    stepped.unwrap_or_else(|error| Err((error, rest.len())))
}

/// The charges so far. They are taken back when this is dropped.
struct ChargedInOrder<'a> {
    of: &'a Several,
    keys: &'a [Key],
    /// Per limit: the decision, and the time before the call was sent.
    decisions: SmallVec<[(Decision, i64); 3]>,
}

impl Drop for ChargedInOrder<'_> {
    fn drop(&mut self) {
        let charged = self
            .of
            .limits
            .buckets
            .iter()
            .zip(self.keys)
            .zip(&self.decisions);
        for ((bucket, key), (decision, sent)) in charged {
            bucket.take_back(key, &decision.state, decision.cost.into(), *sent);
        }
    }
}

impl Several {
    /// Whether steps on the holds of these keys, one per limit, are one operation.
    pub(crate) fn are_together(&self, keys: &[Key]) -> bool {
        match &self.limits.places.together {
            Together::Redis(..) => self.are_in_one_place(keys),
            Together::InMemory(_) => true,
            Together::No => false,
        }
    }

    /// Runs steps on the holds of keys that [are together](Self::are_together).
    pub(crate) async fn run_on_holds(
        &self,
        keys: &[Key],
        each: SmallVec<[HoldStep; 1]>,
        all_or_none: bool,
    ) -> Result<HoldReplies, Error> {
        let step = HoldSteps {
            each,
            terms: Some(Arc::clone(&self.limits.terms)),
            all_or_none,
        };
        match &self.limits.places.together {
            Together::Redis(_, client) => client.run(Key::of(keys), step).await,
            Together::InMemory(cells) => self.step(cells, keys, &step, |limit, reply| {
                let release = reply.each[limit].release();
                if let Some(release) = release.filter(|_| reply.is_held()) {
                    let client = &self.limits.buckets[limit].clients.holds.client;
                    client.detach(keys[limit].clone(), HoldSteps::one(release));
                }
            }),
            Together::No => Err(Error::invalid("the limits are in different stores")),
        }
    }

    /// Sends steps on the holds of keys that [are together](Self::are_together), and calls `then` with the reply.
    /// Returns `false` if the buckets are in memory, where nothing is sent.
    pub(crate) fn send_to_holds(
        &self,
        keys: &[Key],
        steps: impl FnOnce() -> SmallVec<[HoldStep; 1]>,
        then: impl FnOnce(Result<HoldReplies, Error>) + Send + 'static,
    ) -> bool {
        let Together::Redis(_, client) = &self.limits.places.together else {
            return false;
        };
        let terms = Arc::clone(&self.limits.terms);
        let step = HoldSteps {
            each: steps(),
            terms: Some(terms),
            all_or_none: false,
        };
        client.send(Handle::try_current().ok(), Key::of(keys), step, then);
        true
    }
}
