//! The quotas that a layer chooses for a request.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;

use futures_util::future::BoxFuture;

use crate::fleet::FleetSetting;
use crate::{Error, Quotas};

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
