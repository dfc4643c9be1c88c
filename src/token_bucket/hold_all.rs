//! Held tokens of several limits: [`HoldAll`], and the [`HoldSet`] it is based on, which layers use too.

#[cfg(test)]
mod tests;

use std::array;
use std::future::pending;
use std::sync::Arc;

use futures_util::future::{join_all, select_all};
use smallvec::SmallVec;
use tokio::task::coop::consume_budget;

use crate::bucket::Bucket;
use crate::bucket::charge::{Costs, Price};
use crate::bucket::decision::{BucketState, Decision};
use crate::bucket::hold::{HoldReply, Outcome, Verb};
use crate::bucket::holds::{MOST, OnEnd};
use crate::bucket::quotas::Quotas;
use crate::clock;
use crate::error::Error;
use crate::key::IntoKey;
use crate::key::Key;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::hold::{Captured, Hold, Usage, or_release};
use crate::token_bucket::limits::{Keys, Several, TokenBuckets, extracted};
#[cfg(feature = "http")]
use crate::token_bucket::upstream::UpstreamEvents;

/// Held tokens of several limits. [`capture`](Self::capture) charges the used ones. Like [`Hold`].
///
/// If it is dropped, the [usage](Self::usage) of each limit counted so far is captured in the background. A limit
/// without a counted usage ends as set by [`OnEnd`].
#[derive(Debug)]
#[must_use = "what is held ends at once if it is dropped"]
pub struct HoldAll<const N: usize> {
    set: HoldSet,
    usage: [Usage; N],
}

impl<const N: usize> TokenBuckets<N> {
    /// Holds `n` tokens of each bucket, or the numbers in an array, if all buckets have these tokens now. Like
    /// [`TokenBucket::authorize`](crate::TokenBucket::authorize).
    ///
    /// A limit whose key is `None` is skipped, and later captures do not charge it. Each key has at most 1024 holds at
    /// a time, so a limit with one key for all requests has at most 1024 requests in flight.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # let store = Store::in_memory();
    /// let requests = TokenBucket::new(&store, "requests", Quota::per_hour(60))?;
    /// let tokens = TokenBucket::new(&store, "tokens", Quota::per_hour(2000))?;
    /// let limits = TokenBuckets::new([requests.clone(), tokens.clone()])?;
    ///
    /// let hold = limits.authorize(["acme", "acme"], [1, 1200]).await?;
    /// let refused = limits.authorize(["acme", "acme"], [1, 1200]).await.unwrap_err();
    /// assert_eq!(refused.decision().and_then(|decision| decision.refused_by()), Some("tokens"));
    /// let [_, captured] = hold.capture([1, 831]).await?;
    /// assert_eq!((captured.charged, captured.state.remaining()), (831, 1169));
    /// assert_eq!(requests.peek("acme").await?.remaining(), 59);
    /// # Ok(()) }
    /// ```
    ///
    /// # One operation, or one after the other
    ///
    /// As for [decisions](TokenBuckets#one-operation-or-one-after-the-other): in one store that is not a Cluster, all
    /// limits are authorized in one call, and captured in one. Otherwise the limits are authorized one after the other,
    /// and released if one refuses. In that case, the hold of a process that crashes is released regardless of
    /// [`OnEnd`], so that no limit is charged for a request that another limit refused; and a capture after the end of
    /// a hold charges nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`TokenBucket::authorize`](crate::TokenBucket::authorize). The [decision](Error::decision) on a
    /// refusal names the limit that refused.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, holds that it authorized are released in the background.
    pub async fn authorize<K: IntoKey>(
        &self,
        keys: [K; N],
        n: impl Costs<N>,
    ) -> Result<HoldAll<N>, Error> {
        let keys = extracted(keys)?;
        let usage = array::from_fn(|_| Usage::default());
        // Yields to other tasks regularly, before anything is held: in memory, this call has no other await point that
        // waits.
        consume_budget().await;
        let set = HoldSet::authorize(self.several(), keys, &n.each(), &usage).await;
        self.several()
            .decisions()
            .admitted(set)
            .map(|set| HoldAll { set, usage })
    }
}

