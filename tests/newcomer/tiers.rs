//! Quotas by the plan of the customer, which is looked up in a database.

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use tower_distributed::extract::header;
use tower_distributed::{Error, Quota, Quotas, Store, TokenBucket, web};

use crate::net::{client, send, serve};

/// Stands for a database.
async fn plan_of(customer: String) -> &'static str {
    tokio::task::yield_now().await;
    if customer == "acme" { "enterprise" } else { "free" }
}

fn app(bucket: TokenBucket) -> Result<Router, Error> {
    let app = Router::new().route("/", get(async || "hello"));
    // user
    let look_up = |request: &Request| {
        let customer = request.headers()["x-customer"].to_str().unwrap_or_default().to_owned();
        async move {
            let quotas = if plan_of(customer).await == "enterprise" { "100/s" } else { "1/h" };
            quotas.parse::<Quotas>().ok()
        }
    };
    let app = app.layer(web::rate_limit(bucket, header("x-customer")?).look_up_quotas(look_up));
    // end
    Ok(app)
}

#[tokio::test]
async fn program() {
    let bucket = TokenBucket::new(&Store::in_memory(), "customers", Quota::per_hour(1)).unwrap();
    let url = serve(app(bucket).unwrap()).await;
    let status = async |customer| send(client().get(&url).header("x-customer", customer)).await;
    assert_eq!((status("acme").await, status("acme").await), (200, 200));
    assert_eq!((status("other").await, status("other").await), (200, 429));
}
