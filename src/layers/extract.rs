//! Methods that all extractors have, and extractors that are made of other extractors.

use std::ops::Deref;
use std::sync::Arc;

use crate::key::IntoKey;
use crate::key::Key;
use crate::layers::key::{Extracted, KeyExtractor, SkipIf};

/// An extractor that can be changed, and combined with other extractors or closures. The functions of [this
/// module](crate::extract) return it.
#[derive(Clone, Copy)]
pub struct Extractor<K>(pub(crate) K);

impl<K> Extractor<K> {
    /// Uses another extractor if this one finds nothing: its part of the request is missing, or a closure returns
    /// `None`. The keys of the two are always different.
    #[must_use]
    pub fn or<Other>(self, other: Other) -> Extractor<Or<K, Other>> {
        Extractor(Or(self.0, other))
    }

    /// Lets the part of the request be missing. All requests without it have one key, which differs from that of an
    /// empty value. So they share one limit; after [`and`](Self::and), they share one limit for each value of the other
    /// part.
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
    #[must_use]
    pub fn optional(self) -> Extractor<Optional<K>> {
        Extractor(Optional(self.0))
    }

    /// Uses the keys of this extractor and another one together. A request without one of the parts is refused,
    /// unless the part is [`optional`](Self::optional). `None` if a closure returns `None` for one of them.
    #[must_use]
    pub fn and<Other>(self, other: Other) -> Extractor<(K, Other)> {
        Extractor((self.0, other))
    }

    /// Puts a constant part before the key.
    #[must_use]
    pub fn prefixed(self, prefix: &str) -> Extractor<(Key, K)> {
        Extractor((prefix.into(), self.0))
    }

    /// Changes the key, by a closure from [`Key`] to anything that is [`IntoKey`].
    #[must_use]
    pub fn map<Change>(self, change: Change) -> Extractor<Map<K, Arc<Change>>> {
        Extractor(Map(self.0, Arc::new(change)))
    }

    /// Lets requests pass without a limit, if a closure from `&Request` returns `true`.
    #[must_use]
    pub fn skip_if<Skip>(self, skip: Skip) -> Extractor<SkipIf<K, Skip>> {
        Extractor(SkipIf(self.0, skip))
    }
}

impl<K> Deref for Extractor<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.0
    }
}

impl<Req, K: KeyExtractor<Req>> KeyExtractor<Req> for Extractor<K> {
    fn extract(&self, request: &Req) -> Extracted {
        self.0.extract(request)
    }
}

/// Makes an [`Extractor`] from a closure, or from another [`KeyExtractor`], to combine it with other extractors.
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
pub fn by<F>(key: F) -> Extractor<F> {
    Extractor(key)
}

/// Looks the key up, by a closure from `&Req` to a future of anything that is [`IntoKey`]: for example, the customer of
/// a session, from a database. The future must not borrow from the request. If it returns
/// [`Error::look_up_failed`](crate::Error::look_up_failed), the request is refused with 503.
///
/// The request waits for the future, and this crate sets no time limit. So set a timeout, and cache the results:
///
/// ```
/// use std::time::Duration;
/// use tokio::time::timeout;
/// use tower_distributed::extract::look_up;
/// use tower_distributed::{Error, KeyExtractor};
///
/// async fn customer(session: String) -> Result<Option<u64>, std::io::Error> {
///     Ok((session == "s1").then_some(7)) // from a database
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let by_customer = look_up(|session: &String| {
///     let customer = timeout(Duration::from_millis(100), customer(session.clone()));
///     async { customer.await.map_err(Error::look_up_failed)?.map_err(Error::look_up_failed) }
/// });
/// assert_eq!(by_customer.extract(&"s1".to_owned()).await?, Some("7".into()));
/// # Ok(()) }
/// ```
pub fn look_up<F>(look_up: F) -> Extractor<LookUp<F>> {
    Extractor(LookUp(look_up))
}

/// See [`look_up`].
#[derive(Clone, Copy)]
pub struct LookUp<F>(F);

impl<Req, F, Fut> KeyExtractor<Req> for LookUp<F>
where
    F: Fn(&Req) -> Fut,
    Fut: Future<Output: IntoKey> + Send + 'static,
{
    fn extract(&self, request: &Req) -> Extracted {
        let key = (self.0)(request);
        Extracted::Pending(Box::pin(async move { key.await.into_key() }))
    }
}

/// See [`Extractor::or`].
#[derive(Clone, Copy)]
pub struct Or<A, B>(A, B);

impl<Req, A: KeyExtractor<Req>, B: KeyExtractor<Req>> KeyExtractor<Req> for Or<A, B> {
    fn extract(&self, request: &Req) -> Extracted {
        // Each key has a prefix, so that no value that a client sends to one extractor equals a key of the other.
        let one = self
            .0
            .extract(request)
            .map(|key| Key::of(["or 1".into(), key]));
        one.or(|| {
            self.1
                .extract(request)
                .map(|key| Key::of(["or 2".into(), key]))
        })
    }
}

/// See [`Extractor::optional`].
#[derive(Clone, Copy)]
pub struct Optional<K>(K);

impl<Req, K: KeyExtractor<Req>> KeyExtractor<Req> for Optional<K> {
    fn extract(&self, request: &Req) -> Extracted {
        let found = self
            .0
            .extract(request)
            .map(|key| Key::of_some([Some(&key)]));
        found.or(|| Key::of_some([None]).into())
    }
}

/// See [`Extractor::map`].
#[derive(Clone)]
pub struct Map<K, F>(K, F);

impl<Req, K, F, T> KeyExtractor<Req> for Map<K, Arc<F>>
where
    K: KeyExtractor<Req>,
    F: Fn(Key) -> T + Send + Sync + 'static,
    T: IntoKey,
{
    fn extract(&self, request: &Req) -> Extracted {
        let change = Arc::clone(&self.1);
        self.0
            .extract(request)
            .and_then(move |key| change(key).into_key())
    }
}

debug!(Extractor<K>);
debug!(LookUp<F>);
debug!(Or<A, B>);
debug!(Optional<K>);
debug!(Map<K, F>);