impl<const N: usize> HoldAll<N> {
    /// Holds `more` tokens of each limit in addition, or the numbers in an array, if all of them are available now. On
    /// a Cluster, and if the limits are in several stores, each call takes one more of the 1024 holds of each key.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # let store = Store::in_memory();
    /// let tenants = TokenBucket::new(&store, "tenants", Quota::per_hour(2000))?;
    /// let all = TokenBucket::new(&store, "all", Quota::per_hour(5000))?;
    /// let mut hold = TokenBuckets::new([tenants, all])?.authorize(["acme", "-"], 1200).await?;
    /// hold.extend(500).await?;
    /// assert_eq!(hold.held(), [1700, 1700]);
    /// assert!(hold.extend([0, 3301]).await.is_err_and(|error| error.is_exceeds_limit()));
    /// # hold.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Hold::extend`]. If one limit refuses, all holds are unchanged.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the tokens may be held in addition, until this hold ends.
    pub async fn extend(&mut self, more: impl Costs<N>) -> Result<(), Error> {
        self.set.extend(&more.each()).await
    }

    /// Charges `n` tokens of each limit now, or the numbers in an array, and releases the rest. Like [`Hold::capture`],
    /// for each limit.
    ///
    /// # Errors
    ///
    /// The errors of [`Hold::capture`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the captures are sent in the background.
    pub fn capture(
        self,
        n: impl Costs<N>,
    ) -> impl Future<Output = Result<[Captured; N], Error>> + Send {
        let limits = Arc::clone(&self.set.quotas);
        let captured = self.set.capture(&n.each());
        async move {
            let captured = captured.await?;
            Ok(array::from_fn(|limit| {
                match captured.iter().find(|(of, _)| *of == limit) {
                    Some((_, captured)) => captured.clone(),
                    // The limit has no key.
                    None => {
                        let quotas = limits[limit].clone();
                        let state = BucketState {
                            bucket: Bucket::full(&quotas),
                            quotas,
                            now: 0,
                        };
                        Captured {
                            charged: 0,
                            excess: 0,
                            ended: false,
                            state,
                        }
                    }
                }
            }))
        }
    }

    /// Releases the held tokens of all limits, and charges nothing. Returns whether all of them were still held.
    ///
    /// # Errors
    ///
    /// The errors of [`capture`](Self::capture).
    pub fn release(self) -> impl Future<Output = Result<bool, Error>> + Send {
        let released = self.set.capture(&[0; N]);
        async move { Ok(released.await?.iter().all(|(_, captured)| !captured.ended)) }
    }

    /// Waits until this process knows that the hold of one of the limits has ended. Like [`Hold::lost`].
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time.
    pub async fn lost(&self) {
        self.set.lost().await;
    }

    /// Returns whether all limits are certainly held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.set.is_held()
    }

    /// Returns the number of held tokens of each limit; 0 for a limit without a key.
    #[must_use]
    pub fn held(&self) -> [u32; N] {
        array::from_fn(|limit| self.set.amount_of(limit))
    }

    /// Returns the usage of each limit so far, which the caller adds to. It is captured if the hold is dropped.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # let store = Store::in_memory();
    /// let requests = TokenBucket::new(&store, "requests", Quota::per_hour(60))?;
    /// let tokens = TokenBucket::new(&store, "tokens", Quota::per_hour(2000))?;
    /// let hold = TokenBuckets::new([requests, tokens.clone()])?.authorize(["acme", "acme"], [1, 1200]).await?;
    /// let [_, used] = hold.usage();
    /// used.add(12);
    /// drop(hold); // the client disconnected
    /// assert_eq!(tokens.peek("acme").await?.remaining(), 1988);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn usage(&self) -> &[Usage; N] {
        &self.usage
    }

    /// Returns the decision that admitted the hold, with the quotas of all limits that have a key.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        self.set.decision()
    }
}

/// The holds of one request. If all limits [are together](Several::are_together), each step on them is one operation,
/// and each limit has one hold.
///
/// Otherwise each hold is authorized, renewed and captured alone. An extension is another hold, which can be released
/// if a later limit refuses. Such holds are released when they end by themselves, and a capture after that charges
/// nothing, so a capture can be sent any number of times, in any order.
#[derive(Debug)]
pub(crate) struct HoldSet {
    /// The limits that have a key.
    limits: Several,
    /// Their positions among all limits of the request, and their keys.
    places: SmallVec<[usize; 3]>,
    keys: SmallVec<[Key; 3]>,
    /// The usage of each of them.
    usages: SmallVec<[Usage; 3]>,
    are_together: bool,
    /// With the positions of their limits in `limits`.
    holds: Holds,
    decision: Decision,
    /// The quotas of all limits of the request.
    pub(crate) quotas: Arc<[Quotas]>,
}

type Holds = SmallVec<[(usize, Hold); 3]>;

type Amounts = SmallVec<[u32; 3]>;

