//! A report that is dear: made once for all who ask meanwhile, whatever process they ask in.
//!
//! ```text
//! cargo run --example single_flight
//! REDIS_URL=redis://127.0.0.1/ cargo run --example single_flight    # start two at the same time
//! ```

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tower_distributed::single_flight::Postcard;
use tower_distributed::{Mutex, SingleFlight, Store};

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Report {
    month: String,
    made_by: u32,
    run: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    let reports = SingleFlight::<Report>::builder(Postcard)
        .ttl(Duration::from_secs(2)) // for those who come a little later
        .stale_while_revalidate(Duration::from_secs(60)) // then the old one is served while a new one is made
        .build(&store, "reports")?;

    let callers = (1..=5).map(|caller| {
        let reports = reports.clone();
        tokio::spawn(async move {
            let report = reports.run("2026-11", || make("2026-11")).await?;
            println!("caller {caller} has {report:?}");
            Ok::<_, tower_distributed::Error>(())
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await??;
    }

    // Or lock and skip: of two jobs that bill a user at the same time, one does nothing.
    let bills = Mutex::new(&store, "bills")?;
    let bill = async || {
        let work = async |_| {
            tokio::time::sleep(Duration::from_millis(100)).await;
            42
        };
        bills.try_lock("user-7").await?.run(work).await
    };
    let (one, other) = tokio::join!(bill(), bill());
    for outcome in [one, other] {
        match outcome {
            Ok(cents) => println!("billed {cents} cents"),
            Err(error) if error.is_refused() => println!("skipped: {error}"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A second of work.
async fn make(month: &str) -> Report {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let run = RUNS.fetch_add(1, Ordering::Relaxed) + 1;
    Report {
        month: month.to_owned(),
        made_by: std::process::id(),
        run,
    }
}
