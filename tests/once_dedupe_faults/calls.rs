//! What it takes: one round trip before an item is handled, and one after.

use tower::{ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::{Dedupe, DedupeLayer};

use crate::scene::{LONG, Scene, is_duplicate, take};

/// How many requests of any kind the proxy has passed on since.
async fn requests<T>(scene: &Scene, act: impl Future<Output = T>) -> (u64, T) {
    let all = || scene.proxy.requests_containing(b"\r\n");
    let before = all();
    let outcome = act.await;
    assert_eq!(all(), scene.proxy.requests_containing(b"\r\n"));
    (all() - before, outcome)
}

fn scripts(scene: &Scene) -> u64 {
    scene.server.calls_of("fcall")
}

#[tokio::test]
async fn a_claim_takes_one_call_and_a_confirmation_another() {
    let scene = Scene::set("calls", LONG).await;
    for number in 0..20 {
        let (item, before) = (format!("item {number}"), scripts(&scene));
        let (requests_before, claim) = requests(&scene, take(&scene.far, &item)).await;
        assert_eq!((requests_before, scripts(&scene) - before), (1, 1));
        let (requests_after, confirmed) = requests(&scene, claim.confirm()).await;
        assert!(confirmed.unwrap());
        assert_eq!((requests_after, scripts(&scene) - before), (1, 2));
        let (requests_again, duplicate) = requests(&scene, is_duplicate(&scene.far, &item)).await;
        assert!(duplicate);
        assert_eq!((requests_again, scripts(&scene) - before), (1, 3));
    }
}

#[tokio::test]
async fn a_request_takes_one_call_before_it_is_handled_and_one_after() {
    let scene = &Scene::set("layer-calls", LONG).await;
    let inside = || scripts(scene);
    let layer = |dedupe: &Dedupe| DedupeLayer::new(dedupe.clone(), |item: &String| item.clone());
    for number in 0..20 {
        let before = scripts(scene);
        let inner = service_fn(async |_: String| Ok::<_, tower::BoxError>(inside()));
        let service = ServiceBuilder::new().layer(layer(&scene.far)).service(inner);
        let handled = service.oneshot(format!("item {number}")).await.unwrap();
        assert_eq!((handled - before, scripts(scene) - before), (1, 2));
    }
}

/// The first use of a filter over several keys takes one more.
#[tokio::test]
async fn a_filter_over_several_keys_is_opened_once() {
    let scene = Scene::set("keys-calls", LONG).await;
    let store = crate::scene::open(&scene.proxy.url());
    let builder = tower_distributed::BloomFilter::builder().capacity(1000).false_positive_rate(1e-9).keys(3);
    let dedupe =
        Dedupe::builder().remember_forever().build(&builder.build(&store, "several").unwrap()).unwrap();
    assert!(take(&dedupe, "warm").await.confirm().await.unwrap());
    for number in 0..20 {
        let (requests_before, claim) = requests(&scene, take(&dedupe, &number.to_string())).await;
        let (requests_after, confirmed) = requests(&scene, claim.confirm()).await;
        assert_eq!((requests_before, requests_after, confirmed.unwrap()), (1, 1, true));
    }
}
