//! The holds of one request, one of each limit that has a key.

#[cfg(test)]
mod tests;

use std::future::pending;
use std::sync::Arc;

use futures_util::future::{join_all, select_all};
use smallvec::SmallVec;

use super::calls::or_release;
use super::hold::{Captured, Hold};
use super::operation::{HoldReply, Outcome, Verb};
use super::state::MOST;
use super::{OnEnd, Usage};
use crate::token_bucket::quota::Quotas;
use crate::token_bucket::several::{Keys, Price, Several, Steps};
#[cfg(feature = "http")]
use crate::token_bucket::upstream::UpstreamEvents;
use crate::token_bucket::{Decision, TokenBucket};
use crate::{Error, Key, clock};

/// The holds of one request. If all limits [are together](Several::are_together), each step on them is one operation, and each
/// limit has one hold.
///
/// Otherwise each hold is authorized, renewed and captured by itself; and extended by another hold, which can be released if
/// a later limit refuses. Such holds are released when they end by themselves, and a capture after that charges nothing: so a
/// capture can be sent any number of times, in any order.
#[derive(Debug)]
pub(crate) struct HoldSet {
    /// The limits that have a key.
    limits: Several,
    /// Their positions among all limits of the request, and their keys.
    places: SmallVec<[usize; 3]>,
    keys: SmallVec<[Key; 3]>,
    /// What each of them has used.
    usages: SmallVec<[Usage; 3]>,
    are_together: bool,
    /// With the positions of their limits in `limits`.
    holds: Holds,
    decision: Decision,
    /// The quotas of all limits of the request.
    pub(super) quotas: Arc<[Quotas]>,
}

type Holds = SmallVec<[(usize, Hold); 3]>;
type Amounts = SmallVec<[u32; 3]>;
/// By the positions of the limits.
type Results = SmallVec<[(usize, Captured); 3]>;

impl HoldSet {
    /// Holds tokens of all limits that have a key, or of none. `amounts` and `usages` are those of all limits.
    pub(crate) async fn authorize(
        limits: &Several,
        keys: Keys,
        amounts: &[u32],
        usages: &[Usage],
    ) -> Result<Self, Error> {
        let quotas: Arc<[Quotas]> = limits
            .buckets()
            .iter()
            .map(|bucket| bucket.quotas.clone())
            .collect();
        let places: SmallVec<[usize; 3]> = (0..keys.len())
            .filter(|limit| keys[*limit].is_some())
            .collect();
        let some = !places.is_empty() && places.len() < keys.len();
        let limits = if some {
            limits.with_keys(&keys)
        } else {
            limits.clone()
        };
        let amounts: Amounts = places.iter().map(|limit| amounts[*limit]).collect();
        for (limit, (bucket, amount)) in limits.buckets().iter().zip(&amounts).enumerate() {
            bucket
                .check_amount(*amount)
                .map_err(|error| refusal_of(&limits, limit, error))?;
        }
        let keys: SmallVec<[Key; 3]> = keys.into_iter().flatten().collect();
        let (are_together, holds, mut decision);
        if keys.is_empty() {
            (are_together, holds, decision) = (true, Holds::new(), limits.free());
        } else {
            let usages = places.iter().map(|limit| usages[*limit].clone());
            are_together = limits.are_together(&keys);
            holds = match are_together {
                true => authorize_together(&limits, &keys, &amounts, usages).await?,
                false => authorize_in_order(&limits, &keys, &amounts).await?,
            };
            let states = holds.iter().map(|(_, hold)| hold.state.clone());
            decision = limits.decided(Price::new(amounts), None, states);
            decision.key = Some(Key::of(&keys));
        }
        let usages = places.iter().map(|limit| usages[*limit].clone()).collect();
        Ok(Self {
            limits,
            places,
            keys,
            usages,
            are_together,
            holds,
            decision,
            quotas,
        })
    }

    /// Holds more tokens of all limits, or of none.
    pub(super) async fn extend(&mut self, more: &[u32]) -> Result<(), Error> {
        let more: Amounts = self.places.iter().map(|limit| more[*limit]).collect();
        for (limit, bucket) in self.limits.buckets().iter().enumerate().take(more.len()) {
            let (amount, most) = (
                self.amount(limit).saturating_add(more[limit]),
                bucket.quotas.max_cost(),
            );
            if amount > most {
                return Err(Error::exceeds_burst(amount, most));
            }
        }
        if self.holds.is_empty() {
            return Ok(());
        }
        if !self.are_together {
            if !self.is_held() {
                return Err(Error::lost());
            }
            self.holds
                .extend(authorize_in_order(&self.limits, &self.keys, &more).await?);
            return Ok(());
        }
        let amounts: Amounts = self
            .holds
            .iter()
            .map(|(limit, hold)| hold.amount + more[*limit])
            .collect();
        let step = |((_, hold), amount): (&(usize, Hold), &u32)| {
            hold.step(Verb::Extend {
                amount: *amount,
                ttl: hold.bucket.holding.ttl,
            })
        };
        let (steps, sent) = (
            self.holds.iter().zip(&amounts).map(step).collect(),
            clock::now(),
        );
        let reply = self.limits.run_on_holds(&self.keys, steps, true).await?;
        let all_held = reply.is_held();
        if let (false, None, refused) = (
            all_held,
            reply.first(Outcome::Ended),
            reply.first(Outcome::Refused),
        ) {
            let states = reply.each.into_iter().map(|reply| reply.state);
            return Err(self
                .limits
                .decided(Price::new(more), refused, states)
                .refused());
        }
        for (((_, hold), amount), reply) in self.holds.iter_mut().zip(amounts).zip(reply.each) {
            match reply.outcome {
                Outcome::Held if all_held => hold.extended(amount, sent, reply.state),
                Outcome::Ended => hold.validity.end(),
                _ => {}
            }
        }
        if all_held { Ok(()) } else { Err(Error::lost()) }
    }

