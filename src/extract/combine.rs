//! Extractors made of extractors.

use std::fmt;
use std::sync::Arc;

use crate::layer::key::SkipIf;
use crate::{Extracted, IntoKey, Key, KeyExtractor};

/// Gives the combinators to an extractor.
macro_rules! combinators {
    ($extractor:ident $(<$($parameter:ident),*>)?) => {
        impl $(<$($parameter),*>)? $extractor $(<$($parameter),*>)? {
            /// Uses another extractor if this one finds nothing: its part of the request is missing, or a closure returns
            /// `None`. The keys of the two are always different.
            #[must_use]
            pub fn or<Other>(self, other: Other) -> $crate::extract::Or<Self, Other> {
                $crate::extract::Or::new(self, other)
            }

            /// Lets the part of the request be missing. All requests without it have one key, which differs from that of
            /// an empty value. So they share one limit, or in [`and`](Self::and) one limit for each other part.
            #[must_use]
            pub fn optional(self) -> $crate::extract::Optional<Self> {
                $crate::extract::Optional::new(self)
            }

            /// Uses the keys of this extractor and another one together. A request without one of the parts is refused,
            /// unless the part is [`optional`](Self::optional). `None` if a closure returns `None` for one of them.
            #[must_use]
            pub fn and<Other>(self, other: Other) -> $crate::extract::And<Self, Other> {
                $crate::extract::And::new(self, other)
            }

            /// Puts a constant part before the key.
            #[must_use]
            pub fn prefixed(self, prefix: &str) -> $crate::extract::Prefixed<Self> {
                $crate::extract::Prefixed::new(self, prefix)
            }

            /// Changes the key, by a closure from [`Key`](crate::Key) to anything that is [`IntoKey`](crate::IntoKey).
            #[must_use]
            pub fn map<Change>(self, change: Change) -> $crate::extract::Map<Self, Change> {
                $crate::extract::Map::new(self, change)
            }

            /// Lets requests pass without a limit, if a closure from `&Request` returns `true`.
            #[must_use]
            pub fn skip_if<Skip>(self, skip: Skip) -> $crate::extract::SkipIf<Self, Skip> {
                $crate::extract::SkipIf(self, skip)
            }
        }
    };
}
pub(super) use combinators;

/// Makes an extractor of a closure, to combine it with others.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::by};
///
/// struct Job { tenant: Option<String>, id: u64 }
///
/// let key = by(|job: &Job| job.tenant.clone()).or(|job: &Job| job.id);
/// let (one, other) = (Job { tenant: Some("7".into()), id: 1 }, Job { tenant: None, id: 7 });
/// assert_ne!(format!("{:?}", key.extract(&one)), format!("{:?}", key.extract(&other)));
/// ```
pub fn by<F>(key: F) -> By<F> {
    By(key)
}

/// See [`by`].
#[derive(Clone, Copy)]
pub struct By<F>(F);

combinators!(By<F>);

impl<Req, F: KeyExtractor<Req>> KeyExtractor<Req> for By<F> {
    fn extract(&self, request: &Req) -> Extracted {
        self.0.extract(request)
    }
}

/// Uses one extractor, or another one if the first finds nothing.
#[derive(Clone, Copy)]
pub struct Or<A, B>(A, B);

combinators!(Or<A, B>);

impl<A, B> Or<A, B> {
    pub(super) fn new(one: A, other: B) -> Self {
        Self(one, other)
    }
}

impl<Req, A: KeyExtractor<Req>, B: KeyExtractor<Req>> KeyExtractor<Req> for Or<A, B> {
    fn extract(&self, request: &Req) -> Extracted {
        // Each key has a mark, so that no value that a client sends to one extractor is a key of the other.
        let one = self.0.extract(request).map(|key| Key::of(["or 1".into(), key]));
        one.or(|| self.1.extract(request).map(|key| Key::of(["or 2".into(), key])))
    }
}

/// Lets the part of an extractor be missing.
///
/// ```
/// use http::Request;
/// use tower_distributed::KeyExtractor;
/// use tower_distributed::extract::{header, path};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// // One limit for each version of each path, and one for requests that name no version.
/// let key = path().and(header("x-version")?.plain().optional());
///
/// let request = |version: Option<&str>| {
///     let request = Request::get("/prices");
///     version.map_or_else(Request::builder, |version| request.header("x-version", version)).body(()).unwrap()
/// };
/// let keys = [None, Some(""), Some("-")].map(|version| format!("{:?}", key.extract(&request(version))));
/// assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[2] != keys[0]);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct Optional<K>(K);

combinators!(Optional<K>);

impl<K> Optional<K> {
    pub(super) fn new(inner: K) -> Self {
        Self(inner)
    }
}

impl<Req, K: KeyExtractor<Req>> KeyExtractor<Req> for Optional<K> {
    fn extract(&self, request: &Req) -> Extracted {
        let found = self.0.extract(request).map(|key| Key::of_some([Some(&key)]));
        found.or(|| Key::of_some([None]).into())
    }
}

/// Uses two extractors together.
#[derive(Clone, Copy)]
pub struct And<A, B>(A, B);

combinators!(And<A, B>);

impl<A, B> And<A, B> {
    pub(super) fn new(one: A, other: B) -> Self {
        Self(one, other)
    }
}

impl<Req, A: KeyExtractor<Req>, B: KeyExtractor<Req>> KeyExtractor<Req> for And<A, B> {
    fn extract(&self, request: &Req) -> Extracted {
        self.0.extract(request).and(|| self.1.extract(request))
    }
}

/// Puts a constant part before the key.
#[derive(Clone)]
pub struct Prefixed<K> {
    inner: K,
    prefix: Key,
}

combinators!(Prefixed<K>);

impl<K> Prefixed<K> {
    pub(super) fn new(inner: K, prefix: &str) -> Self {
        Self { inner, prefix: prefix.into() }
    }
}

impl<Req, K: KeyExtractor<Req>> KeyExtractor<Req> for Prefixed<K> {
    fn extract(&self, request: &Req) -> Extracted {
        let prefix = self.prefix.clone();
        self.inner.extract(request).map(|key| Key::of([prefix, key]))
    }
}

/// Changes the key by a closure.
pub struct Map<K, F> {
    inner: K,
    change: Arc<F>,
}

combinators!(Map<K, F>);

impl<K, F> Map<K, F> {
    pub(super) fn new(inner: K, change: F) -> Self {
        Self { inner, change: Arc::new(change) }
    }
}

impl<Req, K, F, T> KeyExtractor<Req> for Map<K, F>
where
    K: KeyExtractor<Req>,
    F: Fn(Key) -> T + Send + Sync + 'static,
    T: IntoKey,
{
    fn extract(&self, request: &Req) -> Extracted {
        let change = Arc::clone(&self.change);
        self.inner.extract(request).and_then(move |key| change(key).into_key())
    }
}

impl<K: Clone, F> Clone for Map<K, F> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), change: Arc::clone(&self.change) }
    }
}

combinators!(SkipIf<K, F>);

macro_rules! debug {
    ($($extractor:ident<$($parameter:ident),*>)*) => {$(
        impl<$($parameter),*> fmt::Debug for $extractor<$($parameter),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($extractor)).finish_non_exhaustive()
            }
        }
    )*};
}
debug! { By<F> Optional<K> Or<A, B> And<A, B> Prefixed<K> Map<K, F> }
