//! How several limits are asked: in one step, or one after the other.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::step::{Buckets, Decided, ReserveAll};
use super::{Keys, Several, Together};
use crate::primitive::clock;
use crate::primitive::quota::Quotas;
use crate::primitive::token_bucket::TokenBucket;
use crate::primitive::token_bucket::decision::Decision;
use crate::primitive::token_bucket::local::{Answer, Asked};
use crate::primitive::token_bucket::state::{Ask, Bucket};
use crate::store::{Cells, Client, Operation as _, timer};
use crate::{Error, Key};

impl Several {
    /// Asks for so many tokens of each.
    pub(crate) async fn decide(self, keys: Keys, cost: u32) -> Result<Decision, Error> {
        let (some, keys) = self.with_keys(&keys);
        let this = some.as_ref().unwrap_or(&self);
        if keys.is_empty() {
            return Ok(Decision::free(self.terms.all().clone()));
        }
        let most = this.terms.all().max_cost();
        if cost > most {
            return Err(Error::exceeds_burst(cost, most));
        }
        if cost == 0 {
            return Ok(Decision::free(this.terms.all().clone()));
        }
        // What is being given back goes first.
        for (bucket, key) in this.buckets.iter().zip(&keys) {
            if let Some(end) = bucket.clients.returning.end(key) {
                end.await;
            }
        }
        let decided = match &this.places.together {
            Together::Redis(client) if this.are_in_one_place(&keys) => {
                return this.decide_on(client, &keys, cost).await;
            }
            Together::InMemory(cells) => this.step(cells, &keys, cost),
            _ => return this.decide_in_order(&keys, cost).await,
        };
        decided.map(|decided| decided.decision())
    }

    /// Whether a script may touch all of them.
    fn are_in_one_place(&self, keys: &[Key]) -> bool {
        let slot =
            |(bucket, key): (&TokenBucket, &Key)| -> Option<u16> { bucket.clients.namespace.slot(key) };
        let mut slots = self.buckets.iter().zip(keys).map(slot);
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// In one call, where no limit is known to refuse.
    async fn decide_on(
        &self,
        client: &Client<ReserveAll>,
        keys: &[Key],
        cost: u32,
    ) -> Result<Decision, Error> {
        let mut asked: SmallVec<[Option<Asked>; 3]> = SmallVec::new();
        for (limit, (bucket, key)) in self.buckets.iter().zip(keys).enumerate() {
            match bucket.answer(key, Ask { cost: cost.into(), wait: 0 }) {
                Some(Answer::Known(decision)) => return Ok(self.alone(limit, decision)),
                Some(Answer::Ask(one)) => asked.push(Some(one)),
                None => asked.push(None),
            }
        }
        let key = if let [key] = keys { Key::of([key]) } else { Key::of(keys) };
        let decided =
            client.run(key, ReserveAll { terms: Arc::clone(&self.terms), cost: cost.into() }).await?;
        for (asked, state) in asked.into_iter().zip(&decided.states) {
            if let Some(asked) = asked {
                asked.answered(&decided.of_limit(state));
            }
        }
        Ok(decided.decision())
    }

    /// The decision, where it takes neither a wait nor another process.
    pub(crate) fn at_once(
        &self,
        quotas: Option<&Quotas>,
        keys: &Keys,
        cost: u32,
    ) -> Option<Result<Decision, Error>> {
        let other = quotas.map(|quotas| self.with_quotas_of_first(quotas));
        let this = other.as_ref().unwrap_or(self);
        if keys.iter().any(Option::is_none) || cost > this.terms.all().max_cost() {
            return None;
        }
        let keys: SmallVec<[Key; 3]> = keys.iter().flatten().cloned().collect();
        if let Together::InMemory(cells) = &this.places.together {
            return Some(this.step(cells, &keys, cost).map(|decided| decided.decision()));
        }
        let ask = Ask { cost: cost.into(), wait: 0 };
        let mut known = this.buckets.iter().zip(&keys).enumerate().filter_map(|(limit, (bucket, key))| {
            let decision = bucket.local.known(&bucket.quotas, key, ask)?;
            Some(this.alone(limit, decision))
        });
        known.next().map(Ok)
    }

    /// In one step, with the states of all buckets locked.
    fn step(&self, cells: &[Arc<Cells<Bucket>>], keys: &[Key], cost: u32) -> Result<Decided, Error> {
        let reserve = ReserveAll { terms: Arc::clone(&self.terms), cost: cost.into() };
        // Who locks several does it in one order, whatever theirs is.
        let mut order: SmallVec<[usize; 3]> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|limit| Arc::as_ptr(&cells[*limit]).addr());
        let mut buckets = Buckets((0..keys.len()).map(|_| Bucket::default()).collect());
        let decided = step_all(&order, cells, keys, &mut buckets, reserve);
        if let Err((_, Some(decided))) = &decided {
            // A store that is full took some of them, and not the others.
            self.undo(keys, decided);
        }
        decided.map_err(|(error, _)| error)
    }

