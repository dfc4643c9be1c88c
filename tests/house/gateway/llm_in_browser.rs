//! The page of the example `llm_gateway` as people see it.

use std::time::Duration;

use serde_json::Value;

use super::browser::in_browser;
use super::process::Gateway;
use super::visitor::SOON;
use support::eventually;
use support::redis_server::RedisServer;

/// Estimates are held while streams are under way, and usage is captured when they end or their clients leave.
#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn shows_budgets_streams_and_clients_that_leave() {
    in_browser(async |browser| {
        let server = RedisServer::start().await;
        for url in [None, Some(server.url())] {
            let gateway = Gateway::start_llm(url.as_deref());
            browser.show(&gateway).await;
            browser.until("three tenants", "document.querySelectorAll('[data-tenant]').length === 3").await;
            // acme asks for more than its budget, and the others are not concerned.
            eventually("a refusal", SOON, async || browser.number("acme.refused").await > Some(0)).await;
            for other in ["globex", "initech"] {
                assert_eq!(browser.number(&format!("{other}.refused")).await, Some(0), "{other}");
            }
            eventually("a client that left", SOON, async || browser.number("ended.left").await > Some(0)).await;

            // The numbers of the page are those of the API.
            browser.switch("traffic", false).await;
            eventually("the end of all streams", SOON, async || browser.number("streams.count").await == Some(0)).await;
            browser.until("an empty table", "document.querySelector('#streams').textContent.includes('No stream')").await;
            let is_same = async || {
                let state = gateway.state().await;
                let mut same = true;
                for tenant in state["tenants"].as_array().unwrap() {
                    let name = tenant["name"].as_str().unwrap();
                    let shown = browser.number(&format!("{name}.admitted")).await;
                    same &= shown == tenant["counts"]["statuses"]["200"].as_u64();
                    same &= browser.number(&format!("{name}.held")).await == Some(0);
                }
                same
            };
            eventually("the numbers of the API", SOON, is_same).await;

            // One that reads to the end, and one that leaves.
            let captured = browser.number("ended.captured").await.unwrap();
            browser.click("[data-burst=read]").await;
            eventually("tokens that are held", SOON, async || browser.number("initech.held").await == Some(1000)).await;
            assert_eq!(browser.number("streams.held").await, Some(1000));
            eventually("its usage", SOON, async || browser.number("ended.captured").await == Some(captured + 400)).await;
            let left = browser.number("ended.left").await.unwrap();
            browser.click("[data-burst=leave]").await;
            eventually("its end", SOON, async || browser.number("ended.left").await == Some(left + 1)).await;
            let end = "document.querySelector('#ended tr').lastChild.textContent";
            assert_eq!(browser.value(end).await, "client left");
            let paid = browser.number("ended.captured").await.unwrap() - captured - 400;
            assert!((8..400).contains(&paid), "{paid}");

            if url.is_some() {
                server.kill9();
                browser.until_status("The store does not answer: requests are refused").await;
                browser.until("unknown levels", "[...document.querySelectorAll('.level')].every((level) => level.getAttribute('aria-valuetext') === 'unknown')").await;
                assert_eq!(browser.text("[data-n=\"acme.tokens\"]").await, "unknown");
                server.restart().await;
                browser.until_status("Live, without steady traffic").await;
            }
            assert_eq!(browser.log().await, Value::Array(Vec::new()));
            browser.open("about:blank").await;
        }
    })
    .await;
}

/// The budgets as text, without a page.
#[tokio::test]
async fn prints_the_budgets_once() {
    let once = tokio::process::Command::new(support::example::program_of("llm_gateway"))
        .arg("once")
        .env_remove("REDIS_URL")
        .output();
    let output = tokio::time::timeout(Duration::from_secs(60), once)
        .await
        .unwrap()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[..3],
        ["acme: 200 OK", "globex: 200 OK", "initech: 200 OK"]
    );
    let cells: Vec<_> = lines[6].split_whitespace().collect();
    // 20 events of 8 tokens are captured, of which some have been refilled, and nothing is held.
    let captured: u32 = cells[4].parse().unwrap();
    assert!(
        cells[0] == "initech" && cells[3] == "0" && captured <= 160,
        "{text}"
    );
}
