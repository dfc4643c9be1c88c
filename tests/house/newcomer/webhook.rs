//! Webhooks that come more than once, and are handled once.

use std::time::Duration;

use axum::Router;
use axum::routing::post;
use tower_distributed::extract::header;
use tower_distributed::{Dedupe, Error, Store, web};

use crate::newcomer::net::{client, serve};

fn app(dedupe: Dedupe) -> Result<Router, Error> {
    let app = Router::new().route("/", post(async || "handled"));
    // user
    let app = app.layer(web::dedupe(dedupe, header("webhook-id")?));
    // end
    Ok(app)
}

#[tokio::test]
async fn program() {
    let week = Duration::from_secs(7 * 86_400);
    let dedupe = Dedupe::exact(&Store::in_memory(), "webhooks").remember_for(week).build().unwrap();
    let url = serve(app(dedupe).unwrap()).await;
    let body = async |id| {
        let response = client().post(&url).header("webhook-id", id).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    assert_eq!(body("evt_1").await, (200, "handled".into()));
    assert_eq!(body("evt_1").await, (200, String::new()), "a duplicate is acknowledged");
    assert_eq!(body("evt_2").await, (200, "handled".into()));
}
