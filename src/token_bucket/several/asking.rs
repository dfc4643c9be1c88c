//! Asks several limits: in one operation, or one after the other.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::step::{Buckets, Decided, ReserveAll};
use super::{Several, Together, keys_of};
use crate::store::{Cells, Client, Operation as _, timer};
use crate::token_bucket::TokenBucket;
use crate::token_bucket::acquire::{Decide, Decides};
use crate::token_bucket::decision::Decision;
use crate::token_bucket::local::Asked;
use crate::token_bucket::state::{Ask, Bucket};
use crate::{Error, Key, clock};

impl Several {
    /// Begins to ask each limit for `cost` tokens. `key` combines the keys of the limits.
    pub(crate) fn decide(&self, key: &Key, cost: u32) -> Decide<ReserveAll> {
        match self.max_wait.is_zero() {
            true => self.decide_once(key, cost),
            false => Decide::Later(Box::pin(self.clone().decide_within(key.clone(), cost))),
        }
    }

    fn decide_once(&self, key: &Key, cost: u32) -> Decide<ReserveAll> {
        let keys = keys_of(key);
        let (count, limits) = (keys.len(), self.limits.buckets.len());
        if count != limits {
            let text = format!("the number of keys must be {limits}, is {count}");
            return Err(Error::invalid(text)).into();
        }
        if keys.iter().all(Option::is_none) {
            return Ok(Decision::free(self.limits.terms.all.clone())).into();
        }
        let some = keys.iter().any(Option::is_none).then(|| self.with_keys(&keys));
        let there: SmallVec<[Key; 3]> = keys.into_iter().flatten().collect();
        match some {
            Some(some) => some.decide_all(&Key::of(&there), there, cost),
            None => self.decide_all(key, there, cost),
        }
    }

    /// As `decide_once`, for limits that all have a key.
    fn decide_all(&self, key: &Key, keys: SmallVec<[Key; 3]>, cost: u32) -> Decide<ReserveAll> {
        if let Some(decided) = Decision::without_state(&self.limits.terms.all, cost) {
            return decided.into();
        }
        match &self.limits.places.together {
            Together::Redis(client) if self.are_in_one_place(&keys) => {
                self.decide_on(client, key, keys, cost)
            }
            Together::InMemory(cells) => {
                self.step(cells, &keys, cost).map(|decided| decided.decision()).into()
            }
            _ => {
                let this = self.clone();
                Decide::Later(Box::pin(async move { this.decide_in_order(&keys, cost).await }))
            }
        }
    }

    /// Whether one script may access all keys.
    fn are_in_one_place(&self, keys: &[Key]) -> bool {
        let slot =
            |(bucket, key): (&TokenBucket, &Key)| -> Option<u16> { bucket.clients.namespace.slot(key) };
        let mut slots = self.limits.buckets.iter().zip(keys).map(slot);
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// Asks in one call, unless a limit has a cached refusal.
    fn decide_on(
        &self,
        client: &Client<ReserveAll>,
        key: &Key,
        keys: SmallVec<[Key; 3]>,
        cost: u32,
    ) -> Decide<ReserveAll> {
        let (now, ask) = (clock::micros(), Ask { cost: cost.into(), wait: 0 });
        let (mut asked, mut ends) = (SmallVec::new(), SmallVec::<[_; 1]>::new());
        for (limit, (bucket, key)) in self.limits.buckets.iter().zip(keys).enumerate() {
            ends.extend(bucket.clients.returning.end(&key));
            match bucket.local.answer(&bucket.clients, &bucket.quotas, Cow::Owned(key), || now, ask, false) {
                ControlFlow::Break(refusal) => return Ok(self.alone(limit, refusal)).into(),
                ControlFlow::Continue(one) => asked.push(one),
            }
        }
        let reserve = ReserveAll { terms: Arc::clone(&self.limits.terms), cost: cost.into() };
        Decide::Asking(client.run(key.clone(), reserve), asked).after(ends)
    }

    /// Decides in one operation, with the states of all buckets locked.
    fn step(&self, cells: &[Arc<Cells<Bucket>>], keys: &[Key], cost: u32) -> Result<Decided, Error> {
        let reserve = ReserveAll { terms: Arc::clone(&self.limits.terms), cost: cost.into() };
        // Cells are locked in one global order, independent of the order of the limits, to prevent deadlocks.
        let mut order: SmallVec<[usize; 3]> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|limit| Arc::as_ptr(&cells[*limit]).addr());
        let mut full = Error::invalid("no limits");
        // A full store removes expired keys when it is asked a second time.
        for _ in 0..2 {
            let mut buckets = Buckets((0..keys.len()).map(|_| Bucket::default()).collect());
            let mut decided = None;
            let mut apply = |buckets: &mut Buckets, now| decided = Some(reserve.clone().apply(buckets, now));
            let stepped = step_all(&order, cells, keys, &mut buckets, 0, &mut apply);
            let Err((error, changed)) = stepped else { return decided.ok_or(full) };
            full = error;
            let Some(decided) = decided.filter(|decided| decided.admitted) else { continue };
            for limit in &order[order.len() - changed..] {
                let (state, sent) = (&decided.states[*limit], clock::micros());
                self.limits.buckets[*limit].take_back(&keys[*limit], state, decided.cost, sent);
            }
        }
        cells[order[0]].tell_refused();
        Err(full)
    }

