//! gRPC health checks: a server of them behind a layer, and its clients.

use std::time::Duration;

use tonic::Status;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

/// Serves behind a layer, and connects.
macro_rules! serve_health {
    ($layer:expr) => {
        $crate::health::serve_health!($layer, tonic_health::server::health_reporter().1)
    };
    ($layer:expr, $health:expr) => {{
        let (listener, address) = $crate::net::listen().await;
        let health = $health;
        let server = tonic::transport::Server::builder()
            .layer($layer)
            .add_service(health);
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        tokio::spawn(server.serve_with_incoming(incoming));
        let url = format!("http://{address}");
        tonic::transport::Channel::from_shared(url)
            .unwrap()
            .connect()
            .await
            .unwrap()
    }};
}
pub(crate) use serve_health;

/// The same; also returns how many calls have passed the layer.
macro_rules! serve_counted {
    ($layer:expr) => {{
        let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = std::sync::Arc::clone(&calls);
        let count =
            tower::util::MapRequestLayer::new(move |request: http::Request<tonic::body::Body>| {
                counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                request
            });
        (
            $crate::health::serve_health!(tower::layer::util::Stack::new(count, $layer)),
            calls,
        )
    }};
}
pub(crate) use serve_counted;

pub(crate) fn question(tenant: &'static str) -> tonic::Request<HealthCheckRequest> {
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    request
        .metadata_mut()
        .insert("x-tenant", tenant.parse().unwrap());
    request
}

pub(crate) async fn check(channel: &Channel, tenant: &'static str) -> Result<(), Status> {
    HealthClient::new(channel.clone())
        .check(question(tenant))
        .await
        .map(drop)
}

pub(crate) fn retry_delay(status: &Status) -> Option<Duration> {
    status
        .get_details_retry_info()
        .and_then(|info| info.retry_delay)
}