/// By the positions of the limits.
type Results = SmallVec<[(usize, Captured); 3]>;

impl HoldSet {
    /// Holds tokens of all limits that have a key, or of none. `amounts` and `usages` have one element for each limit.
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
            let states: SmallVec<[_; 3]> = states.collect();
            decision = limits
                .limits
                .terms
                .decision(Price::new(amounts), None, &states);
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
    pub(crate) async fn extend(&mut self, more: &[u32]) -> Result<(), Error> {
        let more: Amounts = self.places.iter().map(|limit| more[*limit]).collect();
        for (limit, bucket) in self.limits.buckets().iter().enumerate().take(more.len()) {
            let amount = self.amount(limit).saturating_add(more[limit]);
            let most = bucket.quotas.max_cost();
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
        let steps = self.holds.iter().zip(&amounts).map(step).collect();
        let sent = clock::now();
        let reply = self.limits.run_on_holds(&self.keys, steps, true).await?;
        let all_held = reply.is_held();
        if let (false, None, refused) = (
            all_held,
            reply.first(Outcome::Ended),
            reply.first(Outcome::Refused),
        ) {
            let states = reply.each.into_iter().map(|reply| reply.state);
            let states: SmallVec<[_; 3]> = states.collect();
            let terms = &self.limits.limits.terms;
            return Err(terms.decision(Price::new(more), refused, &states).refused());
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

    /// Captures the amounts, one for each limit, even if the future is dropped before it is polled. Returns the results
    /// by the positions of the limits.
    pub(crate) fn capture(
        mut self,
        amounts: &[u32],
    ) -> impl Future<Output = Result<Results, Error>> + Send + use<> {
        let amounts: Amounts = self.places.iter().map(|limit| amounts[*limit]).collect();
        let portions = self.portions(&amounts);
        let mut captures = Vec::new();
        let mut lates = Amounts::new();
        let mut steps = SmallVec::new();
        if self.are_together {
            for ((_, hold), n) in self.holds.iter_mut().zip(&portions) {
                let verb = hold.ends(*n);
                lates.push(hold.late(*n));
                steps.push(hold.step(verb));
            }
        } else {
            let holds = std::mem::take(&mut self.holds).into_iter().zip(&portions);
            captures.extend(holds.map(|((limit, hold), n)| {
                let place = self.places[limit];
                let captured = hold.capture_if_held(*n);
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

    pub(crate) fn is_held(&self) -> bool {
        self.holds.iter().all(|(_, hold)| hold.is_held())
    }

    /// The held tokens of the limit at this position among all limits.
    pub(crate) fn amount_of(&self, place: usize) -> u32 {
        self.places
            .iter()
            .position(|of| *of == place)
            .map_or(0, |limit| self.amount(limit))
    }

    pub(crate) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Makes the drop capture at least the held tokens of each limit.
    pub(crate) fn capture_at_least_held(&mut self) {
        self.holds
            .iter_mut()
            .for_each(|(_, hold)| hold.capture_at_least_held());
    }

    /// The events of the first limit that has a key.
    #[cfg(feature = "http")]
    pub(crate) fn upstream(&self) -> Option<&UpstreamEvents> {
        self.holds.first().map(|(_, hold)| hold.upstream())
    }

    fn amount(&self, limit: usize) -> u32 {
        let of = self.holds.iter().filter(|(of, _)| *of == limit);
        of.fold(0, |sum: u32, (_, hold)| sum.saturating_add(hold.amount))
    }

    /// Divides an amount of each limit among its holds: each hold gets its own amount, and the last one gets the rest.
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
    let id = limits.buckets()[0].clients.holds.next_id();
    let sent = clock::now();
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
        let states: SmallVec<[_; 3]> = states.collect();
        let price = Price::new(amounts.iter().copied());
        let decision = limits.limits.terms.decision(price, Some(refused), &states);
        return Err(decision.refused());
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

/// Converts the refusal of one limit to the refusal of several limits.
fn refusal_of(limits: &Several, limit: usize, error: Error) -> Error {
    let refused = error
        .decision()
        .map(|decision| limits.alone(limit, decision.clone()).refused());
    refused.unwrap_or(error)
}

/// Holds tokens of the limits with an amount, one after the other. If one refuses, or the future is dropped, the holds
/// of the limits before it are released.
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
        let sent = clock::now();
        let holds = &mut self.holds;
        let steps = || {
            holds
                .iter_mut()
                .filter_map(|(_, hold)| hold.dropped())
                .collect()
        };
        // In memory, each hold is ended by its drop.
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
