//! Quotas by the plan of the customer, which is looked up in a database.

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use tower_distributed::extract::extension;
use tower_distributed::{Quota, Quotas, Store, TokenBucket, web};

use crate::newcomer::net::{client, send, serve};

#[derive(Clone)]
struct Customer(String);

/// Stands for an authentication.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let token = request.headers().get("authorization").and_then(|token| token.to_str().ok());
    let customer = token.and_then(|token| token.strip_prefix("Bearer ")).ok_or(StatusCode::UNAUTHORIZED)?;
    let customer = Customer(customer.to_owned());
    request.extensions_mut().insert(customer);
    Ok(next.run(request).await)
}

/// Stands for a database.
async fn plan_of(customer: Option<Customer>) -> &'static str {
    tokio::task::yield_now().await;
    if customer.is_some_and(|Customer(name)| name == "acme") { "100/s" } else { "1/h" }
}

#[tokio::test]
async fn program() {
    let bucket = TokenBucket::new(&Store::in_memory(), "customers", Quota::per_hour(1)).unwrap();
    let app = Router::new().route("/", get(async || "hello"));
    // user
    let key = extension(|customer: &Customer| customer.0.clone());
    let quotas = |request: &Request| {
        let plan = plan_of(request.extensions().get().cloned());
        Box::pin(async move { plan.await.parse::<Quotas>().ok() })
    };
    let app = app.layer(web::rate_limit(bucket, key).quotas(quotas)).layer(from_fn(authenticate));
    // end
    let url = serve(app).await;
    let status = async |customer| send(client().get(&url).bearer_auth(customer)).await;
    assert_eq!((status("acme").await, status("acme").await), (200, 200));
    assert_eq!((status("other").await, status("other").await), (200, 429));
    assert_eq!(send(client().get(&url)).await, 401);
}
