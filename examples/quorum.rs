//! A mutex on a quorum of independent servers: it is there as long as a majority of them is.
//!
//! ```text
//! cargo run --features quorum --example quorum                                  # three stores in this process
//! REDIS_URLS=redis://a/,redis://b/,redis://c/ cargo run --features quorum --example quorum
//! ```

use std::time::Duration;

use tower_distributed::{Error, Mutex, Store};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nodes = match std::env::var("REDIS_URLS") {
        Ok(urls) => urls
            .split(',')
            .map(Store::redis)
            .collect::<Result<_, _>>()?,
        Err(_) => vec![Store::in_memory(), Store::in_memory(), Store::in_memory()],
    };
    println!(
        "{} servers, {} of them may be away",
        nodes.len(),
        (nodes.len() - 1) / 2
    );
    let leaders = Mutex::builder()
        .ttl(Duration::from_secs(5))
        .build_quorum(nodes, "leaders")?;

    let candidates = (1..=3).map(|candidate| {
        let leaders = leaders.clone();
        tokio::spawn(async move { lead(candidate, &leaders).await })
    });
    for candidate in candidates.collect::<Vec<_>>() {
        candidate.await??;
    }
    Ok(())
}

async fn lead(candidate: u32, leaders: &Mutex) -> Result<(), Error> {
    let guard = leaders.lock("eu-1").await?;
    println!("{candidate} leads, with fence {}", guard.fence());
    tokio::time::sleep(Duration::from_millis(300)).await;
    println!(
        "{candidate} steps down, having led to the end: {}",
        guard.unlock().await?
    );
    Ok(())
}
