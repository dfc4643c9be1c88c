//! An expensive page that is made once for all who ask at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::get;
use tower_distributed::extract::shared_get;
use tower_distributed::response::AnswerCodec;
use tower_distributed::{SingleFlight, Store, web};

use crate::newcomer::net::{client, send, serve};

#[tokio::test]
async fn program() {
    let made = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&made);
    let page = async move || {
        tokio::task::yield_now().await;
        counter.fetch_add(1, Ordering::SeqCst).to_string()
    };
    let flight = SingleFlight::builder(AnswerCodec).build(&Store::in_memory(), "pages").unwrap();
    let app = Router::new().route("/", get(page));
    // user
    let app = app.layer(web::single_flight(flight, shared_get()));
    // end
    let url = serve(app).await;
    let asked = (0..20).map(|_| send(client().get(&url)));
    assert!(futures::future::join_all(asked).await.iter().all(|status| *status == 200));
    assert_eq!(made.load(Ordering::SeqCst), 1);
}
