//! Middleware of `axum` applications.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use tower_distributed::extract::{client_ip, extension, header, path, shared_get};
use tower_distributed::response::AnswerCodec;
use tower_distributed::{
    Dedupe, Error, LeaseHandle, Quota, Quotas, RwLock, SingleFlight, Store, TokenBucket,
    TokenBuckets, web,
};

use crate::newcomer::net::{client, send, serve};

fn bucket(most: u32) -> TokenBucket {
    TokenBucket::new(&Store::in_memory(), "limit", Quota::per_hour(most)).unwrap()
}

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

#[derive(Clone)]
struct User(String);

/// Stands for an authentication.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let token = request
        .headers()
        .get("authorization")
        .and_then(|token| token.to_str().ok());
    let name = token
        .and_then(|token| token.strip_prefix("Bearer "))
        .ok_or(StatusCode::UNAUTHORIZED)?;
    let user = User(name.to_owned());
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

/// A limit per user, who was authenticated by a middleware outside of it.
#[tokio::test]
async fn per_user() {
    let (app, bucket) = (hello(), bucket(1));
    // user: per_user
    let user = extension(|user: &User| user.0.clone());
    let app = app
        .layer(web::rate_limit(bucket, user))
        .layer(from_fn(authenticate));
    // end
    let url = serve(app).await;
    let status = async |token| send(client().get(&url).bearer_auth(token)).await;
    assert_eq!(
        (
            status("ann").await,
            status("ann").await,
            status("ben").await
        ),
        (200, 429, 200)
    );
    assert_eq!(send(client().get(&url)).await, 401);
}

/// With the two layers in the wrong order nothing passes.
#[tokio::test]
async fn per_user_in_the_wrong_order() {
    let limit = web::rate_limit(bucket(1), extension(|user: &User| user.0.clone()));
    let url = serve(hello().layer(from_fn(authenticate)).layer(limit)).await;
    assert_eq!(send(client().get(&url).bearer_auth("ann")).await, 500);
}

/// A limit per IPv4 address or IPv6 /64 network, behind a proxy.
fn per_ip_of(app: Router, bucket: TokenBucket) -> Result<Router, Error> {
    // user: per_ip
    let client = client_ip().trust(["127.0.0.0/8"])?;
    let app = app.layer(web::rate_limit(bucket, client));
    // end
    Ok(app)
}

#[tokio::test]
async fn per_ip() {
    let url = serve(per_ip_of(hello(), bucket(1)).unwrap()).await;
    let status = async |from| send(client().get(&url).header("x-forwarded-for", from)).await;
    assert_eq!(status("2001:db8:1:2::3").await, 200);
    assert_eq!(
        status("2001:db8:1:2:ffff::4").await,
        429,
        "of the same network"
    );
    assert_eq!(
        status("6.6.6.6, 2001:db8:1:2::5").await,
        429,
        "a forged entry"
    );
    assert_eq!(status("203.0.113.7").await, 200);
}

/// Stands for a database.
async fn plan_of(user: Option<User>) -> &'static str {
    tokio::task::yield_now().await;
    if user.is_some_and(|User(name)| name == "acme") {
        "100/s"
    } else {
        "1/h"
    }
}

/// Quotas by the plan of the customer, which is looked up in a database.
#[tokio::test]
async fn tiers() {
    let (app, bucket) = (hello(), bucket(1));
    // user: tiers
    let key = extension(|user: &User| user.0.clone());
    let quotas = |request: &Request| {
        let plan = plan_of(request.extensions().get().cloned());
        Box::pin(async move { plan.await.parse::<Quotas>().ok() })
    };
    let app = app
        .layer(web::rate_limit(bucket, key).quotas(quotas))
        .layer(from_fn(authenticate));
    // end
    let url = serve(app).await;
    let status = async |user| send(client().get(&url).bearer_auth(user)).await;
    assert_eq!((status("acme").await, status("acme").await), (200, 200));
    assert_eq!((status("other").await, status("other").await), (200, 429));
}

/// Limits per client, per tenant, and for all, charged together.
fn several_of(app: Router, limits: [TokenBucket; 3]) -> Result<Router, Error> {
    let [clients, tenants, all] = limits;
    // user: several
    let limits = TokenBuckets::new([clients, tenants, all])?;
    let keys = (client_ip(), header("x-tenant")?, |_: &Request| "all");
    let app = app.layer(web::rate_limits(limits, keys));
    // end
    Ok(app)
}

