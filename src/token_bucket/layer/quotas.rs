//! The quotas of a request.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::settings::RateLimitLayer;
use crate::fleet::FleetSetting;
use crate::middleware::key::{DynKey, KeyFn};
use crate::{Error, Extracted, IntoKey as _, Key, KeyExtractor, Quotas};

/// Chooses the quotas of a request. Implemented by functions and closures from `&Req` to [`Quotas`], an `Option` of
/// them, or a boxed future of an `Option` of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose the quotas of a `{Req}`",
    note = "pass a closure with a typed argument that returns `Quotas` or `Option<Quotas>`",
    note = "to look up quotas asynchronously, return `Box::pin(future)`"
)]
pub trait ChooseQuotas<Req> {
    /// Returns the quotas, or the future of them.
    fn quotas(&self, request: &Req) -> ChosenQuotas;
}

/// A [`ChooseQuotas`] whose type is erased.
pub(super) type DynQuotas<Req> = Arc<dyn ChooseQuotas<Req> + Send + Sync>;

impl<Req, F, Q> ChooseQuotas<Req> for F
where
    F: Fn(&Req) -> Q,
    Q: Into<ChosenQuotas>,
{
    fn quotas(&self, request: &Req) -> ChosenQuotas {
        self(request).into()
    }
}

/// The quotas that apply to the whole fleet at the moment.
impl<Req> ChooseQuotas<Req> for FleetSetting<Quotas> {
    fn quotas(&self, _: &Req) -> ChosenQuotas {
        self.current().into()
    }
}

/// What a [`ChooseQuotas`] returns. `None`: the quotas that were set before, or those of the bucket.
#[must_use = "quotas that are looked up are a future"]
pub enum ChosenQuotas {
    /// The quotas are known.
    Ready(Option<Quotas>),
    /// The quotas are looked up.
    Pending(BoxFuture<'static, Option<Quotas>>),
}

impl ChosenQuotas {
    /// Returns these quotas, or others if they are `None`.
    pub(crate) fn or(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Ready(None) => other(),
            Self::Ready(quotas) => Self::Ready(quotas),
            Self::Pending(quotas) => {
                let other = other();
                Self::Pending(Box::pin(async move {
                    match quotas.await {
                        None => other.get().await,
                        quotas => quotas,
                    }
                }))
            }
        }
    }

    /// Only quotas that can admit a request of this cost.
    pub(crate) fn for_cost(self, cost: u32) -> Self {
        let admits = move |quotas: &Quotas| cost <= quotas.max_cost();
        match self {
            Self::Ready(quotas) => Self::Ready(quotas.filter(admits)),
            Self::Pending(quotas) => Self::Pending(Box::pin(async move { quotas.await.filter(admits) })),
        }
    }

    pub(super) async fn get(self) -> Option<Quotas> {
        match self {
            Self::Ready(quotas) => quotas,
            Self::Pending(quotas) => quotas.await,
        }
    }
}

impl From<Quotas> for ChosenQuotas {
    fn from(quotas: Quotas) -> Self {
        Self::Ready(Some(quotas))
    }
}

impl From<Option<Quotas>> for ChosenQuotas {
    fn from(quotas: Option<Quotas>) -> Self {
        Self::Ready(quotas)
    }
}

impl<F: Future<Output = Option<Quotas>> + Send + 'static> From<Pin<Box<F>>> for ChosenQuotas {
    fn from(quotas: Pin<Box<F>>) -> Self {
        Self::Pending(quotas)
    }
}

impl From<BoxFuture<'static, Option<Quotas>>> for ChosenQuotas {
    fn from(quotas: BoxFuture<'static, Option<Quotas>>) -> Self {
        Self::Pending(quotas)
    }
}

debug!(ChosenQuotas);

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
pub struct QuotaTable(Arc<HashMap<Key, Quotas>>);

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
            if table.insert(Key::from(&name), quotas).is_some() {
                return Err(Error::invalid(format!("two rows have the same name {name:?}")));
            }
        }
        Ok(Self(Arc::new(table)))
    }

    /// Returns the quotas of a row.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Quotas> {
        self.0.get(&Key::from(name))
    }

    /// The rows, sorted by name.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&Key, &Quotas)> {
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_unstable_by_key(|(name, _)| *name);
        rows.into_iter()
    }
}

/// The table of a layer.
pub enum Table {
    /// It does not change.
    Fixed(QuotaTable),
    /// It is changed for the whole fleet.
    Fleet(FleetSetting<QuotaTable>),
}

debug!(Table);

impl Table {
    fn get(&self, name: &Key) -> Option<Quotas> {
        match self {
            Self::Fixed(table) => table.0.get(name).cloned(),
            Self::Fleet(table) => table.current().0.get(name).cloned(),
        }
    }
}

impl From<QuotaTable> for Table {
    fn from(table: QuotaTable) -> Self {
        Self::Fixed(table)
    }
}

impl From<FleetSetting<QuotaTable>> for Table {
    fn from(table: FleetSetting<QuotaTable>) -> Self {
        Self::Fleet(table)
    }
}

/// Returns the name and the quotas of the row of a request, if it is in a row.
type Row<Req> = Arc<dyn Fn(&Req) -> Result<Option<(Key, Quotas)>, Error> + Send + Sync>;

/// The key of a request in a table; see [`quota_table`](super::RateLimitLayer::quota_table).
struct InTable<Req> {
    row: Row<Req>,
    key: DynKey<Req>,
}

