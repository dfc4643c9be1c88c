//! What is done once: reports that are made for all who ask meanwhile, and webhooks that are not handled again.

use std::time::Duration;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn;
use axum::routing::{get, post};
use axum::{Extension, Router};
use tower_distributed::{
    BloomFilter, Dedupe, Error, LeaseHandle, SingleFlight, Store, extract, response, web,
};

use crate::page::board::work;

pub(crate) fn routes(store: &Store) -> Result<Router, Error> {
    let reports = SingleFlight::builder(response::AnswerCodec).build(store, "gateway-reports")?;
    let once = web::single_flight(reports, extract::shared_get()).on_lease(web::InsertLease);
    let webhooks = BloomFilter::builder()
        .capacity(1_000_000)
        .false_positive_rate(0.000_001)
        .remember_for(Duration::from_secs(7 * 86_400))
        .build(store, "gateway-webhooks")?;
    let handled = web::dedupe(Dedupe::new(&webhooks)?, extract::header("webhook-id")?).go_on();
    Ok(Router::new()
        .route(
            "/report/{id}",
            get(report).route_layer(from_fn(work)).layer(once),
        )
        .route(
            "/webhook",
            post(webhook).route_layer(from_fn(work)).layer(handled),
        ))
}

/// A second of work. Each run has a greater number than the one before: its fencing token.
async fn report(Path(id): Path<String>, lease: Option<Extension<LeaseHandle>>) -> String {
    tokio::time::sleep(Duration::from_secs(1)).await;
    match lease.and_then(|Extension(lease)| lease.fence()) {
        Some(run) => format!("report {id} of run {run}\n"),
        None => format!("report {id}, made for you alone\n"),
    }
}

/// What fails may be sent again; without an id nothing is remembered.
async fn webhook(headers: HeaderMap, body: String) -> (StatusCode, String) {
    let Some(id) = headers.get("webhook-id").and_then(|id| id.to_str().ok()) else {
        return (
            StatusCode::BAD_REQUEST,
            "a webhook needs a webhook-id\n".to_owned(),
        );
    };
    match body.trim() {
        "fail" => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("webhook {id} failed\n"),
        ),
        _ => (StatusCode::OK, format!("webhook {id} handled\n")),
    }
}
