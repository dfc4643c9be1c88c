//! A process that ends in order: axum drains, then the store shuts down. Work that goes on after its client has left is known
//! to the shutdown, so that no other process begins it as well.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::post;
use tokio::sync::{Notify, oneshot};
use tower_distributed::extract::SharedGet;
use tower_distributed::response::AnswerCodec;
use tower_distributed::web::{IdempotencyBuilder, idempotency, single_flight};
use tower_distributed::{Error, Mutex, SingleFlight, Store};

use crate::net::{Answer, ask, client, listen, serve};
use crate::stores::{SOON, Stores};
use support::eventually;

/// Longer than any test lasts.
const LONG: Duration = Duration::from_secs(60);

/// A handler that waits until it is told.
#[derive(Clone, Default)]
struct Slow {
    reached: Arc<Notify>,
    goes_on: Arc<Notify>,
}

impl Slow {
    fn router(&self) -> Router {
        let Self { reached, goes_on } = self.clone();
        let handler = async move || {
            reached.notify_one();
            goes_on.notified().await;
            "done"
        };
        Router::new().route("/", post(handler.clone()).get(handler))
    }
}

/// A server that can be drained.
struct Draining {
    url: String,
    ends: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<()>,
}

impl Draining {
    async fn serve(app: Router) -> Self {
        let (listener, address) = listen().await;
        let (ends, ended) = oneshot::channel();
        let served = tokio::spawn(async move {
            let ended = async { ended.await.unwrap_or_default() };
            axum::serve(listener, app)
                .with_graceful_shutdown(ended)
                .await
                .unwrap();
        });
        Self {
            url: format!("http://{address}/"),
            ends,
            served,
        }
    }

    /// Returns once no connection is left.
    async fn drain(self) {
        self.ends.send(()).unwrap();
        tokio::time::timeout(SOON, self.served)
            .await
            .expect("a connection stays")
            .unwrap();
    }
}

fn once(store: &Store) -> IdempotencyBuilder<Body> {
    idempotency(store, "payments", |_: &Request| "ann").ttl(LONG)
}

async fn pay(url: &str) -> Answer {
    ask(
        client().post(url).body("10 EUR"),
        &[("idempotency-key", "key-1")],
    )
    .await
}

/// Sends a request and leaves once it is handled.
async fn leave(request: reqwest::RequestBuilder, slow: &Slow) {
    let request = tokio::spawn(request.send());
    slow.reached.notified().await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
}

/// Checks that a shutdown has not ended while `others` do something.
async fn meanwhile<T>(
    shutdown: &mut tokio::task::JoinHandle<Result<(), Error>>,
    others: impl Future<Output = T>,
) -> T {
    tokio::select! {
        biased;
        ended = shutdown => panic!("the shutdown does not wait: {ended:?}"),
        done = others => done,
    }
}

/// What the work holds, and what else the process holds.
#[tokio::test]
async fn what_still_runs_keeps_its_claim_and_its_locks_and_is_told() {
    let (stores, slow) = (Stores::redis().await, Slow::default());
    let store = stores.open();
    let locks = |store: &Store| Mutex::builder().ttl(LONG).build(store, "m").unwrap();
    let (mutex, other) = (locks(&store), locks(&stores.open()));
    let (within, waiting) = (mutex.clone(), slow.clone());
    let handler = async move || {
        let _lock = within.lock("of the handler").await.unwrap();
        waiting.reached.notify_one();
        waiting.goes_on.notified().await;
        "done"
    };
    let layer = once(&store).build().unwrap();
    let server = Draining::serve(Router::new().route("/", post(handler)).layer(layer)).await;
    let next = slow.router().layer(once(&stores.open()).build().unwrap());
    let next = format!("{}/", serve(next).await);
    let guard = mutex.lock("another").await.unwrap();
    let request = client()
        .post(&server.url)
        .body("10 EUR")
        .header("idempotency-key", "key-1");
    leave(request, &slow).await;
    server.drain().await;

    let error = store
        .shutdown(Duration::from_millis(400))
        .await
        .unwrap_err();
    assert!(error.is_timeout() && error.is_unavailable(), "{error:?}");
    assert!(
        error.to_string().contains("1 of idempotency \"payments\""),
        "{error}"
    );
    assert!(!guard.is_held());
    eventually("all other leases to end", SOON, async || {
        other.try_lock("another").await.is_ok()
    })
    .await;
    assert!(
        other
            .try_lock("of the handler")
            .await
            .unwrap_err()
            .is_refused()
    );
    assert_eq!(pay(&next).await.status, StatusCode::CONFLICT);

    // What ends later is entered all the same.
    slow.goes_on.notify_one();
    eventually("the replay", SOON, async || {
        pay(&next).await.header("idempotency-replayed").is_some()
    })
    .await;
    eventually("the lock", SOON, async || {
        other.try_lock("of the handler").await.is_ok()
    })
    .await;
}

