//! The limits of a layer: the buckets of one limit, or of several.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::try_join_all;
use smallvec::SmallVec;

use crate::middleware::key::DynKey;
use crate::store::parts;
use crate::telemetry::Decisions;
use crate::token_bucket::{Acquire, AcquireAll, Decision, Keys, Several};
use crate::{Error, Extracted, Key, KeyExtractor, Quotas, TokenBucket};

#[derive(Clone, Debug)]
pub(super) enum Limiter {
    One(TokenBucket),
    All(All),
}

/// Several limits. [`extract_all`] combines the keys of a request for each limit into one key.
#[derive(Clone, Debug)]
pub(super) struct All {
    several: Several,
    max_wait: Duration,
}

/// A decision in progress.
#[expect(clippy::large_enum_variant, reason = "it is kept in a box with the request")]
pub(super) enum Asking {
    One(Acquire),
    All(AcquireAll),
}

/// Splits a combined key into the keys of each limit.
fn keys(key: &Key) -> Keys {
    parts(key.as_bytes()).map(|part| part.map(Key::from)).collect()
}

impl Limiter {
    pub(super) fn all(several: &Several) -> Self {
        Self::All(All { several: several.clone(), max_wait: Duration::ZERO })
    }

    /// The decision, if it needs neither a wait nor a call to the store.
    pub(super) fn at_once(
        &self,
        quotas: Option<&Quotas>,
        key: &Key,
        cost: u32,
    ) -> Option<Result<Decision, Error>> {
        match self {
            Self::One(bucket) => bucket.at_once(quotas, key, cost),
            Self::All(all) if all.max_wait.is_zero() => all.several.at_once(quotas, key, cost),
            Self::All(_) => None,
        }
    }

    /// Asks for a decision, and waits if `may_wait`.
    pub(super) fn acquire(&self, quotas: Option<&Quotas>, key: Key, cost: u32, may_wait: bool) -> Asking {
        match self {
            Self::One(bucket) => {
                let bucket = quotas.map_or_else(|| bucket.clone(), |quotas| bucket.with_quotas(quotas));
                let bucket = if may_wait { bucket } else { bucket.with_max_wait(Duration::ZERO) };
                Asking::One(bucket.acquire(key, cost))
            }
            Self::All(all) => {
                let other = quotas.map(|quotas| all.several.with_quotas_of_first(quotas));
                let several = other.as_ref().unwrap_or(&all.several);
                let max_wait = if may_wait { all.max_wait } else { Duration::ZERO };
                Asking::All(several.acquire(key, cost, max_wait))
            }
        }
    }

    pub(super) fn with_max_wait(self, max_wait: Duration) -> Self {
        match self {
            Self::One(bucket) => Self::One(bucket.with_max_wait(max_wait)),
            Self::All(all) => Self::All(All { max_wait, ..all }),
        }
    }

    pub(super) fn cache_refusals(self, cache: bool) -> Self {
        match self {
            Self::One(bucket) => Self::One(bucket.cache_refusals(cache)),
            Self::All(all) => Self::All(All { several: all.several.cache_refusals(cache), ..all }),
        }
    }

    pub(super) fn prefetch(self, hold: Duration) -> Result<Self, Error> {
        match self {
            Self::One(bucket) => bucket.prefetch(hold).map(Self::One),
            Self::All(_) => Err(Error::invalid("prefetch supports only one limit, not several")),
        }
    }

    /// The same limits in the memory of this process, shared by so many processes.
    pub(super) fn local_share(&self, replicas: NonZeroU32) -> Self {
        match self {
            Self::One(bucket) => Self::One(bucket.local_share(replicas)),
            Self::All(all) => Self::All(All { several: all.several.local_share(replicas), ..all.clone() }),
        }
    }

    pub(super) fn decisions(&self) -> &Decisions {
        match self {
            Self::One(bucket) => bucket.decisions(),
            Self::All(all) => all.several.decisions(),
        }
    }

    /// The bucket of the first limit, which identifies the sender of a request.
    pub(super) fn first(&self) -> &TokenBucket {
        match self {
            Self::One(bucket) => bucket,
            Self::All(all) => all.several.first(),
        }
    }

    /// Which of several limits refused the request, and the key of that limit.
    pub(super) fn refused(&self, key: &Key, decision: &Decision) -> Option<(usize, Key)> {
        let (Self::All(_), Some(refuser)) = (self, decision.by) else { return None };
        // Limits without a key are not asked.
        let keys = keys(key).into_iter().enumerate();
        keys.filter_map(|(limit, key)| Some((limit, key?))).nth(refuser.limit.into())
    }

