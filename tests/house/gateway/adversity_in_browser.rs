//! The page while something goes wrong: a gateway that stops or is replaced, a store that goes away, hasty clicks.

use serde_json::Value;

use super::browser::in_browser;
use super::process::Gateway;
use super::visitor::SOON;
use support::eventually;
use support::redis_server::RedisServer;

#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn tells_a_gateway_that_stops_or_is_replaced() {
    in_browser(async |browser| {
        let mut gateway = Gateway::start(None);
        browser.show(&gateway).await;
        browser.until_status("Live").await;
        gateway.pause();
        browser.until_status("The gateway does not answer").await;
        assert_eq!(browser.value("document.body.classList.contains('stale')").await, true);
        // A click is not answered, and the switch tells what is known.
        browser.click("#store").await;
        browser.until("no answer to the click", "document.querySelector('#status span').textContent === 'the click was not answered'").await;
        gateway.resume();
        browser.until("news", "!document.body.classList.contains('stale')").await;
        // Whether the click has arrived late or never, the switch shows what is.
        let is_told = async || {
            let is_reachable = gateway.state().await["away"] == false;
            let checked = browser.value("document.querySelector('#store').getAttribute('aria-checked')").await;
            checked == if is_reachable { "true" } else { "false" }
        };
        eventually("what is", SOON, is_told).await;
        gateway.press("/store/back").await;
        browser.until_status("Live").await;

        // Another process counts from the beginning, and the charts do as well.
        eventually("admissions", SOON, async || browser.number("limited.admitted").await > Some(20)).await;
        gateway.restart();
        browser.until_status("Live").await;
        eventually("a new count", SOON, async || browser.number("limited.admitted").await < Some(20)).await;
        browser.until("new bars", "document.querySelector('[data-policy=fail-open] svg').querySelectorAll('rect.a').length > 1").await;
        eventually("a rate", SOON, async || browser.number("together.rate").await >= Some(4)).await;
    })
    .await;
}

/// The permits in use are known.
const PERMITS: &str =
    "/of 2/.test(document.querySelector('[data-n=\"exports.in_use\"]').textContent)";

/// Not by the switch of the page: the server itself is gone.
#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn tells_that_redis_is_gone() {
    in_browser(async |browser| {
        let server = RedisServer::start().await;
        let gateway = Gateway::start(Some(&server.url()));
        browser.show(&gateway).await;
        browser.until_status("Live").await;
        browser.until("permits", PERMITS).await;
        server.kill9();
        browser.until_status("The store does not answer").await;
        browser
            .until(
                "unknown permits",
                "document.querySelector('[data-n=\"exports.in_use\"]').textContent === 'unknown'",
            )
            .await;
        assert_eq!(
            browser
                .value("document.querySelector('#store-note').classList.contains('failed')")
                .await,
            true
        );
        browser
            .until(
                "refusals",
                "document.querySelector('[data-policy=fail-closed] rect.f') !== null",
            )
            .await;
        server.restart().await;
        browser.until_status("Live").await;
        browser.until("permits", PERMITS).await;
        assert_eq!(browser.log().await, Value::Array(Vec::new()));
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn hasty_clicks_are_ordered_and_reduced_motion_is_kept() {
    in_browser(async |browser| {
        let gateway = Gateway::start(None);
        browser.show(&gateway).await;
        browser.switch("traffic", false).await;
        browser.until_status("Live, without steady traffic").await;
        // An even number of clicks on a switch leaves it as it was; on a button, one request is under way at once.
        browser.value("Array.from({ length: 10 }, () => document.querySelector('#store').click())").await;
        browser.value("Array.from({ length: 3 }, () => document.querySelector('[data-burst=billing]').click())").await;
        browser.until("what was sent", "document.querySelector('#status span').textContent === '2 requests sent'").await;
        let state = gateway.state().await;
        assert_eq!(state["away"], false);
        assert_eq!(browser.value("document.querySelector('#store').getAttribute('aria-checked')").await, "true");
        browser.value("Array.from({ length: 3 }, () => document.querySelector('#store').click())").await;
        gateway.until("an outage", |state| state["away"] == true).await;
        browser.until_status("The store is switched off").await;

        // With reduced motion, charts are drawn once a second.
        browser.emulate("prefers-reduced-motion", "reduce").await;
        let record = "(window.drawn = 0, window.before = Number(document.body.dataset.events), new MutationObserver(() => window.drawn++).observe(document.querySelector('[data-policy=fail-open] svg'), { childList: true }), true)";
        browser.value(record).await;
        browser.until("events", "Number(document.body.dataset.events) > window.before + 25").await;
        let drawn = browser.value("drawn").await.as_u64().unwrap();
        assert!((1..=12).contains(&drawn), "{drawn}");
    })
    .await;
}
