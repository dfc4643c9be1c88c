//! What is held for a while: exports that are limited, and documents that are locked.

use std::time::Duration;

use axum::extract::Path;
use axum::http::Method;
use axum::routing::get;
use axum::{Extension, Router};
use tower_distributed::{Error, LeaseHandle, RwLock, Store, WaitGroup};
use tower_distributed::{extract, web};

pub(crate) fn routes(store: &Store) -> Result<Router, Error> {
    let exports = WaitGroup::new(store, "gateway-exports", 2)?;
    let limit =
        web::concurrency_limit(exports, |_: &axum::extract::Request| "all").max_wait(Duration::from_secs(10));
    let documents = RwLock::new(store, "gateway-documents")?;
    let lock = web::rw_lock(documents, extract::path()).max_wait(Duration::from_secs(10));
    Ok(Router::new()
        .route("/export", get(export).layer(limit))
        .route("/document/{id}", get(document).put(document).layer(lock)))
}

/// Two seconds of work.
async fn export() -> &'static str {
    tokio::time::sleep(Duration::from_secs(2)).await;
    "exported\n"
}

/// A tenth of a second of work. Whatever keeps the document would refuse a write with a lower fence than it has seen.
async fn document(
    method: Method,
    Path(id): Path<String>,
    Extension(lease): Extension<LeaseHandle>,
) -> String {
    tokio::time::sleep(Duration::from_millis(100)).await;
    let fence = lease.fence().map_or("none".to_owned(), |fence| fence.to_string());
    match method {
        Method::PUT => format!("document {id} written, alone: fencing token {fence}\n"),
        _ => format!("document {id} read, beside other readers: fencing token of the last writer {fence}\n"),
    }
}
