//! What is held for a while: exports that are limited, documents that are locked, and billing that runs alone.

use std::time::Duration;

use axum::extract::{Path, Request};
use axum::http::Method;
use axum::middleware::from_fn;
use axum::routing::{get, post};
use axum::{Extension, Router};
use tower_distributed::{Error, LeaseHandle, Mutex, RwLock, Store, WaitGroup};
use tower_distributed::{extract, web};

use crate::page::board::work;

pub(crate) fn routes(store: &Store) -> Result<Router, Error> {
    let limit = web::concurrency_limit(exports(store)?, |_: &Request| "all")
        .max_wait(Duration::from_secs(10));
    let documents = RwLock::new(store, "gateway-documents")?;
    let lock = web::rw_lock(documents, extract::path()).max_wait(Duration::from_secs(10));
    // A short time to live: after a crash, the next run can start within 3 s. It is renewed while the run lasts.
    let runs = Mutex::builder()
        .ttl(Duration::from_secs(3))
        .build(store, "gateway-billing")?;
    let alone = web::mutex(runs, |_: &Request| "month");
    Ok(Router::new()
        .route(
            "/export",
            get(export).route_layer(from_fn(work)).layer(limit),
        )
        .route(
            "/document/{id}",
            get(document)
                .put(document)
                .route_layer(from_fn(work))
                .layer(lock),
        )
        .route(
            "/billing",
            post(billing).route_layer(from_fn(work)).layer(alone),
        ))
}

/// Two exports at once.
pub(crate) fn exports(store: &Store) -> Result<WaitGroup, Error> {
    WaitGroup::new(store, "gateway-exports", 2)
}

/// Two seconds of work.
async fn export() -> &'static str {
    tokio::time::sleep(Duration::from_secs(2)).await;
    "exported\n"
}

/// A quarter of a second of work. Whatever keeps the document would refuse a write with a lower fence than it has seen.
async fn document(
    method: Method,
    Path(id): Path<String>,
    Extension(lease): Extension<LeaseHandle>,
) -> String {
    tokio::time::sleep(Duration::from_millis(250)).await;
    let fence = lease
        .fence()
        .map_or("none".to_owned(), |fence| fence.to_string());
    match method {
        Method::PUT => format!("document {id} written, alone: fencing token {fence}\n"),
        _ => format!(
            "document {id} read, beside other readers: fencing token of the last writer {fence}\n"
        ),
    }
}

/// Eight seconds of work, longer than the lease lives without renewals.
async fn billing(Extension(lease): Extension<LeaseHandle>) -> String {
    tokio::time::sleep(Duration::from_secs(8)).await;
    format!(
        "billed, fencing token {}\n",
        lease.fence().unwrap_or_default()
    )
}
