//! [`Quotas`]: a checked set of one to eight quotas that apply together. Equal sets share one value, so that calls
//! under them are sent to the store in one batch.

use std::fmt;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::bucket::calendar::{Calendar, MAX_SPAN, Tokens};
use crate::bucket::quota::{DEFAULT_NAME, Limit, Quota};
use crate::error::Error;
use crate::macros::in_range;
use crate::store::operation::packed;
use crate::sync::lock;

/// One to eight quotas that apply together, such as `10/s` and `1000/h`.
///
/// A request must fit all of them. They are checked and charged together: if one quota refuses a request, none is
/// charged. Equal quotas share one value, however they were made, so the store sends calls under equal quotas in
/// one batch. Comparing and cloning quotas is cheap.
///
/// ```
/// use tower_distributed::{Quota, Quotas};
///
/// let free = Quotas::new([Quota::per_second(10), Quota::per_hour(1000).burst(100)])?;
/// assert!(Quotas::new([]).is_err_and(|error| error.is_invalid()));
/// # Ok::<(), tower_distributed::Error>(())
/// ```
#[derive(Clone)]
pub struct Quotas(Arc<Set>);

pub(crate) struct Set {
    pub(crate) limits: SmallVec<[Limit; 1]>,
    /// The smallest burst.
    burst: i64,
    /// Whether one of them is a calendar quota.
    have_windows: bool,
    /// The value of the policy header field.
    #[cfg(feature = "http")]
    policy: OnceLock<http::HeaderValue>,
    /// The share of one process, for the given number of processes.
    share: OnceLock<(NonZeroU32, Quotas)>,
    /// The arguments of scripts.
    arguments: OnceLock<(Arc<str>, Arc<[u8]>)>,
}

impl Set {
    pub(crate) fn of(limits: SmallVec<[Limit; 1]>) -> Self {
        let burst = limits.iter().map(Limit::most).min().unwrap_or(0);
        Self {
            have_windows: limits.iter().any(|limit| Calendar::of(limit).is_some()),
            limits,
            burst,
            #[cfg(feature = "http")]
            policy: OnceLock::new(),
            share: OnceLock::new(),
            arguments: OnceLock::new(),
        }
    }
}

impl Quotas {
    /// Checks one to eight quotas.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) in these cases:
    ///
    /// * the period of a quota is 0, or its rate is not 0 or 1e-9 to 1e9 tokens per second;
    /// * a quota would take more than 35 years to refill;
    /// * the start or the offset of a calendar quota is not possible, or another quota has one;
    /// * a name is not valid in a header field, or two quotas have the same name;
    /// * there are no quotas, or more than eight.
    pub fn new(quotas: impl IntoIterator<Item = Quota>) -> Result<Self, Error> {
        let quotas: SmallVec<[Quota; 2]> = quotas.into_iter().collect();
        let of = quotas.len();
        in_range("the number of quotas", 1..=8, "1 to 8", of)?;
        let limits: SmallVec<[Limit; 1]> = quotas
            .into_iter()
            .enumerate()
            .map(|(position, quota)| quota.check(position, of))
            .collect::<Result<_, _>>()?;
        if let Some(name) = repeated(limits.iter().map(|limit| &limit.name)) {
            return Err(Error::invalid(format!(
                "two quotas have the same name {name:?}"
            )));
        }
        Ok(Self(shared_set(limits)))
    }