    /// Captures the amounts, which are those of all limits, also if the future is dropped before it was polled. Returns the
    /// results by the positions of the limits.
    pub(super) fn capture(
        mut self,
        amounts: &[u32],
    ) -> impl Future<Output = Result<Results, Error>> + Send + use<> {
        let amounts: Amounts = self.places.iter().map(|limit| amounts[*limit]).collect();
        let portions = self.portions(&amounts);
        let (mut captures, mut lates, mut steps) = (Vec::new(), Amounts::new(), Steps::new());
        if self.are_together {
            for ((_, hold), n) in self.holds.iter_mut().zip(&portions) {
                let verb = hold.ends(*n);
                lates.push(hold.late(*n));
                steps.push(hold.step(verb));
            }
        } else {
            let holds = std::mem::take(&mut self.holds).into_iter().zip(&portions);
            captures.extend(holds.map(|((limit, hold), n)| {
                let (place, captured) = (self.places[limit], hold.capture_if_held(*n));
                async move { (place, captured.await) }
            }));
        }
        async move {
            if !self.are_together {
                return merged(join_all(captures).await);
            }
            if self.holds.is_empty() {
                return Ok(Results::new());
            }
            let mut reply = self.limits.run_on_holds(&self.keys, steps, false).await?;
            let ended = |(late, reply): (&u32, &HoldReply)| {
                if reply.outcome == Outcome::Ended {
                    *late
                } else {
                    0
                }
            };
            let charged: Amounts = lates.iter().zip(&reply.each).map(ended).collect();
            if charged.iter().any(|late| *late > 0) {
                let late = |((_, hold), late): (&(usize, Hold), &u32)| hold.step(Verb::late(*late));
                let steps = self.holds.iter().zip(&charged).map(late).collect();
                let after = self.limits.run_on_holds(&self.keys, steps, false).await?;
                for (reply, after) in reply.each.iter_mut().zip(after.each) {
                    reply.state = after.state;
                }
            }
            let each = self
                .holds
                .iter_mut()
                .zip(portions)
                .zip(lates)
                .zip(reply.each);
            let captured = each.map(|((((limit, hold), n), late), reply)| {
                (self.places[*limit], hold.ended(n, late, reply))
            });
            Ok(captured.collect())
        }
    }

    pub(crate) async fn lost(&self) {
        if self.holds.is_empty() {
            return pending().await;
        }
        select_all(self.holds.iter().map(|(_, hold)| Box::pin(hold.lost()))).await;
    }

    pub(super) fn is_held(&self) -> bool {
        self.holds.iter().all(|(_, hold)| hold.is_held())
    }

    /// The tokens that are held of the limit at this position among all limits.
    pub(super) fn amount_of(&self, place: usize) -> u32 {
        self.places
            .iter()
            .position(|of| *of == place)
            .map_or(0, |limit| self.amount(limit))
    }

    pub(crate) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Lets its drop capture at least what is held of each limit.
    pub(crate) fn capture_at_least_held(&mut self) {
        self.holds
            .iter_mut()
            .for_each(|(_, hold)| hold.capture_at_least_held());
    }

    /// Of the first limit that has a key.
    #[cfg(feature = "http")]
    pub(crate) fn upstream(&self) -> Option<&UpstreamEvents> {
        self.holds.first().map(|(_, hold)| hold.upstream())
    }

    fn amount(&self, limit: usize) -> u32 {
        let of = self.holds.iter().filter(|(of, _)| *of == limit);
        of.fold(0, |sum: u32, (_, hold)| sum.saturating_add(hold.amount))
    }

    /// Divides an amount of each limit among its holds: as much as each holds, and the rest to the last.
    fn portions(&self, amounts: &[u32]) -> Amounts {
        let mut left = Amounts::from_slice(amounts);
        let portion = |(at, (limit, hold)): (usize, &(usize, Hold))| {
            let is_last = self.holds[at + 1..].iter().all(|(of, _)| of != limit);
            let portion = if is_last {
                left[*limit]
            } else {
                left[*limit].min(hold.amount)
            };
            left[*limit] -= portion;
            portion
        };
        self.holds.iter().enumerate().map(portion).collect()
    }
}

