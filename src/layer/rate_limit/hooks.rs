//! What a request asks, and what is told of the answer: the parts that a layer is put together from.

use std::time::Duration;

use crate::Key;
use crate::token_bucket::Decision;

/// How many tokens a request costs. Functions and closures from `&Req` to `u32` do.
pub trait Cost<Req> {
    /// The cost in tokens.
    fn cost(&self, request: &Req) -> u32;
}

impl<Req, F: Fn(&Req) -> u32> Cost<Req> for F {
    fn cost(&self, request: &Req) -> u32 {
        self(request)
    }
}

/// Every request costs one token: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneToken;

impl<Req> Cost<Req> for OneToken {
    fn cost(&self, _: &Req) -> u32 {
        1
    }
}

/// Sees an admitted request before the inner service does. Functions and closures of `(&Decision, &mut Req)` do.
pub trait OnAdmit<Req> {
    /// Called with the decision that admitted the request.
    fn on_admit(&self, decision: &Decision, request: &mut Req);
}

impl<Req, F: Fn(&Decision, &mut Req)> OnAdmit<Req> for F {
    fn on_admit(&self, decision: &Decision, request: &mut Req) {
        self(decision, request);
    }
}

/// Sees the response to an admitted request. Functions and closures of `(&Decision, &mut Res)` do.
pub trait OnResponse<Res> {
    /// Called with the decision that admitted the request.
    fn on_response(&self, decision: &Decision, response: &mut Res);
}

impl<Res, F: Fn(&Decision, &mut Res)> OnResponse<Res> for F {
    fn on_response(&self, decision: &Decision, response: &mut Res) {
        self(decision, response);
    }
}

/// Reads in a response for how long its key is to be blocked. Functions and closures from `&Res` to
/// `Option<Duration>` do.
pub trait Observe<Res> {
    /// For how long; `None`: not at all.
    fn observe(&self, response: &Res) -> Option<Duration>;
}

impl<Res, F: Fn(&Res) -> Option<Duration>> Observe<Res> for F {
    fn observe(&self, response: &Res) -> Option<Duration> {
        self(response)
    }
}

/// Says what a request turned out to cost. Functions and closures from `&Res` to `u32` do.
pub trait ChargeAfter<Res> {
    /// The tokens that are to be charged on top of what was charged before.
    fn charge_after(&self, response: &Res) -> u32;
}

impl<Res, F: Fn(&Res) -> u32> ChargeAfter<Res> for F {
    fn charge_after(&self, response: &Res) -> u32 {
        self(response)
    }
}

/// What is to be done after a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Afterwards {
    /// For how long to block the key.
    pub block: Option<Duration>,
    /// How many tokens to charge.
    pub charge: u32,
}

/// Sees a request that is refused. Functions and closures of `(&Req, &Key, &Decision)` do.
pub trait OnRefused<Req> {
    /// Called with the decision that refused the request, before anybody is told.
    fn on_refused(&self, request: &Req, key: &Key, decision: &Decision);
}

impl<Req, F: Fn(&Req, &Key, &Decision)> OnRefused<Req> for F {
    fn on_refused(&self, request: &Req, key: &Key, decision: &Decision) {
        self(request, key, decision);
    }
}

/// What is done about requests and their responses. `()` does nothing; [`Both`] puts several together.
pub trait Hooks<Req, Res> {
    /// Before the inner service is called.
    fn admitted(&self, decision: &Decision, request: &mut Req) {
        let _ = (decision, request);
    }

    /// Before a refusal is told.
    fn refused(&self, request: &Req, key: &Key, decision: &Decision) {
        let _ = (request, key, decision);
    }

    /// After the inner service has answered.
    fn answered(&self, decision: Option<&Decision>, response: &mut Res) -> Afterwards {
        let _ = (decision, response);
        Afterwards::default()
    }
}

impl<Req, Res> Hooks<Req, Res> for () {}

/// Two hooks, one after the other. The longer block counts, and both charges.
#[derive(Clone, Copy, Debug)]
pub struct Both<A, B>(pub(super) A, pub(super) B);

impl<Req, Res, A: Hooks<Req, Res>, B: Hooks<Req, Res>> Hooks<Req, Res> for Both<A, B> {
    fn admitted(&self, decision: &Decision, request: &mut Req) {
        self.0.admitted(decision, request);
        self.1.admitted(decision, request);
    }

    fn refused(&self, request: &Req, key: &Key, decision: &Decision) {
        self.0.refused(request, key, decision);
        self.1.refused(request, key, decision);
    }

    fn answered(&self, decision: Option<&Decision>, response: &mut Res) -> Afterwards {
        let (one, other) = (self.0.answered(decision, response), self.1.answered(decision, response));
        Afterwards { block: one.block.max(other.block), charge: one.charge.saturating_add(other.charge) }
    }
}

/// The hook that is an [`OnAdmit`].
#[derive(Clone, Copy, Debug)]
pub struct Admitted<F>(pub(super) F);

impl<Req, Res, F: OnAdmit<Req>> Hooks<Req, Res> for Admitted<F> {
    fn admitted(&self, decision: &Decision, request: &mut Req) {
        self.0.on_admit(decision, request);
    }
}

/// The hook that is an [`OnRefused`].
#[derive(Clone, Copy, Debug)]
pub struct Refused<F>(pub(super) F);

impl<Req, Res, F: OnRefused<Req>> Hooks<Req, Res> for Refused<F> {
    fn refused(&self, request: &Req, key: &Key, decision: &Decision) {
        self.0.on_refused(request, key, decision);
    }
}

/// The hook that is an [`OnResponse`].
#[derive(Clone, Copy, Debug)]
pub struct Answered<F>(pub(super) F);

impl<Req, Res, F: OnResponse<Res>> Hooks<Req, Res> for Answered<F> {
    fn answered(&self, decision: Option<&Decision>, response: &mut Res) -> Afterwards {
        if let Some(decision) = decision {
            self.0.on_response(decision, response);
        }
        Afterwards::default()
    }
}

/// The hook that is an [`Observe`].
#[derive(Clone, Copy, Debug)]
pub struct Observed<F>(pub(super) F);

impl<Req, Res, F: Observe<Res>> Hooks<Req, Res> for Observed<F> {
    fn answered(&self, _: Option<&Decision>, response: &mut Res) -> Afterwards {
        Afterwards { block: self.0.observe(response), charge: 0 }
    }
}

/// The hook that is a [`ChargeAfter`].
#[derive(Clone, Copy, Debug)]
pub struct Charged<F>(pub(super) F);

impl<Req, Res, F: ChargeAfter<Res>> Hooks<Req, Res> for Charged<F> {
    fn answered(&self, decision: Option<&Decision>, response: &mut Res) -> Afterwards {
        // What nothing was decided about is charged nothing.
        let charge = decision.map_or(0, |_| self.0.charge_after(response));
        Afterwards { block: None, charge }
    }
}
