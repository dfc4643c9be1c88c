//! The main job, as a newcomer runs it: the `gateway` example, in process and on Redis, two of them on one.

mod browser;
mod page;
mod page_in_browser;
mod page_queues;
mod process;

use std::net::IpAddr;

use process::Gateway;
use reqwest::{Client, StatusCode};
use support::redis_server::RedisServer;

impl Gateway {
    /// Asks from an address of this machine: 127.0.0.`caller`.
    async fn limited(&self, caller: u8) -> reqwest::Response {
        let client = Client::builder().no_proxy().local_address(IpAddr::from([127, 0, 0, caller]));
        // What a client says of itself changes nothing.
        let made_up = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let request = client.build().unwrap().get(format!("{}/limited", self.base));
        let request =
            request.header("x-api-key", format!("{made_up:?}")).header("x-forwarded-for", "6.6.6.6");
        request.send().await.unwrap()
    }

    async fn health(&self) -> (StatusCode, String) {
        self.text_of("healthz").await
    }

    async fn readiness(&self) -> (StatusCode, String) {
        self.text_of("readyz").await
    }

    async fn text_of(&self, path: &str) -> (StatusCode, String) {
        let response = Client::new().get(format!("{}/{path}", self.base)).send().await.unwrap();
        (response.status(), response.text().await.unwrap())
    }
}

#[tokio::test]
async fn limits_each_caller_in_process() {
    let gateway = Gateway::start(None);
    assert_eq!(gateway.health().await, (StatusCode::OK, "ok, state: in-memory\n".to_owned()));
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
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    let problem: serde_json::Value = refused.json().await.unwrap();
    assert_eq!((&problem["status"], &problem["violated-policies"][0]), (&429.into(), &"default".into()));
    // Others are not concerned.
    let other = gateway.limited(2).await;
    assert_eq!(
        (other.status(), &other.headers()["ratelimit"]),
        (StatusCode::OK, &"\"default\";r=9;t=2".parse().unwrap())
    );
}

#[tokio::test]
async fn two_on_one_redis_share_the_limit() {
    let server = RedisServer::start().await;
    let gateways = [Gateway::start(Some(&server.url())), Gateway::start(Some(&server.url()))];
    for gateway in &gateways {
        assert_eq!(gateway.health().await, (StatusCode::OK, "ok, state: redis\n".to_owned()));
    }
    let began = std::time::Instant::now();
    let mut admitted = [0, 0];
    for turn in 0..40 {
        let response = gateways[turn % 2].limited(1).await;
        admitted[turn % 2] += u32::from(response.status() == StatusCode::OK);
    }
    let most = 10.0 + 5.0 * began.elapsed().as_secs_f64();
    assert!(f64::from(admitted[0] + admitted[1]) <= most, "{admitted:?} in {:?}", began.elapsed());
    assert!(admitted[0] + admitted[1] >= 10 && admitted.iter().all(|&one| one >= 3), "{admitted:?}");

    server.kill9();
    let away = gateways[0].limited(2).await;
    assert_eq!(away.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn is_alive_without_the_store_and_ready_with_it() {
    let gateway = Gateway::start(None);
    let (status, text) = gateway.readiness().await;
    assert!(status == StatusCode::OK && text.starts_with("ready, in-memory answered in "), "{status} {text}");

    let server = RedisServer::start().await;
    let gateway = Gateway::start(Some(&server.url()));
    let (status, text) = gateway.readiness().await;
    assert!(status == StatusCode::OK && text.starts_with("ready, redis "), "{status} {text}");

    server.kill9();
    let (status, text) = gateway.readiness().await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
    assert!(text.starts_with("not ready, store unavailable: ") && text.len() < 300, "{text}");
    assert_eq!(gateway.health().await.0, StatusCode::OK);

    server.restart().await;
    let is_ready = async || gateway.readiness().await.0 == StatusCode::OK;
    support::eventually("readiness", std::time::Duration::from_secs(10), is_ready).await;
}

#[tokio::test]
async fn two_exports_at_once_and_the_third_waits_its_turn() {
    let server = RedisServer::start().await;
    let gateways = [Gateway::start(Some(&server.url())), Gateway::start(Some(&server.url()))];
    let began = std::time::Instant::now();
    let exports = (0..3).map(|turn| {
        let url = format!("{}/export", gateways[turn % 2].base);
        tokio::spawn(async move { Client::new().get(url).send().await.unwrap().status() })
    });
    for export in exports.collect::<Vec<_>>() {
        assert_eq!(export.await.unwrap(), StatusCode::OK);
    }
    // Two seconds each, and two at once.
    assert!(began.elapsed() >= std::time::Duration::from_secs(4), "{:?}", began.elapsed());
}

#[tokio::test]
async fn documents_are_read_together_and_written_alone() {
    let gateway = Gateway::start(None);
    let url = format!("{}/document/42", gateway.base);
    let fence = async |request: reqwest::RequestBuilder| {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let text = response.text().await.unwrap();
        text.split_whitespace().next_back().unwrap().parse::<u64>().unwrap()
    };
    let client = Client::new();
    let first = fence(client.put(&url)).await;
    let (second, third) = tokio::join!(fence(client.put(&url)), fence(client.put(&url)));
    assert!(first < second.min(third) && second != third, "{first} {second} {third}");
    assert_eq!(fence(client.get(&url)).await, second.max(third));
}

#[tokio::test]
async fn a_report_is_made_once_for_all_who_ask_meanwhile_in_all_gateways() {
    let server = RedisServer::start().await;
    let gateways = [Gateway::start(Some(&server.url())), Gateway::start(Some(&server.url()))];
    let reports = (0..20).map(|turn| {
        let url = format!("{}/report/7", gateways[turn % 2].base);
        // Both are one host to their clients.
        let request = Client::new().get(url).header("host", "reports.example");
        tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() })
    });
    let mut reports =
        futures::future::join_all(reports.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap);
    let first = reports.next().unwrap();
    assert!(first.starts_with("report 7 of run "), "{first}");
    assert!(reports.all(|report| report == first));
    // Who may be somebody else gets what is their own.
    let private = Client::new().get(format!("{}/report/7", gateways[0].base)).header("cookie", "user=ann");
    assert_eq!(private.send().await.unwrap().text().await.unwrap(), "report 7, made for you alone\n");
}

#[tokio::test]
async fn a_webhook_is_handled_once_unless_it_fails() {
    let server = RedisServer::start().await;
    let gateways = [Gateway::start(Some(&server.url())), Gateway::start(Some(&server.url()))];
    let send = async |gateway: &Gateway, id: &str, body: &'static str| {
        let request = Client::new().post(format!("{}/webhook", gateway.base)).header("webhook-id", id);
        request.body(body).send().await.unwrap().status()
    };
    assert_eq!(send(&gateways[0], "evt_1", "fail").await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(send(&gateways[1], "evt_1", "ok").await, StatusCode::OK);
    for gateway in &gateways {
        assert_eq!(send(gateway, "evt_1", "ok").await, StatusCode::CONFLICT);
        assert_eq!(send(gateway, "evt_1", "fail").await, StatusCode::CONFLICT);
    }
    assert_eq!(send(&gateways[0], "evt_2", "ok").await, StatusCode::OK);
    let nameless = Client::new().post(format!("{}/webhook", gateways[0].base)).body("ok");
    assert_eq!(nameless.send().await.unwrap().status(), StatusCode::BAD_REQUEST);
}
