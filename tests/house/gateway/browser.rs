//! A headless Chromium, driven by the WebDriver protocol of its `chromedriver`.

use std::io::{BufRead as _, BufReader};
use std::panic::AssertUnwindSafe;
use std::process::{ChildStdout, Stdio};

use futures::FutureExt as _;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use support::supervised::Supervised;

/// Without these, Chromium looks for hosts of its vendor, and for a sandbox that root does not have.
const ARGUMENTS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
];
/// How WebDriver names the reference of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A session in the browser.
pub(crate) struct Browser {
    _driver: Supervised,
    /// Kept open: it goes on printing.
    _stdout: BufReader<ChildStdout>,
    client: Client,
    session: String,
}

/// Runs a test in a browser. These tests are ignored unless `tests/page.sh` runs them, which installs one.
pub(crate) async fn in_browser(test: impl AsyncFnOnce(&Browser)) {
    let browser = Browser::start().await;
    let outcome = AssertUnwindSafe(test(&browser)).catch_unwind().await;
    // The browser ends with its session, not with its driver.
    browser.send(Method::DELETE, "", None).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

impl Browser {
    async fn start() -> Self {
        let mut command = Supervised::command("chromedriver", None);
        command.arg("--port=0").stdout(Stdio::piped());
        let mut driver = Supervised::spawn(command);
        let mut stdout = BufReader::new(driver.take_stdout().unwrap());
        let port = loop {
            let mut line = String::new();
            assert!(
                stdout.read_line(&mut line).unwrap() > 0,
                "chromedriver has ended"
            );
            if let Some((_, port)) = line
                .trim_end()
                .trim_end_matches('.')
                .rsplit_once("successfully on port ")
            {
                break port.to_owned();
            }
        };
        let client = Client::builder().no_proxy().build().unwrap();
        let session = format!("http://127.0.0.1:{port}/session");
        let mut browser = Self {
            _driver: driver,
            _stdout: stdout,
            client,
            session,
        };
        let options =
            json!({ "browserName": "chrome", "goog:chromeOptions": { "args": ARGUMENTS } });
        let capabilities = json!({ "capabilities": { "alwaysMatch": options } });
        let created = browser.send(Method::POST, "", Some(capabilities)).await;
        browser.session = format!(
            "{}/{}",
            browser.session,
            created["sessionId"].as_str().unwrap()
        );
        browser
    }

    /// Sends a command and returns its value.
    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.session));
        if let Some(body) = &body {
            request = request.json(body);
        }
        let mut answer: Value = request.send().await.unwrap().json().await.unwrap();
        let value = answer["value"].take();
        assert!(value.get("error").is_none(), "{path} {body:?}: {value}");
        value
    }

    pub(crate) async fn open(&self, url: &str) {
        self.send(Method::POST, "/url", Some(json!({ "url": url })))
            .await;
    }

    async fn element(&self, selector: &str) -> String {
        let find = json!({ "using": "css selector", "value": selector });
        let found = self.send(Method::POST, "/element", Some(find)).await;
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    pub(crate) async fn click(&self, selector: &str) {
        let element = self.element(selector).await;
        // Not below the bar at the top.
        let middle =
            format!("document.querySelector(`{selector}`).scrollIntoView({{ block: 'center' }})");
        self.value(&middle).await;
        self.send(
            Method::POST,
            &format!("/element/{element}/click"),
            Some(json!({})),
        )
        .await;
    }

    /// Presses a key, as WebDriver names it.
    pub(crate) async fn press(&self, key: char) {
        let press = [
            json!({ "type": "keyDown", "value": key }),
            json!({ "type": "keyUp", "value": key }),
        ];
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": press }] });
        self.send(Method::POST, "/actions", Some(actions)).await;
    }

    /// The value of an expression of JavaScript.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        let script = json!({ "script": format!("return {expression}"), "args": [] });
        self.send(Method::POST, "/execute/sync", Some(script)).await
    }

    /// Errors and warnings of the page.
    pub(crate) async fn log(&self) -> Value {
        self.send(Method::POST, "/se/log", Some(json!({ "type": "browser" })))
            .await
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let command = json!({ "cmd": command, "params": parameters });
        self.send(Method::POST, "/goog/cdp/execute", Some(command))
            .await
    }

    pub(crate) async fn resize(&self, width: u32, height: u32, scale: u32) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", screen)
            .await;
    }

    pub(crate) async fn prefer(&self, colors: &str) {
        self.emulate("prefers-color-scheme", colors).await;
    }

    /// Sets a feature of the medium, as CSS names it.
    pub(crate) async fn emulate(&self, name: &str, value: &str) {
        let features = json!({ "features": [{ "name": name, "value": value }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// What a screen reader reads: role, name and properties of each node that it does not pass over, in its order.
    pub(crate) async fn tree(&self) -> Vec<Node> {
        let tree = self
            .devtools("Accessibility.getFullAXTree", json!({}))
            .await;
        let nodes = tree["nodes"].as_array().unwrap().iter();
        nodes
            .filter(|node| node["ignored"] != true)
            .map(Node::of)
            .collect()
    }

    /// Returns a PNG in base64: of the whole page, or of what fits on the screen.
    pub(crate) async fn screenshot(&self, width: u32, scale: u32, whole: bool) -> String {
        if whole {
            // The screen is as high as the page, so that charts are drawn as people see them.
            let height = self.value("document.documentElement.scrollHeight").await;
            let height = u32::try_from(height.as_u64().unwrap()).unwrap();
            self.resize(width, height, scale).await;
            let drawn = self.value("Number(document.body.dataset.events)").await;
            let later = format!("Number(document.body.dataset.events) > {drawn} + 2");
            self.until("a picture of this size", &later).await;
        }
        let shot = self
            .devtools("Page.captureScreenshot", json!({ "format": "png" }))
            .await;
        shot["data"].as_str().unwrap().to_owned()
    }
}

/// A node of the tree of a screen reader.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) role: String,
    pub(crate) name: String,
    properties: Value,
}

impl Node {
    fn of(node: &Value) -> Self {
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        Self {
            role: text(&node["role"]),
            name: text(&node["name"]),
            properties: node["properties"].clone(),
        }
    }

    /// A property, such as `checked` or `level`.
    pub(crate) fn property(&self, name: &str) -> Value {
        let properties = self.properties.as_array();
        let mut properties = properties.into_iter().flatten();
        let found = properties.find(|property| property["name"] == name);
        found.map_or(Value::Null, |found| found["value"]["value"].clone())
    }
}
