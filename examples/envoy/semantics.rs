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

/// 10 per minute for each key.
const LIMIT: u64 = 10;
const RULES: &str = "
domain: edge
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 10}}
";

/// Counters as those of envoyproxy/ratelimit: each descriptor is counted in the current minute, also if it is refused.
#[derive(Default)]
struct FixedWindows(HashMap<(u64, String), u64>);

impl FixedWindows {
    fn admits(&mut self, minute: u64, request: &RateLimitRequest) -> bool {
        let mut is_over = false;
        for descriptor in &request.descriptors {
            let entry = &descriptor.entries[0];
            let count = self
                .0
                .entry((minute, format!("{} {}", entry.key, entry.value)))
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
            let minute = since_the_epoch().as_secs() / 60;
            let by_window = self.windows.admits(minute, &request);
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
    println!("| requests, at 10 per minute | fixed windows | token buckets | why |");
    println!("|---|---|---|---|");
    at(55).await;
    compare
        .send("15 at 0:55", "both admit 10", 15, one("border"))
        .await;
    at(0).await;
    let why = "a new window admits 10 again, so 20 act within seconds; a bucket gets a token back each 6 s";
    compare
        .send("15 more at 1:00", why, 15, one("border"))
        .await;
    compare
        .send(
            "10 of another key at 1:00",
            "both admit all",
            10,
            one("steady"),
        )
        .await;
    at(31).await;
    let why =
        "the window is used up until 2:00; a bucket has a token for each 6 s that have passed";
    compare.send("5 more at 1:31", why, 5, one("steady")).await;
    compare
        .send("10 for a=x", "both admit all", 10, one("x"))
        .await;
    let both = request(&[&[("a", "x")], &[("b", "y")]]);
    compare
        .send("10 for a=x with b=y", "a=x is over its limit", 10, both)
        .await;
    let why = "the windows have counted the refused requests; buckets charge all limits or none";
    compare
        .send("1 for b=y", why, 1, request(&[&[("b", "y")]]))
        .await;
    compare
        .send("1 of 8 hits", "both admit it", 1, with_hits("hits", 8))
        .await;
    compare
        .send("1 of 4 hits", "2 are left", 1, with_hits("hits", 4))
        .await;
    let why = "the window has counted the refused hits; the bucket has not charged them";
    compare
        .send("1 of 2 hits", why, 1, with_hits("hits", 2))
        .await;
    compare
        .send("1 of 10 hits", "both admit it", 1, with_hits("none", 10))
        .await;
    let why = "a window is over its limit above 10, a bucket when it is empty";
    compare
        .send("1 of 0 hits", why, 1, with_hits("none", 0))
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

/// Waits until this second of a minute.
async fn at(second: u64) {
    let now = since_the_epoch();
    let minute = Duration::from_secs(60);
    let passed = Duration::from_nanos((now.as_nanos() % minute.as_nanos()) as u64);
    let wait = (Duration::from_secs(second) + minute).saturating_sub(passed);
    tokio::time::sleep(if wait > minute { wait - minute } else { wait }).await;
}
