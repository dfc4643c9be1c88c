//! Decisions over gRPC.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use support::eventually;
use support::redis_server::RedisServer;
use tonic::Code as Grpc;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::scene::{LONG, Service, Setup, request};

const RULES: &str = "
domain: edge
descriptors:
  - {key: three, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: ten, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: windows, rate_limit: {quotas: 2/h; 100/d}}
  - {key: dear, rate_limit: {quotas: 10/h, cost: 5}}
  - {key: closed, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: tried, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 7}}
  - {key: shared, value: 'a*', share_threshold: true, rate_limit: {quotas: 1/h}}
  - {key: listed, value: a}
";

fn code(response: &RateLimitResponse) -> Code {
    response.overall_code()
}

fn codes(response: &RateLimitResponse) -> Vec<Code> {
    response
        .statuses
        .iter()
        .map(DescriptorStatus::code)
        .collect()
}

fn left(response: &RateLimitResponse) -> Vec<u32> {
    response
        .statuses
        .iter()
        .map(|status| status.limit_remaining)
        .collect()
}

fn with_hits(mut request: RateLimitRequest, hits: &[u64]) -> RateLimitRequest {
    for (descriptor, hits) in request.descriptors.iter_mut().zip(hits) {
        descriptor.hits_addend = Some(UInt64Value { value: *hits });
    }
    request
}

/// In memory, and in Redis.
async fn each_store(test: impl AsyncFn(Service)) {
    test(Service::start(&Setup::new(RULES))).await;
    let server = RedisServer::start().await;
    test(Service::start(&Setup::new(RULES).on(&server.url()))).await;
}

#[tokio::test]
async fn a_limit_and_its_status() {
    each_store(async |service| {
        let ann = request(&[&[("three", "ann")]]);
        for remaining in [2, 1, 0] {
            let response = service.ask(ann.clone()).await;
            assert_eq!(
                (code(&response), left(&response)),
                (Code::Ok, vec![remaining])
            );
            assert!(response.response_headers_to_add.is_empty());
        }
        let refused = service.ask(ann).await;
        assert_eq!(
            (code(&refused), codes(&refused)),
            (Code::OverLimit, vec![Code::OverLimit])
        );
        let limit = refused.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (3, Unit::Hour));
        // The next of three tokens per hour.
        let reset = refused.statuses[0].duration_until_reset.unwrap().seconds;
        assert!((1000..=1200).contains(&reset), "{reset}");
        let header = &refused.response_headers_to_add[0];
        let seconds: i64 = header.value.parse().unwrap();
        assert_eq!(
            (&*header.key, (reset..=reset + 1).contains(&seconds)),
            ("retry-after", true)
        );

        let other = service.ask(request(&[&[("three", "ben")]])).await;
        assert_eq!((code(&other), left(&other)), (Code::Ok, vec![2]));
        let month = service.ask(request(&[&[("month", "ann")]])).await;
        let limit = month.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (7, Unit::Month));
    })
    .await;
}

#[tokio::test]
async fn several_limits_are_charged_all_or_none() {
    each_store(async |service| {
        let both = request(&[&[("ten", "ann")], &[("windows", "ann")]]);
        for remaining in [vec![9, 1], vec![8, 0]] {
            let response = service.ask(both.clone()).await;
            assert_eq!((code(&response), left(&response)), (Code::Ok, remaining));
        }
        for _ in 0..2 {
            let refused = service.ask(both.clone()).await;
            assert_eq!(code(&refused), Code::OverLimit);
            assert_eq!(codes(&refused)[1], Code::OverLimit);
            assert_eq!(codes(&refused)[0], Code::Ok);
        }
        // Only the refusing limit has refused.
        let ten = service.ask(request(&[&[("ten", "ann")]])).await;
        assert_eq!(left(&ten), [7]);
    })
    .await;
}

