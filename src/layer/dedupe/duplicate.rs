//! What becomes of duplicates.

use std::future::Future;

use futures_util::future::BoxFuture;

/// Decides what becomes of a duplicate.
pub trait OnDuplicate<Req, Res> {
    /// What does.
    fn on_duplicate(&self, request: Req, evidence: Evidence) -> Verdict<Req, Res>;
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
pub enum Verdict<Req, Res> {
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
    fn on_duplicate(&self, _: Req, _: Evidence) -> Verdict<Req, Res> {
        Verdict::Refuse
    }
}

/// Duplicates pass, marked by a closure of `&mut Req`.
#[derive(Clone, Copy, Debug)]
pub struct MarkWith<F>(pub(super) F);

impl<Req, Res, F: Fn(&mut Req)> OnDuplicate<Req, Res> for MarkWith<F> {
    fn on_duplicate(&self, mut request: Req, _: Evidence) -> Verdict<Req, Res> {
        (self.0)(&mut request);
        Verdict::Pass(request)
    }
}

/// Duplicates are answered by a closure from `&Req`.
#[derive(Clone, Copy, Debug)]
pub struct AnswerWith<F>(pub(super) F);

impl<Req, Res, F: Fn(&Req) -> Res> OnDuplicate<Req, Res> for AnswerWith<F> {
    fn on_duplicate(&self, request: Req, _: Evidence) -> Verdict<Req, Res> {
        Verdict::Answer((self.0)(&request))
    }
}

/// Looks up whether what the filter takes for a duplicate is one. Functions and closures from `&Req` to a future of
/// `bool` do; `()` believes the filter.
pub trait ConfirmDuplicate<Req> {
    /// Whether it is; `None`: it is, and there is nothing to look up.
    fn confirm(&self, request: &Req) -> Option<BoxFuture<'static, bool>>;
}

impl<Req> ConfirmDuplicate<Req> for () {
    fn confirm(&self, _: &Req) -> Option<BoxFuture<'static, bool>> {
        None
    }
}

impl<Req, F, Fut> ConfirmDuplicate<Req> for F
where
    F: Fn(&Req) -> Fut,
    Fut: Future<Output = bool> + Send + 'static,
{
    fn confirm(&self, request: &Req) -> Option<BoxFuture<'static, bool>> {
        Some(Box::pin(self(request)))
    }
}
