//! The pages as a screen reader, the keyboard, a phone and a weak eye have them.

use serde_json::{Value, json};

use super::browser::{Browser, Node, in_browser};
use super::process::Gateway;

/// The headings of the gateway's page: what it is, the outage, the shared limit and the queues come first.
const STORY: [&str; 5] = [
    "Limits and locks that hold across every process",
    "One limit, two gateways",
    "An outage, three ways",
    "A shared limit for each client",
    "A FIFO queue beside a fair one",
];

/// Roles that need a name.
const NAMED: [&str; 8] = [
    "button", "switch", "link", "image", "meter", "region", "table", "heading",
];

fn headings(tree: &[Node], most: u64) -> Vec<&str> {
    let headings = tree.iter().filter(|node| node.role == "heading");
    let of_level = headings.filter(|node| node.property("level").as_u64() <= Some(most));
    of_level.map(|node| node.name.as_str()).collect()
}

fn is_named(node: &Node) -> bool {
    let role = match node.role.as_str() {
        "img" => "image",
        role => role,
    };
    !NAMED.contains(&role) || !node.name.trim().is_empty()
}

#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn a_screen_reader_gets_names_order_and_states() {
    in_browser(async |browser| {
        for (gateway, switches) in [(Gateway::start(None), 2), (Gateway::start_llm(None), 1)] {
            browser.show(&gateway).await;
            let tree = browser.tree().await;
            let nameless: Vec<_> = tree.iter().filter(|node| !is_named(node)).collect();
            assert!(nameless.is_empty(), "{nameless:?}");
            let of_role = |role: &str| {
                tree.iter()
                    .filter(|node| node.role == role)
                    .collect::<Vec<_>>()
            };
            assert_eq!(of_role("switch").len(), switches);
            assert_eq!((of_role("main").len(), of_role("status").len()), (1, 1));
            // No level of headings is left out.
            let levels = of_role("heading")
                .into_iter()
                .map(|node| node.property("level").as_u64().unwrap());
            let levels: Vec<_> = levels.collect();
            assert_eq!(levels[0], 1);
            assert!(
                levels.windows(2).all(|pair| pair[1] <= pair[0] + 1),
                "{levels:?}"
            );
            assert_eq!(of_role("status")[0].property("live"), "polite");
            browser.open("about:blank").await;
        }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn states_are_announced() {
    in_browser(async |browser| {
        let gateway = Gateway::start(None);
        browser.show(&gateway).await;
        let tree = browser.tree().await;
        assert_eq!(headings(&tree, 2)[..5], STORY);
        assert_eq!(checked(&tree), [json!("true"), json!("true")]);

        // What the region that is announced says, from now on. It says what changes, and nothing again and again.
        let record = "(window.said = [], new MutationObserver(() => said.push(document.querySelector('#status').textContent)).observe(document.querySelector('#status'), { subtree: true, childList: true, characterData: true }), true)";
        browser.value(record).await;
        browser.switch("store", false).await;
        browser.until_status("The store is switched off").await;
        assert_eq!(checked(&browser.tree().await)[0], "false");
        browser.switch("store", true).await;
        browser.until_status("Live").await;
        browser.click("[data-burst=export]").await;
        browser.until("what was sent", "document.querySelector('#status').textContent === 'Live6 requests sent'").await;
        browser.value("window.events = Number(document.body.dataset.events)").await;
        browser.until("more events", "Number(document.body.dataset.events) > window.events + 20").await;
        let said = browser.value("said.length").await.as_u64().unwrap();
        assert!((3..=8).contains(&said), "{}", browser.value("said").await);
        assert_eq!(browser.log().await, Value::Array(Vec::new()));
    })
    .await;
}

/// The states of the switches.
fn checked(tree: &[Node]) -> Vec<Value> {
    let switches = tree.iter().filter(|node| node.role == "switch");
    switches.map(|node| node.property("checked")).collect()
}

/// The ratio of contrast of each text to its ground, and the text, where it is less than WCAG's AA wants.
const WEAK: &str = "((canvas) => {
  const context = canvas.getContext('2d', { willReadFrequently: true });
  const over = (colors) => { context.clearRect(0, 0, 1, 1); for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); } return [...context.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((part) => (part /= 255) <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4).reduce((sum, part, index) => sum + part * [.2126, .7152, .0722][index], 0);
  const weak = [];
  for (const element of document.querySelectorAll('body *')) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
    if (element.closest('svg, noscript, .hidden, .skip, script') || !element.checkVisibility()) continue;
    const grounds = [];
    for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
    const style = getComputedStyle(element);
    const ground = light(over(['white', ...grounds]));
    const text = light(over(['white', ...grounds, style.color]));
    const ratio = (Math.max(ground, text) + .05) / (Math.min(ground, text) + .05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) weak.push(`${ratio.toFixed(2)} ${element.textContent.slice(0, 30)}`);
  }
  return weak;
})(document.createElement('canvas'))";