/// Two buckets of one name, and more limits than fit in a step: one after the other, and given back.
/// The name of the outer limit is the beginning of the name of the inner one.
#[tokio::test]
async fn a_nested_limit_refuses_for_itself_alone() {
    const NESTED: &str = "
domain: edge
descriptors:
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 9}
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 1}}
";
    let server = RedisServer::start().await;
    for setup in [Setup::new(NESTED), Setup::new(NESTED).on(&server.url())] {
        let service = Service::start(&setup);
        let both = request(&[&[("tenant", "a")], &[("tenant", "a"), ("path", "/")]]);
        assert_eq!(code(&service.ask(both.clone()).await), Code::Ok);
        for _ in 0..3 {
            let refused = service.ask(both.clone()).await;
            assert_eq!(codes(&refused), [Code::Ok, Code::OverLimit]);
        }
    }
}

#[tokio::test]
async fn limits_that_do_not_fit_are_charged_all_or_none() {
    each_store(async |service| {
        let used = with_hits(request(&[&[("three", "ben")]]), &[3]);
        assert_eq!(code(&service.ask(used).await), Code::Ok);
        let two = request(&[&[("three", "ann")], &[("three", "ben")]]);
        assert_eq!(codes(&service.ask(two).await), [Code::Ok, Code::OverLimit]);
        let ann = request(&[&[("three", "ann")]]);
        eventually("ann's token is back", LONG, async || {
            let peeked = service.ask(with_hits(ann.clone(), &[0])).await;
            left(&peeked) == [3]
        })
        .await;

        // The same descriptor twice counts twice.
        let twice = request(&[&[("three", "cat")], &[("three", "cat")]]);
        assert_eq!(left(&service.ask(twice.clone()).await), [2, 1]);
        assert_eq!(code(&service.ask(twice).await), Code::OverLimit);

        let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let nine: Vec<_> = keys.iter().map(|&value| [("ten", value)]).collect();
        let nine: Vec<_> = nine.iter().map(|entries| &entries[..]).collect();
        let response = service.ask(request(&nine)).await;
        assert_eq!((code(&response), left(&response)), (Code::Ok, vec![9; 9]));
    })
    .await;
}

#[tokio::test]
async fn hits_are_counted_as_asked() {
    each_store(async |service| {
        let ann = || request(&[&[("ten", "ann")]]);
        let ten = |hits| RateLimitRequest {
            hits_addend: hits,
            ..ann()
        };
        assert_eq!(left(&service.ask(ten(4)).await), [6]);
        assert_eq!(left(&service.ask(ten(0)).await), [5]);
        // A descriptor's own hits go before those of the request.
        assert_eq!(left(&service.ask(with_hits(ten(4), &[2])).await), [3]);
        let refused = service.ask(ten(4)).await;
        assert_eq!((code(&refused), left(&refused)), (Code::OverLimit, vec![3]));
        // More than the limit, up to the largest number: refused for ever, so there is no time to come back.
        for hits in [11, u64::from(u32::MAX), u64::from(u32::MAX) + 5, u64::MAX] {
            let refused = service.ask(with_hits(ann(), &[hits])).await;
            assert_eq!(codes(&refused), [Code::OverLimit], "{hits}");
            assert_eq!(refused.statuses[0].duration_until_reset, None);
            assert!(refused.response_headers_to_add.is_empty());
        }
        // No hits: nothing is charged, and the request is refused once the bucket is empty.
        for _ in 0..2 {
            let peeked = service.ask(with_hits(ann(), &[0])).await;
            assert_eq!((code(&peeked), left(&peeked)), (Code::Ok, vec![3]));
        }
        assert_eq!(left(&service.ask(ten(3)).await), [0]);
        assert_eq!(
            code(&service.ask(with_hits(ann(), &[0])).await),
            Code::OverLimit
        );
        // Negative hits give back, at most up to a full bucket.
        let mut back = with_hits(ann(), &[u64::MAX]);
        back.descriptors[0].is_negative_hits = true;
        assert_eq!(code(&service.ask(back).await), Code::Ok);
        assert_eq!(left(&service.ask(ann()).await), [9]);
        // Five tokens each.
        let dear = || request(&[&[("dear", "ann")]]);
        assert_eq!(left(&service.ask(dear()).await), [5]);
        assert_eq!(left(&service.ask(dear()).await), [0]);
        assert_eq!(
            code(&service.ask(with_hits(dear(), &[u64::from(u32::MAX)])).await),
            Code::OverLimit
        );
    })
    .await;
}

