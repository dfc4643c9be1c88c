//! Bodies that make no progress do not hold their leases for ever.

use std::time::Duration;

use http::{Response, StatusCode};
use hyper::body::Body;
use tokio_test::{assert_pending, task};
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::http::UntilBodyEnd;

use crate::bodies::{answers, data, reads, responds, slow};
use crate::layers::{becomes_free, by_name, is_free, on_each_layer};
use crate::stores::{Stores, on_each_store};

on_each_store!(until_the_head_of_an_upgrade);

/// What the clock of a test is moved by: to just before a limit, and past it.
const SECOND: Duration = Duration::from_secs(1);
/// The idle timeout unless set.
const IDLE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_polls_holds_its_lease_for_a_minute() {
    let stores = Stores::in_memory();
    on_each_layer!(stores, by_name, |layer| {
        let (sender, body) = slow();
        let service = layer.hold(UntilBodyEnd::default()).layer(answers(body));
        let mut body = service.oneshot("ann").await.unwrap().into_body();
        tokio::time::sleep(IDLE - SECOND).await;
        assert!(!is_free(&stores, "ann").await);
        tokio::time::sleep(2 * SECOND).await;
        assert!(is_free(&stores, "ann").await);
        sender.unbounded_send(data("on it goes")).unwrap();
        assert!(reads(&mut body, "on it goes").await && !body.is_end_stream());
    });
}

#[tokio::test(start_paused = true)]
async fn a_body_that_yields_nothing_holds_its_lease_for_a_minute() {
    let stores = Stores::in_memory();
    on_each_layer!(stores, by_name, |layer| {
        let (sender, body) = slow();
        let service = layer.hold(UntilBodyEnd::default()).layer(answers(body));
        let mut body = service.oneshot("ann").await.unwrap().into_body();
        sender.unbounded_send(data("one")).unwrap();
        assert!(reads(&mut body, "one").await);
        let mut next = task::spawn(reads(&mut body, "two"));
        assert_pending!(next.poll());
        tokio::time::sleep(IDLE - SECOND).await;
        assert_pending!(next.poll());
        assert!(!is_free(&stores, "ann").await);
        tokio::time::sleep(2 * SECOND).await;
        assert!(is_free(&stores, "ann").await);
        sender.unbounded_send(data("two")).unwrap();
        assert!(next.await);
    });
}

async fn until_the_head_of_an_upgrade(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let (_sender, body) = slow();
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let service = layer.hold(UntilBodyEnd::default()).layer(responds(response));
        let response = service.oneshot("ann").await.unwrap();
        becomes_free(&stores, "ann").await;
        drop(response);
    });
}
