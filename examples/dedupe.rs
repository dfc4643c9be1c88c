//! Messages that come more than once, and are handled once: a queue's consumer without HTTP.
//!
//! ```text
//! cargo run --example dedupe
//! REDIS_URL=redis://127.0.0.1/ cargo run --example dedupe    # again: all are known
//! ```

use std::time::Duration;

use tower::{Service as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::{BloomFilter, Dedupe, DedupeLayer, Refusal, RefusalKind, Store};

#[derive(Clone, Debug)]
struct Message {
    id: u32,
    attempt: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    // One new message of a million is taken for a duplicate, once the filter has a million.
    let seen = BloomFilter::builder()
        .capacity(1_000_000)
        .false_positive_rate(0.000_001)
        .remember_for(Duration::from_secs(86_400))
        .build(&store, "messages")?;
    let once = DedupeLayer::new(Dedupe::new(&seen)?, |message: &Message| message.id)
        .max_wait(Duration::from_secs(5))
        .on_unsure(|unsure| eprintln!("may be handled again: {unsure:?}"));
    let mut handle = ServiceBuilder::new()
        .layer(once)
        .service(service_fn(handle));

    for (id, attempt) in [(1, 1), (2, 1), (1, 2), (3, 1), (3, 2), (3, 3)] {
        match handle.ready().await?.call(Message { id, attempt }).await {
            Ok(done) => println!("{done}"),
            Err(error) => match error.downcast_ref::<Refusal>().map(Refusal::kind) {
                Some(RefusalKind::Duplicate) => println!("message {id} was handled before"),
                _ => println!("message {id} failed and may come again: {error}"),
            },
        }
    }
    println!("about {} messages are known", seen.estimated_count().await?);
    Ok(())
}

/// The third message fails at first.
async fn handle(message: Message) -> Result<String, std::io::Error> {
    if message.id == 3 && message.attempt == 1 {
        return Err(std::io::Error::other("the database is busy"));
    }
    Ok(format!(
        "message {} is handled at attempt {}",
        message.id, message.attempt
    ))
}
