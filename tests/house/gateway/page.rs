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
        Client::new().post(format!("{}{path}", self.base)).send().await.unwrap().status()
    }

    /// Presses a button of the page.
    pub(crate) async fn press(&self, path: &str) {
        assert_eq!(self.post(path).await, StatusCode::OK, "{path}");
    }

    pub(crate) async fn state(&self) -> Value {
        Client::new().get(format!("{}/state", self.base)).send().await.unwrap().json().await.unwrap()
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
        Client::new().get(format!("{}/events", self.base)).send().await.unwrap()
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
    counts.filter_map(|count| count["status"][status.to_string()].as_u64()).sum()
}

fn all_answers(state: &Value, route: &str) -> u64 {
    [200, 409, 423, 429, 500, 503].map(|status| answered(state, route, None, status)).iter().sum()
}

/// The requests of a route.
fn requests<'a>(state: &'a Value, route: &str) -> Vec<&'a Value> {
    state["requests"].as_array().unwrap().iter().filter(|request| request["route"] == route).collect()
}

fn have_ended(state: &Value, route: &str, count: usize) -> bool {
    let requests = requests(state, route);
    requests.len() == count && requests.iter().all(|request| request["ended_ms"].is_u64())
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
    assert_eq!(text.matches("://").count(), text.matches("http://www.w3.org/2000/svg").count());
    assert!(!text.contains("<script src") && !text.contains("@import") && !text.contains("url("));

    let mut slowest: f64 = 0.0;
    for _ in 0..5 {
        let began = Instant::now();
        let mut events = gateway.events().await;
        let first = event(&mut events).await;
        slowest = slowest.max(began.elapsed().as_secs_f64() * 1000.0);
        assert_eq!(first["gateways"].as_array().unwrap().len(), 2);
        // And more of them.
        let (second, third) = (event(&mut events).await, event(&mut events).await);
        assert!(first["now_ms"].as_u64() < second["now_ms"].as_u64(), "{first} {second}");
        assert!(second["now_ms"].as_u64() < third["now_ms"].as_u64(), "{second} {third}");
    }
    // Not by eprintln!, whose text is shown for tests that fail only.
    let _ = writeln!(std::io::stderr(), "figure page-first-event-ms {slowest:.1} (at most {FIRST_EVENT_MS})");
    assert!(slowest <= FIRST_EVENT_MS, "{slowest} ms");
}

