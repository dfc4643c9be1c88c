//! Clones of a layer, of its services, and layers of one family all share the limit.

use tower::{Layer as _, Service, ServiceExt as _};
use tower_distributed::RateLimitLayer;

use crate::probe::Probe;
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(clones_share, families_share, names_do_not);

fn everything(_: &u32) -> &'static str {
    "everything"
}

async fn admits<S: Service<u32> + Clone>(service: &S) -> bool {
    service.clone().oneshot(1).await.is_ok()
}

async fn clones_share(stores: Stores) {
    let layer = RateLimitLayer::new(at_most(3, &stores.open()), everything);
    let service = layer.layer(Probe::default());
    let (clone, sibling) = (service.clone(), layer.clone().layer(Probe::default()));
    assert!(admits(&service).await && admits(&clone).await && admits(&sibling).await);
    assert!(!admits(&service).await && !admits(&clone).await && !admits(&sibling).await);
    assert!(!admits(&layer.layer(Probe::default())).await);
}

async fn families_share(stores: Stores) {
    let layer = || RateLimitLayer::new(at_most(2, &stores.open()), everything);
    let (one, other) = (layer().layer(Probe::default()), layer().layer(Probe::default()));
    assert!(admits(&one).await && admits(&other).await);
    assert!(!admits(&one).await && !admits(&other).await);
}

async fn names_do_not(stores: Stores) {
    use tower_distributed::{Quota, TokenBucket};
    let bucket = |name| TokenBucket::new(&stores.open(), name, Quota::per_hour(1)).unwrap();
    for name in ["one", "other", "one/more"] {
        let service = RateLimitLayer::new(bucket(name), everything).layer(Probe::default());
        assert!(admits(&service).await, "{name}");
        assert!(!admits(&service).await, "{name}");
    }
}

#[test]
fn the_inner_service_can_be_reached() {
    let layer = RateLimitLayer::<_, ()>::new(at_most(1, &Stores::in_memory().open()), everything);
    let mut service = layer.layer(String::from("inner"));
    assert_eq!(service.get_ref(), "inner");
    service.get_mut().push_str(", changed");
    assert_eq!(service.into_inner(), "inner, changed");
}
