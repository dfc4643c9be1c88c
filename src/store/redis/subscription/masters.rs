//! A connection to each master of a Cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::Failures;
use super::ear::Ear;
use crate::store::redis::endpoint::Endpoint;
use crate::store::redis::several::Nodes;

/// How often the masters are looked up. They are also looked up when a connection fails.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How long one node may take to name the masters.
const PATIENCE: Duration = Duration::from_secs(2);

/// Stays subscribed at each master until the future is dropped.
pub(super) async fn listen(nodes: &Arc<Nodes>, ear: &Arc<Ear>) {
    let (mut tasks, mut masters) = (JoinSet::new(), HashMap::<String, AbortHandle>::new());
    let (lost, mut number, mut failures) = (Arc::new(Notify::new()), 0, Failures::default());
    loop {
        if let Some(addresses) = look_up(nodes, masters.keys()).await {
            masters.retain(|address, task| {
                let stays = addresses.contains(address);
                if !stays {
                    task.abort();
                }
                stays
            });
            for address in addresses {
                masters.entry(address).or_insert_with_key(|address| {
                    number += 1;
                    tasks.spawn(stay(nodes.node(address), number, Arc::clone(ear), Arc::clone(&lost)))
                });
            }
            while tasks.try_join_next().is_some() {}
        }
        if masters.is_empty() {
            failures.pause().await;
        } else if timeout(LOOK_EVERY, lost.notified()).await.is_ok() {
            // The others may need a moment to elect a new master.
            failures.pause().await;
        }
    }
}

/// Stays subscribed at one master.
async fn stay(node: Endpoint, number: usize, ear: Arc<Ear>, lost: Arc<Notify>) {
    let mut failures = Failures::default();
    loop {
        ear.hear(Some(number), node.client()).await;
        lost.notify_one();
        failures.pause().await;
    }
}

/// Asks the nodes for the addresses of the masters, first those that are known.
async fn look_up(nodes: &Nodes, known: impl Iterator<Item = &String>) -> Option<Vec<String>> {
    for node in known.map(|address| nodes.node(address)).chain(nodes.named()) {
        if let Ok(Some(masters)) = timeout(PATIENCE, nodes.masters(&node)).await {
            return Some(masters);
        }
    }
    None
}
