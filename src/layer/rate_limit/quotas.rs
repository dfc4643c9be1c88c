//! Under which quotas a request comes.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::layer::key::DynKey;
use crate::{Error, Extracted, Key, KeyExtractor, LiveQuotas, Quotas};

/// Quotas that are being looked up; `None`: those of the bucket.
pub type QuotasFuture = Pin<Box<dyn Future<Output = Option<Quotas>> + Send>>;

/// Under which quotas a request comes; `None`: those of the bucket. Functions and closures from `&Req` to
/// `Option<Quotas>` do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose the quotas of a `{Req}`",
    note = "pass a closure with a typed argument that returns `Option<Quotas>`, or `LiveQuotas`",
    note = "for quotas that are looked up asynchronously there is `look_up_quotas`"
)]
pub trait ChooseQuotas<Req> {
    /// The quotas.
    fn quotas(&self, request: &Req) -> Option<Quotas>;

    /// Where they have to be waited for; then [`quotas`](Self::quotas) is not asked.
    fn look_up(&self, request: &Req) -> Option<QuotasFuture> {
        let _ = request;
        None
    }
}

/// A [`ChooseQuotas`] whose type is erased.
pub(super) type DynQuotas<Req> = Arc<dyn ChooseQuotas<Req> + Send + Sync>;

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

/// Quotas that a closure looks up; see [`look_up_quotas`](super::RateLimitLayer::look_up_quotas).
pub(super) struct LookUp<F>(pub(super) F);

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
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name the row of a `{Req}`",
    note = "pass a closure with a typed argument that returns text: `|request: &Request| request.method().to_string()`"
)]
pub trait RowName<Req> {
    /// Hands the name to `then`.
    fn with_name(&self, request: &Req, then: &mut dyn FnMut(&str));
}

impl<Req, F> RowName<Req> for F
where
    F: for<'a> RowNameFn<&'a Req>,
{
    fn with_name(&self, request: &Req, then: &mut dyn FnMut(&str)) {
        then(self(request).as_ref());
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
pub(super) struct InTable<T, N> {
    pub(super) table: QuotaTable,
    pub(super) name: Arc<N>,
    /// What goes for requests that are in no row.
    pub(super) outside: T,
}

impl<T, N> InTable<T, N> {
    /// The row of a request: its name and quotas.
    fn row<Req>(&self, request: &Req) -> Option<(Key, Quotas)>
    where
        N: RowName<Req>,
    {
        let mut row = None;
        self.name.with_name(request, &mut |name| {
            row = self.table.get(name).map(|quotas| (Key::from(name), quotas.clone()));
        });
        row
    }
}

impl<Req, N: RowName<Req>> KeyExtractor<Req> for InTable<DynKey<Req>, N> {
    fn extract(&self, request: &Req) -> Extracted {
        let row = self.row(request);
        // A bucket for each row. No key of a request outside of the table is one of those, whatever clients choose.
        self.outside.extract(request).map(|key| match row {
            Some((name, _)) => Key::of([name, key]),
            None => Key::of([key]),
        })
    }
}

impl<Req, N: RowName<Req>> ChooseQuotas<Req> for InTable<Option<DynQuotas<Req>>, N> {
    fn quotas(&self, request: &Req) -> Option<Quotas> {
        let row = self.row(request).map(|(_, quotas)| quotas);
        row.or_else(|| self.outside.as_ref()?.quotas(request))
    }

    fn look_up(&self, request: &Req) -> Option<QuotasFuture> {
        if self.row(request).is_some() { None } else { self.outside.as_ref()?.look_up(request) }
    }
}
