//! The main job, as a newcomer runs it: the `gateway` example, in process and on Redis, two of them on one. And the pages of
//! the examples `gateway` and `llm_gateway`.

mod adversity_in_browser;
mod browser;
mod llm_in_browser;
mod page;
mod page_in_browser;
mod process;
mod reading_in_browser;
mod visitor;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use futures::future::join_all;
use process::Gateway;
use reqwest::{Client, RequestBuilder, StatusCode};
use support::redis_server::RedisServer;

impl Gateway {
    /// Asks from an address of this machine: 127.0.0.`caller`.
    async fn limited(&self, caller: u8) -> reqwest::Response {
        let client = Client::builder()
            .no_proxy()
            .local_address(IpAddr::from([127, 0, 0, caller]));
        // What a client says of itself changes nothing.
        let made_up = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let request = client
            .build()
            .unwrap()
            .get(format!("{}/limited", self.base));
        let request = request
            .header("x-api-key", format!("{made_up:?}"))
            .header("x-forwarded-for", "6.6.6.6");
        request.send().await.unwrap()
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        answer(Client::new().get(format!("{}/{path}", self.base))).await
    }

    async fn webhook(&self, id: &str, body: &'static str) -> StatusCode {
        let request = Client::new()
            .post(format!("{}/webhook", self.base))
            .header("webhook-id", id);
        answer(request.body(body)).await.0
    }
}

async fn answer(request: RequestBuilder) -> (StatusCode, String) {
    let response = request.send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

#[tokio::test]
async fn limits_each_caller_in_process() {
    let gateway = Gateway::start(None);
    assert_eq!(
        gateway.get("healthz").await,
        (StatusCode::OK, "ok, state: in-memory\n".to_owned())
    );
    let (status, text) = gateway.get("readyz").await;
    assert!(
        status == StatusCode::OK && text.starts_with("ready, in-memory answered in "),
        "{status} {text}"
    );
    let first = gateway.limited(1).await;
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(first.headers()["ratelimit-policy"], "\"default\";q=10;w=2");
    let mut refused = gateway.limited(1).await;
    for _ in 0..1000 {
        if refused.status() != StatusCode::OK {
            break;
        }
        refused = gateway.limited(1).await;
    }
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(
        refused.headers()["content-type"],
        "application/problem+json"
    );
    let problem: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(
        (&problem["status"], &problem["violated-policies"][0]),
        (&429.into(), &"default".into())
    );
    // Others are not concerned.
    let other = gateway.limited(2).await;
    assert_eq!(
        (other.status(), &other.headers()["ratelimit"]),
        (StatusCode::OK, &"\"default\";r=9;t=2".parse().unwrap())
    );
}

/// Limits, permits, flights and webhooks; and the store goes away and comes back.
#[tokio::test]
async fn two_on_one_redis_share_all() {
    let server = RedisServer::start().await;
    let gateways = &[
        Gateway::start(Some(&server.url())),
        Gateway::start(Some(&server.url())),
    ];
    for gateway in gateways {
        assert_eq!(
            gateway.get("healthz").await,
            (StatusCode::OK, "ok, state: redis\n".to_owned())
        );
        let (status, text) = gateway.get("readyz").await;
        assert!(
            status == StatusCode::OK && text.starts_with("ready, redis "),
            "{status} {text}"
        );
    }
    let began = Instant::now();
    let mut admitted = [0, 0];
    for turn in 0..40 {
        let response = gateways[turn % 2].limited(1).await;
        admitted[turn % 2] += u32::from(response.status() == StatusCode::OK);
    }
    let most = 10.0 + 5.0 * began.elapsed().as_secs_f64();
    assert!(
        f64::from(admitted[0] + admitted[1]) <= most,
        "{admitted:?} in {:?}",
        began.elapsed()
    );
    assert!(
        admitted[0] + admitted[1] >= 10 && admitted.iter().all(|&one| one >= 3),
        "{admitted:?}"
    );

    // Two exports at once, of two seconds each; the third waits for its turn.
    let began = Instant::now();
    let exports = join_all((0..3).map(|turn| gateways[turn % 2].get("export"))).await;
    assert!(
        exports.iter().all(|(status, _)| *status == StatusCode::OK),
        "{exports:?}"
    );
    assert!(
        began.elapsed() >= Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );

    // A report is made once for all who ask meanwhile. Both are one host to their clients.
    let report = |turn: usize, field: &'static str, value: &'static str| {
        let url = format!("{}/report/7", gateways[turn % 2].base);
        answer(Client::new().get(url).header(field, value))
    };
    let reports = join_all((0..20).map(|turn| report(turn, "host", "reports.example"))).await;
    assert!(reports[0].1.starts_with("report 7 of run "), "{reports:?}");
    assert!(
        reports.iter().all(|report| *report == reports[0]),
        "{reports:?}"
    );
    // Who may be somebody else gets what is their own.
    assert_eq!(
        report(0, "cookie", "user=ann").await.1,
        "report 7, made for you alone\n"
    );

    // A webhook is handled once, unless it fails.
    assert_eq!(
        gateways[0].webhook("evt_1", "fail").await,
        StatusCode::INTERNAL_SERVER_ERROR
    );
    assert_eq!(gateways[1].webhook("evt_1", "ok").await, StatusCode::OK);
    for gateway in gateways {
        assert_eq!(gateway.webhook("evt_1", "ok").await, StatusCode::CONFLICT);
        assert_eq!(gateway.webhook("evt_1", "fail").await, StatusCode::CONFLICT);
    }
    assert_eq!(gateways[0].webhook("evt_2", "ok").await, StatusCode::OK);
    let nameless = Client::new()
        .post(format!("{}/webhook", gateways[0].base))
        .body("ok");
    assert_eq!(answer(nameless).await.0, StatusCode::BAD_REQUEST);

    // Alive without the store, and ready with it.
    server.kill9();
    let (status, text) = gateways[0].get("readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
    assert!(
        text.starts_with("not ready, store unavailable: ") && text.len() < 300,
        "{text}"
    );
    assert_eq!(gateways[0].get("healthz").await.0, StatusCode::OK);
    assert_eq!(
        gateways[0].limited(2).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    server.restart().await;
    let is_ready = async || gateways[0].get("readyz").await.0 == StatusCode::OK;
    support::eventually("readiness", Duration::from_secs(10), is_ready).await;
}
