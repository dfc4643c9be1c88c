//! Decisions that differ from those of envoyproxy/ratelimit, whose windows all begin at the full second, minute, hour or day.
//!
//! ```text
//! cargo build -p tower-distributed-envoy --examples && cargo run --example envoy_semantics
//! ```
//!
//! The same requests go to the service, and to counters with fixed windows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(dead_code)]

#[path = "tests/scene.rs"]
mod scene;

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::Channel;

use self::scene::{Service, Setup, request};

/// 10 per second for each key.
const LIMIT: u64 = 10;
const RULES: &str = "
domain: edge
descriptors:
  - {key: a, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: b, rate_limit: {unit: second, requests_per_unit: 10}}
";

/// Counters as those of envoyproxy/ratelimit: each descriptor is counted in the current second, also if it is refused.
#[derive(Default)]
struct FixedWindows(HashMap<(u64, String), u64>);

impl FixedWindows {
    fn admits(&mut self, second: u64, request: &RateLimitRequest) -> bool {
        let mut is_over = false;
        for descriptor in &request.descriptors {
            let entry = &descriptor.entries[0];
            let count = self
                .0
                .entry((second, format!("{} {}", entry.key, entry.value)))
                .or_default();
            *count += descriptor.hits_addend.as_ref().map_or(1, |hits| hits.value);
            is_over |= *count > LIMIT;
        }
        !is_over
    }
}

struct Comparison {
    client: RateLimitServiceClient<Channel>,
    windows: FixedWindows,
    differing: u32,
}

impl Comparison {
    /// Sends a request several times, and prints how many of them each admits.
    async fn send(&mut self, what: &str, why: &str, times: u32, request: RateLimitRequest) {
        let (mut window, mut ours) = (0, 0);
        for _ in 0..times {
            let second = since_the_epoch().as_secs();
            let by_window = self.windows.admits(second, &request);
            let response = self.client.should_rate_limit(request.clone()).await;
            let by_us = response.unwrap().into_inner().overall_code() == Code::Ok;
            window += u32::from(by_window);
            ours += u32::from(by_us);
            self.differing += u32::from(by_window != by_us);
        }
        println!("| {what} | {window} of {times} | {ours} of {times} | {why} |");
    }
}

#[tokio::main]
async fn main() {
    let service = Service::start(&Setup::new(RULES));
    let client = RateLimitServiceClient::new(service.channel().await);
    let mut compare = Comparison {
        client,
        windows: FixedWindows::default(),
        differing: 0,
    };
    let one = |key| request(&[&[("a", key)]]);
    let with_hits = |key, hits| {
        let mut request = request(&[&[("a", key)]]);
        request.descriptors[0].hits_addend =
            Some(envoy_types::pb::google::protobuf::UInt64Value { value: hits });
        request
    };
    println!("| requests, at 10 per second | fixed windows | token buckets | why |");
    println!("|---|---|---|---|");
    at(850).await;
    compare
        .send("20 at 0.85 s", "both admit 10", 20, one("border"))
        .await;
    at(0).await;
    compare.send("20 more at 1.0 s", "a new window admits 10 again, so 20 act within 0.2 s; a bucket has what came back since", 20, one("border")).await;
    at(0).await;
    compare
        .send("10 at 0.0 s", "both admit all", 10, one("steady"))
        .await;
    at(500).await;
    compare
        .send(
            "5 at 0.5 s",
            "the window is used up until 1.0 s; a bucket gets a token back each 0.1 s",
            5,
            one("steady"),
        )
        .await;
    at(0).await;
    compare
        .send("10 for key a=x", "both admit all", 10, one("x"))
        .await;
    compare
        .send(
            "10 for a=x and b=y",
            "a=x is over its limit",
            10,
            request(&[&[("a", "x")], &[("b", "y")]]),
        )
        .await;
    compare
        .send(
            "1 for b=y",
            "windows have counted the refused requests; buckets charge all limits or none",
            1,
            request(&[&[("b", "y")]]),
        )
        .await;
    at(0).await;
    compare
        .send("1 of 8 hits", "both admit it", 1, with_hits("hits", 8))
        .await;
    compare
        .send("1 of 4 hits", "2 are left", 1, with_hits("hits", 4))
        .await;
    compare
        .send(
            "1 of 2 hits",
            "the refused hits were counted; a bucket has not charged them",
            1,
            with_hits("hits", 2),
        )
        .await;
    at(0).await;
    compare
        .send("1 of 10 hits", "both admit it", 1, with_hits("none", 10))
        .await;
    compare
        .send(
            "1 of 0 hits",
            "a window is over its limit above 10, a bucket when it is empty",
            1,
            with_hits("none", 0),
        )
        .await;
    println!(
        "figure rls-decisions-vs-envoyproxy-semantics {} decisions differ",
        compare.differing
    );
}

fn since_the_epoch() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
}

/// Waits for the next moment at which this part of a second has passed, in ms.
async fn at(millis: u64) {
    let now = since_the_epoch().as_millis() as u64 % 1000;
    tokio::time::sleep(Duration::from_millis((1000 + millis - now) % 1000 + 2)).await;
}