#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn texts_have_contrast_and_nothing_jumps() {
    in_browser(async |browser| {
        for (gateway, phone) in [(Gateway::start(None), 4000), (Gateway::start_llm(None), 2500)] {
            browser.resize(390, 844, 1).await;
            browser.show(&gateway).await;
            // All that moves without a click, from the first paint on; a good page has less than 0.1.
            browser.value("(window.moved = 0, new PerformanceObserver((list) => list.getEntries().forEach(({ value }) => window.moved += value)).observe({ type: 'layout-shift', buffered: true }), true)").await;
            browser.until("time to pass", "Number(document.body.dataset.events) > 60").await;
            let moved = browser.value("moved").await.as_f64().unwrap();
            assert!(moved < 0.05, "{moved}");
            let height = browser.value("document.documentElement.scrollHeight").await;
            println!("figure page-phone-height-px {height} (below {phone})");
            assert!(height.as_u64() < Some(phone), "{height}");
            for colors in ["light", "dark"] {
                browser.prefer(colors).await;
                assert_eq!(weak(browser).await, json!([]), "{colors}");
            }
            browser.open("about:blank").await;
        }
    })
    .await;
}

async fn weak(browser: &Browser) -> Value {
    browser.value(WEAK).await
}

/// The first screen tells the problem and the outage; the panels that follow are not empty.
#[tokio::test]
#[ignore = "needs a browser: tests/page.sh"]
async fn the_first_screen_tells_the_story_and_no_panel_is_empty() {
    in_browser(async |browser| {
        let gateway = Gateway::start(None);
        browser.resize(1280, 900, 1).await;
        browser.show(&gateway).await;
        let on_screen = "['#h-counted', '#h-policy', '[data-n=\"local-share.admitted\"]'].every((part) => document.querySelector(part).getBoundingClientRect().bottom < innerHeight)";
        assert_eq!(browser.value(on_screen).await, true);
        // Nothing was clicked.
        for (what, filled) in [
            ("charts", "[...document.querySelectorAll('svg')].every((svg) => svg.querySelector('rect'))"),
            ("lists", "['#keys', '#tenants', '#slots', '#chips'].every((list) => document.querySelector(list).children.length > 1)"),
            ("leases", "!!document.querySelector('[data-lease]')"),
            ("refusals", "document.querySelectorAll('#refused .measure').length > 0"),
            ("numbers", "['together.rate', 'latency.A', 'latency.B', 'fifo.wait', 'fair.wait'].every((name) => /[0-9]/.test(document.querySelector(`[data-n=\"${name}\"]`).textContent))"),
            ("counts", "['limited.admitted', 'exports.done', 'report.spared', 'document.done', 'webhook.handled', 'billing.done'].every((name) => document.querySelector(`[data-n=\"${name}\"]`).textContent !== '0')"),
        ] {
            browser.until(what, filled).await;
        }
        // Without a shared store, twice as much is admitted.
        browser.until("twice as much", "['alone.rate', 'together.rate'].map((name) => Number(document.querySelector(`[data-n=\"${name}\"]`).textContent)).reduce((alone, together) => alone > 1.5 * together && together <= 6)").await;
        // The first card names one store twice, with one latency.
        let text = browser.value("['A', 'B'].map((name) => document.querySelector(`[data-n=\"latency.${name}\"]`).textContent)").await;
        let micros = |index: usize| {
            let text = text[index].as_str().unwrap();
            let (number, unit) = text.split_once(' ').unwrap();
            number.parse::<f64>().unwrap() * if unit == "ms" { 1000.0 } else { 1.0 }
        };
        let ratio = micros(0) / micros(1);
        println!("figure page-first-card-latency-a-to-b {ratio:.2} (0.5 to 2)");
        assert!((0.5..=2.0).contains(&ratio), "{text}");
    })
    .await;
}
