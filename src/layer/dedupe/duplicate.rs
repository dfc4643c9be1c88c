//! What becomes of duplicates.

use std::future::Future;

use futures_util::future::BoxFuture;

/// Decides what becomes of a duplicate.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not decide what becomes of a duplicate `{Req}` whose response is a `{Res}`",
    note = "use `refuse_duplicates()`, `answer_duplicates(|request: &Request| response)` or `mark_duplicates(..)`"
)]
pub trait OnDuplicate<Req, Res> {
    /// What does.
    fn on_duplicate(&self, request: Req, evidence: Evidence) -> DuplicateAction<Req, Res>;
}

/// By what a request is taken for a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Evidence {
    /// By the filter alone, which is wrong at its [rate](crate::BloomFilter::false_positive_rate).
    Filter,
    /// It was looked up: by [`confirm_duplicate`](crate::DedupeLayer::confirm_duplicate), or in
    /// [exact mode](crate::Dedupe::exact).
    LookedUp,
}

/// What becomes of a duplicate.
#[derive(Debug)]
pub enum DuplicateAction<Req, Res> {
    /// It is refused.
    Refuse,
    /// It passes to the inner service.
    Pass(Req),
    /// This is the response.
    Answer(Res),
}

/// Duplicates are refused: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefuseDuplicates;

impl<Req, Res> OnDuplicate<Req, Res> for RefuseDuplicates {
    fn on_duplicate(&self, _: Req, _: Evidence) -> DuplicateAction<Req, Res> {
        DuplicateAction::Refuse
    }
}

/// Duplicates pass, marked by a closure of `&mut Req`.
pub(super) struct MarkWith<F>(pub(super) F);

impl<Req, Res, F: Fn(&mut Req)> OnDuplicate<Req, Res> for MarkWith<F> {
    fn on_duplicate(&self, mut request: Req, _: Evidence) -> DuplicateAction<Req, Res> {
        (self.0)(&mut request);
        DuplicateAction::Pass(request)
    }
}

/// Duplicates are answered by a closure from `&Req`.
pub(super) struct AnswerWith<F>(pub(super) F);

impl<Req, Res, F: Fn(&Req) -> Res> OnDuplicate<Req, Res> for AnswerWith<F> {
    fn on_duplicate(&self, request: Req, _: Evidence) -> DuplicateAction<Req, Res> {
        DuplicateAction::Answer((self.0)(&request))
    }
}

/// Verifies a filter hit against your own record. Functions and closures from `&Req` to a future of `bool` do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not verify whether a `{Req}` is a duplicate",
    note = "pass a closure with a typed argument that returns a future of `bool`, which borrows nothing from the request"
)]
pub trait ConfirmDuplicate<Req> {
    /// Whether the request is a duplicate.
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
