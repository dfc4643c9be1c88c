//! What a request costs.

/// The cost of a request, or of a response, in tokens. Implemented by functions and closures from `&Req` to `u32`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what a `{Req}` costs",
    note = "pass a closure with a typed argument that returns `u32`: `|request: &Request| 1`"
)]
pub trait Cost<Req> {
    /// The cost in tokens.
    fn cost(&self, request: &Req) -> u32;
}

impl<Req, F: Fn(&Req) -> u32> Cost<Req> for F {
    fn cost(&self, request: &Req) -> u32 {
        self(request)
    }
}
