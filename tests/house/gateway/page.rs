//! The numbers of the page, as its API tells them.

use std::io::Write as _;
use std::time::{Duration, Instant};

use reqwest::{Client, Response, StatusCode};
use serde_json::Value;

use super::process::Gateway;
use support::eventually;

const SOON: Duration = Duration::from_secs(20);
/// From the request to the first event, in milliseconds.
const FIRST_EVENT_MS: f64 = 200.0;

impl Gateway {
    async fn post(&self, path: &str) -> StatusCode {
        Client::new()
            .post(format!("{}{path}", self.base))
            .send()
            .await
            .unwrap()
            .status()
    }

    /// Presses a button of the page.
    pub(crate) async fn press(&self, path: &str) {
        assert_eq!(self.post(path).await, StatusCode::OK, "{path}");
    }

    pub(crate) async fn state(&self) -> Value {
        Client::new()
            .get(format!("{}/state", self.base))
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap()
    }

    /// Waits for a state, and returns it.
    pub(crate) async fn until(&self, what: &str, mut is_so: impl FnMut(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        eventually(what, SOON, async || {
            last = self.state().await;
            is_so(&last)
        })
        .await;
        last
    }

    pub(crate) async fn events(&self) -> Response {
        Client::new()
            .get(format!("{}/events", self.base))
            .send()
            .await
            .unwrap()
    }
}

/// The next event of a stream.
async fn event(events: &mut Response) -> Value {
    let mut text = String::new();
    loop {
        text.push_str(std::str::from_utf8(&events.chunk().await.unwrap().unwrap()).unwrap());
        if let Some((event, _)) = text.split_once("\n\n") {
            return serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        }
    }
}

/// How often a route was answered with a status, by one gateway or by both.
pub(crate) fn answered(state: &Value, route: &str, gateway: Option<&str>, status: u16) -> u64 {
    let counts = state["counts"].as_array().unwrap().iter();
    let counts = counts.filter(|count| count["route"] == route);
    let counts = counts.filter(|count| gateway.is_none_or(|gateway| count["gateway"] == gateway));
    counts
        .filter_map(|count| count["status"][status.to_string()].as_u64())
        .sum()
}

#[tokio::test]
async fn the_page_is_one_file_and_its_first_event_comes_at_once() {
    let gateway = Gateway::start(None);
    let page = Client::new().get(&gateway.base).send().await.unwrap();
    assert_eq!(
        (page.status(), &page.headers()["content-type"]),
        (StatusCode::OK, &"text/html; charset=utf-8".parse().unwrap())
    );
    let text = page.text().await.unwrap();
    // Nothing is loaded from elsewhere: the only URL is the name of SVG.
    assert_eq!(
        text.matches("://").count(),
        text.matches("http://www.w3.org/2000/svg").count()
    );
    assert!(!text.contains("<script src") && !text.contains("@import") && !text.contains("url("));

    let (mut slowest, mut fastest) = (0.0_f64, f64::MAX);
    for _ in 0..5 {
        let began = Instant::now();
        let mut events = gateway.events().await;
        let first = event(&mut events).await;
        let took = began.elapsed().as_secs_f64() * 1000.0;
        (slowest, fastest) = (slowest.max(took), fastest.min(took));
        assert_eq!(first["gateways"].as_array().unwrap().len(), 2);
        // And more of them.
        let (second, third) = (event(&mut events).await, event(&mut events).await);
        assert!(
            first["now_ms"].as_u64() < second["now_ms"].as_u64(),
            "{first} {second}"
        );
        assert!(
            second["now_ms"].as_u64() < third["now_ms"].as_u64(),
            "{second} {third}"
        );
    }
    // Not by eprintln!, whose text is shown for tests that fail only.
    let _ = writeln!(
        std::io::stderr(),
        "figure page-first-event-ms {slowest:.1} (at most {FIRST_EVENT_MS})"
    );
    // The others may have been late by the machine.
    assert!(fastest <= FIRST_EVENT_MS, "{fastest} ms");
}

/// Pages of others press no buttons.
#[tokio::test]
async fn buttons_are_pressed_by_the_page_alone() {
    let gateway = Gateway::start(None);
    let before = gateway.state().await;
    assert_eq!(
        (answered(&before, "/limited", None, 200), &before["traffic"]),
        (0, &true.into())
    );
    let post = async |path: &str, site: &str| {
        let request = Client::new()
            .post(format!("{}{path}", gateway.base))
            .header("sec-fetch-site", site);
        request.send().await.unwrap().status()
    };
    for path in ["/store/away", "/traffic/off", "/burst/limited"] {
        assert_eq!(
            post(path, "cross-site").await,
            StatusCode::FORBIDDEN,
            "{path}"
        );
    }
    for path in ["/traffic/up", "/store/sold", "/burst/nothing"] {
        assert_eq!(gateway.post(path).await, StatusCode::NOT_FOUND, "{path}");
    }
    // Traffic is sent while somebody looks.
    let mut events = gateway.events().await;
    while answered(&event(&mut events).await, "/limited", Some("B"), 200) == 0 {}
    gateway.press("/traffic/off").await;
    let state = gateway.state().await;
    assert_eq!(
        (&state["away"], &state["traffic"]),
        (&false.into(), &false.into())
    );
    assert_eq!(post("/store/away", "same-origin").await, StatusCode::OK);
}

/// Each listener gets all of it several times a second.
#[tokio::test]
async fn a_client_cannot_make_the_events_long() {
    let gateway = Gateway::start(None);
    let long = "é".repeat(20_000);
    for path in [
        "/webhook".to_owned(),
        format!("/report/{}", "x".repeat(20_000)),
    ] {
        let request = Client::new().post(format!("{}{path}", gateway.base));
        request
            .header("webhook-id", long.as_str())
            .body("ok")
            .send()
            .await
            .unwrap();
    }
    let state = gateway.state().await;
    assert_eq!(state["routes"]["/webhook"]["arrived"], 1);
    assert!(state.to_string().len() < 3_000, "{state}");
}

/// The two queues of tenants fill while somebody looks, and keys that are refused are told. Names that clients choose are not.
#[tokio::test]
async fn queues_and_refused_keys_are_told() {
    let gateway = Gateway::start(None);
    let before = gateway.state().await;
    let queues =
        |state: &Value| ["fifo", "fair"].map(|queue| state["queues"][queue]["tenants"].clone());
    let nobody = Value::Array(Vec::new());
    assert_eq!(
        (queues(&before), &before["refused"]),
        ([nobody.clone(), nobody.clone()], &nobody)
    );
    let events = gateway.events().await;
    let waits = |tenants: &Value| {
        let mut tenants = tenants.as_array().unwrap().iter();
        tenants.any(|tenant| tenant["name"] == "greedy" && tenant["waiting"].as_u64() >= Some(30))
    };
    gateway
        .until("full queues", |state| queues(state).iter().all(waits))
        .await;
    for queue in ["fifo", "fair"] {
        let request = Client::new().get(format!("{}/queue/{queue}", gateway.base));
        let text = request
            .header("x-tenant", "<b>me")
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        assert!(
            text.starts_with("waited for ") && text.ends_with(" other calls\n"),
            "{text}"
        );
    }
    for _ in 0..3 {
        gateway.press("/burst/limited").await;
    }
    let is_told = |state: &Value| {
        let mut refused = state["refused"].as_array().unwrap().iter();
        refused.any(|one| one["key"] == "127.0.0.1" && one["at_most"].as_u64() > Some(0))
    };
    let state = gateway.until("the key that is refused most", is_told).await;
    assert!(!state.to_string().contains("<b>"), "{state}");
    drop(events);
    let is_idle =
        |tenant: &Value| (&tenant["waiting"], &tenant["working"]) == (&0.into(), &0.into());
    let are_idle = |tenants: &Value| tenants.as_array().unwrap().iter().all(is_idle);
    gateway
        .until("empty queues", |state| queues(state).iter().all(are_idle))
        .await;
}

#[tokio::test]
async fn the_numbers_are_those_of_all_requests_not_only_of_the_latest() {
    let gateway = Gateway::start(None);
    let send = |path: &str| {
        let request = Client::new().get(format!("{}{path}", gateway.base));
        tokio::spawn(async move { drop(request.send().await) })
    };
    let reports: Vec<_> = (0..90).map(|_| send("/report/7")).collect();
    futures::future::join_all(reports).await;
    let report = gateway.state().await["routes"]["/report/{id}"].clone();
    let [arrived, worked, spared] =
        ["arrived", "worked", "spared"].map(|name| report[name].as_u64().unwrap());
    assert_eq!((arrived, spared), (90, 90 - worked), "{report}");

    let exports: Vec<_> = (0..90).map(|_| send("/export")).collect();
    let are_here = |state: &Value| {
        let export = &state["routes"]["/export"];
        (&export["waiting"], &export["working"]["GET"]) == (&88.into(), &2.into())
    };
    gateway
        .until("2 that work and 88 that wait", are_here)
        .await;
    exports.iter().for_each(tokio::task::JoinHandle::abort);
    let are_gone = |state: &Value| state["routes"]["/export"]["waiting"] == 0;
    gateway.until("the end of all", are_gone).await;
}
