//! Under which quotas a request comes.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::{Error, Key, KeyExtractor, LiveQuotas, Quotas};

/// Quotas that are being looked up; `None`: those of the bucket.
pub type QuotasFuture = Pin<Box<dyn Future<Output = Option<Quotas>> + Send>>;

/// Under which quotas a request comes; `None`: those of the bucket. Functions and closures from `&Req` to
/// `Option<Quotas>` do.
pub trait ChooseQuotas<Req> {
    /// The quotas.
    fn quotas(&self, request: &Req) -> Option<Quotas>;

    /// Where they have to be waited for; then [`quotas`](Self::quotas) is not asked.
    fn look_up(&self, request: &Req) -> Option<QuotasFuture> {
        let _ = request;
        None
    }
}

impl<Req, F: Fn(&Req) -> Option<Quotas>> ChooseQuotas<Req> for F {
    fn quotas(&self, request: &Req) -> Option<Quotas> {
        self(request)
    }
}

impl<Req> ChooseQuotas<Req> for LiveQuotas {
    fn quotas(&self, _: &Req) -> Option<Quotas> {
        Some(self.get())
    }
}

/// All requests come under the quotas of the bucket: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct SameQuotas;

impl<Req> ChooseQuotas<Req> for SameQuotas {
    fn quotas(&self, _: &Req) -> Option<Quotas> {
        None
    }
}

/// Quotas that a closure looks up; see [`look_up_quotas`](super::RateLimitLayer::look_up_quotas).
#[derive(Clone, Copy)]
pub struct LookUp<F>(pub(super) F);

impl<Req, F, Fut> ChooseQuotas<Req> for LookUp<F>
where
    F: Fn(&Req) -> Fut,
    Fut: Future<Output = Option<Quotas>> + Send + 'static,
{
    fn quotas(&self, _: &Req) -> Option<Quotas> {
        None
    }

    fn look_up(&self, request: &Req) -> Option<QuotasFuture> {
        Some(Box::pin((self.0)(request)))
    }
}

impl<F> fmt::Debug for LookUp<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookUp").finish_non_exhaustive()
    }
}

/// Quotas by the names of routes or methods. A cheap clone.
///
/// ```
/// use tower_distributed::QuotaTable;
///
/// let table = QuotaTable::new([("/search", "20/s, burst 50"), ("/export", "10/h; 2/min")])?;
/// assert_eq!(table.get("/export").map(|quotas| quotas.max_cost()), Some(2));
///
/// let error = QuotaTable::new([("/search", "20/fortnight")]).unwrap_err();
/// assert!(error.to_string().contains("/search"));
/// # Ok::<(), tower_distributed::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QuotaTable(Arc<HashMap<String, Quotas>>);

impl QuotaTable {
    /// A table of rows: names, and their quotas as text or values.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where quotas are wrong, as [`Quotas::new`] says, or a name stands there twice. The text
    /// says which.
    pub fn new<N, Q>(rows: impl IntoIterator<Item = (N, Q)>) -> Result<Self, Error>
    where
        N: Into<String>,
        Q: TryInto<Quotas>,
        Error: From<Q::Error>,
    {
        let mut table = HashMap::new();
        for (name, quotas) in rows {
            let name = name.into();
            let quotas: Result<Quotas, Error> = quotas.try_into().map_err(Error::from);
            let quotas =
                quotas.map_err(|error| Error::invalid(format!("the quotas of {name:?}: {error}")))?;
            if table.contains_key(&name) {
                return Err(Error::invalid(format!("two rows are named {name:?}")));
            }
            table.insert(name, quotas);
        }
        Ok(Self(Arc::new(table)))
    }

    /// The quotas of a row.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Quotas> {
        self.0.get(name)
    }
}

/// Names the row of a request. Functions and closures from `&Req` to text do.
pub trait RowName<Req> {
    /// Hands the name to `then`.
    fn with_name<R>(&self, request: &Req, then: impl FnOnce(&str) -> R) -> R;
}

impl<Req, F> RowName<Req> for F
where
    F: for<'a> RowNameFn<&'a Req>,
{
    fn with_name<R>(&self, request: &Req, then: impl FnOnce(&str) -> R) -> R {
        then(self(request).as_ref())
    }
}

/// `Fn(Ref) -> impl AsRef<str>`, where `Ref` is `&Req`: a form that lets the name borrow from the request.
pub trait RowNameFn<Ref>: Fn(Ref) -> <Self as RowNameFn<Ref>>::Name {
    /// What the function returns.
    type Name: AsRef<str>;
}

impl<Ref, F, N> RowNameFn<Ref> for F
where
    F: Fn(Ref) -> N,
    N: AsRef<str>,
{
    type Name = N;
}

/// By the row of a table; see [`quota_table`](super::RateLimitLayer::quota_table).
#[derive(Clone)]
pub struct InTable<T, N> {
    pub(super) table: QuotaTable,
    pub(super) name: N,
    /// What goes for requests that are in no row.
    pub(super) outside: T,
}

impl<Req, K: KeyExtractor<Req>, N: RowName<Req>> KeyExtractor<Req> for InTable<K, N> {
    fn extract(&self, request: &Req) -> Option<Key> {
        let key = self.outside.extract(request)?;
        // A bucket for each row. No key of a request outside of the table is one of those, whatever clients choose.
        Some(self.name.with_name(request, |name| match self.table.get(name) {
            Some(_) => Key::of([name.as_bytes(), key.as_bytes()]),
            None => Key::of([key.as_bytes()]),
        }))
    }
}

impl<Req, Q: ChooseQuotas<Req>, N: RowName<Req>> ChooseQuotas<Req> for InTable<Q, N> {
    fn quotas(&self, request: &Req) -> Option<Quotas> {
        let row = self.name.with_name(request, |name| self.table.get(name).cloned());
        row.or_else(|| self.outside.quotas(request))
    }

    fn look_up(&self, request: &Req) -> Option<QuotasFuture> {
        let is_in_table = self.name.with_name(request, |name| self.table.get(name).is_some());
        if is_in_table { None } else { self.outside.look_up(request) }
    }
}

impl<T, N> fmt::Debug for InTable<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTable").field("table", &self.table).finish_non_exhaustive()
    }
}
