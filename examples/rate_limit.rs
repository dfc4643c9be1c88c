//! The rate-limit layer without HTTP: jobs limited per tenant, in the refusing and in the waiting way.
//!
//! ```text
//! cargo run --example rate_limit
//! REDIS_URL=redis://127.0.0.1/ cargo run --example rate_limit
//! ```

use std::time::{Duration, Instant};

use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_distributed::{Quota, RateLimitLayer, Refusal, Store, TokenBucket};

#[derive(Debug)]
struct Job {
    tenant: &'static str,
    pages: u32,
}

async fn print(job: Job) -> Result<String, BoxError> {
    Ok(format!("printed {} pages for {}", job.pages, job.tenant))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    // 20 pages a second, 50 at once; each tenant has its own.
    let bucket = TokenBucket::new(&store, "printer", Quota::per_second(20).burst(50))?;
    let per_page = RateLimitLayer::new(bucket, |job: &Job| job.tenant).cost(|job: &Job| job.pages);

    println!("refusing:");
    let mut printer = ServiceBuilder::new()
        .layer(per_page.clone())
        .service(service_fn(print));
    for (tenant, pages) in [("acme", 30), ("acme", 30), ("umbrella", 30), ("acme", 51)] {
        match printer.ready().await?.call(Job { tenant, pages }).await {
            Ok(done) => println!("  {done}"),
            Err(error) => match error.downcast_ref::<Refusal>() {
                Some(refusal) => println!("  {pages} pages for {tenant}: {refusal}"),
                None => return Err(error),
            },
        }
    }

    println!("waiting:");
    let waiting = per_page.max_wait(Duration::from_secs(5));
    let mut printer = ServiceBuilder::new()
        .layer(waiting)
        .service(service_fn(print));
    let began = Instant::now();
    for _ in 0..3 {
        let done = printer
            .ready()
            .await?
            .call(Job {
                tenant: "initech",
                pages: 30,
            })
            .await?;
        println!("  after {:>4} ms: {done}", began.elapsed().as_millis());
    }
    Ok(())
}
