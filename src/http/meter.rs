//! [`MeterBody`]: the usage of a request, read from an HTTP response and its body. [`MeteredBody`] counts the usage and
//! captures it at the end of the body.

use http::{HeaderMap, HeaderName, Response};
use http_body::{Body, Frame};

use crate::bucket::decision::Decision;
use crate::http::body::{Attached, HeldBody};
use crate::http::rate_limit_fields::RateLimitFields;
use crate::layers::budget::{BudgetHold, Meter};
use crate::macros::setters;
use crate::token_bucket::hold::Usage;

/// A [`Meter`] for HTTP: the hold of a request ends with the body of its response, and its usage is captured then. If
/// the body fails, or is dropped because the client disconnected, the usage counted so far is captured, or [at least
/// the estimate](crate::BudgetLayer::broken_costs_estimate).
///
/// There is no timeout: a body that no client reads keeps its hold, one of the 1024 that its key may have. The hold
/// costs its key no more than the estimate.
///
/// The usage comes from the handler (`web::insert_usage`), from the [frames](Self::frames) of the body, or from a
/// [header or trailer field](Self::field).
///
/// ```
/// use axum::{Router, body::Bytes, extract::Request, routing::post};
/// use tower_distributed::response::MeterBody;
/// use tower_distributed::token_bucket::Usage;
/// use tower_distributed::{Quota, Store, TokenBucket, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// // A proxy for exports: the bytes that were sent count.
/// let sent = MeterBody::default().frames(|data: &Bytes, usage: &Usage| usage.add(data.len() as u32));
/// let bytes = TokenBucket::new(&Store::in_memory(), "bytes", Quota::per_hour(100_000_000))?;
/// let budget = web::token_budget(bytes, extract::header("x-tenant")?, |_: &Request| 1_000_000).meter(sent);
/// let app: Router = Router::new().route("/export", post(async || "all of it")).layer(budget);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MeterBody<F = ()> {
    frames: F,
    field: Option<HeaderName>,
    most: Option<u32>,
    fields: RateLimitFields,
    failures_are_free: bool,
}

impl Default for MeterBody {
    fn default() -> Self {
        Self {
            frames: (),
            field: None,
            most: None,
            fields: RateLimitFields::default(),
            failures_are_free: false,
        }
    }
}

impl<F> MeterBody<F> {
    /// Counts each frame of data, with a closure of `(&Data, &Usage)`. Each response has a clone of the closure, so the
    /// closure may keep state of the body, such as an incomplete line. The data is not copied. A body without data
    /// counts a usage of 0; a body whose data counts nothing costs the estimate.
    #[must_use]
    pub fn frames<F2>(self, frames: F2) -> MeterBody<F2> {
        let Self {
            frames: _,
            field,
            most,
            fields,
            failures_are_free,
        } = self;
        MeterBody {
            frames,
            field,
            most,
            fields,
            failures_are_free,
        }
    }
}

setters! { MeterBody<F>:
    /// Reads the usage from this field of the response, as a whole number of tokens: in its head or in its trailers.
    /// The number replaces the usage counted so far. A missing field counts nothing. A value that is not such a number
    /// counts nothing, and is counted in the event `upstream_field_ignored`. A usage above [`at_most`](Self::at_most)
    /// is reduced to that maximum.
    #[must_use]
    fn field(field: HeaderName) => field = Some(field);

    /// Sets the maximum usage that the [field](Self::field) can state, so that no upstream can put a tenant into debt
    /// for years. A larger usage is reduced to this one, and counted in the event `upstream_field_clamped`. Default:
    /// the burst plus the tokens that refill within a day, so that a request waits for a day at most; with several
    /// quotas, the smallest such number.
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_distributed::response::MeterBody;
    ///
    /// let meter = MeterBody::default().field(HeaderName::from_static("x-tokens")).at_most(1_000_000);
    /// # let _ = meter;
    /// ```
    #[must_use]
    fn at_most(tokens: u32) => most = Some(tokens);

    /// Sets which RateLimit header fields the responses have. They describe the state after the authorization, in which
    /// the estimate counts as used. Default: [`RateLimitFields::default`].
    #[must_use]
    fn fields(fields: RateLimitFields) => fields = fields;

    /// Sets whether a response with a status of 400 and above, and an error of the inner service, counts a usage of 0,
    /// unless more is counted. Default: `false`, so that a failure without usage costs the estimate.
    #[must_use]
    fn failures_are_free(are_free: bool) => failures_are_free = are_free;
}

