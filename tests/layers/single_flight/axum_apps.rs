//! axum: the layer on a router, without a `HandleErrorLayer`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use http::Request;
use tower_distributed::extract::SharedGet;
use tower_distributed::web::single_flight;

use crate::flights::pages;
use crate::net::{client, serve};
use crate::stores::{Stores, on_each_store};
use crate::upstream::Upstream;

on_each_store!(clients_that_go_away_hand_over);

/// A connection that is closed drops its response future, in the midst of a flight.
async fn clients_that_go_away_hand_over(stores: Stores) {
    let upstream = Upstream::start().await;
    let hangs = Arc::new(AtomicUsize::new(2));
    let app = async || {
        let layer = single_flight(pages(&stores), SharedGet::new(|_: &Request<Body>| "all"));
        let (url, hangs) = (upstream.url.clone(), Arc::clone(&hangs));
        let proxy = move |_: Request<Body>| {
            // The first two never get an answer.
            let hang =
                hangs.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            let url = if hang { format!("{url}/hang") } else { format!("{url}/") };
            async move { client().get(url).send().await.unwrap().text().await.unwrap() }
        };
        serve(Router::new().fallback(proxy).layer(layer)).await
    };
    let urls = [app().await, app().await, app().await];
    let ask = |process: usize| tokio::spawn(client().get(&urls[process]).send());
    let first = ask(0);
    upstream.reached_by(1).await;
    let second = ask(1);
    first.abort();
    upstream.reached_by(2).await;
    let others = [ask(2), ask(0), ask(2)];
    second.abort();
    for other in others {
        assert_eq!(other.await.unwrap().unwrap().text().await.unwrap(), "hello");
    }
    assert_eq!(upstream.requests(), 3);
}
