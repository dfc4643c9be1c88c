//! The quotas of a request.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::layer::key::DynKey;
use crate::{Error, Extracted, Key, KeyExtractor, LiveQuotas, Quotas};

/// A lookup of quotas. `None`: the quotas of the bucket.
pub type QuotasFuture = Pin<Box<dyn Future<Output = Option<Quotas>> + Send>>;

/// Chooses the quotas of a request. Implemented by [`LiveQuotas`], and by functions and closures from `&Req` to
/// `Option<Quotas>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose the quotas of a `{Req}`",
    note = "pass a closure with a typed argument that returns `Option<Quotas>`, or `LiveQuotas`",
    note = "use `look_up_quotas` to look up quotas asynchronously"
)]
pub trait ChooseQuotas<Req> {
    /// Returns the quotas; `None`: the quotas of the bucket.
    fn quotas(&self, request: &Req) -> Option<Quotas>;

    /// Returns a future if the quotas must be looked up asynchronously. Then [`quotas`](Self::quotas) is not
    /// called.
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

/// Quotas from an asynchronous closure; see [`look_up_quotas`](super::RateLimitLayer::look_up_quotas).
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

/// Quotas by name, for example of a route or a method. Cloning is cheap.
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
    /// Creates a table from rows. A row is a name and its quotas, as text or as values.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the quotas of a row are invalid, as in [`Quotas::new`], or two rows
    /// have the same name. The error text names the row.
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
                return Err(Error::invalid(format!("two rows have the same name {name:?}")));
            }
            table.insert(name, quotas);
        }
        Ok(Self(Arc::new(table)))
    }

    /// Returns the quotas of a row.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Quotas> {
        self.0.get(name)
    }
}

/// Returns the name of the row for a request. Implemented by functions and closures from `&Req` to text.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name the row of a `{Req}`",
    note = "pass a closure with a typed argument that returns text: `|request: &Request| request.method().to_string()`"
)]
pub trait RowName<Req> {
    /// Calls `then` with the name.
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

/// `Fn(Ref) -> impl AsRef<str>`, where `Ref` is `&Req`. In this form, the name may borrow from the request.
pub trait RowNameFn<Ref>: Fn(Ref) -> <Self as RowNameFn<Ref>>::Name {
    /// The return type of the function.
    type Name: AsRef<str>;
}

impl<Ref, F, N> RowNameFn<Ref> for F
where
    F: Fn(Ref) -> N,
    N: AsRef<str>,
{
    type Name = N;
}

/// A setting by the rows of a table; see [`quota_table`](super::RateLimitLayer::quota_table).
pub(super) struct InTable<T, N> {
    pub(super) table: QuotaTable,
    pub(super) name: Arc<N>,
    /// The setting for requests that are in no row.
    pub(super) outside: T,
}

impl<T, N> InTable<T, N> {
    /// Returns the name and the quotas of a request's row.
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
        // Each row has its own bucket. No key of a request outside of the table can equal one of a row, regardless
        // of the keys that clients choose.
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
