//! The quotas of a request: chosen by a closure, looked up, or the row of a table.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::bucket::quotas::Quotas;
use crate::error::Error;
use crate::key::Key;

/// The return types of a closure for [`quotas`](crate::RateLimitLayer::quotas): [`Quotas`], an `Option` of them, a
/// `Result` of either, or a boxed future of one of these.
///
/// `None`: the quotas that were set before, or those of the bucket. An error refuses the request: an error of this
/// crate keeps its kind, any other is a [`LookUpFailed`](crate::RefusalKind::LookUpFailed), which is 503 over HTTP.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the quotas of a request",
    note = "return `Quotas`, or an `Option` or a `Result` of them",
    note = "to look up quotas asynchronously, return `Box::pin(plan(user))`, a boxed future that is `Send` and does not borrow from the request"
)]
pub trait IntoQuotas {
    /// Converts the value.
    fn into_quotas(self) -> ChosenQuotas;
}

/// The result of a [`ChooseQuotas`](crate::token_bucket::ChooseQuotas). `None`: the quotas that were set before, or those of the bucket.
#[must_use = "quotas that are looked up are a future"]
pub enum ChosenQuotas {
    /// The quotas are known, or the lookup failed.
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

    /// Returns these quotas if they are closed. `None` counts as closed if the bucket is closed. Otherwise returns
    /// `other`, unless it is `None`.
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

    /// Returns these quotas if they can admit a request of this cost, otherwise `None`.
    pub(crate) fn for_cost(self, cost: u32) -> Self {
        let admits = move |quotas: &Quotas| cost <= quotas.max_cost();
        match self {
            Self::Ready(quotas) => Self::Ready(quotas.map(|quotas| quotas.filter(admits))),
            Self::Pending(quotas) => {
                Self::Pending(Box::pin(async move { Ok(quotas.await?.filter(admits)) }))
            }
        }
    }

    pub(crate) async fn get(self) -> Result<Option<Quotas>, Error> {
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
        self.row(&Key::from(name))
    }

    pub(crate) fn row(&self, name: &Key) -> Option<&Quotas> {
        self.0.get(name)
    }

    /// The rows, sorted by name.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&Key, &Quotas)> {
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_unstable_by_key(|(name, _)| *name);
        rows.into_iter()
    }
}
