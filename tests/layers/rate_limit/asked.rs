//! What a layer asks: key, cost and quotas, by closures over any type of request.

use tower::{Layer as _, Service as _, ServiceBuilder, ServiceExt as _};
use tower_distributed::{Key, Quota, Quotas, RateLimitLayer, Refusal, RefusalKind};

use crate::probe::Probe;
use crate::stores::{Stores, at_most, away, on_each_store};

on_each_store!(each_key_has_its_own_bucket, costs_are_the_closures, quotas_are_the_closures);

#[derive(Debug)]
struct Job {
    tenant: Option<&'static str>,
    size: u32,
}

fn job(tenant: &'static str, size: u32) -> Job {
    Job { tenant: Some(tenant), size }
}

async fn each_key_has_its_own_bucket(stores: Stores) {
    let layer = RateLimitLayer::new(at_most(1, &stores.open()), |job: &Job| job.tenant);
    let mut service = layer.layer(Probe::default());
    for tenant in ["ann", "bob", "", "{}", "a\0b"] {
        for admitted in [true, false] {
            let outcome = service.ready().await.unwrap().call(job(tenant, 1)).await;
            assert_eq!(outcome.is_ok(), admitted, "{tenant:?}");
        }
    }
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

#[tokio::test]
async fn what_costs_nothing_asks_nobody() {
    let layer = RateLimitLayer::new(at_most(5, &away()), |job: &Job| job.tenant).cost(|job: &Job| job.size);
    let mut service = layer.layer(Probe::default());
    assert_eq!(service.ready().await.unwrap().call(job("ann", 0)).await.unwrap().size, 0);
}

async fn quotas_are_the_closures(stores: Stores) {
    let premium = Quotas::new([Quota::per_hour(1).burst(3)]).unwrap();
    let choose = move |job: &Job| (job.tenant == Some("premium")).then(|| premium.clone());
    let layer = RateLimitLayer::new(at_most(1, &stores.open()), |job: &Job| job.tenant).quotas(choose);
    let mut service = ServiceBuilder::new().layer(layer).service(Probe::default());
    let mut admitted = async |tenant| {
        let mut admitted = 0;
        for _ in 0..5 {
            admitted += u32::from(service.ready().await.unwrap().call(job(tenant, 1)).await.is_ok());
        }
        admitted
    };
    assert_eq!(admitted("basic").await, 1);
    assert_eq!(admitted("premium").await, 3);
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
