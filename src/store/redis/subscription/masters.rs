//! The subscription on a Cluster: one connection to each master, for the channels of this process that all nodes have,
//! and for those that only this master has (see [`slots`]).

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Msg, Pipeline, PushInfo, PushKind, RedisError, Value, cmd};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use crate::error::reasons::Outage;
use crate::store::redis::breaker::{Attempt, Failures};
use crate::store::redis::cluster::Cluster;
use crate::store::redis::subscription::connection::{
    CHECK, CONNECT, NOT_IN_TIME, Open, Subscriber,
};
use crate::store::redis::{errors, slots};

/// The interval at which the masters are looked up. They are also looked up when a connection fails.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Stays subscribed at each master until the future is dropped.
pub(super) async fn listen(cluster: &Arc<Cluster>, subscriber: &Arc<Subscriber>) -> Infallible {
    let mut tasks = JoinSet::new();
    let mut masters = HashMap::<String, AbortHandle>::new();
    let lost = Arc::new(Notify::new());
    let mut failures = Failures::default();
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
                    let master = Master {
                        cluster: Arc::clone(cluster),
                        address: address.clone(),
                        looked: looked.subscribe(),
                        lost: Arc::clone(&lost),
                    };
                    tasks.spawn(master.stay(Arc::clone(subscriber)))
                });
            }
            while tasks.try_join_next().is_some() {}
        }
        if masters.is_empty() {
            failures.pause(Attempt::FAILED).await;
        } else if timeout(LOOK_EVERY, lost.notified()).await.is_ok() {
            // The other nodes may need a moment to elect a new master.
            failures.pause(Attempt::FAILED).await;
        }
    }
}

/// One master.
struct Master {
    cluster: Arc<Cluster>,
    address: String,
    /// Changes when the masters have been looked up.
    looked: watch::Receiver<()>,
    /// Notified when the masters have to be looked up.
    lost: Arc<Notify>,
}

/// A connection, the messages on it, and the slots of its channels.
struct Subscribed {
    connection: MultiplexedConnection,
    pushes: mpsc::UnboundedReceiver<PushInfo>,
    slots: HashSet<u16>,
}

impl Subscribed {
    async fn answers_ping(&mut self) -> bool {
        let ping = cmd("PING");
        let answer = timeout(CONNECT, self.connection.send_packed_command(&ping)).await;
        matches!(answer, Ok(Ok(_)))
    }
}

impl Master {
    /// Stays subscribed until the future is dropped.
    async fn stay(mut self, subscriber: Arc<Subscriber>) {
        let mut failures = Failures::default();
        loop {
            let attempt = self.receive(&subscriber).await;
            self.lost.notify_one();
            failures.pause(attempt).await;
        }
    }

    /// Passes the messages on until the connection fails.
    async fn receive(&mut self, subscriber: &Subscriber) -> Attempt {
        let mut subscribed = match timeout(CONNECT, self.subscribe(subscriber)).await {
            Ok(Ok(subscribed)) => subscribed,
            Ok(Err(outage)) => return subscriber.failed(&outage),
            Err(_) => return subscriber.failed(&errors::disconnected(NOT_IN_TIME)),
        };
        let open = Open::new(subscriber, !subscribed.slots.is_empty());
        let since = Instant::now();
        loop {
            let push = tokio::select! {
                push = timeout(CHECK, subscribed.pushes.recv()) => push,
                Ok(()) = self.looked.changed() => match timeout(CONNECT, self.follow(subscriber, &mut subscribed)).await {
                    Ok(Ok(true)) => {
                        open.missed();
                        continue;
                    }
                    Ok(Ok(false)) => continue,
                    // The connection has no timeouts of its own.
                    Ok(Err(_)) | Err(_) => break,
                },
            };
            match push {
                Ok(Some(PushInfo {
                    kind: PushKind::SUnsubscribe,
                    ..
                })) => {
                    // A slot has moved to another master, together with its channels.
                    subscribed.slots.clear();
                    self.lost.notify_one();
                }
                Ok(
                    Some(PushInfo {
                        kind: PushKind::Disconnection,
                        ..
                    })
                    | None,
                ) => break,
                Ok(Some(push)) => {
                    if Msg::from_push_info(push)
                        .is_some_and(|message| !subscriber.passes_on(&message, true))
                    {
                        break;
                    }
                }
                // Nothing has arrived for a long time. Without a ping, a server that vanished would not be noticed.
                Err(_) if !subscribed.answers_ping().await => break,
                Err(_) => {}
            }
        }
        subscriber.closed(open);
        Attempt::Lasted(since.elapsed())
    }

    async fn subscribe(&mut self, subscriber: &Subscriber) -> Result<Subscribed, Outage> {
        let (sender, pushes) = mpsc::unbounded_channel();
        let mut connection = self.cluster.node(&self.address).listen(sender).await?;
        let channels = subscriber
            .channels()
            .iter()
            .map(|channel| ("SUBSCRIBE", channel.clone()));
        let mut subscribed = match subscribe(&mut connection, channels).await {
            Ok(replies) => match replies
                .into_iter()
                .find_map(|reply| reply.extract_error().err())
            {
                None => Subscribed {
                    connection,
                    pushes,
                    slots: HashSet::new(),
                },
                Some(error) => return Err(errors::outage(error)),
            },
            Err(error) => return Err(errors::outage(error)),
        };
        self.looked.mark_unchanged();
        self.follow(subscriber, &mut subscribed)
            .await
            .map_err(errors::outage)?;
        Ok(subscribed)
    }