/// Counts the data of a body. Implemented by `FnMut(&Data, &Usage)`, and by `()`, which counts nothing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not count frames of `{D}`",
    note = "pass a closure with typed arguments that is `Clone`: `|data: &Bytes, usage: &Usage| usage.add(1)`"
)]
pub trait CountFrames<D>: Clone {
    /// Whether it counts anything.
    const COUNTS: bool = true;

    /// Counts a frame.
    fn count(&mut self, data: &D, usage: &Usage);
}

impl<D> CountFrames<D> for () {
    const COUNTS: bool = false;

    fn count(&mut self, _: &D, _: &Usage) {}
}

impl<D, F: FnMut(&D, &Usage) + Clone> CountFrames<D> for F {
    fn count(&mut self, data: &D, usage: &Usage) {
        self(data, usage);
    }
}

impl<B: Body, F: CountFrames<B::Data>> Meter<Response<B>> for MeterBody<F> {
    type Response = Response<MeteredBody<B, F>>;

    fn meter(&self, mut response: Response<B>, hold: Option<BudgetHold>) -> Self::Response {
        if let Some(hold) = &hold {
            if self.failures_are_free && response.status().as_u16() >= 400 {
                set_if_unknown(hold.usage());
                hold.usage().complete();
            }
            read(self.field.as_ref(), response.headers(), hold, self.most);
            self.fields
                .write(&hold.decision(), true, response.headers_mut());
        }
        response.map(|body| {
            let mut metered = hold.map(|hold| Metered {
                hold,
                frames: self.frames.clone(),
                field: self.field.clone(),
                most: self.most,
                is_empty: F::COUNTS,
            });
            if body.is_end_stream()
                && let Some(metered) = metered.take()
            {
                metered.complete();
            }
            HeldBody::new(body, metered)
        })
    }

    fn failed(&self, hold: BudgetHold) {
        if self.failures_are_free {
            set_if_unknown(hold.usage());
            hold.usage().complete();
        }
    }

    fn refused(&self, decision: &Decision, response: &mut Self::Response) {
        self.fields.write(decision, true, response.headers_mut());
    }
}

/// Sets the usage to the number in a field. `most`: the maximum. Returns whether there is a number.
fn read(
    field: Option<&HeaderName>,
    headers: &HeaderMap,
    hold: &BudgetHold,
    most: Option<u32>,
) -> bool {
    let Some(value) = field.and_then(|field| headers.get(field)) else {
        return false;
    };
    let text = value.to_str().unwrap_or("").trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        hold.upstream().inspect(|upstream| upstream.ignored(1));
        return false;
    }
    // A number that exceeds the type exceeds the maximum too.
    let stated = text.parse::<u64>().unwrap_or(u64::MAX);
    let most = most.unwrap_or_else(|| hold.believed());
    let believed = u32::try_from(stated).map_or(most, |stated| stated.min(most));
    if u64::from(believed) < stated {
        hold.upstream()
            .inspect(|upstream| upstream.usage_clamped(stated, most));
    }
    hold.usage().set(believed);
    true
}

fn set_if_unknown(usage: &Usage) {
    if usage.get().is_none() {
        usage.set(0);
    }
}

/// A body whose usage is counted and captured at its end; see [`MeterBody`].
pub type MeteredBody<B, F = ()> = HeldBody<B, Metered<F>>;

/// The hold of a body, and how its usage is counted.
pub struct Metered<F> {
    hold: BudgetHold,
    frames: F,
    field: Option<HeaderName>,
    most: Option<u32>,
    /// Whether the body has had no data yet that `frames` could count.
    is_empty: bool,
}

debug!(Metered<F>, hold);

impl<F> Metered<F> {
    /// Captures the usage of a body that has ended without an error.
    fn complete(self) {
        if self.is_empty {
            set_if_unknown(self.hold.usage());
        }
        self.hold.usage().complete();
    }
}

impl<B: Body, F: CountFrames<B::Data>> Attached<B> for Metered<F> {
    type Error = B::Error;

    fn inner_error(error: B::Error) -> B::Error {
        error
    }

    fn on_frame(&mut self, frame: &Frame<B::Data>, _is_last: bool) {
        let hold = &self.hold;
        if let Some(data) = frame.data_ref() {
            self.is_empty = false;
            self.frames.count(data, hold.usage());
        } else if let Some(trailers) = frame.trailers_ref()
            && read(self.field.as_ref(), trailers, hold, self.most)
        {
            hold.usage().complete();
        }
    }

    fn on_end(self) {
        self.complete();
    }
}
