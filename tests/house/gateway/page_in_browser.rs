//! The page as people see it: buttons are clicked, and its numbers are those of the API.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::browser::{Browser, in_browser};
use super::page::answered;
use super::process::Gateway;
use super::visitor::SOON;
use support::eventually;
use support::redis_server::RedisServer;

/// Names of keys in WebDriver.
const TAB: char = '\u{e004}';
const SPACE: char = ' ';
/// During an outage, nothing that only the store knows is shown as free, or as a number.
const UNKNOWN: &str = "[...document.querySelectorAll('.slot')].every((slot) => slot.textContent !== 'free') \
    && ['exports.in_use', 'latency.A', 'latency.B'].every((name) => document.querySelector(`[data-n=\"${name}\"]`).textContent === 'unknown') \
    && [...document.querySelectorAll('.gauge')].every((gauge) => gauge.getAttribute('aria-valuetext') === 'unknown')";

/// All numbers of the page that count answers, beside what the API tells.
async fn compare(browser: &Browser, gateway: &Gateway) {
    let statuses = |name: &str, route: &str, names: &[(&str, u16)]| -> Vec<(String, String, u16)> {
        names
            .iter()
            .map(|(what, status)| (format!("{name}.{what}"), route.to_owned(), *status))
            .collect()
    };
    let limit = [("admitted", 200), ("refused", 429), ("unavailable", 503)];
    let mut numbers = statuses("limited", "/limited", &limit);
    for policy in ["fail-closed", "fail-open", "local-share"] {
        numbers.extend(statuses(policy, &format!("/policy/{policy}"), &limit));
    }
    numbers.extend(statuses(
        "webhook",
        "/webhook",
        &[("handled", 200), ("duplicates", 409), ("failed", 500)],
    ));
    numbers.extend(statuses(
        "billing",
        "/billing",
        &[("done", 200), ("refused", 423)],
    ));
    numbers.extend(statuses("document", "/document/{id}", &[("done", 200)]));
    numbers.extend(
        statuses("export", "/export", &[("done", 200)])
            .into_iter()
            .map(|(_, route, status)| ("exports.done".to_owned(), route, status)),
    );
    let mut differ = Vec::new();
    let is_same = async || {
        let state = gateway.state().await;
        differ.clear();
        for (name, route, status) in &numbers {
            let (shown, told) = (
                browser.number(name).await,
                answered(&state, route, None, *status),
            );
            if shown != Some(told) {
                differ.push(format!("{name}: {shown:?} is {told}"));
            }
        }
        for (name, field) in [
            ("report.arrived", "arrived"),
            ("report.worked", "worked"),
            ("report.spared", "spared"),
        ] {
            let (shown, told) = (
                browser.number(name).await,
                state["routes"]["/report/{id}"][field].as_u64(),
            );
            if shown != told.or(Some(0)) {
                differ.push(format!("{name}: {shown:?} is {told:?}"));
            }
        }
        differ.is_empty()
    };
    eventually("the numbers of the API", SOON, is_same).await;
}

#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn shows_the_numbers_of_the_api() {
    in_browser(async |browser| {
        let server = RedisServer::start().await;
        for url in [None, Some(server.url())] {
            let gateway = Gateway::start(url.as_deref());
            browser.show(&gateway).await;
            // What the traffic does is seen, and then only what is clicked.
            eventually("traffic", SOON, async || browser.number("limited.admitted").await > Some(0)).await;
            browser.until("a row for each tenant", "document.querySelectorAll('[data-tenant]').length >= 10").await;
            eventually("a shorter wait", SOON, async || browser.number("fifo.turns").await > browser.number("fair.turns").await).await;
            browser.switch("traffic", false).await;
            compare(browser, &gateway).await;

            browser.click_until("limited", "limited.refused", 1).await;
            browser.click_until("limited?caller=3", "limited.refused", 1).await;
            browser.until("three callers", "document.querySelectorAll('[data-caller]').length === 3").await;
            // Those of the traffic have ended.
            eventually("free permits", SOON, async || browser.number("exports.in_use").await == Some(0)).await;
            browser.click_until("export", "exports.waiting", 4).await;
            assert_eq!(browser.number("exports.in_use").await, Some(2));
            browser.click_until("billing", "billing.refused", 1).await;
            browser.until("a lease of a mutex", "!!document.querySelector('[data-lease=mutex]')").await;
            browser.click_until("report", "report.spared", 19).await;
            browser.click_until("document", "document.done", 10).await;
            browser.click_until("webhook", "webhook.duplicates", 8).await;
            browser.click_until("policies", "local-share.admitted", 1).await;
            eventually("all exports", SOON, async || browser.number("exports.in_use").await == Some(0)).await;
            compare(browser, &gateway).await;

            // The store goes away and comes back.
            let (open, share) =
                (browser.number("fail-open.admitted").await, browser.number("local-share.refused").await);
            browser.switch("store", false).await;
            browser.until("the outage", "document.querySelector('#status').textContent.includes('off')").await;
            browser.until("unknown permits", UNKNOWN).await;
            let breakers = "[...'AB'].every((name) => document.querySelector(`[data-n=\"breaker.${name}\"]`).textContent === 'open')";
            browser.until("open breakers", breakers).await;
            browser.click_until("policies", "fail-closed.unavailable", 12).await;
            eventually("failing open", SOON, async || browser.number("fail-open.admitted").await == Some(open.unwrap() + 12)).await;
            eventually("a share that is used up", SOON, async || {
                browser.click("[data-burst=policies]").await;
                browser.number("local-share.refused").await > share
            })
            .await;
            browser.switch("store", true).await;
            browser.until("the store", &breakers.replace("'open'", "'closed'")).await;
            compare(browser, &gateway).await;
            assert_eq!(browser.log().await, Value::Array(Vec::new()));
            // The gateway ends here, and the page does not complain.
            browser.open("about:blank").await;
        }
    })
    .await;
}

