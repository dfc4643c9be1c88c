//! The budgets of the tenants, and the gateways that keep them.

use std::net::SocketAddr;

use axum::body::{Body, Bytes};
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use futures::StreamExt as _;
use serde::Deserialize;
use tower::BoxError;
use tower_distributed::response::MeterBody;
use tower_distributed::token_bucket::Estimate::{Fixed, Metered};
use tower_distributed::token_bucket::Usage;
use tower_distributed::{Error, Key, Quota, Store, TokenBucket, TokenBuckets, extract, web};

use crate::TENANTS;
use crate::board::{Board, Seat};
use crate::clients::{HttpClient, client};
use crate::model::{Asked, TOKENS_OF_AN_EVENT};

pub(crate) const REQUESTS_PER_MINUTE: u32 = 120;
pub(crate) const TOKENS_PER_MINUTE: u32 = 20_000;

/// A gateway: what it lets through holds one request and its estimate of tokens, in one step.
pub(crate) fn gateway(
    store: &Store,
    upstream: SocketAddr,
    board: &Board,
    name: &'static str,
) -> Result<Router, BoxError> {
    let Tenants { requests, tokens } = Tenants::new(store)?;
    let tenant = || extract::header("x-tenant").map(|tenant| tenant.plain());
    let estimate = |request: &Request| [Fixed(1), Metered(estimate(request))];
    let limits = TokenBuckets::new([requests, tokens])?;
    let budget = web::token_budgets(limits, (tenant()?, tenant()?), estimate)
        .meter(MeterBody::default().frames(of_events()));
    let seat = Seat::new(board.clone(), name);
    let forward = get(forward)
        .layer(budget)
        .layer(from_fn_with_state(seat.clone(), crate::board::count))
        .with_state((client(), upstream, seat));
    Ok(Router::new().route("/complete", forward))
}

fn estimate(request: &Request) -> u32 {
    Query::<Asked>::try_from_uri(request.uri()).map_or(0, |asked| asked.max_tokens())
}

/// Reads the usage in the events of a stream. What is not a whole line yet is kept for the next frame.
fn of_events() -> impl FnMut(&Bytes, &Usage) + Clone {
    let mut line = Vec::new();
    move |data, usage| {
        for part in data.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if !line.ends_with(b"\n") {
                return;
            }
            let event = line.strip_prefix(b"data:").unwrap_or_default();
            if let Ok(Told { total_tokens }) = serde_json::from_slice(event) {
                usage.set(total_tokens);
                usage.complete();
            } else if !event.is_empty() {
                // If the client goes away now, it pays for what it got.
                usage.add(TOKENS_OF_AN_EVENT);
            }
            line.clear();
        }
    }
}

#[derive(Deserialize)]
struct Told {
    total_tokens: u32,
}

async fn forward(
    State((client, upstream, seat)): State<(HttpClient, SocketAddr, Seat)>,
    Extension(usage): Extension<Usage>,
    request: Request,
) -> Result<Response, StatusCode> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let uri: Uri = format!("http://{upstream}{path}")
        .parse()
        .map_err(|_| StatusCode::BAD_REQUEST)?;
    // The page shows the stream for as long as its body lives.
    let stream = seat.begins(&request, estimate(&request), usage);
    let response = client.get(uri).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    Ok(response.map(|body| {
        let frames = Body::new(body).into_data_stream();
        Body::from_stream(frames.inspect(move |_| stream.goes_on()))
    }))
}

/// The budgets of the tenants.
#[derive(Clone)]
pub(crate) struct Tenants {
    requests: TokenBucket,
    tokens: TokenBucket,
}

/// What is left of the budgets of one tenant, and what became of the tokens that are not.
pub(crate) struct Level {
    pub(crate) requests: u32,
    pub(crate) tokens: u32,
    pub(crate) held: u32,
    /// Captured, and not refilled since.
    pub(crate) captured: u32,
}

impl Tenants {
    pub(crate) fn new(store: &Store) -> Result<Self, Error> {
        let tokens = Quota::per_minute(TOKENS_PER_MINUTE);
        let requests = Quota::per_minute(REQUESTS_PER_MINUTE);
        Ok(Self {
            requests: TokenBucket::new(store, "requests", requests)?,
            tokens: TokenBucket::new(store, "tokens", tokens)?,
        })
    }

    pub(crate) async fn level(&self, tenant: &str) -> Result<Level, Error> {
        let requests = self.requests.peek(Key::from(tenant)).await?.remaining();
        let state = self.tokens.peek(Key::from(tenant)).await?;
        let (tokens, held) = (state.remaining(), state.held());
        let captured = state.tightest().limit.saturating_sub(tokens + held);
        Ok(Level {
            requests,
            tokens,
            held,
            captured,
        })
    }

    /// A table of all levels.
    pub(crate) async fn rows(&self) -> Result<Vec<String>, Error> {
        let row = |tenant: &str, [requests, tokens, held, captured]: [String; 4]| {
            format!("{tenant:<10}{requests:>15}{tokens:>15}{held:>15}{captured:>15}")
        };
        let titles = ["requests left", "tokens left", "held", "captured"];
        let mut rows = vec![row("tenant", titles.map(str::to_owned))];
        for tenant in TENANTS {
            let level = self.level(tenant).await?;
            let numbers = [level.requests, level.tokens, level.held, level.captured];
            rows.push(row(tenant, numbers.map(|number| number.to_string())));
        }
        Ok(rows)
    }
}
