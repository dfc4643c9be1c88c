//! The numbers of the page, as its API tells them.

use std::io::Write as _;
use std::time::{Duration, Instant};

use reqwest::{Client, Response, StatusCode};
use serde_json::Value;

use super::process::Gateway;
use support::eventually;
use support::redis_server::RedisServer;

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

/// The files that a text names.
fn files(text: &str) -> Vec<String> {
    let quoted = text.split('"').filter(|part| part.starts_with("/page/"));
    let beside = text.split('"').filter_map(|part| part.strip_prefix("./"));
    let mut files: Vec<_> = quoted.map(str::to_owned).collect();
    files.extend(beside.map(|file| format!("/page/{file}")));
    files
}

/// Nothing is loaded from elsewhere, and no text runs that is not in a file of the page.
#[tokio::test]
async fn each_page_is_made_of_its_own_files() {
    for (gateway, most) in [(Gateway::start(None), 12), (Gateway::start_llm(None), 6)] {
        let (mut seen, mut next) = (Vec::new(), vec!["/".to_owned()]);
        while let Some(path) = next.pop() {
            let url = format!("{}{path}", gateway.base);
            let answer = Client::new().get(url).send().await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK, "{path}");
            let policy = answer.headers()["content-security-policy"]
                .to_str()
                .unwrap();
            assert!(
                policy.contains("default-src 'none'") && !policy.contains("unsafe"),
                "{policy}"
            );
            let text = answer.text().await.unwrap();
            // The only URL is the name of SVG.
            let urls = text.matches("://").count();
            assert_eq!(
                urls,
                text.matches("http://www.w3.org/2000/svg").count(),
                "{path}"
            );
            assert!(
                !text.contains("@import") && !text.contains("url("),
                "{path}"
            );
            assert!(
                !text.contains(" style=") && !text.contains(" onclick="),
                "{path}"
            );
            next.extend(files(&text).into_iter().filter(|file| !seen.contains(file)));
            seen.push(path);
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), most, "{seen:?}");
    }
}

/// From the first card: the latency of gateway A and that of gateway B.
fn latencies(state: &Value) -> Option<[f64; 2]> {
    let latency = |index: usize| state["gateways"][index]["latency_ns"].as_f64();
    Some([latency(0)?, latency(1)?])
}

/// Both gateways call one store, so neither is nearer to it.
#[tokio::test]
async fn the_latencies_of_one_store_are_comparable() {
    let server = RedisServer::start().await;
    for url in [None, Some(server.url())] {
        let gateway = Gateway::start(url.as_deref());
        let mut events = gateway.events().await;
        // The medians are those of 20 times that are taken in 3 s.
        let mut ratio = f64::NAN;
        for _ in 0..30 {
            if let Some([a, b]) = latencies(&event(&mut events).await) {
                ratio = a / b;
            }
        }
        let store = if url.is_some() { "redis" } else { "in-memory" };
        let _ = writeln!(
            std::io::stderr(),
            "figure page-latency-a-to-b-{store} {ratio:.2} (0.5 to 2)"
        );
        assert!((0.5..=2.0).contains(&ratio), "{store}: {ratio}");
    }
}

/// No panel needs a button.
#[tokio::test]
async fn steady_traffic_feeds_every_panel() {
    let gateway = Gateway::start(None);
    let mut events = gateway.events().await;
    let routes = [
        "/export",
        "/report/{id}",
        "/document/{id}",
        "/webhook",
        "/billing",
    ];
    let limits = [
        "/limited",
        "/policy/fail-closed",
        "/policy/fail-open",
        "/policy/local-share",
    ];
    let mut state = event(&mut events).await;
    let began = state["now_ms"].as_f64().unwrap();
    let are_fed = |state: &Value| {
        let of_route = |route: &str, what: &str| state["routes"][route][what].as_u64() > Some(0);
        let queues = ["fifo", "fair"]
            .map(|queue| state["queues"][queue]["tenants"].as_array().unwrap().len());
        let leases = state["requests"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|visit| !visit["lease"].is_null());
        routes.iter().all(|route| of_route(route, "arrived"))
            && limits
                .iter()
                .all(|limit| answered(state, limit, None, 200) > 0)
            && queues.iter().all(|tenants| *tenants > 0)
            && leases.count() > 0
            && !state["refused"].as_array().unwrap().is_empty()
    };
    while !are_fed(&state) {
        state = event(&mut events).await;
    }
    let took = state["now_ms"].as_f64().unwrap() - began;
    let _ = writeln!(std::io::stderr(), "figure page-all-panels-fed-ms {took:.0}");

    // One limit for two gateways, and one for each.
    while answered(&state, "/counted/alone", None, 200) < 40 {
        state = event(&mut events).await;
    }
    let seconds = (state["now_ms"].as_f64().unwrap() - began) / 1000.0;
    let together = answered(&state, "/counted/together", None, 200);
    assert!(
        together as f64 <= 2.0 + 5.0 * seconds + 1.0,
        "{together} in {seconds} s"
    );
    assert!(answered(&state, "/counted/together", Some("A"), 200) > 0);
    assert!(together < 30, "{together}: each counts alone");
}

/// What nobody knows during an outage is not told.
#[tokio::test]
async fn an_outage_leaves_nothing_known_of_the_store() {
    let gateway = Gateway::start(None);
    let _events = gateway.events().await;
    let is_known = |state: &Value| {
        let first = &state["gateways"][0];
        first["in_use"]["exports"].is_u64()
            && first["tokens"]["127.0.0.2"].is_u64()
            && first["error"].is_null()
    };
    gateway.until("permits and tokens", is_known).await;
    gateway.press("/store/away").await;
    let is_unknown = |state: &Value| {
        let none = serde_json::json!({});
        let mut gateways = state["gateways"].as_array().unwrap().iter();
        gateways.all(|one| {
            one["in_use"] == none
                && one["tokens"] == none
                && one["latency_ns"].is_null()
                && one["error"].is_string()
        })
    };
    gateway.until("nothing known", is_unknown).await;
    gateway.press("/store/back").await;
    gateway.until("permits and tokens", is_known).await;
}

#[tokio::test]
async fn the_first_event_comes_at_once() {
    let gateway = Gateway::start(None);
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
