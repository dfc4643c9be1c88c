//! A connection to each master of a Cluster.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::Failures;
use super::ear::Ear;
use crate::store::redis::cluster::Cluster;
use crate::store::redis::endpoint::Endpoint;

/// How often the masters are looked up. They are also looked up when a connection fails.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Stays subscribed at each master until the future is dropped.
pub(super) async fn listen(cluster: &Arc<Cluster>, ear: &Arc<Ear>) -> Infallible {
    let (mut tasks, mut masters) = (JoinSet::new(), HashMap::<String, AbortHandle>::new());
    let (lost, mut failures) = (Arc::new(Notify::new()), Failures::default());
    loop {
        cluster.look_for_masters().await;
        let addresses = cluster.masters.addresses();
        if !addresses.is_empty() {
            masters.retain(|address, task| {
                let stays = addresses.contains(address);
                if !stays {
                    task.abort();
                }
                stays && !task.is_finished()
            });
            for address in addresses {
                masters.entry(address).or_insert_with_key(|address| {
                    tasks.spawn(stay(cluster.node(address), Arc::clone(ear), Arc::clone(&lost)))
                });
            }
            while tasks.try_join_next().is_some() {}
        }
        if masters.is_empty() {
            failures.pause(Duration::ZERO).await;
        } else if timeout(LOOK_EVERY, lost.notified()).await.is_ok() {
            // The others may need a moment to elect a new master.
            failures.pause(Duration::ZERO).await;
        }
    }
}

/// Stays subscribed at one master.
async fn stay(node: Endpoint, ear: Arc<Ear>, lost: Arc<Notify>) {
    let mut failures = Failures::default();
    loop {
        let lasted = ear.hear(true, ready(Ok(&node)), pending()).await;
        lost.notify_one();
        failures.pause(lasted).await;
    }
}
