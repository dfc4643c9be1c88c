//! At most two exports of a tenant at once, whatever process they run in: a WaitGroup without HTTP.
//!
//! ```text
//! cargo run --example concurrency_limit
//! REDIS_URL=redis://127.0.0.1/ cargo run --example concurrency_limit    # start it twice
//! ```

use std::time::Duration;

use tower::{Service as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    let exports = WaitGroup::new(&store, "exports", 2)?;
    let limit = ConcurrencyLimitLayer::new(exports.clone(), |(tenant, _): &(String, u32)| {
        tenant.clone()
    })
    .max_wait(Duration::from_secs(30));
    let export = ServiceBuilder::new()
        .layer(limit)
        .service(service_fn(export));

    let jobs = (1..=6).map(|job| {
        let mut export = export.clone();
        tokio::spawn(async move { export.ready().await?.call(("acme".to_owned(), job)).await })
    });
    for job in jobs.collect::<Vec<_>>() {
        println!("{}", job.await??);
    }

    exports.wait("acme").await?;
    println!("none is left, here or elsewhere");
    Ok(())
}

async fn export((tenant, job): (String, u32)) -> Result<String, std::convert::Infallible> {
    println!("export {job} of {tenant} begins");
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok(format!("export {job} of {tenant} is done"))
}
