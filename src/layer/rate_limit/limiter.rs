//! The limits of a layer: the buckets of one limit, or of several.

use std::borrow::Cow;
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::try_join_all;
use smallvec::SmallVec;

use crate::primitive::token_bucket::{Acquire, AcquireAll, Decision, Keys, Several};
use crate::store::parts;
use crate::telemetry::Decisions;
use crate::{Error, Extracted, Key, KeyExtractor, Quotas, TokenBucket};

#[derive(Clone, Debug)]
pub(super) enum Limiter {
    One(TokenBucket),
    All(All),
}

/// Several limits. [`AllOf`] combines the keys of a request for each limit into one key.
#[derive(Clone, Debug)]
pub(super) struct All {
    several: Several,
    max_wait: Duration,
    /// How many tables have wrapped the key of the first limit.
    tables: usize,
}

/// A decision in progress.
#[expect(clippy::large_enum_variant, reason = "it is kept in a box with the request")]
pub(super) enum Asking {
    One(Acquire),
    /// The future, and the key with its rows, if it has any.
    All(AcquireAll, Option<Key>),
}

impl All {
    /// Splits a combined key into the keys of each limit.
    fn keys(&self, key: &Key) -> Keys {
        let mut rows: SmallVec<[Option<&[u8]>; 1]> = SmallVec::new();
        let mut inside = key.as_bytes();
        for _ in 0..self.tables {
            // Either a row name and the inner key, or the inner key alone.
            let parts: SmallVec<[&[u8]; 2]> = parts(inside).flatten().collect();
            let (row, rest) = match parts[..] {
                [row, rest] => (Some(row), rest),
                [rest] => (None, rest),
                _ => break,
            };
            rows.push(row);
            inside = rest;
        }
        let mut keys: Keys = parts(inside).map(|part| part.map(Key::from)).collect();
        if let Some(Some(first)) = keys.first_mut() {
            // Wraps the key of the first limit in its rows again, as for one limit.
            for row in rows.into_iter().rev() {
                *first = Key::of(row.into_iter().chain([first.as_bytes()]));
            }
        }
        keys
    }

    /// Moves the rows of a combined key into the key of the first limit.
    fn without_rows<'a>(&self, key: &'a Key) -> Cow<'a, Key> {
        match self.tables {
            0 => Cow::Borrowed(key),
            _ => Cow::Owned(Key::of_some(self.keys(key).iter().map(Option::as_ref))),
        }
    }
}

impl Limiter {
    pub(super) fn all(several: &Several) -> Self {
        Self::All(All { several: several.clone(), max_wait: Duration::ZERO, tables: 0 })
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
            Self::All(all) if all.max_wait.is_zero() => {
                all.several.at_once(quotas, &all.without_rows(key), cost)
            }
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
                if all.tables == 0 {
                    return Asking::All(several.acquire(key, cost, max_wait), None);
                }
                let inside = all.without_rows(&key).into_owned();
                Asking::All(several.acquire(inside, cost, max_wait), Some(key))
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

    /// The same limits, after a table has wrapped the key.
    pub(super) fn in_table(self) -> Self {
        match self {
            Self::One(bucket) => Self::One(bucket),
            Self::All(all) => Self::All(All { tables: all.tables + 1, ..all }),
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
        let (Self::All(all), Some(refuser)) = (self, decision.refuser()) else { return None };
        // Limits without a key are not asked.
        let keys = all.keys(key).into_iter().enumerate();
        keys.filter_map(|(limit, key)| Some((limit, key?))).nth(refuser.limit.into())
    }

    /// Blocks the key of the first limit, in the background.
    pub(super) fn block(&self, key: Key, duration: Duration) {
        let key = match self {
            Self::One(_) => Some(key),
            Self::All(all) => all.keys(&key).into_iter().next().flatten(),
        };
        if let Some(key) = key {
            self.first().block_detached(key, duration);
        }
    }

    /// Charges the additional cost of a request, in the background.
    pub(super) fn charge(&self, key: Key, decision: &Decision, tokens: u32) {
        match self {
            Self::One(bucket) => {
                let quotas = decision.state().quotas();
                // Uses the bucket's own quotas if they are equal, so that charges share one call.
                match bucket.quotas() == quotas {
                    true => bucket.charge_detached(key, tokens),
                    false => bucket.with_quotas(quotas).charge_detached(key, tokens),
                }
            }
            Self::All(all) => all.several.charge_detached(all.keys(&key), decision, tokens),
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
            (Self::All(asked, key), Limiter::All(local)) => {
                let asked = asked.again(|several| local.several.standing_in_for(several));
                Some(Self::All(asked, key.clone()))
            }
            _ => None,
        }
    }

    pub(super) fn key(&self) -> &Key {
        match self {
            Self::One(asked) => asked.key(),
            Self::All(asked, key) => key.as_ref().unwrap_or_else(|| asked.key()),
        }
    }

    /// Takes the key, after completion.
    pub(super) fn take_key(&mut self) -> Key {
        match self {
            Self::One(asked) => asked.take_key(),
            Self::All(asked, key) => key.take().unwrap_or_else(|| asked.take_key()),
        }
    }
}

impl Future for Asking {
    type Output = Result<Decision, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::One(asked) => Pin::new(asked).poll(context),
            Self::All(asked, _) => Pin::new(asked).poll(context),
        }
    }
}

/// A tuple of extractors that combines the keys for several limits.
pub(super) struct AllOf<K, const N: usize>(pub(super) K);

/// The key extractors for several limits: a tuple of one to eight [`KeyExtractor`]s, one for each limit.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a key of a `{Req}` for each of {N} limits",
    note = "pass a tuple with a key extractor for each limit, in their order: `(|r: &Request| .., |r: &Request| ..)`"
)]
pub trait KeyExtractors<Req, const N: usize> {
    /// Extracts the key for each limit. A limit whose key is `None` is not asked.
    fn extract_all(&self, request: &Req) -> [Extracted; N];
}

impl<Req, K: KeyExtractors<Req, N>, const N: usize> KeyExtractor<Req> for AllOf<K, N> {
    fn extract(&self, request: &Req) -> Extracted {
        let mut extracted = self.0.extract_all(request);
        if extracted.iter().any(|one| matches!(one, Extracted::Pending(_))) {
            let keys = try_join_all(extracted);
            return Extracted::Pending(Box::pin(async move { Ok(joined(&keys.await?)) }));
        }
        let mut keys = [const { None }; N];
        for (key, extracted) in keys.iter_mut().zip(&mut extracted) {
            match std::mem::replace(extracted, Extracted::NONE) {
                Extracted::Ready(Ok(found)) => *key = found,
                other => return other,
            }
        }
        joined(&keys).into()
    }
}

/// Combines the keys for each limit into one key. `None`: no limit has a key.
fn joined(keys: &[Option<Key>]) -> Option<Key> {
    keys.iter().any(Option::is_some).then(|| Key::of_some(keys.iter().map(Option::as_ref)))
}

macro_rules! tuples {
    ($($count:literal: $($extractor:ident)*;)*) => {$(
        impl<Req, $($extractor: KeyExtractor<Req>),*> KeyExtractors<Req, $count> for ($($extractor,)*) {
            #[expect(non_snake_case, reason = "named as their types")]
            fn extract_all(&self, request: &Req) -> [Extracted; $count] {
                let ($($extractor,)*) = self;
                [$($extractor.extract(request)),*]
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