    /// Joins the quotas of several limits into one set. The new name of a quota is the name of its limit. If the
    /// quota has a name, or is one of several quotas of the limit, the new name is `limit.name`.
    pub(crate) fn joined<'a>(limits: impl Iterator<Item = (&'a str, &'a Self)>) -> Self {
        let limits = limits.flat_map(|(limit, quotas)| {
            let is_unnamed =
                quotas.limits().len() == 1 && *quotas.limits()[0].name == *DEFAULT_NAME;
            quotas.limits().iter().map(move |quota| {
                let name = if is_unnamed {
                    limit.into()
                } else {
                    format!("{limit}.{}", quota.name).into()
                };
                Limit {
                    name,
                    ..quota.clone()
                }
            })
        });
        Self(shared_set(limits.collect()))
    }

    /// The quotas with these numbers, which a store has stored. `None` if there are none.
    pub(crate) fn stored(tokens: impl ExactSizeIterator<Item = Tokens>) -> Option<Self> {
        let of = tokens.len();
        let limit = |(position, tokens): (usize, Tokens)| {
            Limit::new(
                Quota::default_name(position, of),
                tokens.burst,
                tokens.num,
                tokens.den,
            )
        };
        (of > 0).then(|| Self(shared_set(tokens.enumerate().map(limit).collect())))
    }

    /// The quotas at the given positions.
    pub(crate) fn part(&self, places: std::ops::Range<usize>) -> Self {
        Self(shared_set(self.limits()[places].iter().cloned().collect()))
    }

    /// Returns the largest cost that can be admitted: the smallest burst. 0: the limit is
    /// [closed](crate::token_bucket#closed-limits).
    #[must_use]
    pub fn max_cost(&self) -> u32 {
        u32::try_from(self.0.burst).unwrap_or(u32::MAX)
    }

    /// Whether one of them is 0, so that nothing is admitted.
    pub(crate) fn are_closed(&self) -> bool {
        self.0.burst == 0
    }

    /// Whether one of them is a calendar quota.
    pub(crate) fn have_windows(&self) -> bool {
        self.0.have_windows
    }

    pub(crate) fn limits(&self) -> &[Limit] {
        &self.0.limits
    }

    /// The value of the policy header field, written at first use; or each time, because windows differ in length.
    #[cfg(feature = "http")]
    pub(crate) fn policy(&self, write: impl FnOnce() -> http::HeaderValue) -> http::HeaderValue {
        if self.0.have_windows {
            write()
        } else {
            self.0.policy.get_or_init(write).clone()
        }
    }

    /// The arguments of scripts, as `lua/level.lua` reads them, written at first use.
    pub(crate) fn arguments(&self) -> &(Arc<str>, Arc<[u8]>) {
        self.0.arguments.get_or_init(|| {
            let each = self
                .limits()
                .iter()
                .flat_map(|limit| [limit.num, limit.den, limit.burst]);
            let text = match self.limits() {
                [Limit { pace, .. }] => format!("{} {} {}", pace.num, pace.den, pace.burst),
                _ => String::new(),
            };
            (text.into(), packed(each).as_slice().into())
        })
    }

    /// Identifies a set of quotas without reading its contents.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Equal quotas with a separate reference count.
    pub(crate) fn copy(&self) -> Self {
        Self(Arc::new(Set::of(self.limits().iter().cloned().collect())))
    }

    /// The share of one of `parts` processes that cannot communicate.
    pub(crate) fn share(&self, parts: NonZeroU32) -> Self {
        let (of, share) = self.0.share.get_or_init(|| (parts, self.divided(parts)));
        // A layer always uses the same number of parts, so one cached share is enough.
        if *of == parts {
            share.clone()
        } else {
            self.divided(parts)
        }
    }

    fn divided(&self, parts: NonZeroU32) -> Self {
        let parts = i64::from(parts.get());
        let limits = self.limits().iter().map(|limit| {
            if limit.is_closed {
                return limit.clone();
            }
            let burst = (limit.burst / parts).max(1);
            // At least one token per bucket, and at most 35 years to refill.
            let num = limit
                .num
                .saturating_mul(parts)
                .min((MAX_SPAN / burst).saturating_mul(limit.den));
            Limit::new(limit.name.clone(), burst, num, limit.den)
        });
        Self(shared_set(limits.collect()))
    }
}

/// The first of these names that occurs twice.
pub(crate) fn repeated<T: PartialEq>(names: impl Iterator<Item = T> + Clone) -> Option<T> {
    let earlier = names.clone();
    names
        .enumerate()
        .find_map(|(nth, name)| earlier.clone().take(nth).find(|other| *other == name))
}

impl TryFrom<Quota> for Quotas {
    type Error = Error;

    fn try_from(quota: Quota) -> Result<Self, Error> {
        Self::new([quota])
    }
}

impl<const N: usize> TryFrom<[Quota; N]> for Quotas {
    type Error = Error;

    fn try_from(quotas: [Quota; N]) -> Result<Self, Error> {
        Self::new(quotas)
    }
}

impl TryFrom<Vec<Quota>> for Quotas {
    type Error = Error;

    fn try_from(quotas: Vec<Quota>) -> Result<Self, Error> {
        Self::new(quotas)
    }
}

impl PartialEq for Quotas {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.limits() == other.limits()
    }
}

impl Eq for Quotas {}

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits().iter()).finish()
    }
}

#[derive(Default)]
struct Known {
    sets: HashTable<(u64, Weak<Set>)>,
    /// The number of sets at which the next insertion first removes dropped sets.
    sweep_at: usize,
}

static KNOWN: LazyLock<(RandomState, Mutex<Known>)> = LazyLock::new(Default::default);

const SWEEP_AT: usize = 64;

/// Returns the shared set of these limits.
fn shared_set(limits: SmallVec<[Limit; 1]>) -> Arc<Set> {
    let (hasher, known) = &*KNOWN;
    let mut hash = hasher.build_hasher();
    for limit in &limits {
        (
            &limit.name,
            limit.burst,
            limit.num,
            limit.den,
            limit.is_closed,
        )
            .hash(&mut hash);
    }
    let hash = hash.finish();
    let mut known = lock(known);
    let mut found = None;
    known.sets.find(hash, |(_, set)| {
        found = set.upgrade().filter(|set| set.limits == limits);
        found.is_some()
    });
    if let Some(found) = found {
        return found;
    }
    if known.sets.len() >= known.sweep_at.max(SWEEP_AT) {
        known.sets.retain(|(_, set)| set.strong_count() > 0);
        known.sweep_at = 2 * known.sets.len();
        let room = known.sweep_at;
        known.sets.shrink_to(room, |(hash, _)| *hash);
    }
    let set = Arc::new(Set::of(limits));
    known
        .sets
        .insert_unique(hash, (hash, Arc::downgrade(&set)), |(hash, _)| *hash);
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::quota::Quota;
    use crate::bucket::quotas::Quotas;

    #[test]
    fn sets_that_are_gone_make_room() {
        let kept = Quotas::new([Quota::per_minute(77)]).unwrap();
        for burst in 1..=20_000 {
            drop(Quotas::new([Quota::per_minute(77).burst(1000 + burst)]).unwrap());
        }
        assert_eq!(
            Quotas::new([Quota::per_minute(77)]).unwrap().id(),
            kept.id()
        );
        assert!(lock(&KNOWN.1).sets.len() < 10_000);
    }
}