impl<Req> KeyExtractor<Req> for InTable<Req> {
    fn extract(&self, request: &Req) -> Extracted {
        let row = match (self.row)(request) {
            Ok(row) => row,
            Err(error) => return Extracted::Ready(Err(error)),
        };
        // Each row has its own bucket. No key of a request outside of the table can equal one of a row, regardless
        // of the keys that clients choose.
        self.key.extract(request).map(|key| match row {
            Some((name, _)) => Key::of([name, key]),
            None => Key::of([key]),
        })
    }
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// Sets the quotas of a request, by a closure from `&Req` to [`Quotas`](crate::Quotas), an `Option` of them, or a
    /// boxed future of an `Option` of them. Default, and for `None`: the quotas of the bucket.
    ///
    /// If this is called more than once, or with [`quota_table`](Self::quota_table), what was set later is asked first;
    /// for `None`, what was set before applies.
    ///
    /// ```
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, Quotas, RateLimitLayer, Store, TokenBucket};
    ///
    /// struct Call { user: u64, is_premium: bool }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "calls", Quota::per_minute(1))?;
    /// let premium = Quotas::new([Quota::per_minute(100)])?;
    /// let limit = RateLimitLayer::new(bucket, |call: &Call| call.user)
    ///     .quotas(move |call: &Call| call.is_premium.then(|| premium.clone()));
    /// let mut handle = limit.layer(service_fn(async |_: Call| Ok::<_, std::io::Error>("handled")));
    ///
    /// for _ in 0..3 {
    ///     assert_eq!(handle.ready().await?.call(Call { user: 7, is_premium: true }).await?, "handled");
    /// }
    /// assert!(handle.ready().await?.call(Call { user: 8, is_premium: false }).await.is_ok());
    /// assert!(handle.ready().await?.call(Call { user: 8, is_premium: false }).await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// With a future, the request waits for the lookup, for example of the plan of a customer in a database. Cache the
    /// results.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Quotas, RateLimitLayer, Store, TokenBucket};
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// async fn plan(customer: String) -> Option<Quotas> {
    ///     let text = if customer == "acme" { "100/s" } else { "10/s" }; // from a database
    ///     text.parse().ok()
    /// }
    ///
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(1))?;
    /// let layer = RateLimitLayer::new(bucket, |customer: &String| customer.clone())
    ///     .quotas(|customer: &String| Box::pin(plan(customer.clone())));
    /// # let _: RateLimitLayer<_, ()> = layer;
    /// # Ok(()) }
    /// ```
    ///
    /// To change quotas at run time in all processes, pass [`FleetQuotas`](crate::FleetQuotas). Quotas that only this
    /// process changes can come from a `watch` channel of tokio: other processes do not see such a change. See
    /// [the bucket's documentation](crate::token_bucket#when-quotas-change) for the effect of a change on existing
    /// buckets.
    ///
    /// ```
    /// use tokio::sync::watch;
    /// use tower_distributed::{Quotas, RateLimitLayer, Store, TokenBucket};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let (configuration, quotas) = watch::channel("100/s".parse::<Quotas>()?);
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", quotas.borrow().clone())?;
    /// let layer = RateLimitLayer::new(bucket, |request: &String| request.clone())
    ///     .quotas(move |_: &String| quotas.borrow().clone());
    ///
    /// configuration.send_replace("50/s, burst 200".parse()?); // applies from the next request on
    /// # let _: RateLimitLayer<_, ()> = layer;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn quotas(mut self, quotas: impl ChooseQuotas<Req> + Send + Sync + 'static) -> Self {
        self.quotas.push(Arc::new(quotas));
        self
    }

    /// Gives each row of a table its own limit, by a closure from `&Req` to the name of a row: for example a route,
    /// or a gRPC method. The table is a [`QuotaTable`], or a [`FleetTable`](crate::token_bucket::FleetTable), which is
    /// changed for the whole fleet.
    ///
    /// A key has one bucket for each row. Requests that are in no row use the [`quotas`](Self::quotas) that were set
    /// before. Quotas that are set after the table come first, also for requests in a row: set those that apply to
    /// every request before it. If the closure fails, the request is refused.
    ///
    /// ```
    /// # use tower_distributed::{Quota, QuotaTable, RateLimitLayer, Store, TokenBucket};
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// struct Call { method: &'static str, user: u64 }
    ///
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(100))?;
    /// let table = QuotaTable::new([("/shop.Orders/Place", "5/s"), ("/shop.Search/Find", "20/s, burst 50")])?;
    /// let layer = RateLimitLayer::new(bucket, |call: &Call| call.user).quota_table(table, |call: &Call| call.method);
    /// # let _: RateLimitLayer<_, ()> = layer;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn quota_table<N>(mut self, table: impl Into<Table>, name: N) -> Self
    where
        N: for<'a> KeyFn<&'a Req> + Send + Sync + 'static,
        Req: 'static,
    {
        let table = table.into();
        let row: Row<Req> = Arc::new(move |request| {
            let Some(name) = name(request).into_key()? else { return Ok(None) };
            Ok(table.get(&name).map(|quotas| (name, quotas)))
        });
        if let Some(first) = Arc::make_mut(&mut self.keys).first_mut() {
            *first = Arc::new(InTable { row: Arc::clone(&row), key: Arc::clone(first) });
        }
        self.quotas(move |request: &Req| Some(row(request).ok()??.1))
    }
}
