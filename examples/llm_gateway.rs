//! Two gateways to a language model, which share the budgets of their tenants: requests and tokens per minute.
//!
//! What a request costs is known only when its answer ends. So each request holds one request and an estimate of tokens, which
//! its `max_tokens` says, or is refused; and the usage in the last event of the stream is captured. The upstream is a small server of our own, and so are the
//! tenants.
//!
//! ```text
//! cargo run --example llm_gateway                                    the page is at http://127.0.0.1:3000/
//! REDIS_URL=redis://127.0.0.1/ cargo run --example llm_gateway      the budgets are in Redis
//! cargo run --example llm_gateway -- once                            one request of each tenant, and the page as text
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use futures::{Stream, StreamExt as _, stream};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tokio::net::TcpListener;
use tower::BoxError;
use tower_distributed::response::MeterBody;
use tower_distributed::token_bucket::Estimate::{Fixed, Metered};
use tower_distributed::token_bucket::Usage;
use tower_distributed::{Key, Quota, Store, TokenBucket, TokenBuckets, extract, web};

const TENANTS: [&str; 3] = ["acme", "globex", "initech"];
/// If a request does not say how long its answer may be.
const MAX_TOKENS: u32 = 1000;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    let once = std::env::args().nth(1).as_deref() == Some("once");
    let upstream = serve(0, Router::new().route("/complete", get(complete))).await?;
    let first = gateway(&store, upstream)?;
    let port = if once { 0 } else { 3000 };
    let page = serve(port, first.merge(page(&store)?)).await?;
    let other = serve(0, gateway(&store, upstream)?).await?;

    let client = client();
    if once {
        for tenant in TENANTS {
            println!("{tenant}: {}", ask(&client, other, tenant, 400).await?);
        }
        println!("{}", rows(&Tenants::new(&store)?).await?.join("\n"));
        return Ok(());
    }
    println!("the page is at http://{page}/");
    // Each tenant asks both gateways, the first one most.
    for (nth, tenant) in TENANTS.into_iter().enumerate() {
        let client = client.clone();
        tokio::spawn(async move {
            let mut every = tokio::time::interval(Duration::from_millis(150 << (2 * nth)));
            for (count, gateway) in [page, other].into_iter().cycle().enumerate() {
                every.tick().await;
                let client = client.clone();
                // Some clients go away in the middle of the answer.
                let patience = Duration::from_millis(if count % 5 == 4 { 300 } else { 60_000 });
                tokio::spawn(async move {
                    tokio::time::timeout(patience, ask(&client, gateway, tenant, 900)).await
                });
            }
        });
    }
    tokio::signal::ctrl_c().await?;
    Ok(())
}

/// A gateway: what it lets through holds one request and its estimate of tokens, in one step.
fn gateway(store: &Store, upstream: SocketAddr) -> Result<Router, BoxError> {
    let Tenants { requests, tokens } = Tenants::new(store)?;
    let tenant = || extract::header("x-tenant").map(|tenant| tenant.plain());
    let estimate = |request: &Request| {
        let asked = Query::<Asked>::try_from_uri(request.uri())
            .ok()
            .and_then(|asked| asked.max_tokens);
        [Fixed(1), Metered(asked.unwrap_or(MAX_TOKENS))]
    };
    let limits = TokenBuckets::new([requests, tokens])?;
    let budget = web::token_budgets(limits, (tenant()?, tenant()?), estimate)
        .meter(MeterBody::default().frames(of_events()));
    let forward = get(forward).layer(budget).with_state((client(), upstream));
    Ok(Router::new().route("/complete", forward))
}

#[derive(Deserialize)]
struct Asked {
    max_tokens: Option<u32>,
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
            } else if !event.is_empty() {
                // If the client goes away now, it pays for what it got.
                usage.add(1);
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
    State((client, upstream)): State<(HttpClient, SocketAddr)>,
    request: Request,
) -> Result<Response, StatusCode> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let uri: Uri = format!("http://{upstream}{path}")
        .parse()
        .map_err(|_| StatusCode::BAD_REQUEST)?;
    let response = client.get(uri).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    Ok(response.map(Body::new))
}

/// The model: a word every few milliseconds, in the end how many tokens they were.
async fn complete(Query(asked): Query<Asked>) -> Sse<impl Stream<Item = Result<Event, BoxError>>> {
    let words = asked.max_tokens.unwrap_or(MAX_TOKENS) / 20;
    let events = stream::iter(0..words).then(async |nth| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(Event::default().data(format!("\"word {nth}\"")))
    });
    let last = format!("{{\"total_tokens\":{}}}", 8 * words);
    Sse::new(events.chain(stream::iter([Ok(Event::default().data(last))])))
}

/// Asks a gateway, and reads the answer to its end.
async fn ask(
    client: &HttpClient,
    gateway: SocketAddr,
    tenant: &str,
    max_tokens: u32,
) -> Result<StatusCode, BoxError> {
    let uri = format!("http://{gateway}/complete?max_tokens={max_tokens}");
    let request = Request::builder()
        .uri(uri)
        .header("x-tenant", tenant)
        .body(Body::empty())?;
    let response = client.request(request).await?;
    let status = response.status();
    let mut body = Body::new(response.into_body()).into_data_stream();
    while let Some(data) = body.next().await {
        data?;
    }
    Ok(status)
}

type HttpClient = Client<HttpConnector, Body>;

fn client() -> HttpClient {
    Client::builder(TokioExecutor::new()).build_http()
}

/// The budgets of the tenants.
#[derive(Clone)]
struct Tenants {
    requests: TokenBucket,
    tokens: TokenBucket,
}

impl Tenants {
    fn new(store: &Store) -> Result<Self, BoxError> {
        Ok(Self {
            requests: TokenBucket::new(store, "requests", Quota::per_minute(60))?,
            tokens: TokenBucket::new(store, "tokens", Quota::per_minute(20_000))?,
        })
    }
}

fn page(store: &Store) -> Result<Router, BoxError> {
    let show = async |State(tenants): State<Tenants>| match rows(&tenants).await {
        Ok(rows) => Html(format!(
            "<!doctype html><meta http-equiv=refresh content=1><title>Budgets</title><pre>{}</pre>",
            rows.join("\n")
        ))
        .into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    };
    Ok(Router::new()
        .route("/", get(show))
        .with_state(Tenants::new(store)?))
}

/// Per tenant what is left of each budget, and of the tokens what is held and what is charged.
async fn rows(tenants: &Tenants) -> Result<Vec<String>, BoxError> {
    let titles = ["tenant", "requests left", "tokens left", "held", "captured"];
    let row = |cells: [&dyn std::fmt::Display; 5]| {
        let [tenant, numbers @ ..] = cells;
        numbers.iter().fold(format!("{tenant:<10}"), |row, number| {
            format!("{row}{number:>15}")
        })
    };
    let mut rows = vec![row(titles.each_ref().map(|title| title as _))];
    for tenant in TENANTS {
        let requests = tenants.requests.peek(Key::from(tenant)).await?.remaining();
        let state = tenants.tokens.peek(Key::from(tenant)).await?;
        let (left, held) = (state.remaining(), state.held());
        let captured = state.tightest().limit.saturating_sub(left + held);
        rows.push(row([&tenant, &requests, &left, &held, &captured]));
    }
    Ok(rows)
}

async fn serve(port: u16, app: Router) -> Result<SocketAddr, BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}
