//! How what a service returns becomes an answer that can be shared, and the other way round.

use std::future::Future;

/// Makes answers of what a service returns, and what a service returns of answers.
///
/// [`Whole`](super) is for services whose response is the answer; for HTTP there is `http::Responses`.
pub trait Capture<Req, Res, E>: Clone + Send + Sync + 'static {
    /// What is shared.
    type Answer: Send + 'static;
    /// The errors that are shared, if any are.
    type Failure: Send + 'static;
    /// What the caller of the layer's service gets.
    type Response: Send + 'static;
    /// What is remembered of a request while the inner service has it.
    type Context: Send + 'static;

    /// What is to be remembered of a request that is about to be handled.
    fn context(&self, request: &Req) -> Self::Context;

    /// What becomes of an outcome: for the caller whose request it was, and for all others; `None`: it is not for them.
    fn capture(
        &self,
        context: Self::Context,
        outcome: Result<Res, E>,
    ) -> impl Future<Output = Captured<Self::Response, E, Self::Answer, Self::Failure>> + Send;

    /// What a caller gets of an answer to somebody else.
    fn restore(&self, shared: Result<Self::Answer, Self::Failure>) -> Result<Self::Response, E>;

    /// What becomes of a response that is not to be shared.
    fn pass(&self, response: Res) -> Self::Response;

    /// Where an answer is not for a request although it has the same key: what to add to the key, so that the request
    /// meets its like. `None`: it is.
    fn variant(&self, request: &Req, answer: &Self::Answer) -> Option<Vec<u8>> {
        let _ = (request, answer);
        None
    }
}

/// An outcome, [captured](Capture::capture).
#[derive(Debug)]
pub struct Captured<Res, E, A, F> {
    /// For the caller whose request it was.
    pub own: Result<Res, E>,
    /// For all others.
    pub shared: Option<Result<A, F>>,
}
