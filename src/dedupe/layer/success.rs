//! Which outcomes mean that an item was handled.

/// Decides whether an outcome means that the item was handled.
///
/// Functions and closures from `&Result<Res, E>` to `bool` implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot decide whether a `Result<{Res}, {E}>` is a success",
    note = "pass a closure with a typed argument that returns `bool`: `|outcome: &Result<Response, Error>| outcome.is_ok()`"
)]
pub trait IsSuccess<Res, E> {
    /// Returns whether the item was handled.
    fn is_success(&self, outcome: &Result<Res, E>) -> bool;
}

impl<Res, E, F: Fn(&Result<Res, E>) -> bool> IsSuccess<Res, E> for F {
    fn is_success(&self, outcome: &Result<Res, E>) -> bool {
        self(outcome)
    }
}

/// Every response is a success, and no error: the default outside of HTTP.
pub(super) struct IsOk;

impl<Res, E> IsSuccess<Res, E> for IsOk {
    fn is_success(&self, outcome: &Result<Res, E>) -> bool {
        outcome.is_ok()
    }
}
