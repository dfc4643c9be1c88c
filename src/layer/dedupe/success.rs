//! Which outcomes mean that an item was handled.

/// Decides of an outcome whether the item was handled. Functions and closures of `&Result<Res, E>` do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whether a `Result<{Res}, {E}>` is a success",
    note = "pass a closure with a typed argument that returns `bool`: `|outcome: &Result<Response, Error>| outcome.is_ok()`"
)]
pub trait IsSuccess<Res, E> {
    /// Whether it was.
    fn is_success(&self, outcome: &Result<Res, E>) -> bool;
}

impl<Res, E, F: Fn(&Result<Res, E>) -> bool> IsSuccess<Res, E> for F {
    fn is_success(&self, outcome: &Result<Res, E>) -> bool {
        self(outcome)
    }
}

/// Any response, and no error: the default outside of HTTP.
pub(super) struct IsOk;

impl<Res, E> IsSuccess<Res, E> for IsOk {
    fn is_success(&self, outcome: &Result<Res, E>) -> bool {
        outcome.is_ok()
    }
}