/// Keys come from clients. Plain ones are stored by whoever counts them.
#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn shows_refused_keys_as_text() {
    in_browser(async |browser| {
        let gateway = Gateway::start(None);
        browser.show(&gateway).await;
        let key = "<img src=x onerror=\"document.title='run'\">&amp;";
        let state = json!({ "refused": [{ "key": key, "at_least": 7, "at_most": 9 }] });
        let shown = format!(
            "import('/page/limits.js').then(({{ refused }}) => (refused({state}), [document.querySelector('#refused').querySelectorAll('img').length, ...[...document.querySelectorAll('#refused th, #refused td')].map((cell) => cell.textContent)]))"
        );
        assert_eq!(browser.value(&shown).await, json!([0, key, "7–9"]));
        assert_eq!(browser.log().await, Value::Array(Vec::new()));
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn is_used_by_keyboard_read_on_a_phone_and_dark_at_night() {
    in_browser(async |browser| {
        let gateway = Gateway::start(None);
        browser.show(&gateway).await;

        // Every link and button is reached by the keyboard, in the order of the page, and shows it.
        let all = "document.querySelectorAll('a[href], button')";
        let count = browser.value(&format!("{all}.length")).await.as_u64().unwrap();
        for nth in 0..count {
            browser.press(TAB).await;
            let is_focused = format!("document.activeElement === {all}[{nth}] && getComputedStyle(document.activeElement).outlineStyle === 'solid'");
            assert_eq!(browser.value(&is_focused).await, true, "{nth}");
        }
        browser.value("document.querySelector('#store').focus()").await;
        browser.press(SPACE).await;
        browser.until_checked("store", false).await;
        browser.press(SPACE).await;
        browser.until_checked("store", true).await;

        let overflow = "document.documentElement.scrollWidth > innerWidth";
        for (width, height) in [(1280, 900), (820, 1180), (390, 844), (320, 640)] {
            browser.resize(width, height, 1).await;
            assert_eq!(browser.value(overflow).await, false, "{width}");
        }
        let ground = "getComputedStyle(document.body).backgroundColor";
        browser.prefer("light").await;
        let light = browser.value(ground).await;
        browser.prefer("dark").await;
        assert_ne!(browser.value(ground).await, light);

        // Nothing is loaded but the events and what buttons send.
        let loaded = "performance.getEntriesByType('resource').filter(({ name }) => !name.startsWith(location.origin)).length";
        assert_eq!(browser.value(loaded).await, 0);
        assert_eq!(browser.log().await, Value::Array(Vec::new()));
    })
    .await;
}

/// Makes the pictures of the page, to be looked at: `SCREENSHOTS=docs cargo test … -- --ignored screenshots`.
#[tokio::test]
#[ignore = "it makes pictures, and takes a minute for each"]
async fn screenshots() {
    let directory =
        std::env::var_os("SCREENSHOTS").expect("SCREENSHOTS names the directory of the pictures");
    in_browser(async |browser| {
        for (name, colors, width, height, scale) in [
            ("light", "light", 1280, 900, 1),
            ("dark", "dark", 1280, 900, 1),
            ("phone", "light", 390, 1480, 2),
        ] {
            let server = RedisServer::start().await;
            let gateway = Gateway::start(Some(&server.url()));
            browser.resize(width, height, scale).await;
            browser.prefer(colors).await;
            browser.open(&gateway.base).await;
            // Each at its second, so that the charts are full. The gateway started a moment ago.
            for (second, button) in [
                (14, "[data-burst=limited]"),
                (22, "#store"),
                (29, "#store"),
                (38, "[data-burst=limited]"),
                (41, "[data-burst=export]"),
            ] {
                seconds(browser, second).await;
                browser
                    .value(&format!("document.querySelector(\"{button}\").click()"))
                    .await;
            }
            seconds(browser, 43).await;
            let picture = BASE64_STANDARD
                .decode(browser.screenshot(width, scale, width > 600).await)
                .unwrap();
            assert!(picture.len() < 400_000, "{name}: {} bytes", picture.len());
            std::fs::write(
                Path::new(&directory).join(format!("gateway-{name}.png")),
                picture,
            )
            .unwrap();
        }
    })
    .await;
}

/// Waits for a second of the gateway's life, as the page has been told.
async fn seconds(browser: &Browser, second: u64) {
    let is_later = async || {
        let now = browser
            .value("Number(document.body.dataset.nowMs || 0)")
            .await;
        now.as_u64() >= Some(second * 1000)
    };
    eventually("time to pass", Duration::from_secs(60), is_later).await;
}
