//! Everybody in one process who waits under one name stands in one line, whatever value they wait through.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tower_distributed::{Mutex, Store};

use crate::leases::kinds::{LONG, open};
use support::redis_server::RedisServer;

const WAITERS: usize = 60;

/// Two values of one name, of equal settings or with other times to live. Each gets what it asked for, though it is not
/// handed on between these.
#[tokio::test]
async fn two_values_of_one_name_are_one_line() {
    let server = RedisServer::start().await;
    for (store, name) in [open(&server.url()), Store::in_memory()]
        .iter()
        .zip(["redis", "memory"])
    {
        let usual = || Mutex::new(store, "m").unwrap();
        let with = |ttl, watchdog| {
            Mutex::builder()
                .ttl(ttl)
                .watchdog(watchdog)
                .build(store, "m")
                .unwrap()
        };
        for each in [
            [usual(), usual()],
            [with(LONG, true), with(Duration::from_secs(3), false)],
        ] {
            let holder = usual().lock("k").await.unwrap();
            let order = Arc::new(StdMutex::new(Vec::new()));
            let mut waiters = Vec::new();
            for number in 0..WAITERS {
                let (mutex, order) = (each[number % 2].clone(), Arc::clone(&order));
                let mut call = Box::pin(async move {
                    let guard = mutex.lock("k").await.unwrap();
                    order.lock().unwrap().push(number);
                    assert!(guard.unlock().await.unwrap());
                });
                assert!(poll!(call.as_mut()).is_pending());
                waiters.push(tokio::spawn(call));
            }
            assert!(holder.unlock().await.unwrap());
            join_all(waiters)
                .await
                .into_iter()
                .for_each(|waiter| waiter.unwrap());
            assert_eq!(
                *order.lock().unwrap(),
                (0..WAITERS).collect::<Vec<_>>(),
                "{name}"
            );
        }
    }
}