/// Joins the results of the holds of each limit.
fn merged(captured: Vec<(usize, Result<Captured, Error>)>) -> Result<Results, Error> {
    let mut results = Results::new();
    for (limit, captured) in captured {
        let captured = captured?;
        match results.iter_mut().find(|(of, _)| *of == limit) {
            None => results.push((limit, captured)),
            Some((_, of)) => {
                of.charged = of.charged.saturating_add(captured.charged);
                of.excess = of.excess.saturating_add(captured.excess);
                of.ended |= captured.ended;
                of.state = captured.state;
            }
        }
    }
    Ok(results)
}

/// Holds tokens of all limits in one operation.
async fn authorize_together(
    limits: &Several,
    keys: &[Key],
    amounts: &[u32],
    usages: impl Iterator<Item = Usage>,
) -> Result<Holds, Error> {
    let (id, sent) = (limits.buckets()[0].clients.holds.next_id(), clock::now());
    let each = || limits.buckets().iter().zip(keys).zip(amounts);
    let steps = each()
        .map(|((bucket, _), amount)| bucket.authorizing(id, *amount))
        .collect();
    let release = || each().for_each(|((bucket, key), _)| bucket.release_unsure(key, id, sent));
    let reply = or_release(limits.run_on_holds(keys, steps, true), release).await?;
    if !reply.is_held() {
        let Some(refused) = reply.first(Outcome::Refused) else {
            return Err(Error::overloaded(format!(
                "a key has {MOST} holds, and can have no more"
            )));
        };
        let states = reply.each.into_iter().map(|reply| reply.state);
        let price = Price::new(amounts.iter().copied());
        return Err(limits.decided(price, Some(refused), states).refused());
    }
    let held =
        each()
            .zip(usages)
            .zip(reply.each)
            .map(|((((bucket, key), amount), usage), reply)| {
                bucket.held(key.clone(), (id, *amount), usage, sent, reply.state)
            });
    Ok(held.enumerate().collect())
}

/// The refusal of one limit, as one of several.
fn refusal_of(limits: &Several, limit: usize, error: Error) -> Error {
    let refused = error
        .decision()
        .map(|decision| limits.alone(limit, decision.clone()).refused());
    refused.unwrap_or(error)
}

/// Holds tokens of one limit after the other, of those of which there is an amount. If one refuses, or the future is dropped,
/// those before it are released.
async fn authorize_in_order(
    limits: &Several,
    keys: &[Key],
    amounts: &[u32],
) -> Result<Holds, Error> {
    let mut held = Holds::new();
    for (limit, ((bucket, key), amount)) in
        limits.buckets().iter().zip(keys).zip(amounts).enumerate()
    {
        if *amount == 0 {
            continue;
        }
        // If another limit refuses, this one charges nothing: neither when the hold is dropped, nor after a crash.
        match bucket
            .with_on_end(OnEnd::Release)
            .hold(key.clone(), *amount)
            .await
        {
            Ok(hold) => held.push((limit, hold)),
            Err(error) => return Err(refusal_of(limits, limit, error)),
        }
    }
    Ok(held)
}

impl Drop for HoldSet {
    fn drop(&mut self) {
        if self.holds.is_empty() {
            return;
        }
        if !self.are_together {
            let charge = |(limit, (bucket, usage)): (usize, (&TokenBucket, &Usage))| {
                let captures = bucket.holding.on_end(&bucket.quotas) == OnEnd::Capture;
                let held = self.amount(limit);
                let least = if self.holds.iter().any(|(_, hold)| hold.at_least_held) {
                    held
                } else {
                    0
                };
                usage
                    .get()
                    .unwrap_or(if captures { held } else { 0 })
                    .max(least)
            };
            let amounts: Amounts = self
                .limits
                .buckets()
                .iter()
                .zip(&self.usages)
                .enumerate()
                .map(charge)
                .collect();
            let portions = self.portions(&amounts);
            // Each hold captures its part when it is dropped.
            for ((_, hold), portion) in self.holds.iter_mut().zip(portions) {
                hold.ends(portion);
            }
            return;
        }
        if self.holds.iter().any(|(_, hold)| hold.has_ended()) {
            return;
        }
        let renewals =
            |(_, hold): &(usize, Hold)| (Arc::clone(&hold.bucket.clients.holds), hold.id);
        let owed: SmallVec<[_; 3]> = self.holds.iter().map(renewals).collect();
        let (sent, holds) = (clock::now(), &mut self.holds);
        let steps = || {
            holds
                .iter_mut()
                .filter_map(|(_, hold)| hold.dropped())
                .collect()
        };
        // In memory, each hold ends by its drop.
        self.limits.send_to_holds(&self.keys, steps, move |reply| {
            for (at, (renewals, id)) in owed.into_iter().enumerate() {
                let outcome = reply
                    .as_ref()
                    .map(|reply| reply.each[at].outcome)
                    .map_err(Error::clone);
                renewals.answered(id, sent, true, outcome);
            }
        });
    }
}
