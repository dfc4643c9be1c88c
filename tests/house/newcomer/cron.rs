//! A job that every host starts each hour, and one of them runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tower_distributed::{Error, Mutex, Store};

static REPORTS: AtomicU32 = AtomicU32::new(0);

async fn report() {
    REPORTS.fetch_add(1, Ordering::SeqCst);
}

/// What the scheduler of each host calls at each full hour.
async fn at_the_full_hour(store: &Store) -> Result<(), Error> {
    // user: cron
    let jobs = Mutex::new(store, "jobs")?;
    let ran = jobs
        .once_per_tick("report", Duration::from_secs(3600), async |_| {
            report().await
        })
        .await?;
    // end
    println!(
        "{}",
        if ran.is_some() {
            "reported"
        } else {
            "another host does it"
        }
    );
    Ok(())
}

#[tokio::test]
async fn program() {
    let store = Store::in_memory();
    for _host in 0..3 {
        at_the_full_hour(&store).await.unwrap();
    }
    assert_eq!(REPORTS.load(Ordering::SeqCst), 1);
}
