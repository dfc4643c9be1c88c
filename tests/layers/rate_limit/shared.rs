//! Which layers have one limit, and which do not.

use tower::{Layer as _, Service, ServiceExt as _};
use tower_distributed::RateLimitLayer;

use crate::probe::Probe;
use crate::stores::{Stores, on_each_store};

on_each_store!(names_do_not);

fn everything(_: &u32) -> &'static str {
    "everything"
}

async fn admits<S: Service<u32> + Clone>(service: &S) -> bool {
    service.clone().oneshot(1).await.is_ok()
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
