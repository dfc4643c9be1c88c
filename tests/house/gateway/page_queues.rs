//! What the page tells of the two queues of tenants, and of the keys that are refused most.

use reqwest::Client;
use serde_json::Value;

use super::page::answered;
use super::process::Gateway;
use support::redis_server::RedisServer;

impl Gateway {
    /// Calls a queue as a tenant that the page does not know, and returns how many calls it waited for.
    async fn queue(&self, queue: &str) -> u64 {
        let request = Client::new().get(format!("{}/queue/{queue}", self.base));
        let text = request.header("x-tenant", "<b>me").send().await.unwrap().text().await.unwrap();
        let turns = text.strip_prefix("waited for ").and_then(|text| text.strip_suffix(" other calls\n"));
        turns.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    }
}

fn queues(state: &Value) -> [&Value; 2] {
    [&state["queues"]["fifo"], &state["queues"]["fair"]]
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// One row of the page.
fn tenant<'a>(queue: &'a Value, name: &str) -> Option<&'a Value> {
    queue["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == name)
}

fn is_full(state: &Value) -> bool {
    queues(state)
        .iter()
        .all(|queue| tenant(queue, "greedy").is_some_and(|greedy| number(&greedy["waiting"]) >= 30))
}

fn is_empty(state: &Value) -> bool {
    let present = |tenant: &Value| number(&tenant["waiting"]) + number(&tenant["working"]);
    queues(state).iter().all(|queue| queue["tenants"].as_array().unwrap().iter().all(|one| present(one) == 0))
}

#[tokio::test]
async fn a_modest_tenant_waits_for_fewer_calls_in_the_fair_queue() {
    let server = RedisServer::start().await;
    for url in [None, Some(server.url())] {
        let gateway = Gateway::start(url.as_deref());
        let before = gateway.state().await;
        assert!(queues(&before).iter().all(|queue| queue["tenants"] == Value::Array(Vec::new())), "{before}");

        // While somebody looks.
        let events = gateway.events().await;
        gateway.until("full queues", is_full).await;
        let [fifo, fair] = [gateway.queue("fifo").await, gateway.queue("fair").await];
        // The first call of each other flow at most, and what was let through before it came to the store.
        assert!(fifo >= 20 && fair <= 14, "{fifo} {fair}");

        let is_seen = |state: &Value| {
            let [fifo, fair] = queues(state).map(|queue| &queue["modest"]);
            let turns = [fifo, fair].map(|modest| modest["turns"].as_u64().unwrap_or(0));
            number(&fifo["served"]) >= 3 && number(&fair["served"]) >= 3 && turns[0] > 2 * turns[1]
        };
        let state = gateway.until("the modest tenants", is_seen).await;
        for queue in queues(&state) {
            assert!(number(&queue["modest"]["wait_ms"]) < 10_000, "{queue}");
            let tenants = queue["tenants"].as_array().unwrap();
            assert!(tenants.len() <= 11 && number(&queue["permits"]) == 4, "{queue}");
            let working: u64 = tenants.iter().map(|tenant| number(&tenant["working"])).sum();
            assert!(working <= 4, "{queue}");
            let waiting: u64 = tenants.iter().map(|tenant| number(&tenant["waiting"])).sum();
            assert!(waiting <= 60, "{queue}");
            // A fair share is no cap: the greedy tenant gets what the others leave.
            let greedy = &tenant(queue, "greedy").unwrap()["lately"];
            assert!(number(&greedy["served"]) > number(&queue["modest"]["served"]), "{queue}");
            assert!(tenant(queue, "others").is_some(), "{queue}");
        }
        assert!(!state.to_string().contains("<b>"), "names that clients choose are not told: {state}");

        drop(events);
        gateway.until("empty queues", is_empty).await;
    }
}

#[tokio::test]
async fn nobody_queues_without_traffic_or_without_the_store() {
    let server = RedisServer::start().await;
    for url in [None, Some(server.url())] {
        let gateway = Gateway::start(url.as_deref());
        let _events = gateway.events().await;
        for [stop, start] in [["/traffic/off", "/traffic/on"], ["/store/away", "/store/back"]] {
            gateway.until("full queues", is_full).await;
            gateway.press(stop).await;
            gateway.until("empty queues", is_empty).await;
            gateway.press(start).await;
        }
        gateway.until("full queues", is_full).await;
    }
}

#[tokio::test]
async fn the_keys_that_are_refused_most_come_first() {
    let server = RedisServer::start().await;
    for url in [None, Some(server.url())] {
        let gateway = Gateway::start(url.as_deref());
        assert_eq!(gateway.state().await["refused"], Value::Array(Vec::new()));
        for burst in ["limited?caller=3", "limited", "limited", "limited"] {
            gateway.press(&format!("/burst/{burst}")).await;
        }
        let refused = |state: &Value| -> Vec<(String, u64)> {
            let keys = state["refused"].as_array().unwrap().iter();
            keys.map(|one| {
                assert_eq!(number(&one["at_least"]), number(&one["at_most"]), "few keys are counted exactly");
                (one["key"].as_str().unwrap().to_owned(), number(&one["at_most"]))
            })
            .collect()
        };
        let all = |state: &Value| {
            answered(state, "/limited", None, 200) + answered(state, "/limited", None, 429) == 60
        };
        let state = gateway.until("60 answers", all).await;
        let refused = refused(&state);
        assert_eq!(refused[0].0, "127.0.0.1", "{state}");
        assert!(refused.is_sorted_by(|one, other| one.1 >= other.1), "{state}");
        let sum: u64 = refused.iter().map(|one| one.1).sum();
        assert_eq!(sum, answered(&state, "/limited", None, 429), "of both gateways: {state}");
    }
}
