//! Decides requests for one or several limits: all of them or none.

use std::array;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tower::util::BoxCloneSyncService;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::token_bucket::Decision;
use tower_distributed::{
    Error, Key, Quotas, RateLimitLayer, Refusal, Store, StoreFailure, TokenBucket, TokenBuckets,
};

use crate::status::{self, DescriptorStatus};

/// The most limits that are charged in one step.
const MOST: usize = 8;
/// More sets of limits than a configuration of Envoy has.
const MOST_SETS: usize = 4096;

/// What a descriptor takes from a bucket.
#[derive(Clone)]
pub(crate) struct Charge {
    pub(crate) limit: Arc<Limit>,
    pub(crate) quotas: Quotas,
    pub(crate) key: Key,
    pub(crate) tokens: u32,
}

/// The buckets of one name.
pub(crate) struct Limit {
    pub(crate) bucket: TokenBucket,
    /// Decides requests with this limit alone, also in an outage.
    alone: BoxCloneSyncService<Charge, Alone, Infallible>,
}

/// `None`: admitted without a decision, in an outage.
type Alone = Option<Result<Decision, Refusal>>;

type Set = (Vec<Quotas>, TokenBuckets<MOST>);

/// The buckets of all names. They last as long as the process: new rules change the quotas of a bucket, not its tokens.
pub(crate) struct Limits {
    pub(crate) store: Store,
    pub(crate) on_outage: StoreFailure,
    pub(crate) prefetch: Option<Duration>,
    pub(crate) by_name: Mutex<HashMap<String, Arc<Limit>>>,
    /// Limits that were charged in one step, by their names, with their quotas.
    pub(crate) sets: Mutex<HashMap<Vec<String>, Set>>,
}

impl Charge {
    /// The bucket under the quotas of this charge.
    pub(crate) fn bucket(&self) -> TokenBucket {
        self.limit.bucket.with_quotas(&self.quotas)
    }
}

impl Limits {
    pub(crate) fn get(&self, name: &str) -> Result<Arc<Limit>, Error> {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = by_name.get(name) {
            return Ok(Arc::clone(limit));
        }
        // Each charge has its own quotas.
        let mut bucket = TokenBucket::new(&self.store, name, "1/s")?.cache_refusals(true);
        if let Some(hold) = self.prefetch {
            bucket = bucket.prefetch(hold)?;
        }
        let layer = RateLimitLayer::new(bucket.clone(), |charge: &Charge| charge.key.clone())
            .quotas(|charge: &Charge| charge.quotas.clone())
            .cost(|charge: &Charge| charge.tokens)
            .on_store_failure(self.on_outage)
            .on_response(|decision, alone: &mut Alone| *alone = Some(Ok(decision.clone())))
            .reject_with(|refusal: Refusal| Some(Err(refusal)));
        let admitted = service_fn(async |_: Charge| Ok::<Alone, Infallible>(None));
        let alone = BoxCloneSyncService::new(layer.layer(admitted));
        let limit = Arc::new(Limit { bucket, alone });
        by_name.insert(name.to_owned(), Arc::clone(&limit));
        Ok(limit)
    }

    /// Charges all limits or none. The request is admitted unless one of them is over.
    pub(crate) async fn decide(&self, charges: &[Charge]) -> Result<Vec<DescriptorStatus>, Error> {
        // A cost above the burst, and a limit of 0, can never be admitted.
        let never = |charge: &Charge| charge.tokens > charge.quotas.max_cost();
        if charges.iter().any(never) {
            let status = |charge| status::new(&[], never(charge), None);
            return Ok(charges.iter().map(status).collect());
        }
        // Limits with the same bucket are no set.
        if (2..=MOST).contains(&charges.len())
            && let Ok(set) = self.set(charges)
        {
            let key = |at| charges.get(at).map(|charge: &Charge| charge.key.clone());
            let cost = |at| charges.get(at).map_or(0, |charge: &Charge| charge.tokens);
            match set.allow_n(array::from_fn(key), array::from_fn(cost)).await {
                Err(error) if error.is_unavailable() => {}
                decision => return Ok(statuses(&decision?, charges)),
            }
        }
        one_by_one(charges).await
    }

