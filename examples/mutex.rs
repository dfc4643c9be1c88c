//! Two instances of a billing job that never bill the same user at once: lock, or skip. What is written carries
//! the fencing token, by which the database can refuse an instance that stood still.
//!
//! ```text
//! cargo run --example mutex
//! REDIS_URL=redis://127.0.0.1/ cargo run --example mutex    # start it twice
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Cell, PoisonError};
use std::time::Duration;

use tower_distributed::{Error, Mutex, Store};

/// Stands for the database: who has been billed, under which fence.
type Bills = Arc<Cell<HashMap<&'static str, u64>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    let bills = Bills::default();
    let instances = ["billing A", "billing B"].map(|name| {
        let (mutex, bills) = (Mutex::new(&store, "billing"), bills.clone());
        tokio::spawn(async move { bill_all(name, &mutex?, &bills).await })
    });
    for instance in instances {
        instance.await??;
    }
    for (user, fence) in bills.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("{user} was billed once, under fence {fence}");
    }
    Ok(())
}

async fn bill_all(name: &str, mutex: &Mutex, bills: &Bills) -> Result<(), Error> {
    for user in ["ann", "bob", "carol"] {
        let guard = match mutex.try_lock(user).await {
            Ok(guard) => guard,
            Err(error) if error.is_refused() => {
                println!("{name} skips {user}: {error}");
                continue;
            }
            Err(error) => return Err(error),
        };
        tokio::select! {
            done = bill(user, guard.fence(), bills) => println!("{name}: {user} {done}"),
            () = guard.lost() => println!("{name} lost the lock of {user} and stops"),
        }
        if !guard.unlock().await? {
            println!("{name} did not hold the lock of {user} to the end");
        }
    }
    Ok(())
}

async fn bill(user: &'static str, fence: u64, bills: &Bills) -> &'static str {
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut bills = bills.lock().unwrap_or_else(PoisonError::into_inner);
    // INSERT … ON CONFLICT DO NOTHING; where a bill may be changed: UPDATE … WHERE fence < …
    if bills.contains_key(user) {
        return "had been billed";
    }
    bills.insert(user, fence);
    "is billed"
}
