//! The key of a request, which a key extractor names, and its cost.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;

use crate::error::Error;
use crate::key::{IntoKey, Key};

/// Names the key of a request.
///
/// Closures and functions from `&Req` to anything that is [`IntoKey`] are extractors. A closure that returns `None`
/// lets the request pass without being limited, and an [`Error`] refuses it ([`Error::bad_request`]):
///
/// ```
/// use tower_distributed::{Key, KeyExtractor};
///
/// struct Job { tenant: String, id: u64 }
///
/// fn by_tenant(job: &Job) -> &str { &job.tenant }         // a function may borrow from the request
///
/// let by_id = |job: &Job| job.id;
/// let by_both = |job: &Job| format!("{}/{}", job.tenant, job.id);
/// let but_system = |job: &Job| (job.tenant != "system").then(|| Key::from(&job.tenant));
///
/// let job = Job { tenant: "acme".into(), id: 7 };
/// assert_eq!(by_tenant.extract(&job), Some("acme".into()));
/// assert_eq!(by_id.extract(&job), Some("7".into()));
/// assert_eq!(by_both.extract(&job), Some("acme/7".into()));
/// assert_eq!(but_system.extract(&job), Some("acme".into()));
/// ```
///
/// Write the type of a closure's argument, `|job: &Job|`: the compiler does not infer it. A closure cannot return a
/// reference into its argument (a limit of type inference). Let it return a [`Key`], which holds up to 24 bytes
/// without an allocation, or use a function.
///
/// [`look_up`](crate::extract::look_up) makes an extractor of a closure that returns a future.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name the key of a `{Req}`",
    label = "not a key extractor for `{Req}`",
    note = "write the type of the closure's argument: `|request: &Request| ...`, with the request type of the service",
    note = "a closure returns an owned key: `String`, `Key::from(text)`, a number, an address, or an `Option` of these",
    note = "to return a `&str` that borrows from the request, use a function: `fn key(request: &Request) -> Option<&str>`"
)]
pub trait KeyExtractor<Req> {
    /// Returns the key of a request, or a future of it.
    fn extract(&self, request: &Req) -> Extracted;
}

/// A [`KeyExtractor`] whose type is erased, as layers store it.
pub(crate) type DynKey<Req> = Arc<dyn KeyExtractor<Req> + Send + Sync>;

#[diagnostic::do_not_recommend]
impl<Req, F> KeyExtractor<Req> for F
where
    F: for<'a> KeyFn<&'a Req>,
{
    fn extract(&self, request: &Req) -> Extracted {
        Extracted::Ready(self(request).into_key())
    }
}

/// Combines the keys of two extractors, such as the sender and the id: requests that differ in one of them have
/// different keys ([`Key::of`]). `None` if one of them is `None`, an error if a part is missing.
///
/// ```
/// use tower_distributed::{Key, KeyExtractor};
///
/// struct Job { tenant: String, id: u64 }
///
/// let by_both = (|job: &Job| job.tenant.clone(), |job: &Job| job.id);
/// let job = Job { tenant: "acme".into(), id: 7 };
/// assert_eq!(by_both.extract(&job), Some(Key::of(["acme", "7"])));
/// ```
impl<Req, A, B> KeyExtractor<Req> for (A, B)
where
    A: KeyExtractor<Req>,
    B: KeyExtractor<Req>,
{
    fn extract(&self, request: &Req) -> Extracted {
        self.0.extract(request).and(|| self.1.extract(request))
    }
}

/// The result of a [`KeyExtractor`]. To combine extractors, use [`extract::by`](crate::extract::by).
///
/// ```
/// use tower_distributed::{Extracted, Key, KeyExtractor};
///
/// struct Job { tenant: Option<String>, id: u64 }
///
/// /// The tenant and the job; the job alone if there is no tenant.
/// struct ByJob;
///
/// impl KeyExtractor<Job> for ByJob {
///     fn extract(&self, job: &Job) -> Extracted {
///         match &job.tenant {
///             Some(tenant) => Key::of(["job", tenant, &job.id.to_string()]).into(),
///             None => Key::of(["job", &job.id.to_string()]).into(),
///         }
///     }
/// }
///
/// let key = ByJob.extract(&Job { tenant: Some("acme".into()), id: 7 });
/// assert_eq!(key, Some(Key::of(["job", "acme", "7"])));
/// let key = ByJob.extract(&Job { tenant: None, id: 7 });
/// assert_eq!(key, Some(Key::of(["job", "7"])));
/// ```
#[must_use = "a key that is looked up is a future"]
pub enum Extracted {
    /// The key is known. `None`: the request passes without being limited.
    Ready(Result<Option<Key>, Error>),
    /// The key is looked up.
    Pending(BoxFuture<'static, Result<Option<Key>, Error>>),
}

impl Extracted {
    /// The request passes without being limited.
    pub const NONE: Self = Self::Ready(Ok(None));

    /// The key, if it is known without a lookup.
    #[cfg(test)]
    pub(crate) fn now(self) -> Option<Key> {
        match self {
            Self::Ready(key) => key.unwrap(),
            Self::Pending(_) => panic!("the key is looked up"),
        }
    }

    /// Changes the key.
    pub(crate) fn map(self, change: impl FnOnce(Key) -> Key + Send + 'static) -> Self {
        self.and_then(|key| Ok(Some(change(key))))
    }

