//! What a layer asks: key, cost and quotas, by closures over any type of request.

use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{Key, Quota, RateLimitLayer, Refusal, RefusalKind};

use crate::probe::Probe;
use crate::stores::{Stores, at_most, away, on_each_store};

on_each_store!(costs_are_the_closures);

#[derive(Debug)]
struct Job {
    tenant: Option<&'static str>,
    size: u32,
}

fn job(tenant: &'static str, size: u32) -> Job {
    Job { tenant: Some(tenant), size }
}

#[tokio::test]
async fn without_a_key_requests_pass_untouched() {
    let told = |_: &_, _: &mut Job| panic!("there was no decision");
    let layer =
        RateLimitLayer::new(at_most(1, &away()), |job: &Job| job.tenant).on_admit(told).on_response(told);
    let mut service = layer.layer(Probe::default());
    for size in 0..9 {
        let job = service.ready().await.unwrap().call(Job { tenant: None, size }).await.unwrap();
        assert_eq!(job.size, size);
    }
    assert!(service.ready().await.unwrap().call(job("ann", 1)).await.is_err(), "the store is away");
    // What costs nothing asks nobody.
    let free = RateLimitLayer::new(at_most(5, &away()), |job: &Job| job.tenant).cost(|job: &Job| job.size);
    assert_eq!(free.layer(Probe::default()).oneshot(job("ann", 0)).await.unwrap().size, 0);
}

async fn costs_are_the_closures(stores: Stores) {
    let bucket = at_most(5, &stores.open());
    let layer = RateLimitLayer::new(bucket.clone(), |job: &Job| job.tenant).cost(|job: &Job| job.size);
    let mut service = layer.layer(Probe::default());
    let mut kind = async |size| {
        let outcome = service.ready().await.unwrap().call(job("ann", size)).await;
        outcome.err().map(|error| error.downcast_ref::<Refusal>().unwrap().kind())
    };
    assert_eq!(kind(3).await, None);
    assert_eq!(kind(3).await, Some(RefusalKind::RateLimited));
    assert_eq!(kind(6).await, Some(RefusalKind::ExceedsBurst));
    assert_eq!(kind(2).await, None, "refusals charge nothing");
    assert_eq!(kind(0).await, None, "nothing is to be had for nothing");
    assert_eq!(bucket.peek("ann").await.unwrap().remaining(), 0);
}

/// Extractors in all their forms, none of which needs a type to be named.
#[allow(clippy::ptr_arg)]
#[tokio::test]
async fn keys_are_made_of_many_things() {
    fn borrowed(request: &String) -> &str {
        request
    }
    fn optional(request: &String) -> Option<&[u8]> {
        request.strip_prefix('k').map(str::as_bytes)
    }
    async fn check(layer: impl tower::Layer<Probe, Service = impl tower::Service<String>>) {
        let mut service = layer.layer(Probe::default());
        for admitted in [true, false] {
            let Ok(ready) = service.ready().await else { panic!("the probe is always ready") };
            assert_eq!(ready.call("key".into()).await.is_ok(), admitted);
        }
    }
    let stores = Stores::in_memory();
    let bucket = |name| {
        tower_distributed::TokenBucket::new(&stores.open(), name, Quota::per_hour(1).burst(1)).unwrap()
    };
    let salt = String::from("salt");
    check(RateLimitLayer::new(bucket("1"), borrowed)).await;
    check(RateLimitLayer::new(bucket("2"), optional)).await;
    check(RateLimitLayer::new(bucket("3"), |request: &String| request.len())).await;
    check(RateLimitLayer::new(bucket("4"), move |request: &String| format!("{salt}/{request}"))).await;
    check(RateLimitLayer::new(bucket("5"), |request: &String| Key::from(request))).await;
    check(RateLimitLayer::new(bucket("6"), |_: &String| std::net::Ipv4Addr::LOCALHOST)).await;
    check(RateLimitLayer::new(bucket("7"), |request: &String| request.clone().into_bytes())).await;
}