    fn undo(&self, keys: &[Key], decided: &Decided) {
        if decided.admitted {
            for ((bucket, key), state) in self.buckets.iter().zip(keys).zip(&decided.states) {
                bucket.take_back(key.clone(), &decided.of_limit(state), clock::micros());
            }
        }
    }

    /// One after the other.
    async fn decide_in_order(&self, keys: &[Key], cost: u32) -> Result<Decision, Error> {
        let mut charged = Charged { of: self, keys, decisions: SmallVec::new() };
        for (limit, (bucket, key)) in self.buckets.iter().zip(keys).enumerate() {
            let sent = clock::micros();
            let decision = bucket.clone().acquire(key.clone(), cost).await?;
            if !decision.is_admitted() {
                return Ok(self.alone(limit, decision));
            }
            charged.decisions.push((decision, sent));
        }
        let decisions = std::mem::take(&mut charged.decisions);
        let states = decisions.into_iter().map(|(decision, _)| decision.state).collect();
        let terms = Arc::clone(&self.terms);
        Ok(Decided { terms, cost: cost.into(), admitted: true, states }.decision())
    }

    pub(crate) fn acquire(&self, keys: Keys, cost: u32, max_wait: Duration) -> AcquireAll {
        let future = Box::pin(self.clone().decide_within(keys.clone(), cost, max_wait));
        AcquireAll { several: self.clone(), keys, cost, max_wait, future }
    }

    /// Asks again when there may be tokens, for so long.
    async fn decide_within(self, keys: Keys, cost: u32, max_wait: Duration) -> Result<Decision, Error> {
        let began = Instant::now();
        loop {
            let decision = self.clone().decide(keys.clone(), cost).await?;
            match decision.retry_after() {
                Some(after) if began.elapsed() + after <= max_wait => timer::sleep(after).await,
                _ => return Ok(decision),
            }
        }
    }
}

/// Locks the cell of one limit after the other, takes the step on them together, and unlocks them. Where a store is full, an
/// error, and with it the decision where some of the cells have kept it.
fn step_all(
    order: &[usize],
    cells: &[Arc<Cells<Bucket>>],
    keys: &[Key],
    buckets: &mut Buckets,
    reserve: ReserveAll,
) -> Result<Decided, (Error, Option<Decided>)> {
    let (limit, rest) = match order {
        [limit, rest @ ..] => (*limit, rest),
        [] => return Err((Error::invalid("no limits"), None)),
    };
    let mut decided = None;
    let stepped = cells[limit].step(keys[limit].as_bytes(), |cell, now| {
        buckets.0[limit] = std::mem::take(cell);
        let result = match rest {
            [] => Ok(reserve.apply(buckets, now)),
            rest => step_all(rest, cells, keys, buckets, reserve),
        };
        *cell = std::mem::take(&mut buckets.0[limit]);
        decided = Some(result);
    });
    match (stepped, decided) {
        (Ok(()), Some(decided)) => decided,
        (Err(error), Some(Ok(decided))) => Err((error, Some(decided))),
        (Err(error), Some(Err((_, decided)))) => Err((error, decided)),
        (Err(error), None) => Err((error, None)),
        (Ok(()), None) => Err((Error::invalid("no step"), None)),
    }
}

/// What was charged on the way: taken back when this is dropped.
struct Charged<'a> {
    of: &'a Several,
    keys: &'a [Key],
    /// By limit, and before it was asked.
    decisions: SmallVec<[(Decision, i64); 3]>,
}

impl Drop for Charged<'_> {
    fn drop(&mut self) {
        let charged = self.of.buckets.iter().zip(self.keys).zip(&self.decisions);
        for ((bucket, key), (decision, sent)) in charged {
            bucket.take_back(key.clone(), decision, *sent);
        }
    }
}

/// A decision under way, which may be waited for.
pub(crate) struct AcquireAll {
    several: Several,
    keys: Keys,
    cost: u32,
    max_wait: Duration,
    future: BoxFuture<'static, Result<Decision, Error>>,
}

impl AcquireAll {
    /// The same request of other limits.
    pub(crate) fn again(&self, several: impl FnOnce(&Several) -> Several) -> Self {
        several(&self.several).acquire(self.keys.clone(), self.cost, self.max_wait)
    }
}

impl Future for AcquireAll {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.future.as_mut().poll(context)
    }
}

impl fmt::Debug for AcquireAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireAll").field("several", &self.several).finish_non_exhaustive()
    }
}
