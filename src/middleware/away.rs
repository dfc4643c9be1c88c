//! What a layer does while its store is unavailable: see [`StoreFailure`].

use std::future::Future;

use crate::store::failure::Sharing;
use crate::telemetry::Outcome;
use crate::{Error, StoreFailure};

/// The handling of requests while the store is unavailable. `L` replaces the primitive, in the memory of this process.
#[derive(Clone, Debug)]
pub(crate) enum Away<L> {
    FailClosed,
    FailOpen,
    LocalShare(L),
}

impl<L: Clone> Away<L> {
    /// `local`: makes the primitive for the processes that share its limit.
    pub(crate) fn new(on_store_failure: StoreFailure, local: impl FnOnce(Sharing) -> L) -> Self {
        match on_store_failure {
            StoreFailure::FailClosed => Self::FailClosed,
            StoreFailure::FailOpen => Self::FailOpen,
            StoreFailure::LocalShare { replicas } => {
                Self::LocalShare(local(Sharing::Named(replicas)))
            }
            StoreFailure::CountedShare {
                replicas: first,
                at_least,
            } => Self::LocalShare(local(Sharing::Counted { first, at_least })),
        }
    }

    /// Turns the answer of the store into a result, with `local` for an outage. `None`: the request passes without a
    /// decision.
    pub(crate) async fn settle<T, F: Future<Output = Result<T, Error>>>(
        &self,
        asked: Result<T, Error>,
        local: impl FnOnce(L, Error) -> F,
    ) -> Result<(Option<T>, Outcome), Error> {
        match (asked, self) {
            (Err(error), Self::FailOpen) if error.is_away() => Ok((None, Outcome::FailedOpen)),
            (Err(error), Self::LocalShare(share)) if error.is_away() => {
                let answer = Box::pin(local(share.clone(), error)).await?;
                Ok((Some(answer), Outcome::LocalShare))
            }
            (asked, _) => asked.map(|answer| (Some(answer), Outcome::Admitted)),
        }
    }
}