#[tokio::test]
async fn descriptors_without_a_limit_pass() {
    each_store(async |service| {
        let free = service.ask(request(&[&[("free", "ann")]])).await;
        assert_eq!((code(&free), left(&free)), (Code::Ok, vec![u32::MAX]));
        // Unknown, too deep, listed without a limit, empty, and with forged separators.
        for forged in [
            &[("unknown", "ann")][..],
            &[("three", "ann"), ("three", "ann")],
            &[("listed", "a")],
            &[],
            &[("three=ann, ten", "ann")],
            &[("three", "ann"), ("", "")],
        ] {
            let response = service.ask(request(&[forged])).await;
            assert_eq!(
                (code(&response), left(&response)),
                (Code::Ok, vec![0]),
                "{forged:?}"
            );
            assert_eq!(response.statuses[0].current_limit, None);
        }
        let elsewhere = RateLimitRequest {
            domain: "elsewhere".to_owned(),
            ..request(&[&[("closed", "a")]])
        };
        assert_eq!(code(&service.ask(elsewhere).await), Code::Ok);
        let nameless = RateLimitRequest {
            domain: String::new(),
            ..request(&[&[("three", "a")]])
        };
        for bad in [nameless, request(&[])] {
            assert_eq!(
                service.asked(bad).await.unwrap_err().code(),
                Grpc::InvalidArgument
            );
        }
        // Values are keys as they are: empty, long, with any characters.
        let long = "x".repeat(100_000);
        for value in ["", "a\0b", "ä, ten=1", &long] {
            let response = service.ask(request(&[&[("three", value)]])).await;
            assert_eq!(left(&response), [2], "{value:?}");
        }
        let closed = service
            .ask(request(&[&[("closed", "ann")], &[("three", "dan")]]))
            .await;
        assert_eq!(codes(&closed), [Code::OverLimit, Code::Ok]);
        assert_eq!(
            left(&service.ask(request(&[&[("three", "dan")]])).await),
            [2]
        );
        for (value, expected) in [("a1", Code::Ok), ("a2", Code::OverLimit), ("b", Code::Ok)] {
            assert_eq!(
                code(&service.ask(request(&[&[("shared", value)]])).await),
                expected
            );
        }
    })
    .await;
}

#[tokio::test]
async fn shadow_mode_counts_what_the_others_admit() {
    each_store(async |service| {
        let both = request(&[&[("tried", "ann")], &[("three", "eve")]]);
        for remaining in [2, 1, 0] {
            let response = service.ask(both.clone()).await;
            assert_eq!(
                (codes(&response), left(&response)),
                (vec![Code::Ok; 2], vec![0, remaining])
            );
        }
        assert_eq!(codes(&service.ask(both).await), [Code::Ok, Code::OverLimit]);
        // A bad request in shadow mode passes, too.
        let huge = with_hits(request(&[&[("tried", "ben")]]), &[u64::MAX]);
        assert_eq!(code(&service.ask(huge).await), Code::Ok);
        let (_, metrics) = service.get("/metrics", "").await;
        let refused = metrics.lines().filter(|line| {
            let is_decision = line.starts_with("tower_distributed_decisions_total");
            is_decision && line.contains("edge/tried") && line.contains("\"refused")
        });
        let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap();
        assert_eq!(refused.map(count).sum::<u32>(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_request_can_bring_its_limit() {
    each_store(async |service| {
        use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
        let mut own = request(&[&[("three", "ann")], &[("ten", "ann")]]);
        own.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 100, unit: 3 });
        let response = service.ask(own.clone()).await;
        assert_eq!(left(&response), [99, 9]);
        own.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 99 });
        assert!(service.asked(own.clone()).await.is_ok());
        own.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 0, unit: 1 });
        assert_eq!(codes(&service.ask(own).await), [Code::OverLimit, Code::Ok]);
    })
    .await;
}

