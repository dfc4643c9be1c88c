//! Readers share a document, a writer is alone, and goes before readers that come after it.
//!
//! ```text
//! cargo run --example rw_lock
//! REDIS_URL=redis://127.0.0.1/ cargo run --example rw_lock    # start it twice
//! ```

use std::time::Duration;

use tower_distributed::{Error, RwLock, Store};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    let documents = RwLock::builder()
        .ttl(Duration::from_secs(10))
        .build(&store, "documents")?;

    let tasks = (1..=9).map(|task| {
        let documents = documents.clone();
        tokio::spawn(async move {
            if task % 3 == 0 {
                write(task, &documents).await
            } else {
                read(task, &documents).await
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    Ok(())
}

async fn read(task: u32, documents: &RwLock) -> Result<(), Error> {
    let guard = documents.read("42").await?;
    println!("{task} reads");
    tokio::time::sleep(Duration::from_millis(200)).await;
    println!("{task} has read");
    guard.release().await?;
    Ok(())
}

async fn write(task: u32, documents: &RwLock) -> Result<(), Error> {
    let guard = documents.write("42").await?;
    println!("{task} writes with fence {}", guard.fence());
    tokio::time::sleep(Duration::from_millis(200)).await;
    println!("{task} has written");
    guard.release().await?;
    Ok(())
}
