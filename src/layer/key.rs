//! Which key a request belongs to.

use crate::Key;

/// Names the key of a request; `None` lets the request pass untouched.
///
/// Closures and functions from `&Req` to anything that is [`IntoKey`] are extractors:
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
/// Write out the type of a closure's argument, `|job: &Job|`: it is not inferred. And a closure cannot return what
/// it borrows from its argument (a limit of the language's inference); let it return a [`Key`], which copies
/// without an allocation up to 24 bytes.
pub trait KeyExtractor<Req> {
    /// The key of a request.
    fn extract(&self, request: &Req) -> Option<Key>;
}

impl<Req, F> KeyExtractor<Req> for F
where
    F: for<'a> KeyFn<&'a Req>,
{
    fn extract(&self, request: &Req) -> Option<Key> {
        self(request).into_key()
    }
}

/// By two extractors, such as one for the sender and one for the id: what differs in either has another key
/// ([`Key::of`]). `None` where either is.
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
    fn extract(&self, request: &Req) -> Option<Key> {
        Some(Key::of([self.0.extract(request)?, self.1.extract(request)?]))
    }
}

/// None where a closure says so; see [`RateLimitLayer::skip_if`](crate::RateLimitLayer::skip_if).
#[derive(Clone, Copy)]
pub struct SkipIf<K, F>(pub(super) K, pub(super) F);

impl<Req, K: KeyExtractor<Req>, F: Fn(&Req) -> bool> KeyExtractor<Req> for SkipIf<K, F> {
    fn extract(&self, request: &Req) -> Option<Key> {
        if (self.1)(request) { None } else { self.0.extract(request) }
    }
}

impl<K, F> std::fmt::Debug for SkipIf<K, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SkipIf").finish_non_exhaustive()
    }
}

/// `Fn(Ref) -> impl IntoKey`, where `Ref` is `&Req`: a form that lets the key borrow from the request.
pub trait KeyFn<Ref>: Fn(Ref) -> <Self as KeyFn<Ref>>::Key {
    /// What the function returns.
    type Key: IntoKey;
}

impl<Ref, F, K> KeyFn<Ref> for F
where
    F: Fn(Ref) -> K,
    K: IntoKey,
{
    type Key = K;
}

/// What a key can be made of: strings, bytes, numbers, IP addresses, or an `Option` of these.
pub trait IntoKey {
    /// The key; `None` lets the request pass untouched.
    fn into_key(self) -> Option<Key>;
}

impl<T: Into<Key>> IntoKey for T {
    fn into_key(self) -> Option<Key> {
        Some(self.into())
    }
}

impl<T: Into<Key>> IntoKey for Option<T> {
    fn into_key(self) -> Option<Key> {
        self.map(Into::into)
    }
}
