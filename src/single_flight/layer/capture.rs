//! The conversion of a service's responses into shared answers, and back.

use std::future::{Future, ready};

use crate::single_flight::Share;

/// Converts a service's responses into answers that can be shared, and answers into responses.
///
/// [`WholeResponse`] is for services whose response is the answer. For HTTP use `response::Responses`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot share a response `{Res}` to a `{Req}`",
    label = "the response cannot be shared as it is",
    note = "for HTTP use `web::single_flight(flight, extract::shared_get())`, which shares the response with its body",
    note = "for other services the response must be `Clone`, and it must be the answer type of the `SingleFlight`"
)]
pub trait Capture<Req, Res, E>: Clone + Send + Sync + 'static {
    /// The answer that is shared.
    type Answer: Send + 'static;
    /// The type of shared errors.
    type Failure: Send + 'static;
    /// The response of the layer's service.
    type Response: Send + 'static;
    /// The part of a request that is kept while the inner service handles it.
    type Context: Send + 'static;

    /// Returns the context of a request, before the inner service handles it.
    fn context(&self, request: &Req) -> Self::Context;

    /// Converts a response of the inner service into the caller's response and an answer.
    fn capture(
        &self,
        context: Self::Context,
        response: Res,
    ) -> impl Future<Output = Captured<Self::Response, Self::Answer>> + Send;

    /// Converts an answer into a response for another caller.
    fn restore(&self, answer: Self::Answer) -> Self::Response;

    /// Converts a response that is not shared.
    fn pass(&self, response: Res) -> Self::Response;

    /// Returns `None` if the answer is valid for the request. Otherwise returns bytes that are appended to the key,
    /// so that the request shares a flight with requests of the same variant only. For HTTP: the fields that `Vary`
    /// names.
    fn variant(&self, request: &Req, answer: &Self::Answer) -> Option<Vec<u8>> {
        let _ = (request, answer);
        None
    }

    /// Returns the part of an error that can be shared. `None`: the error is not shared.
    fn failure<'a>(&self, error: &'a E) -> Option<&'a Self::Failure>;

    /// Converts a shared error into the error of another caller.
    fn fail(&self, failure: Self::Failure) -> E;
}

/// The result of [`Capture::capture`].
#[derive(Debug)]
pub struct Captured<Res, A> {
    /// The response for the caller of the request.
    pub own: Res,
    /// The answer for other callers.
    pub shared: Share<A>,
}

/// Shares responses and errors unchanged: the response is the answer.
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
        ready(Captured {
            own: response.clone(),
            shared: Share::stored(response),
        })
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
