//! A connection to each master of a Cluster.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::ear::Ear;
use super::master::Master;
use super::{Attempt, Failures};
use crate::store::redis::cluster::Cluster;

/// How often the masters are looked up. They are also looked up when a connection fails.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Stays subscribed at each master until the future is dropped.
pub(super) async fn listen(cluster: &Arc<Cluster>, ear: &Arc<Ear>) -> Infallible {
    let (mut tasks, mut masters) = (JoinSet::new(), HashMap::<String, AbortHandle>::new());
    let (lost, mut failures) = (Arc::new(Notify::new()), Failures::default());
    let looked = watch::Sender::new(());
    loop {
        cluster.look_for_masters().await;
        looked.send_replace(());
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
                    let (cluster, address) = (Arc::clone(cluster), address.clone());
                    let master = Master {
                        cluster,
                        address,
                        looked: looked.subscribe(),
                        lost: Arc::clone(&lost),
                    };
                    tasks.spawn(master.stay(Arc::clone(ear)))
                });
            }
            while tasks.try_join_next().is_some() {}
        }
        if masters.is_empty() {
            failures.pause(Attempt::FAILED).await;
        } else if timeout(LOOK_EVERY, lost.notified()).await.is_ok() {
            // The others may need a moment to elect a new master.
            failures.pause(Attempt::FAILED).await;
        }
    }
}