    /// Blocks the key of the first limit, in the background.
    pub(super) fn block(&self, key: Key, duration: Duration) {
        let key = match self {
            Self::One(_) => Some(key),
            Self::All(_) => keys(&key).into_iter().next().flatten(),
        };
        if let Some(key) = key {
            self.first().block_detached(key, duration);
        }
    }

    /// Charges the additional cost of a request, in the background.
    pub(super) fn charge(&self, decision: &Decision, tokens: u32) {
        let Some(key) = decision.key.clone() else { return };
        match self {
            Self::One(bucket) => {
                let quotas = &decision.state.quotas;
                // Uses the bucket's own quotas if they are equal, so that charges share one call.
                match bucket.quotas() == quotas {
                    true => bucket.charge_detached(key, tokens),
                    false => bucket.with_quotas(quotas).charge_detached(key, tokens),
                }
            }
            Self::All(all) => all.several.charge_detached(keys(&key), decision, tokens),
        }
    }
}

impl Asking {
    /// The same request on the local limits, with a share of the quotas. `None` if `local` does not match these
    /// limits.
    pub(super) fn of_share(&self, local: &Limiter) -> Option<Self> {
        match (self, local) {
            (Self::One(asked), Limiter::One(local)) => {
                Some(Self::One(asked.again(|bucket| local.standing_in_for(bucket))))
            }
            (Self::All(asked), Limiter::All(local)) => {
                Some(Self::All(asked.again(|several| local.several.standing_in_for(several))))
            }
            _ => None,
        }
    }

    /// Takes the key, after completion.
    pub(super) fn take_key(&mut self) -> Key {
        match self {
            Self::One(asked) => asked.take_key(),
            Self::All(asked) => asked.take_key(),
        }
    }
}

impl Future for Asking {
    type Output = Result<Decision, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::One(asked) => Pin::new(asked).poll(context),
            Self::All(asked) => Pin::new(asked).poll(context),
        }
    }
}

/// The key extractors for several limits: a tuple of one to eight [`KeyExtractor`]s, one for each limit.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a key of a `{Req}` for each of {N} limits",
    note = "pass a tuple with a key extractor for each limit, in their order: `(|r: &Request| .., |r: &Request| ..)`"
)]
pub trait KeyExtractors<Req, const N: usize> {
    /// Returns the extractors, in the order of the limits. A limit whose key is `None` is not asked.
    fn into_extractors(self) -> [Arc<dyn KeyExtractor<Req> + Send + Sync>; N];
}

/// Extracts the key for each limit, and combines them into one key.
pub(super) fn extract_all<Req>(extractors: &[DynKey<Req>], request: &Req) -> Extracted {
    let extracted = extractors.iter().map(|extractor| extractor.extract(request));
    let extracted: SmallVec<[Extracted; 3]> = extracted.collect();
    if extracted.iter().any(|one| matches!(one, Extracted::Pending(_))) {
        let keys = try_join_all(extracted);
        return Extracted::Pending(Box::pin(async move { Ok(joined(&keys.await?)) }));
    }
    let mut keys = Keys::new();
    for one in extracted {
        match one {
            Extracted::Ready(Ok(key)) => keys.push(key),
            other => return other,
        }
    }
    joined(&keys).into()
}

/// Combines the keys for each limit into one key. `None`: no limit has a key.
fn joined(keys: &[Option<Key>]) -> Option<Key> {
    keys.iter().any(Option::is_some).then(|| Key::of_some(keys.iter().map(Option::as_ref)))
}

macro_rules! tuples {
    ($($count:literal: $($extractor:ident)*;)*) => {$(
        impl<Req, $($extractor: KeyExtractor<Req> + Send + Sync + 'static),*> KeyExtractors<Req, $count>
            for ($($extractor,)*)
        {
            #[expect(non_snake_case, reason = "named as their types")]
            fn into_extractors(self) -> [DynKey<Req>; $count] {
                let ($($extractor,)*) = self;
                [$(Arc::new($extractor)),*]
            }
        }
    )*};
}
tuples! {
    1: A;
    2: A B;
    3: A B C;
    4: A B C D;
    5: A B C D E;
    6: A B C D E F;
    7: A B C D E F G;
    8: A B C D E F G H;
}