#[tokio::test]
async fn traffic_is_sent_while_somebody_looks() {
    let gateway = Gateway::start(None);
    let before = gateway.state().await;
    assert_eq!((all_answers(&before, "/limited"), &before["traffic"]), (0, &true.into()));
    let mut events = gateway.events().await;
    while answered(&event(&mut events).await, "/limited", Some("B"), 200) == 0 {}
    gateway.press("/traffic/off").await;
    let off = gateway.state().await;
    assert_eq!(off["traffic"], false);
    for path in ["/traffic/up", "/store/sold", "/burst/nothing"] {
        assert_eq!(gateway.post(path).await, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn other_pages_in_the_browser_press_no_buttons() {
    let gateway = Gateway::start(None);
    let post = async |path: &str, site: &str| {
        let request = Client::new().post(format!("{}{path}", gateway.base)).header("sec-fetch-site", site);
        request.send().await.unwrap().status()
    };
    for path in ["/store/away", "/traffic/off", "/burst/limited"] {
        assert_eq!(post(path, "cross-site").await, StatusCode::FORBIDDEN, "{path}");
    }
    let state = gateway.state().await;
    assert_eq!((&state["away"], &state["traffic"]), (&false.into(), &true.into()));
    assert_eq!(post("/store/away", "same-origin").await, StatusCode::OK);
}

/// Each listener gets all of it several times a second.
#[tokio::test]
async fn a_client_cannot_make_the_events_long() {
    let gateway = Gateway::start(None);
    let long = "é".repeat(20_000);
    for path in ["/webhook".to_owned(), format!("/report/{}", "x".repeat(20_000))] {
        let request = Client::new().post(format!("{}{path}", gateway.base));
        request.header("webhook-id", long.as_str()).body("ok").send().await.unwrap();
    }
    let state = gateway.state().await;
    assert_eq!(state["routes"]["/webhook"]["arrived"], 1);
    assert!(state.to_string().len() < 3_000, "{state}");
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
    gateway.until("2 that work and 88 that wait", are_here).await;
    exports.iter().for_each(tokio::task::JoinHandle::abort);
    let are_gone = |state: &Value| state["routes"]["/export"]["waiting"] == 0;
    gateway.until("the end of all", are_gone).await;
}

#[tokio::test]
async fn both_gateways_see_one_limit() {
    let server = RedisServer::start().await;
    for url in [None, Some(server.url())] {
        let gateway = Gateway::start(url.as_deref());
        let began = Instant::now();
        gateway.press("/burst/limited").await;
        let state = gateway.until("15 answers", |state| all_answers(state, "/limited") == 15).await;
        let admitted = answered(&state, "/limited", None, 200);
        // Ten at once, and what has come back meanwhile.
        let most = 10.0 + 5.0 * began.elapsed().as_secs_f64();
        assert!(admitted >= 10 && admitted as f64 <= most, "{admitted} of {most} {state}");
        assert_eq!(admitted + answered(&state, "/limited", None, 429), 15);
        assert!(["A", "B"].iter().all(|name| answered(&state, "/limited", Some(name), 200) > 0), "{state}");
        let all_back = |state: &Value| {
            let tokens = |gateway: usize| state["gateways"][gateway]["tokens"]["127.0.0.1"].as_u64();
            (tokens(0), tokens(1)) == (Some(10), Some(10))
        };
        gateway.until("10 tokens by both", all_back).await;
        // Another caller has its own.
        gateway.press("/burst/limited?caller=3").await;
        gateway.until("30 answers", |state| all_answers(state, "/limited") == 30).await;
    }
}

#[tokio::test]
async fn exports_wait_in_the_order_of_arrival_and_two_work() {
    let server = RedisServer::start().await;
    let gateway = Gateway::start(Some(&server.url()));
    gateway.press("/burst/export").await;
    let is_full = |state: &Value| {
        let waiting =
            requests(state, "/export").iter().filter(|export| export["began_work_ms"].is_null()).count();
        waiting == 4 && state["gateways"][0]["permits"] == 2 && state["gateways"][1]["permits"] == 2
    };
    let full = gateway.until("2 permits in use and 4 waiters", is_full).await;
    let leases = requests(&full, "/export").iter().filter(|export| export["lease"]["held"] == true).count();
    assert_eq!(leases, 2, "{full}");
    let state = gateway.until("6 exports", |state| have_ended(state, "/export", 6)).await;
    let exports = requests(&state, "/export");
    for export in &exports {
        // They arrive 150 ms apart, and some of that may be lost on the way to the store.
        let arrived = export["arrived_ms"].as_u64().unwrap();
        let mut later = exports.iter().filter(|other| other["arrived_ms"].as_u64() > Some(arrived + 100));
        assert!(
            later.all(|other| other["began_work_ms"].as_u64() >= export["began_work_ms"].as_u64()),
            "{exports:?}"
        );
        let at = export["began_work_ms"].as_u64();
        let beside = exports
            .iter()
            .filter(|other| other["began_work_ms"].as_u64() <= at && at < other["ended_ms"].as_u64());
        assert!(beside.count() <= 2, "{exports:?}");
    }
}

#[tokio::test]
async fn flights_save_calls_duplicates_are_caught_and_writers_are_alone() {
    let server = RedisServer::start().await;
    for url in [None, Some(server.url())] {
        let gateway = Gateway::start(url.as_deref());
        gateway.press("/burst/report").await;
        gateway.press("/burst/webhook").await;
        gateway.press("/burst/document").await;
        let state = gateway
            .until("all answers", |state| {
                have_ended(state, "/report/{id}", 20)
                    && have_ended(state, "/webhook", 12)
                    && have_ended(state, "/document/{id}", 10)
            })
            .await;
        let report =
            ["arrived", "worked", "spared"].map(|name| state["routes"]["/report/{id}"][name].as_u64());
        assert_eq!(report, [Some(20), Some(1), Some(19)]);
        let webhooks = [200, 409, 500].map(|status| answered(&state, "/webhook", None, status));
        assert_eq!(webhooks, [3, 8, 1], "{state}");

        let documents = requests(&state, "/document/{id}");
        let span = |document: &Value| {
            (document["began_work_ms"].as_u64().unwrap(), document["ended_ms"].as_u64().unwrap())
        };
        for writer in documents.iter().filter(|document| document["method"] == "PUT") {
            assert!(writer["fence"].as_u64() > Some(0), "{writer}");
            let (from, until) = span(writer);
            let others = documents.iter().filter(|other| other["id"] != writer["id"]);
            // By milliseconds: the end of one may be the start of the next.
            assert!(
                others.map(|other| span(other)).all(|other| other.1 <= from + 1 || until <= other.0 + 1),
                "{documents:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_billing_run_is_renewed_and_the_second_one_refused() {
    let gateway = Gateway::start(None);
    gateway.press("/burst/billing").await;
    gateway.until("a refusal", |state| answered(state, "/billing", None, 423) == 1).await;
    let mut least = u64::MAX;
    // Its lease lives for 3 s and it works for 8 s.
    let state = gateway
        .until("the end", |state| {
            let left =
                requests(state, "/billing").iter().filter_map(|run| run["lease"]["left_ms"].as_u64()).min();
            least = least.min(left.unwrap_or(u64::MAX));
            answered(state, "/billing", None, 200) == 1
        })
        .await;
    assert!(0 < least && least < 3000, "{least} {state}");
}

/// What each limit answered since another state: with 200, 429 and 503.
fn policies(before: &Value, after: &Value) -> [[u64; 3]; 3] {
    ["fail-closed", "fail-open", "local-share"].map(|name| {
        let route = format!("/policy/{name}");
        [200, 429, 503]
            .map(|status| answered(after, &route, None, status) - answered(before, &route, None, status))
    })
}

/// The answers to one burst of 12 to each limit.
async fn burst_to_policies(gateway: &Gateway) -> [[u64; 3]; 3] {
    let before = gateway.state().await;
    gateway.press("/burst/policies").await;
    let all =
        |state: &Value| policies(&before, state).iter().all(|answers| answers.iter().sum::<u64>() == 12);
    policies(&before, &gateway.until("12 answers of each", all).await)
}

#[tokio::test]
async fn an_outage_fails_closed_open_and_to_a_local_share() {
    let server = RedisServer::start().await;
    for url in [None, Some(server.url())] {
        let gateway = Gateway::start(url.as_deref());
        let is_reachable =
            |state: &Value| [0, 1].iter().all(|&at| state["gateways"][at]["reachable"] == true);
        gateway.until("the store", is_reachable).await;
        if url.is_some() {
            gateway.press("/burst/billing").await;
            gateway
                .until("a run", |state| {
                    requests(state, "/billing").iter().any(|run| run["lease"]["held"] == true)
                })
                .await;
        }

        gateway.press("/store/away").await;
        let is_open = |state: &Value| [0, 1].iter().all(|&at| state["gateways"][at]["breaker"] == "open");
        let away = gateway.until("open breakers", is_open).await;
        assert_eq!(away["away"], true);
        let [closed, open, mut shares] = burst_to_policies(&gateway).await;
        assert_eq!((closed, open), ([0, 0, 12], [12, 0, 0]));
        // 5 at once by each gateway: less than they are sent.
        eventually("a refusal by a share", SOON, async || {
            let [_, _, share] = burst_to_policies(&gateway).await;
            shares = [0, 1, 2].map(|at| shares[at] + share[at]);
            shares[1] > 0
        })
        .await;
        assert!(shares[0] > 0 && shares[2] == 0, "{shares:?}");
        if url.is_some() {
            // Its lease is not renewed. When the ttl has ended, the run is stopped.
            let lost = gateway.until("the loss", |state| all_answers(state, "/billing") == 2).await;
            assert_eq!(answered(&lost, "/billing", None, 503), 1, "{lost}");
        }

        gateway.press("/store/back").await;
        let back = gateway.until("the store", is_reachable).await;
        assert_eq!(back["away"], false);
        eventually("decisions by the store", SOON, async || {
            let [closed, _, _] = burst_to_policies(&gateway).await;
            closed[0] > 0 && closed[2] == 0
        })
        .await;
    }
}
