//! What a request costs, by a closure over any type of request.

use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{RateLimitLayer, Refusal, RefusalKind};

use crate::probe::Probe;
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(costs_are_the_closures);

async fn costs_are_the_closures(stores: Stores) {
    let bucket = at_most(5, &stores.open());
    let layer = RateLimitLayer::new(bucket.clone(), |_: &u32| "ann").cost(|size: &u32| *size);
    let mut service = layer.layer(Probe::default());
    let mut kind = async |size| {
        let outcome = service.ready().await.unwrap().call(size).await;
        outcome
            .err()
            .map(|error| error.downcast_ref::<Refusal>().unwrap().kind())
    };
    assert_eq!(kind(3).await, None);
    assert_eq!(kind(3).await, Some(RefusalKind::RateLimited));
    assert_eq!(kind(6).await, Some(RefusalKind::ExceedsBurst));
    assert_eq!(kind(2).await, None, "refusals charge nothing");
    assert_eq!(kind(0).await, None, "nothing is to be had for nothing");
    assert_eq!(bucket.peek("ann").await.unwrap().remaining(), 0);
}
