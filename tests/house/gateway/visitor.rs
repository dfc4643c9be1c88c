//! What a visitor of a page reads and presses.

use std::time::Duration;

use super::browser::Browser;
use super::process::Gateway;
use support::eventually;

pub(super) const SOON: Duration = Duration::from_secs(30);

impl Browser {
    /// A number of the page; of `2 of 4` the first one.
    pub(super) async fn number(&self, name: &str) -> Option<u64> {
        let text = self.text(&format!("[data-n=\"{name}\"]")).await;
        let grouped = text
            .chars()
            .take_while(|c| c.is_ascii_digit() || *c == '\u{202f}');
        let digits: String = grouped.filter(char::is_ascii_digit).collect();
        digits.parse().ok()
    }

    pub(super) async fn text(&self, selector: &str) -> String {
        let expression = format!("document.querySelector('{selector}').textContent");
        self.value(&expression).await.as_str().unwrap().to_owned()
    }

    pub(super) async fn until(&self, what: &str, expression: &str) {
        eventually(what, SOON, async || self.value(expression).await == true).await;
    }

    /// Opens the page of a gateway, and waits until it is served events.
    pub(super) async fn show(&self, gateway: &Gateway) {
        self.open(&gateway.base).await;
        self.until("events", "Number(document.body.dataset.events) > 3")
            .await;
    }

    /// Clicks a button and waits until a number is greater by so many.
    pub(super) async fn click_until(&self, button: &str, name: &str, more: u64) {
        let before = self.number(name).await.unwrap_or(0);
        self.click(&format!("[data-burst=\"{button}\"]")).await;
        eventually(&format!("{name} after {button}"), SOON, async || {
            self.number(name).await >= Some(before + more)
        })
        .await;
    }

    pub(super) async fn switch(&self, id: &str, on: bool) {
        self.click(&format!("#{id}")).await;
        self.until_checked(id, on).await;
    }

    /// Waits until a switch shows that it is on, or off.
    pub(super) async fn until_checked(&self, id: &str, on: bool) {
        let checked =
            format!("document.querySelector('#{id}').getAttribute('aria-checked') === '{on}'");
        self.until(id, &checked).await;
    }

    /// Waits until the page says how it is.
    pub(super) async fn until_status(&self, text: &str) {
        let says = format!("document.querySelector('#status b').textContent === '{text}'");
        self.until(text, &says).await;
    }
}
