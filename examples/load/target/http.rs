//! Requests to a URL.

use std::error::Error as _;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, Method, Response, StatusCode, Url, redirect};
use tower_distributed::Error;

use crate::args;
use crate::clock;
use crate::recorder::{Call, Outcome};

/// Sends the same request again and again. Proxies of the environment are not used and redirects not followed, so
/// that the URL itself is measured.
#[derive(Debug)]
pub(crate) struct Http {
    client: Client,
    method: Method,
    url: Url,
    headers: HeaderMap,
    /// Whether there is a quota to check.
    is_limited: bool,
}

impl Http {
    pub(super) fn new(arguments: &args::Http, tasks: u32) -> Result<Self, Error> {
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .timeout(arguments.timeout_ms)
            .pool_max_idle_per_host(tasks as usize)
            .build();
        let client = client.map_err(|error| Error::bad_request(chain(&error)))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &arguments.header {
            headers.append(name, value.clone());
        }
        let args::Http {
            method, url, quota, ..
        } = arguments.clone();
        Ok(Self {
            client,
            method,
            url,
            headers,
            is_limited: quota.is_some(),
        })
    }

    pub(super) async fn call(&self, call: Call<'_>) {
        let request = self.client.request(self.method.clone(), self.url.clone());
        let answered = async {
            let response = request.headers(self.headers.clone()).send().await?;
            // The server has decided. The body still has to come.
            let (to, outcome, status) = (clock::now(), outcome(&response), response.status());
            drain(response).await?;
            Ok::<_, reqwest::Error>((to, outcome, status))
        };
        match answered.await {
            Ok((_, outcome, status)) if !self.is_limited => call.answered(outcome, status.as_str()),
            Ok((to, outcome, status)) => call.decided(0, to, outcome, status.as_str()),
            Err(error) => call.failed(&chain(&error.without_url())),
        }
    }
}

fn outcome(response: &Response) -> Outcome {
    match response.status() {
        status if status.is_success() => Outcome::Admitted,
        StatusCode::TOO_MANY_REQUESTS => Outcome::Refused,
        StatusCode::SERVICE_UNAVAILABLE if response.headers().contains_key(RETRY_AFTER) => {
            Outcome::Refused
        }
        _ => Outcome::Failed,
    }
}

/// Reads the body to its end, so that the connection can be used again. Nothing of it is kept.
async fn drain(mut response: Response) -> Result<(), reqwest::Error> {
    while response.chunk().await?.is_some() {}
    Ok(())
}

/// The text of an error with its causes.
fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
