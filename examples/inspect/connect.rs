//! The store that the arguments name.

use std::time::Duration;

use tower_distributed::{Store, StoreBuilder};

use crate::arguments::Arguments;
use crate::{Failure, told};

/// A person waits for the answer.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn store(arguments: &Arguments) -> Result<Store, Failure> {
    let mut builder = Store::builder()
        .prefix(&arguments.prefix)
        .timeout(TIMEOUT)
        .connect_timeout(TIMEOUT);
    if let Some(path) = &arguments.password_file {
        builder = builder.password_file(path).map_err(told)?;
    }
    match (arguments.cluster, &arguments.sentinel, &arguments.urls[..]) {
        (true, _, urls) => cluster(builder, urls),
        (_, Some(master), urls) => sentinel(builder, urls, master),
        (_, None, [url]) => builder
            .redis(url)
            .map_err(|error| format!("{}: {error}", without_secret(url))),
        (_, None, urls) => Err(format!(
            "{} URLs: add --cluster or --sentinel, or name one server",
            urls.len()
        )),
    }
}

/// The host and the path of a URL, without the user, the password and the parameters.
fn without_secret(url: &str) -> &str {
    let url = url.split('?').next().unwrap_or(url);
    url.rsplit('@').next().unwrap_or(url)
}

#[cfg(feature = "cluster")]
fn cluster(builder: StoreBuilder, urls: &[String]) -> Result<Store, Failure> {
    builder.cluster(urls).map_err(told)
}

#[cfg(not(feature = "cluster"))]
fn cluster(_: StoreBuilder, _: &[String]) -> Result<Store, Failure> {
    Err(
        "this tool was built without Cluster: cargo run --features operator,cluster --example inspect"
            .into(),
    )
}

#[cfg(feature = "sentinel")]
fn sentinel(builder: StoreBuilder, urls: &[String], master: &str) -> Result<Store, Failure> {
    builder.sentinel(urls, master).map_err(told)
}

#[cfg(not(feature = "sentinel"))]
fn sentinel(_: StoreBuilder, _: &[String], _: &str) -> Result<Store, Failure> {
    Err(
        "this tool was built without Sentinel: cargo run --features operator,sentinel --example inspect"
            .into(),
    )
}
