//! Envoy's rate limit service: the edge and the services behind it share their buckets. See `README.md`.
//!
//! ```text
//! cargo run --example envoy -- --rules examples/envoy/rules.yaml                              # state in this process
//! REDIS_URL=redis://127.0.0.1/ cargo run --example envoy -- --rules examples/envoy/rules.yaml # state in Redis
//! ```

mod limits;
mod live;
mod rules;
mod service;
mod status;
mod yaml;

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::routing::get;
use clap::Parser;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus::{NotServing, Serving};
use tower_distributed::{Store, StoreFailure};

use self::limits::Limits;
use self::live::Live;
use self::service::Service;

/// Envoy's rate limit service. Its state is in the Redis of REDIS_URL; without it, in this process.
#[derive(Parser)]
struct Arguments {
    /// A file of rules, which has one domain; it is read again when it changes. May be repeated
    #[arg(long, required = true)]
    rules: Vec<PathBuf>,
    /// Print the rules and their buckets, and exit
    #[arg(long)]
    check: bool,
    /// The address for gRPC and, by HTTP/1, for /metrics of Prometheus. Port 0: any free one
    #[arg(long, default_value = "127.0.0.1:8081")]
    listen: SocketAddr,
    /// What to do while Redis gives no answer: the status UNAVAILABLE, admit all, or admit the share of this process. Envoy
    /// admits what is UNAVAILABLE, unless it has `failure_mode_deny: true`
    #[arg(long, default_value = CLOSED, value_parser = [CLOSED, "fail-open", "local-share"])]
    on_outage: String,
    /// The least number of processes that share a limit in an outage. They are counted while Redis answers
    #[arg(long, default_value = "1")]
    replicas: NonZeroU32,
    /// How long Redis may take to answer, in ms: less than the `timeout` of Envoy's filter
    #[arg(long, default_value = "100")]
    timeout: u64,
    /// Take the tokens of hot keys ahead, for up to this time in ms: 10 is a good choice
    #[arg(long)]
    prefetch: Option<u64>,
    /// How long to answer on after SIGTERM, in seconds, while the health checks of Envoy notice it
    #[arg(long, default_value = "5")]
    drain: u64,
}

const CLOSED: &str = "fail-closed";
const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// How long requests may take to end after the drain.
const LONGEST: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    // Before the counters of buckets are made.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let builder = Store::builder().timeout(Duration::from_millis(arguments.timeout));
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => builder.redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    let replicas = arguments.replicas;
    let limits = Limits {
        store,
        on_outage: match &*arguments.on_outage {
            "fail-open" => StoreFailure::FailOpen,
            "local-share" => StoreFailure::CountedShare {
                replicas,
                at_least: replicas,
            },
            _ => StoreFailure::FailClosed,
        },
        prefetch: arguments.prefetch.map(Duration::from_millis),
        by_name: Mutex::default(),
        sets: Mutex::default(),
    };
    let (files, domains) = (arguments.rules, Default::default());
    let live = Arc::new(Live {
        files,
        limits,
        domains,
    });
    let read = live.read()?;
    print!("{}", live.apply(&read)?);
    if arguments.check {
        return Ok(());
    }
    let mut drains = signal(SignalKind::terminate())?;
    let mut ends = signal(SignalKind::terminate())?;
    let listen = arguments.listen;
    let incoming =
        TcpIncoming::bind(listen).map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    let store = live.limits.store.clone();
    println!(
        "listening on http://{}, state: {store}",
        incoming.local_addr()?
    );
    let (health, health_service) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(include_bytes!("rls.bin"))
        .build_v1()?;
    let upkeep = metrics.clone();
    let follower = Arc::clone(&live);
    let routes = Routes::new(RateLimitServiceServer::new(Service(live)))
        .add_service(health_service)
        .add_service(reflection)
        .into_axum_router()
        .route("/metrics", get(async move || metrics.render()));
    health.set_service_status(NAME, Serving).await;
    let drain = Duration::from_secs(arguments.drain);
    let drained = async {
        drains.recv().await;
        // First the health checks send new requests elsewhere; then connections end after their last response.
        for service in ["", NAME] {
            health.set_service_status(service, NotServing).await;
        }
        sleep(drain).await;
    };
    let server = Server::builder()
        .accept_http1(true)
        .add_routes(Routes::from(routes));
    tokio::select! {
        served = server.serve_with_incoming_shutdown(incoming.with_nodelay(Some(true)), drained) => served?,
        () = async { ends.recv().await; sleep(drain + LONGEST).await } => eprintln!("some requests have not ended"),
        () = async { loop { sleep(LONGEST).await; upkeep.run_upkeep() } } => {}
        () = follower.follow(read) => {}
    }
    Ok(store.shutdown(LONGEST).await?)
}
