//! The quotas that a layer chooses for a request: by a closure, or by the row of a table.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use crate::bucket::quotas::Quotas;
use crate::error::Error;
use crate::fleet::FleetSetting;
use crate::key::Key;
use crate::layers::key::Extracted;
use crate::layers::rate_limit::RateLimitLayer;

/// Chooses the quotas of a request. Implemented by functions and closures from `&Req` to anything that is [`IntoQuotas`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose the quotas of a `{Req}`",
    note = "pass a closure with a typed argument that returns `Quotas`, or an `Option` or a `Result` of them"
)]
pub trait ChooseQuotas<Req> {
    /// Returns the quotas, or the future of them.
    fn quotas(&self, request: &Req) -> ChosenQuotas;
}

impl<Req, F, Q> ChooseQuotas<Req> for F
where
    F: Fn(&Req) -> Q,
    Q: IntoQuotas,
{
    fn quotas(&self, request: &Req) -> ChosenQuotas {
        self(request).into_quotas()
    }
}

/// The quotas that apply to the whole fleet at the moment.
impl<Req> ChooseQuotas<Req> for FleetSetting<Quotas> {
    fn quotas(&self, _: &Req) -> ChosenQuotas {
        self.current().into_quotas()
    }
}

/// What a closure for [`quotas`](crate::RateLimitLayer::quotas) may return: [`Quotas`], an `Option` of them, a `Result` of
/// either, or a boxed future of one of these.
///
/// `None`: the quotas that were set before, or those of the bucket. An error refuses the request: one of this crate as what it is,
/// any other as [`LookUpFailed`](crate::RefusalKind::LookUpFailed), which is 503 over HTTP.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the quotas of a request",
    note = "return `Quotas`, or an `Option` or a `Result` of them",
    note = "to look up quotas asynchronously, return `Box::pin(plan(user))`, a boxed future that is `Send` and does not borrow from the request"
)]
pub trait IntoQuotas {
    /// Converts it.
    fn into_quotas(self) -> ChosenQuotas;
}

/// What a [`ChooseQuotas`] returns. `None`: the quotas that were set before, or those of the bucket.
#[must_use = "quotas that are looked up are a future"]
pub enum ChosenQuotas {
    /// The quotas are known, or cannot be had.
    Ready(Result<Option<Quotas>, Error>),
    /// The quotas are looked up.
    Pending(BoxFuture<'static, Result<Option<Quotas>, Error>>),
}

impl ChosenQuotas {
    pub(crate) const NONE: Self = Self::Ready(Ok(None));

    /// Returns these quotas, or others if they are `None`.
    pub(crate) fn or(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Ready(Ok(None)) => other(),
            Self::Ready(quotas) => Self::Ready(quotas),
            Self::Pending(quotas) => {
                let other = other();
                Self::Pending(Box::pin(async move {
                    match quotas.await {
                        Ok(None) => other.get().await,
                        found => found,
                    }
                }))
            }
        }
    }

    /// Returns these quotas if they are closed, which those of the bucket may be for `None`; or else others, unless they are `None`.
    pub(crate) fn if_closed_or(self, other: Self, is_bucket_closed: bool) -> Self {
        let is_closed = move |quotas: &Result<Option<Quotas>, Error>| match quotas {
            Ok(quotas) => quotas.as_ref().map_or(is_bucket_closed, Quotas::are_closed),
            Err(_) => false,
        };
        match self {
            Self::Ready(quotas) if is_closed(&quotas) => Self::Ready(quotas),
            Self::Ready(quotas) => other.or(|| Self::Ready(quotas)),
            Self::Pending(quotas) => Self::Pending(Box::pin(async move {
                let quotas = quotas.await;
                if is_closed(&quotas) {
                    quotas
                } else {
                    other.or(|| Self::Ready(quotas)).get().await
                }
            })),
        }
    }

    /// Only quotas that can admit a request of this cost.
    pub(crate) fn for_cost(self, cost: u32) -> Self {
        let admits = move |quotas: &Quotas| cost <= quotas.max_cost();
        match self {
            Self::Ready(quotas) => Self::Ready(quotas.map(|quotas| quotas.filter(admits))),
            Self::Pending(quotas) => {
                Self::Pending(Box::pin(async move { Ok(quotas.await?.filter(admits)) }))
            }
        }
    }

    pub(super) async fn get(self) -> Result<Option<Quotas>, Error> {
        match self {
            Self::Ready(quotas) => quotas,
            Self::Pending(quotas) => quotas.await,
        }
    }
}

debug!(ChosenQuotas);

impl IntoQuotas for ChosenQuotas {
    fn into_quotas(self) -> ChosenQuotas {
        self
    }
}

impl IntoQuotas for Quotas {
    fn into_quotas(self) -> ChosenQuotas {
        ChosenQuotas::Ready(Ok(Some(self)))
    }
}

impl IntoQuotas for Option<Quotas> {
    fn into_quotas(self) -> ChosenQuotas {
        ChosenQuotas::Ready(Ok(self))
    }
}

impl<Q, E> IntoQuotas for Result<Q, E>
where
    Q: Into<Option<Quotas>>,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    fn into_quotas(self) -> ChosenQuotas {
        ChosenQuotas::Ready(self.map(Into::into).map_err(|error| {
            match error.into().downcast::<Error>() {
                Ok(error) => *error,
                Err(cause) => Error::look_up_failed(cause),
            }
        }))
    }
}

impl<F> IntoQuotas for Pin<Box<F>>
where
    F: Future<Output: IntoQuotas> + Send + ?Sized + 'static,
{
    fn into_quotas(self) -> ChosenQuotas {
        ChosenQuotas::Pending(Box::pin(
            async move { self.await.into_quotas().get().await },
        ))
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
    pub(super) fn get(&self, name: &Key) -> Option<Quotas> {
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