    /// Asks one limit after the other.
    async fn decide_in_order(&self, keys: &[Key], cost: u32) -> Result<Decision, Error> {
        let mut charged = Charged { of: self, keys, decisions: SmallVec::new() };
        for (limit, (bucket, key)) in self.limits.buckets.iter().zip(keys).enumerate() {
            let sent = clock::micros();
            let decision = Decide::begin(bucket, &bucket.quotas, key, cost, 0).await?;
            if !decision.is_admitted() {
                return Ok(self.alone(limit, decision));
            }
            charged.decisions.push((decision, sent));
        }
        let decisions = std::mem::take(&mut charged.decisions);
        let states = decisions.into_iter().map(|(decision, _)| decision.state).collect();
        let terms = Arc::clone(&self.limits.terms);
        Ok(Decided { terms, cost: cost.into(), admitted: true, states }.decision())
    }

    /// Asks again when there may be tokens, until `max_wait` has passed.
    async fn decide_within(self, key: Key, cost: u32) -> Result<Decision, Error> {
        let began = Instant::now();
        loop {
            let decision = self.decide_once(&key, cost).await?;
            match decision.retry_after() {
                Some(after) if began.elapsed() + after <= self.max_wait => timer::sleep(after).await,
                _ => return Ok(decision),
            }
        }
    }
}

/// Locks the cells one after the other, applies the operation to all of them, and unlocks them. Returns the error of a
/// full store, and the number of cells, the last ones, that were changed nevertheless.
fn step_all(
    order: &[usize],
    cells: &[Arc<Cells<Bucket>>],
    keys: &[Key],
    buckets: &mut Buckets,
    now: i64,
    apply: &mut impl FnMut(&mut Buckets, i64),
) -> Result<(), (Error, usize)> {
    let [limit, rest @ ..] = order else {
        apply(buckets, now);
        return Ok(());
    };
    let stepped = cells[*limit].step_among(keys[*limit].as_bytes(), |cell, now| {
        buckets.0[*limit].clone_from(cell);
        step_all(rest, cells, keys, buckets, now, apply)?;
        cell.clone_from(&buckets.0[*limit]);
        Ok(())
    });
    stepped.unwrap_or_else(|error| Err((error, rest.len())))
}

/// The charges so far. They are taken back when this is dropped.
struct Charged<'a> {
    of: &'a Several,
    keys: &'a [Key],
    /// Per limit: the decision, and the time before the limit was asked.
    decisions: SmallVec<[(Decision, i64); 3]>,
}

impl Drop for Charged<'_> {
    fn drop(&mut self) {
        let charged = self.of.limits.buckets.iter().zip(self.keys).zip(&self.decisions);
        for ((bucket, key), (decision, sent)) in charged {
            bucket.take_back(key, &decision.state, decision.cost.into(), *sent);
        }
    }
}

impl Decides for ReserveAll {
    /// One per limit.
    type Asked = SmallVec<[Option<Asked>; 3]>;

    fn decision(decided: Decided, asked: &mut Self::Asked) -> Decision {
        for (asked, state) in asked.drain(..).zip(&decided.states) {
            if let Some(asked) = asked {
                asked.answered(decided.admitted || decided.has(state), state);
            }
        }
        decided.decision()
    }
}
