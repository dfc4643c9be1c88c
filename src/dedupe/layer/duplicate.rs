//! What the layer does with duplicates.

use std::future::Future;

use futures_util::future::BoxFuture;

/// Decides what to do with a duplicate.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle a duplicate `{Req}` with the response `{Res}`",
    note = "use `refuse_duplicates()`, `answer_duplicates(|request: &Request| response)` or `mark_duplicates(..)`"
)]
pub trait OnDuplicate<Req, Res> {
    /// Returns what to do with the duplicate `request`. `evidence` is how the layer knows that it is one.
    fn on_duplicate(&self, request: Req, evidence: Evidence) -> DuplicateAction<Req, Res>;
}

/// How the layer knows that a request is a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Evidence {
    /// By the filter only. This is wrong at the filter's [false-positive
    /// rate](crate::BloomFilter::false_positive_rate).
    Filter,
    /// By [`confirm_duplicate`](crate::DedupeLayer::confirm_duplicate), or by [exact mode](crate::Dedupe::exact).
    LookedUp,
}

/// What to do with a duplicate.
#[derive(Debug)]
pub enum DuplicateAction<Req, Res> {
    /// Refuse the request.
    Refuse,
    /// Pass the request to the inner service.
    Pass(Req),
    /// Return this response.
    Answer(Res),
}

/// Refuses duplicates. The default of [`DedupeLayer`](crate::DedupeLayer).
#[derive(Clone, Copy, Debug, Default)]
pub struct RefuseDuplicates;

impl<Req, Res> OnDuplicate<Req, Res> for RefuseDuplicates {
    fn on_duplicate(&self, _: Req, _: Evidence) -> DuplicateAction<Req, Res> {
        DuplicateAction::Refuse
    }
}

/// Passes duplicates to the inner service, marked by a closure of `&mut Req`.
pub(super) struct MarkWith<F>(pub(super) F);

impl<Req, Res, F: Fn(&mut Req)> OnDuplicate<Req, Res> for MarkWith<F> {
    fn on_duplicate(&self, mut request: Req, _: Evidence) -> DuplicateAction<Req, Res> {
        (self.0)(&mut request);
        DuplicateAction::Pass(request)
    }
}

/// Answers duplicates with a closure from `&Req`.
pub(super) struct AnswerWith<F>(pub(super) F);

impl<Req, Res, F: Fn(&Req) -> Res> OnDuplicate<Req, Res> for AnswerWith<F> {
    fn on_duplicate(&self, request: Req, _: Evidence) -> DuplicateAction<Req, Res> {
        DuplicateAction::Answer((self.0)(&request))
    }
}

/// Verifies a duplicate against your own record.
///
/// Functions and closures from `&Req` to a future of `bool` implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot verify whether a `{Req}` is a duplicate",
    note = "pass a closure with a typed argument that returns a future of `bool`, which borrows nothing from the request"
)]
pub trait ConfirmDuplicate<Req> {
    /// Returns whether the request is a duplicate.
    fn confirm(&self, request: &Req) -> BoxFuture<'static, bool>;
}

impl<Req, F, Fut> ConfirmDuplicate<Req> for F
where
    F: Fn(&Req) -> Fut,
    Fut: Future<Output = bool> + Send + 'static,
{
    fn confirm(&self, request: &Req) -> BoxFuture<'static, bool> {
        Box::pin(self(request))
    }
}
