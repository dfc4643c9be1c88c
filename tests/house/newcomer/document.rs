//! A document that many may read at a time, and one may write.

use axum::routing::get;
use axum::{Extension, Router};
use tower_distributed::extract::path;
use tower_distributed::{LeaseHandle, RwLock, Store, web};

use crate::newcomer::net::{client, serve};

async fn write(Extension(lease): Extension<LeaseHandle>) -> String {
    lease.fence().unwrap_or_default().to_string()
}

#[tokio::test]
async fn program() {
    let documents = RwLock::new(&Store::in_memory(), "documents").unwrap();
    let app = Router::new().route("/document/{id}", get(async || "text").put(write));
    // user
    let app = app.layer(web::rw_lock(documents.clone(), path()));
    // end
    let url = serve(app).await;
    let reading = documents.read("/document/42").await.unwrap();
    let answer = async |request: reqwest::RequestBuilder| request.send().await.unwrap();
    assert_eq!(answer(client().get(format!("{url}/document/42"))).await.status(), 200);
    let spelled_otherwise = client().put(format!("{url}/document/%34%32"));
    assert_eq!(answer(spelled_otherwise).await.status(), 423, "somebody reads it");
    reading.release().await.unwrap();
    let fence = answer(client().put(format!("{url}/document/42"))).await.text().await.unwrap();
    assert!(fence.parse::<u64>().is_ok_and(|fence| fence > 0), "{fence}");
}