    /// Subscribes to the channels of this master that are missing. Returns whether any were added. If the server denies
    /// this, or has no such channels, it does not try again: messages arrive on the other channels.
    async fn follow(
        &self,
        subscriber: &Subscriber,
        subscribed: &mut Subscribed,
    ) -> Result<bool, RedisError> {
        let (all, process) = subscriber.shards();
        let masters = &self.cluster.masters;
        let is_here = |slot: u16| masters.address(masters.of(slot)).as_ref() == Some(&self.address);
        let missing = |slot: u16| is_here(slot) && !subscribed.slots.contains(&slot);
        let missing: Vec<_> = slots::prefixes(all)
            .filter(|(_, slot)| missing(*slot))
            .collect();
        if missing.is_empty() {
            return Ok(false);
        }
        let channels = missing
            .iter()
            .map(|(prefix, _)| ("SSUBSCRIBE", format!("{prefix}{process}")));
        let replies = subscribe(&mut subscribed.connection, channels).await?;
        let mut added = false;
        for ((_, slot), reply) in missing.iter().zip(replies) {
            match reply.extract_error() {
                // The slot is on another master by now, which the next look-up finds.
                Err(error) if errors::redirect(&error).is_some() => continue,
                Err(_) => {}
                Ok(_) => added = true,
            }
            subscribed.slots.insert(*slot);
        }
        Ok(added)
    }
}

/// Sends one command for each channel: each has one reply, which may be an error.
async fn subscribe(
    connection: &mut MultiplexedConnection,
    channels: impl Iterator<Item = (&'static str, String)>,
) -> Result<Vec<Value>, RedisError> {
    let mut all = Pipeline::new();
    for (command, channel) in channels {
        all.cmd(command).arg(channel);
    }
    let count = all.len();
    connection.send_packed_commands(&all, 0, count).await
}

#[cfg(test)]
mod tests {
    use support::cluster::RedisCluster;
    use support::program::since_7_0;
    use support::requires;

    use super::super::connection::tests::{notifier, publishes, subscriber};
    use super::*;
    use crate::store::background::Background;
    use crate::store::redis::endpoint::Access;
    use crate::store::redis::slots::Masters;

    async fn cluster_of(servers: &RedisCluster) -> Arc<Cluster> {
        let masters = Arc::new(Masters::new(&Background::thread()));
        let cluster = Cluster::new(servers.urls(), &Access::default(), CONNECT, masters).unwrap();
        cluster.look_for_masters().await;
        cluster
    }

    fn master(cluster: &Arc<Cluster>, address: String) -> Master {
        let (cluster, looked) = (Arc::clone(cluster), watch::channel(()).1);
        Master {
            cluster,
            address,
            looked,
            lost: Arc::default(),
        }
    }

    #[tokio::test]
    async fn a_master_is_asked_for_the_channels_of_its_own_slots_once() {
        requires!(since_7_0());
        let servers = RedisCluster::start().await;
        let (cluster, (notifier, ..)) = (cluster_of(&servers).await, notifier());
        let (masters, subscriber) = (&cluster.masters, subscriber(&notifier));
        let addresses = masters.addresses();
        assert!(addresses.len() > 1);
        for address in &addresses {
            let slots = slots::prefixes("").map(|(_, slot)| slot);
            let own: HashSet<_> = slots
                .filter(|slot| masters.address(masters.of(*slot)).as_ref() == Some(address))
                .collect();
            let mut master = master(&cluster, address.clone());
            let mut subscribed = master.subscribe(&subscriber).await.ok().unwrap();
            assert!(!own.is_empty() && subscribed.slots == own);
            assert_eq!(
                master.follow(&subscriber, &mut subscribed).await.ok(),
                Some(false),
                "nothing is missing"
            );
            let one = *own.iter().next().unwrap();
            subscribed.slots.remove(&one);
            assert_eq!(
                master.follow(&subscriber, &mut subscribed).await.ok(),
                Some(true)
            );
            assert_eq!(subscribed.slots, own);

            // All slots are reported to be here, but most are not.
            let (wrong, told) = (cluster_of(&servers).await, address.clone());
            wrong
                .masters
                .refresh(async { Ok(vec![(0, 16383, told)]) })
                .await;
            let subscribed = self::master(&wrong, address.clone())
                .subscribe(&subscriber)
                .await
                .ok()
                .unwrap();
            assert_eq!(subscribed.slots, own);
        }
        // A denied channel is not tried again.
        for node in servers.nodes() {
            node.query::<()>(&["ACL", "SETUSER", "default", "-ssubscribe"])
                .unwrap();
        }
        let subscribed = master(&cluster, addresses[0].clone())
            .subscribe(&subscriber)
            .await
            .ok()
            .unwrap();
        assert!(!subscribed.slots.is_empty());
    }

    #[tokio::test]
    async fn a_subscription_stays_while_the_master_is_silent() {
        requires!(since_7_0());
        let servers = RedisCluster::start().await;
        let (cluster, (notifier, heard, _)) = (cluster_of(&servers).await, notifier());
        let subscriber = subscriber(&notifier);
        let address = cluster.masters.addresses().remove(0);
        let node = servers
            .nodes()
            .iter()
            .find(|node| address.ends_with(&format!(":{}", node.port())))
            .unwrap();
        let mut master = master(&cluster, address);
        tokio::select! {
            _ = master.receive(&subscriber) => panic!("it has ended"),
            () = publishes(node, &notifier, &heard) => {}
        }
    }
}
