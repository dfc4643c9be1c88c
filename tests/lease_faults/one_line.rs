//! Everybody in one process who waits under one name stands in one line, whatever value they wait through.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use futures::poll;
use tower_distributed::{Mutex, Store};

use crate::kinds::{LONG, open};
use support::redis_server::RedisServer;

async fn served_in_order(store: &Store, each: [Mutex; 2]) {
    const WAITERS: usize = 60;
    let holder = Mutex::new(store, "m").unwrap().lock("k").await.unwrap();
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
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..WAITERS).collect::<Vec<_>>());
}

#[tokio::test]
async fn two_values_of_one_name_are_one_line() {
    let server = RedisServer::start().await;
    for store in [open(&server.url()), Store::in_memory()] {
        served_in_order(&store, [(); 2].map(|()| Mutex::new(&store, "m").unwrap())).await;
    }
}

/// Each gets what it asked for, though it is not handed on between them.
#[tokio::test]
async fn also_with_other_times_to_live() {
    let server = RedisServer::start().await;
    for store in [open(&server.url()), Store::in_memory()] {
        let with = |ttl, watchdog| Mutex::builder().ttl(ttl).watchdog(watchdog).build(&store, "m").unwrap();
        served_in_order(&store, [with(LONG, true), with(Duration::from_secs(3), false)]).await;
    }
}