    /// Changes the key, or replaces it with none or an error.
    pub(crate) fn and_then(
        self,
        change: impl FnOnce(Key) -> Result<Option<Key>, Error> + Send + 'static,
    ) -> Self {
        match self {
            Self::Ready(Ok(Some(key))) => Self::Ready(change(key)),
            Self::Ready(known) => Self::Ready(known),
            Self::Pending(key) => {
                Self::Pending(Box::pin(async move { key.await?.map_or(Ok(None), change) }))
            }
        }
    }

    /// Joins this key and another one with [`Key::of`]. `None` if one of them is `None`, an error if a part is missing.
    pub(crate) fn and(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Ready(Ok(Some(one))) => other().map(|other| Key::of([one, other])),
            Self::Ready(none) => Self::Ready(none),
            Self::Pending(one) => {
                let other = other();
                Self::Pending(Box::pin(async move {
                    let Some(one) = one.await? else {
                        return Ok(None);
                    };
                    Ok(other.await?.map(|other| Key::of([one, other])))
                }))
            }
        }
    }

    /// Returns this key, or another one if it is `None` or [a part of it is missing](Error::is_missing_part).
    pub(crate) fn or(self, other: impl FnOnce() -> Self) -> Self {
        let is_absent =
            |key: &Result<_, Error>| key.as_ref().map_or_else(Error::is_absence, Option::is_none);
        match self {
            Self::Ready(key) if is_absent(&key) => other(),
            Self::Ready(known) => Self::Ready(known),
            Self::Pending(one) => {
                let other = other();
                Self::Pending(Box::pin(async move {
                    let key = one.await;
                    if is_absent(&key) { other.await } else { key }
                }))
            }
        }
    }
}

impl Future for Extracted {
    type Output = Result<Option<Key>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            // If it is polled again, it stays pending: it must not return `None`, which would let the request pass.
            Self::Ready(_) => {
                let done = Self::Pending(Box::pin(std::future::pending()));
                match std::mem::replace(&mut *self, done) {
                    Self::Ready(key) => Poll::Ready(key),
                    Self::Pending(_) => Poll::Pending,
                }
            }
            Self::Pending(key) => key.as_mut().poll(context),
        }
    }
}

impl From<Option<Key>> for Extracted {
    fn from(key: Option<Key>) -> Self {
        Self::Ready(Ok(key))
    }
}

impl From<Key> for Extracted {
    fn from(key: Key) -> Self {
        Self::Ready(Ok(Some(key)))
    }
}

/// For tests: equal if the key is known and is this one.
impl PartialEq<Option<Key>> for Extracted {
    fn eq(&self, other: &Option<Key>) -> bool {
        matches!(self, Self::Ready(Ok(key)) if key == other)
    }
}

impl fmt::Debug for Extracted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(key) => f.debug_tuple("Ready").field(key).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

/// Returns no key if a closure returns `true`; see [`Extractor::skip_if`](crate::extract::Extractor::skip_if).
#[derive(Clone, Copy)]
pub struct SkipIf<K, F>(pub(crate) K, pub(crate) F);

debug!(SkipIf<K, F>);

impl<Req, K: KeyExtractor<Req>, F: Fn(&Req) -> bool> KeyExtractor<Req> for SkipIf<K, F> {
    fn extract(&self, request: &Req) -> Extracted {
        if (self.1)(request) {
            Extracted::NONE
        } else {
            self.0.extract(request)
        }
    }
}

/// All requests have this key.
///
/// ```
/// use tower_distributed::{Key, KeyExtractor};
///
/// assert_eq!(Key::from("all").extract(&7), Some("all".into()));
/// ```
impl<Req> KeyExtractor<Req> for Key {
    fn extract(&self, _: &Req) -> Extracted {
        self.clone().into()
    }
}

impl<Req> KeyExtractor<Req> for DynKey<Req> {
    fn extract(&self, request: &Req) -> Extracted {
        (**self).extract(request)
    }
}

/// `Fn(Ref) -> impl IntoKey`, where `Ref` is `&Req`: a form that lets the key borrow from the request.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name the key of a request `{Ref}`",
    label = "not a key extractor",
    note = "write the type of the closure's argument: `|request: &Request| ...`, with the request type of the service",
    note = "a closure returns an owned key: `String`, `Key::from(text)`, a number, an address, or an `Option` of these"
)]
pub trait KeyFn<Ref>: Fn(Ref) -> <Self as KeyFn<Ref>>::Key {
    /// The key that the function returns.
    type Key: IntoKey;
}

#[diagnostic::do_not_recommend]
impl<Ref, F, K> KeyFn<Ref> for F
where
    F: Fn(Ref) -> K,
    K: IntoKey,
{
    type Key = K;
}

/// The cost of a request, or of a response, in tokens. Implemented by functions and closures from `&Req` to `u32`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what a `{Req}` costs",
    note = "pass a closure with a typed argument that returns `u32`: `|request: &Request| 1`"
)]
pub trait Cost<Req> {
    /// The cost in tokens.
    fn cost(&self, request: &Req) -> u32;
}

impl<Req, F: Fn(&Req) -> u32> Cost<Req> for F {
    fn cost(&self, request: &Req) -> u32 {
        self(request)
    }
}