    /// The limits of these charges, to be charged in one step. Those that are missing have no key.
    fn set(&self, charges: &[Charge]) -> Result<TokenBuckets<MOST>, Error> {
        let name = |charge: &Charge| charge.limit.bucket.name().to_owned();
        let names: Vec<_> = charges.iter().map(name).collect();
        let quotas: Vec<_> = charges.iter().map(|charge| charge.quotas.clone()).collect();
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, set)) = sets.get(&names).filter(|(known, _)| *known == quotas) {
            return Ok(set.clone());
        }
        let mut buckets: Vec<_> = charges.iter().map(Charge::bucket).collect();
        for missing in charges.len()..MOST {
            let name = format!("unused-{missing}");
            buckets.push(TokenBucket::new(&self.store, &name, "1/s")?);
        }
        let set = TokenBuckets::new(array::from_fn(|at| buckets[at].clone()))?;
        if sets.len() >= MOST_SETS {
            sets.clear();
        }
        sets.insert(names, (quotas, set.clone()));
        Ok(set)
    }

    /// The status for a request without hits: over the limit if the bucket is empty.
    pub(crate) async fn peek(&self, charge: &Charge) -> Result<DescriptorStatus, Error> {
        match charge.bucket().peek(charge.key.clone()).await {
            Ok(state) => {
                let balances: Vec<_> = state.balances().collect();
                let is_over = state.remaining() == 0;
                Ok(status::new(&balances, is_over, state.available_after(1)))
            }
            Err(error) if self.on_outage == StoreFailure::FailClosed => Err(error),
            Err(_) => Ok(status::new(&[], false, None)),
        }
    }
}

/// Decides the limits one after the other, each as its layer does in an outage. If one refuses, the others get their
/// tokens back.
async fn one_by_one(charges: &[Charge]) -> Result<Vec<DescriptorStatus>, Error> {
    let mut statuses = vec![status::new(&[], false, None); charges.len()];
    for (at, charge) in charges.iter().enumerate() {
        let Ok(decided) = charge.limit.alone.clone().oneshot(charge.clone()).await;
        let decision = match &decided {
            None => continue,
            Some(Ok(decision)) => decision,
            Some(Err(refusal)) => match refusal.decision() {
                Some(decision) => decision,
                None => return Err(refusal.get_ref().clone()),
            },
        };
        let balances: Vec<_> = decision.state.balances().collect();
        let is_over = !decision.is_admitted();
        statuses[at] = status::new(&balances, is_over, decision.retry_after());
        if is_over {
            for charged in &charges[..at] {
                // In an outage there is nothing to give back.
                let key = charged.key.clone();
                let _ = charged.bucket().give_back(key, charged.tokens).await;
            }
            break;
        }
    }
    Ok(statuses)
}

/// The status of each limit after a decision on several. If one refused alone, the state of the others is not known.
fn statuses(decision: &Decision, charges: &[Charge]) -> Vec<DescriptorStatus> {
    let refuser = decision.refused_by();
    let refuser = refuser.and_then(|refuser| named(refuser, charges));
    let status = |charge: &Charge| {
        let name = Some(charge.limit.bucket.name());
        let balances = decision.state.balances();
        let own: Vec<_> = balances
            .filter(|balance| named(balance.name, charges) == name)
            .collect();
        let lacks = own.iter().any(|balance| balance.remaining < charge.tokens);
        let is_over = !decision.is_admitted() && (lacks || refuser == name);
        status::new(&own, is_over, decision.retry_after())
    };
    charges.iter().map(status).collect()
}

/// The name of the limit that a decision names: as `limit`, or as `limit.quota`. The name of one limit may begin with that of
/// another.
fn named<'a>(refuser: &str, charges: &'a [Charge]) -> Option<&'a str> {
    let names = charges.iter().map(|charge| charge.limit.bucket.name());
    let matching = names.filter(|name| {
        let rest = refuser.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    matching.max_by_key(|name| name.len())
}
