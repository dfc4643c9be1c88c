//! Measures the service, and Envoy in front of it, beside a server that answers OK without asking.
//!
//! ```text
//! cargo build --release -p tower-distributed-envoy --examples
//! cargo run --release --example envoy_load            # ROUNDS=5 SECONDS=2
//! ```
//!
//! Each figure is the median of rounds in which all servers take turns.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(dead_code)]

#[path = "tests/scene.rs"]
mod scene;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures::future::join_all;
use support::redis_server::RedisServer;
use support::supervised::Supervised;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use self::scene::{Envoy, Service, Setup, request};

const STREAMS: usize = 64;
/// No request is refused: the only tenant of the first figure is 0.
const RULES: &str = "
domain: edge
descriptors:
  - {key: tenant, value: 0, rate_limit: {quotas: '1000000/s'}}
  - {key: tenant, rate_limit: {quotas: '60/min, burst 10000'}}
";

/// Answers OK without asking.
struct AlwaysOk;

#[tonic::async_trait]
impl RateLimitService for AlwaysOk {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let code = Code::Ok.into();
        let status = DescriptorStatus {
            code,
            ..DescriptorStatus::default()
        };
        Ok(Response::new(RateLimitResponse {
            overall_code: code,
            statuses: vec![status],
            ..RateLimitResponse::default()
        }))
    }
}

#[tokio::main]
async fn main() {
    if std::env::args().nth(1).as_deref() == Some("always-ok") {
        return always_ok().await;
    }
    let number = |name, or| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let (rounds, seconds) = (number("ROUNDS", 5), number("SECONDS", 2));
    let span = Duration::from_secs(seconds);
    let redis = RedisServer::start().await;
    let setups = [
        Setup::new(RULES),
        Setup::new(RULES).on(&redis.url()),
        Setup::new(RULES)
            .on(&redis.url())
            .with(&["--prefetch", "10"]),
    ];
    let [memory, on_redis, prefetch] = setups.each_ref().map(Service::start);
    let mut command = Supervised::command(std::env::current_exe().unwrap(), None);
    command.arg("always-ok");
    let ok = Service::listening(command);

    println!("decisions/s, {STREAMS} streams; medians of {rounds} rounds of {seconds} s in turn");
    for keys in [1, 100_000] {
        let servers = [
            ("always OK", &ok),
            ("in memory", &memory),
            ("Redis", &on_redis),
            ("Redis, prefetch", &prefetch),
        ];
        let mut rates = vec![Vec::new(); servers.len()];
        for _ in 0..rounds {
            for ((_, server), rates) in servers.iter().zip(&mut rates) {
                rates.push(decisions(server, keys, span).await);
            }
        }
        print(
            &format!("rls-decisions-{keys}-keys"),
            &servers.map(|(name, _)| name),
            rates,
        );
    }

    let Some(program) = Envoy::program() else {
        return;
    };
    let upstream = Service::upstream(&redis.url());
    let envoys = [
        (
            "always OK",
            Envoy::start(&program, [&ok, &ok], &upstream).await,
        ),
        (
            "Redis",
            Envoy::start(&program, [&on_redis, &on_redis], &upstream).await,
        ),
    ];
    println!("requests/s through Envoy, {STREAMS} connections");
    let mut rates = vec![Vec::new(); envoys.len()];
    for _ in 0..rounds {
        for ((_, envoy), rates) in envoys.iter().zip(&mut rates) {
            rates.push(requests(&envoy.address, span).await);
        }
    }
    print(
        "rls-envoy-requests",
        &envoys.each_ref().map(|(name, _)| *name),
        rates,
    );
}

async fn always_ok() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    println!(
        "listening on http://{}, always OK",
        listener.local_addr().unwrap()
    );
    let server =
        tonic::transport::Server::builder().add_service(RateLimitServiceServer::new(AlwaysOk));
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    server.serve_with_incoming(incoming).await.unwrap();
}

fn print(figure: &str, names: &[&str], rates: Vec<Vec<f64>>) {
    let median = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let medians: Vec<_> = rates.into_iter().map(median).collect();
    for (name, rate) in names.iter().zip(&medians) {
        println!(
            "figure {figure} {name}: {rate:.0} ({:.2} of {})",
            rate / medians[0],
            names[0]
        );
    }
}

/// Decisions per second, over two connections.
async fn decisions(server: &Service, keys: u64, span: Duration) -> f64 {
    let next = Arc::new(AtomicU64::new(0));
    let channels = [server.channel().await, server.channel().await];
    let began = Instant::now();
    let stream = |at: usize| {
        let mut client = RateLimitServiceClient::new(channels[at % 2].clone());
        let next = Arc::clone(&next);
        tokio::spawn(async move {
            let mut count = 0;
            while began.elapsed() < span {
                let key = (next.fetch_add(1, Ordering::Relaxed) % keys).to_string();
                let response = client
                    .should_rate_limit(request(&[&[("tenant", &key)]]))
                    .await;
                assert_eq!(response.unwrap().into_inner().overall_code(), Code::Ok);
                count += 1;
            }
            count
        })
    };
    let counts = join_all((0..STREAMS).map(stream)).await;
    let count: u32 = counts.into_iter().map(Result::unwrap).sum();
    f64::from(count) / began.elapsed().as_secs_f64()
}

/// Requests per second with status 200, each of one of a thousand tenants.
async fn requests(address: &str, span: Duration) -> f64 {
    let began = Instant::now();
    let connection = |at: usize| {
        let address = address.to_owned();
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let mut response = [0; 4096];
            let mut count = 0;
            while began.elapsed() < span {
                let tenant = (at * 7919 + count as usize) % 1000;
                let request = format!("GET / HTTP/1.1\r\nhost: edge\r\nx-tenant: {tenant}\r\n\r\n");
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut length = 0;
                // The body of the service behind Envoy.
                while !response[..length].ends_with(b"\r\n\r\nhello\n") {
                    let read = stream.read(&mut response[length..]).await.unwrap();
                    assert!(read > 0, "{}", String::from_utf8_lossy(&response[..length]));
                    length += read;
                }
                assert!(response.starts_with(b"HTTP/1.1 200"));
                count += 1;
            }
            count
        })
    };
    let counts = join_all((0..STREAMS).map(connection)).await;
    let count: u32 = counts.into_iter().map(Result::unwrap).sum();
    f64::from(count) / began.elapsed().as_secs_f64()
}
