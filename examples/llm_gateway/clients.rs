//! The tenants: how often each of them asks, and clients that leave in the middle of an answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use futures::StreamExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::MissedTickBehavior;
use tower::BoxError;

use crate::page::Page;

/// The time of a turn of the steady traffic.
const TURN: Duration = Duration::from_millis(200);
/// How many turns are between two requests of each tenant. The first one asks for more than its budget.
const EVERY: [(&str, usize); 3] = [("acme", 2), ("globex", 9), ("initech", 12)];
/// The tenant of which every second client leaves.
const LEAVES: &str = "initech";
const MAX_TOKENS: u32 = 1000;

pub(crate) type HttpClient = Client<HttpConnector, Body>;

pub(crate) fn client() -> HttpClient {
    Client::builder(TokioExecutor::new()).build_http()
}

/// How long a client reads.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Patience {
    ToTheEnd,
    /// It leaves after 1.2 s.
    Little,
}

#[derive(Clone)]
pub(crate) struct Clients {
    client: HttpClient,
    gateways: [SocketAddr; 2],
}

impl Clients {
    pub(crate) fn new(gateways: [SocketAddr; 2]) -> Self {
        Self {
            client: client(),
            gateways,
        }
    }

    /// Asks a gateway, and reads the answer for as long as the client's patience lasts.
    pub(crate) async fn ask(
        &self,
        gateway: usize,
        tenant: &str,
        max_tokens: u32,
        patience: Patience,
    ) -> Result<StatusCode, BoxError> {
        let gateway = self.gateways[gateway % 2];
        let uri = format!("http://{gateway}/complete?max_tokens={max_tokens}");
        let request = Request::builder()
            .uri(uri)
            .header("x-tenant", tenant)
            .body(Body::empty())?;
        let response = self.client.request(request).await?;
        let status = response.status();
        let mut body = Body::new(response.into_body()).into_data_stream();
        let read = async {
            while let Some(data) = body.next().await {
                data?;
            }
            Ok(status)
        };
        match patience {
            Patience::ToTheEnd => read.await,
            Patience::Little => tokio::time::timeout(Duration::from_millis(1200), read)
                .await
                .unwrap_or(Ok(status)),
        }
    }

    /// Sends a request, and does not wait for its answer.
    pub(crate) fn send(&self, gateway: usize, tenant: &'static str, patience: Patience) {
        let clients = self.clone();
        tokio::spawn(async move { clients.ask(gateway, tenant, MAX_TOKENS, patience).await });
    }
}

/// The steady traffic, while somebody looks. It begins anew each time, with a request of each tenant.
pub(crate) async fn keep_asking(page: Arc<Page>) {
    let mut ticks = tokio::time::interval(TURN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut turn = 0;
    loop {
        ticks.tick().await;
        if !page.has_traffic() {
            turn = 0;
            continue;
        }
        for (tenant, every) in EVERY {
            let nth = turn / every;
            if turn % every == 0 {
                let leaves = tenant == LEAVES && nth % 2 == 0;
                let patience = if leaves {
                    Patience::Little
                } else {
                    Patience::ToTheEnd
                };
                // A and B in turn; of two in a row that go to the same one, one leaves.
                let gateway = if tenant == LEAVES { nth / 2 } else { nth };
                page.clients().send(gateway, tenant, patience);
            }
        }
        turn += 1;
    }
}