/// The runtime of the process ends after the shutdown, in the middle of the work.
#[test]
fn what_is_cut_off_after_a_shutdown_keeps_its_claim() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    };
    let (ends, stays) = (runtime(), runtime());
    let stores = stays.block_on(Stores::redis());
    let store = stores.open();
    let slow = Slow::default();
    ends.block_on(async {
        let url = serve(slow.router().layer(once(&store).build().unwrap())).await;
        let request = client()
            .post(url)
            .body("10 EUR")
            .header("idempotency-key", "key-1");
        leave(request, &slow).await;
        store
            .shutdown(Duration::from_millis(100))
            .await
            .unwrap_err();
    });
    drop(ends);
    stays.block_on(async {
        // What was asked for before is done.
        store.ping().await.unwrap();
        store.shutdown(SOON).await.unwrap();
        let next = serve(slow.router().layer(once(&stores.open()).build().unwrap())).await;
        for _ in 0..20 {
            assert_eq!(pay(&next).await.status, StatusCode::CONFLICT);
        }
    });
}

macro_rules! flights {
    ($store:expr, $go_on:expr) => {{
        let flight = SingleFlight::builder(AnswerCodec)
            .lease_ttl(LONG)
            .ttl(LONG)
            .go_on($go_on);
        single_flight(
            flight.build($store, "reports").unwrap(),
            SharedGet::new(|_: &Request| "all"),
        )
    }};
}

#[tokio::test]
async fn a_flight_that_goes_on_is_not_run_again() {
    let (stores, slow) = (Stores::redis().await, Slow::default());
    let store = stores.open();
    let server = Draining::serve(slow.router().layer(flights!(&store, true))).await;
    leave(client().get(&server.url), &slow).await;
    server.drain().await;

    let mut shutdown = tokio::spawn(async move { store.shutdown(LONG).await });
    let next = Slow::default();
    let there = stores.open();
    let url = serve(next.router().layer(flights!(&there, false))).await;
    let follower = tokio::spawn(client().get(url).send());
    let follows = eventually("it to follow", SOON, async || there.stats().operations > 0);
    meanwhile(&mut shutdown, follows).await;
    slow.goes_on.notify_one();
    tokio::time::timeout(SOON, shutdown)
        .await
        .expect("the shutdown hangs")
        .unwrap()
        .unwrap();
    let answer = tokio::time::timeout(SOON, follower)
        .await
        .expect("the follower hangs")
        .unwrap()
        .unwrap();
    assert_eq!(
        answer.text().await.unwrap(),
        "done",
        "what runs again is not let go on"
    );
}

/// The caller has the stale answer, and the refresh runs in the background.
#[tokio::test]
async fn a_refresh_in_the_background_is_waited_for() {
    let stores = Stores::redis().await;
    let store = stores.open();
    let flight = SingleFlight::<String>::builder(tower_distributed::single_flight::Postcard);
    let flight = flight
        .ttl(Duration::from_millis(1))
        .stale_while_revalidate(LONG)
        .lease_ttl(LONG);
    let flight = flight.build(&store, "prices").unwrap();
    assert_eq!(
        flight
            .run("k", || async { "old".to_owned() })
            .await
            .unwrap(),
        "old"
    );
    let (reached, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    eventually("a refresh", SOON, async || {
        let (noted, waits) = (reached.clone(), goes_on.clone());
        let refresh = move || async move {
            noted.notify_one();
            waits.notified().await;
            "new".to_owned()
        };
        assert_eq!(flight.run("k", refresh).await.unwrap(), "old");
        tokio::time::timeout(Duration::from_millis(50), reached.notified())
            .await
            .is_ok()
    })
    .await;
    let error = store
        .shutdown(Duration::from_millis(200))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("1 of flight \"prices\""),
        "{error}"
    );
    let mut shutdown = tokio::spawn(async move { store.shutdown(LONG).await });
    meanwhile(&mut shutdown, tokio::task::yield_now()).await;
    goes_on.notify_one();
    tokio::time::timeout(SOON, shutdown)
        .await
        .expect("the shutdown hangs")
        .unwrap()
        .unwrap();
}
