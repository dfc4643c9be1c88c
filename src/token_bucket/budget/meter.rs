//! How the usage of a request is read from its response.

use super::BudgetHold;
use crate::token_bucket::Decision;
use crate::token_bucket::holds::Usage;

/// Reads from a response what its request has used, and says when the hold of the request ends.
///
/// Functions and closures of `(&Res, &Usage)` are meters: they count in the usage, and the hold ends with the response. For
/// HTTP, see `response::MeterBody`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not read a usage from a `{Res}`",
    note = "pass a closure with typed arguments: `|response: &Response, usage: &Usage| usage.set(...)`",
    note = "for the body of an HTTP response, pass `response::MeterBody`"
)]
pub trait Meter<Res> {
    /// The response that the layer returns.
    type Response;

    /// Attaches the hold to a response, or drops it, which captures its [usage](BudgetHold::usage). It says when the usage [is
    /// complete](Usage::complete). `None`: the request passed without a hold.
    fn meter(&self, response: Res, hold: Option<BudgetHold>) -> Self::Response;

    /// Takes the hold of a request whose inner service has failed. By default it is dropped.
    fn failed(&self, hold: BudgetHold) {
        drop(hold);
    }

    /// Writes the decision into the response to a refused request. By default, it does nothing.
    fn refused(&self, _decision: &Decision, _response: &mut Self::Response) {}
}

/// The [`Meter`] that reads nothing: the hold ends with the response. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtResponse;

impl<Res> Meter<Res> for AtResponse {
    type Response = Res;

    fn meter(&self, response: Res, hold: Option<BudgetHold>) -> Res {
        hold.inspect(|hold| hold.usage().complete());
        response
    }
}

impl<Res, F: Fn(&Res, &Usage)> Meter<Res> for F {
    type Response = Res;

    fn meter(&self, response: Res, hold: Option<BudgetHold>) -> Res {
        if let Some(hold) = hold {
            self(&response, hold.usage());
            hold.usage().complete();
        }
        response
    }
}
