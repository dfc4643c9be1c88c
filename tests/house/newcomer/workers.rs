//! Workers of which at most two handle jobs of a tenant at the same time, in the whole fleet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::try_join_all;
use tower_distributed::{Error, Store, WaitGroup};

async fn work(running: Arc<AtomicU32>) -> u32 {
    let most = running.fetch_add(1, Ordering::SeqCst) + 1;
    tokio::task::yield_now().await;
    running.fetch_sub(1, Ordering::SeqCst);
    most
}

async fn handle(workers: WaitGroup, running: Arc<AtomicU32>) -> Result<u32, Error> {
    // user: workers
    let permit = workers.add("acme").await?;
    let outcome = work(running).await;
    permit.done().await?;
    // end
    Ok(outcome)
}

#[tokio::test]
async fn program() {
    let workers = WaitGroup::new(&Store::in_memory(), "workers", 2).unwrap();
    let running = Arc::new(AtomicU32::new(0));
    let jobs = (0..10).map(|_| tokio::spawn(handle(workers.clone(), Arc::clone(&running))));
    for most in try_join_all(jobs).await.unwrap() {
        assert!(most.unwrap() <= 2);
    }
}
