//! axum: documents that are read side by side and written one at a time, with fences.

use std::sync::Arc;

use axum::routing::get as on_get;
use axum::{Extension, Router};
use http::{Method, StatusCode};
use tokio::sync::{Semaphore, watch};
use tower_distributed::LeaseHandle;
use tower_distributed::extract::{header, path};
use tower_distributed::web::rw_lock;

use crate::families::locks;
use crate::net::{client, serve};
use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    handlers_see_their_fences,
    readers_share_and_writers_do_not,
    writers_wait_their_turn,
    without_a_key_there_is_no_lock,
);

async fn send(method: Method, url: &str) -> (StatusCode, String) {
    let response = client().request(method, url).send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

async fn fence(lease: Option<Extension<LeaseHandle>>) -> String {
    match lease {
        Some(Extension(lease)) => {
            assert!(lease.is_held());
            lease.fence().map_or("held".into(), |fence| fence.to_string())
        }
        None => "not held".into(),
    }
}

async fn handlers_see_their_fences(stores: Stores) {
    let lock = rw_lock(locks(&stores.open()), path()).max_wait(SOON);
    let url = serve(Router::new().route("/{id}", on_get(fence).put(fence).delete(fence)).layer(lock)).await;
    let (one, other) = (format!("{url}/1"), format!("{url}/2"));
    assert_eq!(send(Method::GET, &one).await, (StatusCode::OK, "held".into()), "nobody has written yet");
    let mut last = 0;
    for method in [Method::PUT, Method::DELETE, Method::PUT] {
        let (status, fence) = send(method, &one).await;
        let fence: u64 = fence.parse().unwrap();
        assert!(status == StatusCode::OK && fence > last, "{fence} after {last}");
        last = fence;
    }
    assert_eq!(send(Method::GET, &other).await.1, "held", "each document has its own");
    assert_eq!(send(Method::GET, &one).await.1, last.to_string(), "readers see the last writer's");
}

/// Handlers that stay until they are let go.
struct Desk {
    url: String,
    inside: watch::Sender<usize>,
    leave: Arc<Semaphore>,
}

impl Desk {
    async fn open(stores: &Stores, wait: bool) -> Self {
        let (inside, leave) = (watch::Sender::new(0), Arc::new(Semaphore::new(0)));
        let (entered, left) = (inside.clone(), Arc::clone(&leave));
        let work = async move || {
            entered.send_modify(|inside| *inside += 1);
            left.acquire().await.unwrap().forget();
            entered.send_modify(|inside| *inside -= 1);
            "done"
        };
        let lock = rw_lock(locks(&stores.open()), path());
        let lock = if wait { lock.max_wait(SOON) } else { lock };
        let routes = on_get(work.clone()).put(work.clone()).options(work);
        Self { url: serve(Router::new().route("/1", routes).layer(lock)).await + "/1", inside, leave }
    }

    fn send(&self, method: Method) -> tokio::task::JoinHandle<(StatusCode, String)> {
        let url = self.url.clone();
        tokio::spawn(async move { send(method, &url).await })
    }

    async fn inside(&self, wanted: usize) {
        eventually(&format!("{wanted} to be inside"), SOON, async || *self.inside.borrow() == wanted).await;
    }
}

async fn readers_share_and_writers_do_not(stores: Stores) {
    let desk = Desk::open(&stores, false).await;
    let readers = [desk.send(Method::GET), desk.send(Method::HEAD), desk.send(Method::OPTIONS)];
    desk.inside(3).await;
    assert_eq!(desk.send(Method::PUT).await.unwrap().0, StatusCode::LOCKED);
    desk.leave.add_permits(3);
    for reader in readers {
        assert_eq!(reader.await.unwrap().0, StatusCode::OK);
    }
    let lock = locks(&stores.open());
    eventually("the locks to be back", SOON, async || lock.try_write("/1").await.is_ok()).await;
    eventually("the last to be back", SOON, async || match lock.try_write("/1").await {
        Ok(guard) => guard.release().await.unwrap(),
        Err(_) => false,
    })
    .await;

    let writer = desk.send(Method::PUT);
    desk.inside(1).await;
    for method in [Method::GET, Method::HEAD, Method::PUT] {
        assert_eq!(desk.send(method).await.unwrap().0, StatusCode::LOCKED);
    }
    desk.leave.add_permits(1);
    assert_eq!(writer.await.unwrap(), (StatusCode::OK, "done".into()));
}

async fn writers_wait_their_turn(stores: Stores) {
    let desk = Desk::open(&stores, true).await;
    let writers: Vec<_> = (0..5).map(|_| desk.send(Method::PUT)).collect();
    for _ in 0..5 {
        desk.inside(1).await;
        desk.leave.add_permits(1);
    }
    for writer in writers {
        assert_eq!(writer.await.unwrap(), (StatusCode::OK, "done".into()));
    }
    assert_eq!(*desk.inside.borrow(), 0);
}

async fn without_a_key_there_is_no_lock(stores: Stores) {
    let key = header("x-document").unwrap().plain();
    let key = key.skip_if(|request: &axum::extract::Request| !request.headers().contains_key("x-document"));
    let lock = rw_lock(locks(&stores.open()), key);
    let url = serve(Router::new().route("/", on_get(fence)).layer(lock)).await;
    assert_eq!(send(Method::GET, &url).await.1, "not held");
    let held = client().get(&url).header("x-document", "1").send().await.unwrap();
    assert_eq!(held.text().await.unwrap(), "held");
}