/// Also if Redis is away when the service starts.
#[tokio::test]
async fn an_outage_is_decided_by_the_policy() {
    let server = RedisServer::start().await;
    server.kill9();
    let setup = |policy| {
        Setup::new(RULES)
            .on(&server.url())
            .with(&["--on-outage", policy])
    };
    let closed = Service::start(&setup("fail-closed"));
    let open = Service::start(&setup("fail-open"));
    let share = Service::start(&setup("local-share").with(&["--replicas", "2"]));
    let ten = || request(&[&[("ten", "ann")]]);
    let two = || request(&[&[("ten", "ann")], &[("three", "ann")]]);
    for asked in [ten(), two(), with_hits(ten(), &[0])] {
        assert_eq!(
            closed.asked(asked.clone()).await.unwrap_err().code(),
            Grpc::Unavailable
        );
        assert_eq!(code(&open.ask(asked).await), Code::Ok);
    }
    // What is closed, and what is free, needs no store.
    assert_eq!(
        code(&open.ask(request(&[&[("closed", "ann")]])).await),
        Code::OverLimit
    );
    assert_eq!(
        code(&closed.ask(request(&[&[("free", "ann")]])).await),
        Code::Ok
    );
    // Half of 10, and half of 3.
    assert_eq!(left(&share.ask(two()).await), [4, 0]);
    assert_eq!(codes(&share.ask(two()).await), [Code::Ok, Code::OverLimit]);
    for _ in 0..3 {
        assert_eq!(code(&share.ask(ten()).await), Code::Ok);
    }
    assert_eq!(code(&share.ask(ten()).await), Code::OverLimit);

    server.restart().await;
    eventually("the store decides again", LONG, async || {
        closed.asked(ten()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn drains_on_sigterm() {
    let setup = Setup::new(RULES);
    let mut service = Service::start(&setup);
    let channel = service.channel().await;
    let mut health = HealthClient::new(channel.clone());
    for name in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        let request = HealthCheckRequest {
            service: name.to_owned(),
        };
        let response = health.check(request).await.unwrap().into_inner();
        assert_eq!(response.status, ServingStatus::Serving as i32, "{name}");
    }
    let watch = HealthCheckRequest {
        service: String::new(),
    };
    let mut watched = health.watch(watch).await.unwrap().into_inner();
    assert_eq!(
        watched.message().await.unwrap().unwrap().status,
        ServingStatus::Serving as i32
    );
    service.terminate();
    assert_eq!(
        watched.message().await.unwrap().unwrap().status,
        ServingStatus::NotServing as i32
    );
    drop((watched, health, channel));
    eventually("it ends", LONG, async || {
        service.process.exit_status().is_some()
    })
    .await;
    assert!(service.process.exit_status().unwrap().success());
}

#[tokio::test]
async fn huge_requests_are_decided() {
    each_store(async |service| {
        let entries = vec![("three", "ann"); 1000];
        let deep = service.ask(request(&[&entries])).await;
        assert_eq!((code(&deep), left(&deep)), (Code::Ok, vec![0]));
        for left_of_three in [2, 1, 0] {
            let response = service.ask(request(&[&[("three", "used up")]])).await;
            assert_eq!(left(&response), [left_of_three]);
        }
        // A thousand limits, of which the last refuses: nothing is charged.
        let names: Vec<_> = (0..1000).map(|at| format!("t{at}")).collect();
        let entry = |name| [("ten", name)];
        let mut descriptors: Vec<_> = names.iter().map(|name| entry(&**name)).collect();
        descriptors.push([("three", "used up")]);
        let descriptors: Vec<_> = descriptors.iter().map(|entries| &entries[..]).collect();
        let refused = service.ask(request(&descriptors)).await;
        assert_eq!(code(&refused), Code::OverLimit);
        let first = service.ask(request(&[&[("ten", "t0")]])).await;
        assert_eq!(left(&first), [9]);
    })
    .await;
}
