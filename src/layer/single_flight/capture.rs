//! How what a service returns becomes an answer that can be shared, and the other way round.

use std::future::{Future, ready};

use crate::primitive::single_flight::Share;

/// Makes answers of what a service returns, and what a service returns of answers.
///
/// [`WholeResponse`] is for services whose response is the answer; for HTTP there is `response::Responses`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot share a response `{Res}` to a `{Req}`",
    label = "the response cannot be shared as it is",
    note = "for HTTP use `web::single_flight(flight, extract::shared_get())`, which shares the response with its body",
    note = "elsewhere the response must be `Clone`, and the type of the `SingleFlight`"
)]
pub trait Capture<Req, Res, E>: Clone + Send + Sync + 'static {
    /// What is shared.
    type Answer: Send + 'static;
    /// The errors that are shared, where any are.
    type Failure: Send + 'static;
    /// What the caller of the layer's service gets.
    type Response: Send + 'static;
    /// What is remembered of a request while the inner service has it.
    type Context: Send + 'static;

    /// What is to be remembered of a request that is about to be handled.
    fn context(&self, request: &Req) -> Self::Context;

    /// What becomes of a response.
    fn capture(
        &self,
        context: Self::Context,
        response: Res,
    ) -> impl Future<Output = Captured<Self::Response, Self::Answer>> + Send;

    /// What a caller gets of the answer to somebody else.
    fn restore(&self, answer: Self::Answer) -> Self::Response;

    /// What becomes of a response that is not to be shared.
    fn pass(&self, response: Res) -> Self::Response;

    /// Where an answer is not for a request although it has the same key: what to add to the key, so that the request
    /// meets its like. `None`: it is.
    fn variant(&self, request: &Req, answer: &Self::Answer) -> Option<Vec<u8>> {
        let _ = (request, answer);
        None
    }

    /// What can be shared of an error.
    fn failure<'a>(&self, error: &'a E) -> Option<&'a Self::Failure>;

    /// The error that a caller gets where one was shared.
    fn fail(&self, failure: Self::Failure) -> E;
}

/// A response, [captured](Capture::capture).
#[derive(Debug)]
pub struct Captured<Res, A> {
    /// For the caller whose request it was.
    pub own: Res,
    /// For others.
    pub shared: Share<A>,
}

/// The response is the answer, and errors are as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct WholeResponse;

/// Responses that can be shared as they are: `Clone + Send + 'static`. Do not implement it.
#[diagnostic::on_unimplemented(
    message = "a response `{Self}` cannot be shared as it is",
    label = "the response is not `Clone`",
    note = "for HTTP use `web::single_flight(flight, extract::shared_get())` with the codec `response::AnswerCodec`"
)]
pub trait WholeAnswer: Clone + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<Res: Clone + Send + 'static> WholeAnswer for Res {}

impl<Req, Res, E> Capture<Req, Res, E> for WholeResponse
where
    Res: WholeAnswer,
    E: Send + 'static,
{
    type Answer = Res;
    type Failure = E;
    type Response = Res;
    type Context = ();

    fn context(&self, _: &Req) {}

    fn capture(&self, (): (), response: Res) -> impl Future<Output = Captured<Res, Res>> + Send {
        ready(Captured { own: response.clone(), shared: Share::stored(response) })
    }

    fn restore(&self, answer: Res) -> Res {
        answer
    }

    fn pass(&self, response: Res) -> Res {
        response
    }

    fn failure<'a>(&self, error: &'a E) -> Option<&'a E> {
        Some(error)
    }

    fn fail(&self, failure: E) -> E {
        failure
    }
}
