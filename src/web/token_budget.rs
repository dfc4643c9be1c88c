//! Token budgets, set up for HTTP.

use http::Request;

use crate::middleware::Cost;
use crate::response::{MeterBody, Refuse, refuse};
use crate::token_bucket::layer::KeyExtractors;
use crate::token_bucket::{Estimate, Usage};
use crate::{BudgetLayer, KeyExtractor, TokenBucket, TokenBuckets};

/// A [`BudgetLayer`] for HTTP: it holds `estimate` tokens until the end of the response body, and captures the usage.
///
/// Refusals are responses with `Retry-After`, and all responses have the
/// [RateLimit fields](crate::response::RateLimitFields). The handler gets the [`Usage`] as an extension, to count in while it
/// works and streams. To count what passes in the body instead, set a [`MeterBody`].
///
/// ```
/// use axum::{Extension, Router, extract::Request, routing::post};
/// use tower_distributed::token_bucket::Usage;
/// use tower_distributed::{Quota, Store, TokenBucket, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let tokens = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_minute(60_000))?;
/// let budget = web::token_budget(tokens, extract::header("x-tenant")?, |_: &Request| 1200);
/// let complete = async |Extension(usage): Extension<Usage>| {
///     usage.set(831); // what the model says at the end
///     "an answer"
/// };
/// let app: Router = Router::new().route("/complete", post(complete)).layer(budget);
/// # Ok(()) }
/// ```
///
/// A request that passes without a hold has no `Usage`: one without a key, and all of them while the
/// store is away under [`StoreFailure::FailOpen`](crate::StoreFailure::FailOpen). Then ask axum for an
/// `Option<Extension<Usage>>`.
#[must_use]
pub fn token_budget<B>(
    bucket: TokenBucket,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
    estimate: impl Cost<Request<B>> + Send + Sync + 'static,
) -> BudgetLayer<Request<B>, MeterBody, Refuse> {
    in_http(BudgetLayer::new(bucket, key, estimate))
}

/// Budgets of several limits for HTTP, such as requests and tokens per minute: a request holds tokens of all of them or of
/// none, in one step. As [`token_budget`], and [`BudgetLayer::all_of`].
///
/// ```
/// use axum::{Router, extract::Request, routing::post};
/// use tower_distributed::token_bucket::Estimate::{Fixed, Metered};
/// use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let store = Store::in_memory();
/// let limits = TokenBuckets::new([
///     TokenBucket::new(&store, "requests", Quota::per_minute(60))?,
///     TokenBucket::new(&store, "tokens", Quota::per_minute(60_000))?,
/// ])?;
/// let tenant = || extract::header("x-tenant");
/// let estimate = |_: &Request| [Fixed(1), Metered(1200)];
/// let budget = web::token_budgets(limits, (tenant()?, tenant()?), estimate);
/// let app: Router = Router::new().route("/complete", post(async || "an answer")).layer(budget);
/// # Ok(()) }
/// ```
#[must_use]
pub fn token_budgets<B, K, const N: usize>(
    limits: TokenBuckets<N>,
    keys: K,
    estimate: impl Fn(&Request<B>) -> [Estimate; N] + Send + Sync + 'static,
) -> BudgetLayer<Request<B>, MeterBody, Refuse>
where
    K: KeyExtractors<Request<B>, N>,
{
    in_http(BudgetLayer::all_of(limits, keys, estimate))
}

fn in_http<B>(layer: BudgetLayer<Request<B>>) -> BudgetLayer<Request<B>, MeterBody, Refuse> {
    layer
        .on_hold(|usage, request| insert_usage(usage, request))
        .meter(MeterBody::default())
        .reject_with(refuse())
}

/// For [`on_hold`](BudgetLayer::on_hold): puts the [`Usage`] among the request's extensions, for the handler to count in.
pub fn insert_usage<B>(usage: &Usage, request: &mut Request<B>) {
    request.extensions_mut().insert(usage.clone());
}
