//! The quotas of a request.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::chosen::{ChooseQuotas, ChosenQuotas};
use super::settings::RateLimitLayer;
use crate::fleet::FleetSetting;
use crate::middleware::key::KeyFn;
use crate::{Error, Extracted, IntoKey as _, Key, Quotas};

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
            let quotas = quotas
                .map_err(|error| Error::invalid(format!("the quotas of {name:?}: {error}")))?;
            if table.insert(Key::from(&name), quotas).is_some() {
                return Err(Error::invalid(format!(
                    "two rows have the same name {name:?}"
                )));
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

/// The name and the quotas of a row.
type Row = (Key, Quotas);

/// Returns the row of a request, if it is in one.
type FindRow<Req> = Arc<dyn Fn(&Req) -> Result<Option<Row>, Error> + Send + Sync>;

/// How a layer chooses quotas.
pub(super) enum Choice<Req> {
    By(Arc<dyn ChooseQuotas<Req> + Send + Sync>),
    InTable(FindRow<Req>),
}

impl<Req> Clone for Choice<Req> {
    fn clone(&self) -> Self {
        match self {
            Self::By(quotas) => Self::By(Arc::clone(quotas)),
            Self::InTable(row) => Self::InTable(Arc::clone(row)),
        }
    }
}

/// The row of a request in each table of a layer, in the order of the tables. A table is read once for each request, so that the
/// bucket and the quotas are of the same version of it.
pub(super) struct Rows(SmallVec<[Option<Row>; 1]>);

impl Rows {
    /// The key of the first limit. Each row has its own bucket. No key of a request outside of a table can equal one of a row,
    /// regardless of the keys that clients choose.
    pub(super) fn key(&self, key: Extracted) -> Extracted {
        self.0.iter().fold(key, |key, row| {
            let name = row.as_ref().map(|(name, _)| name.clone());
            key.map(|key| match name {
                Some(name) => Key::of([name, key]),
                None => Key::of([key]),
            })
        })
    }
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// Looks a request up in the tables.
    pub(super) fn rows_of(&self, request: &Req) -> Result<Rows, Error> {
        let rows = self.quotas.iter().filter_map(|choice| match choice {
            Choice::By(_) => None,
            Choice::InTable(row) => Some(row(request)),
        });
        rows.collect::<Result<_, _>>().map(Rows)
    }

    /// The quotas of a request with these rows. What was set later is asked first.
    pub(super) fn quotas_of(&self, request: &Req, mut rows: Rows) -> ChosenQuotas {
        self.quotas
            .iter()
            .rev()
            .fold(ChosenQuotas::NONE, |chosen, choice| match choice {
                Choice::By(earlier) => chosen.or(|| earlier.quotas(request)),
                Choice::InTable(_) => {
                    let row = rows.0.pop().flatten();
                    chosen.or(|| ChosenQuotas::Ready(Ok(row.map(|(_, quotas)| quotas))))
                }
            })
    }
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// Sets the quotas of a request, by a closure from `&Req` to [`Quotas`](crate::Quotas), an `Option` of them, a `Result` of
    /// either, or a boxed future of one of these. Default, and for `None`: the quotas of the bucket. An error
    /// [refuses the request](crate::token_bucket::IntoQuotas).
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
    /// With a future, the request waits for the lookup, for example of the plan of a customer in a database. Give it a time
    /// limit, and cache the results. While the database is away, requests are refused with 503, and not under the quotas of
    /// another plan.
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, Quotas, RateLimitLayer, Refusal, RefusalKind, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// async fn plan(customer: String) -> Result<Option<Quotas>, std::io::Error> {
    ///     match &*customer { // from a database
    ///         "acme" => Ok("100/s".parse().ok()),
    ///         "away" => Err(std::io::ErrorKind::NotConnected.into()),
    ///         _ => Ok(None), // the quotas of the bucket
    ///     }
    /// }
    ///
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(1))?;
    /// let limit = RateLimitLayer::new(bucket, |customer: &String| customer.clone())
    ///     .quotas(|customer: &String| Box::pin(plan(customer.clone())));
    /// let service = limit.layer(service_fn(async |_: String| Ok::<_, std::io::Error>("handled")));
    ///
    /// assert_eq!(service.clone().oneshot("acme".into()).await?, "handled");
    /// let error = service.oneshot("away".into()).await.unwrap_err();
    /// assert_eq!(error.downcast_ref().map(Refusal::kind), Some(RefusalKind::LookUpFailed));
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
        self.quotas.push(Choice::By(Arc::new(quotas)));
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
    {
        let table = table.into();
        self.quotas.push(Choice::InTable(Arc::new(move |request| {
            let Some(name) = name(request).into_key()? else {
                return Ok(None);
            };
            Ok(table.get(&name).map(|quotas| (name, quotas)))
        })));
        self
    }
}