#[tokio::test]
async fn several() {
    let store = Store::in_memory();
    let bucket = |name, most| TokenBucket::new(&store, name, Quota::per_hour(most)).unwrap();
    let limits = [
        bucket("clients", 100),
        bucket("tenants", 1),
        bucket("all", 2),
    ];
    let url = serve(several_of(hello(), limits).unwrap()).await;
    let status = async |tenant| send(client().get(&url).header("x-tenant", tenant)).await;
    assert_eq!((status("acme").await, status("acme").await), (200, 429));
    assert_eq!(
        status("other").await,
        200,
        "what was refused was charged to no limit"
    );
    assert_eq!(status("third").await, 429);
}

/// Requests that cost as many tokens as their responses have bytes.
#[tokio::test]
async fn response_cost() {
    let app = Router::new().route("/", get(async || "x".repeat(1500)));
    let bucket = bucket(1000);
    // user: response_cost
    let bytes = |response: &Response| {
        response
            .body()
            .size_hint()
            .lower()
            .try_into()
            .unwrap_or(u32::MAX)
    };
    let app = app.layer(web::rate_limit(bucket, client_ip()).cost_of_response(bytes));
    // end
    let url = serve(app).await;
    assert_eq!(send(client().get(&url)).await, 200);
    assert_eq!(send(client().get(&url)).await, 429, "500 bytes of debt");
}

/// An expensive page that is made once for all who ask at the same time.
#[tokio::test]
async fn stampede() {
    let made = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&made);
    let page = async move || {
        tokio::task::yield_now().await;
        counter.fetch_add(1, Ordering::SeqCst).to_string()
    };
    let flight = SingleFlight::builder(AnswerCodec)
        .build(&Store::in_memory(), "pages")
        .unwrap();
    let app = Router::new().route("/", get(page));
    // user: stampede
    let app = app.layer(web::single_flight(flight, shared_get()));
    // end
    let url = serve(app).await;
    let asked = (0..20).map(|_| send(client().get(&url)));
    assert!(
        futures::future::join_all(asked)
            .await
            .iter()
            .all(|status| *status == 200)
    );
    assert_eq!(made.load(Ordering::SeqCst), 1);
}

/// Webhooks that come more than once, and are handled once.
fn webhook_of(app: Router, dedupe: Dedupe) -> Result<Router, Error> {
    // user: webhook
    let app = app.layer(web::dedupe(dedupe, header("webhook-id")?));
    // end
    Ok(app)
}

#[tokio::test]
async fn webhook() {
    let week = Duration::from_secs(7 * 86_400);
    let dedupe = Dedupe::exact(&Store::in_memory(), "webhooks")
        .remember_for(week)
        .build()
        .unwrap();
    let app = Router::new().route("/", post(async || "handled"));
    let url = serve(webhook_of(app, dedupe).unwrap()).await;
    let body = async |id| {
        let response = client()
            .post(&url)
            .header("webhook-id", id)
            .send()
            .await
            .unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    assert_eq!(body("evt_1").await, (200, "handled".into()));
    assert_eq!(
        body("evt_1").await,
        (200, String::new()),
        "a duplicate is acknowledged"
    );
    assert_eq!(body("evt_2").await, (200, "handled".into()));
}

async fn write(Extension(lease): Extension<LeaseHandle>) -> String {
    lease.fence().unwrap_or_default().to_string()
}

/// A document that many may read at a time, and one may write.
#[tokio::test]
async fn document() {
    let documents = RwLock::new(&Store::in_memory(), "documents").unwrap();
    let app = Router::new().route("/document/{id}", get(async || "text").put(write));
    // user: document
    let app = app.layer(web::rw_lock(documents.clone(), path()));
    // end
    let url = serve(app).await;
    let reading = documents.read("/document/42").await.unwrap();
    assert_eq!(send(client().get(format!("{url}/document/42"))).await, 200);
    let spelled_otherwise = client().put(format!("{url}/document/%34%32"));
    assert_eq!(send(spelled_otherwise).await, 423, "somebody reads it");
    reading.release().await.unwrap();
    let written = client()
        .put(format!("{url}/document/42"))
        .send()
        .await
        .unwrap();
    let fence = written.text().await.unwrap();
    assert!(fence.parse::<u64>().is_ok_and(|fence| fence > 0), "{fence}");
}
