//! Wake-ups at a Cluster stay at the master of their key, and come all the same where they cannot.

use std::time::Duration;

use tower_distributed::{Credentials, Mutex, Store};

use support::cluster::RedisCluster;
use support::eventually;
use support::program::since_7_0;
use support::redis_server::RedisServer;
use support::requires;
use support::slot_move::SlotMove;

const SOON: Duration = Duration::from_secs(20);
const HANDOVERS: u64 = 20;
/// Each process has a channel for each group of 64 slots.
const GROUPS: usize = 256;

const LOCK: &str = "td:{shards:k}:lock";

/// How often a node has run a command.
fn calls(node: &RedisServer, command: &str) -> u64 {
    number(
        &node.cli(&["INFO", "commandstats"]),
        &format!("cmdstat_{command}:calls="),
    )
}

/// How many messages a node has received from others.
fn received(node: &RedisServer) -> u64 {
    number(
        &node.cli(&["CLUSTER", "INFO"]),
        "cluster_stats_messages_publish_received:",
    )
}

fn number(text: &str, name: &str) -> u64 {
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or("0");
    number
        .split(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn channels(node: &RedisServer, pattern: &str) -> usize {
    node.query::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS", pattern])
        .unwrap()
        .len()
}

/// Two processes.
fn mutexes(cluster: &RedisCluster, credentials: Option<&Credentials>) -> [Mutex; 2] {
    [(); 2].map(|()| {
        let builder = Store::builder().timeout(SOON);
        let builder = match credentials {
            Some(credentials) => builder.credentials(credentials.clone()),
            None => builder,
        };
        Mutex::new(&builder.cluster(cluster.urls()).unwrap(), "shards").unwrap()
    })
}

/// One process hands the lock to the other, so many times.
async fn hand_over(mutexes: &[Mutex; 2], count: u64) {
    for number in 0..count {
        let (holder, waiter) = (
            &mutexes[(number % 2) as usize],
            mutexes[(1 - number % 2) as usize].clone(),
        );
        let guard = holder.lock("k").await.unwrap();
        let next = tokio::spawn(async move { waiter.lock("k").await.unwrap() });
        eventually("a waiter", SOON, async || {
            holder.inspect("k").await.unwrap().waiting == 1
        })
        .await;
        assert!(guard.unlock().await.unwrap());
        let next = tokio::time::timeout(SOON, next).await.unwrap().unwrap();
        assert!(next.unlock().await.unwrap());
    }
}

/// The tag of the channels for a slot.
fn tag(node: &RedisServer, key: &str) -> String {
    let group = |key: &str| node.query::<u64>(&["CLUSTER", "KEYSLOT", key]).unwrap() / 64;
    let wanted = group(key);
    (0..1000)
        .map(|number: u32| number.to_string())
        .find(|tag| group(tag) == wanted)
        .unwrap()
}

#[tokio::test]
async fn a_hand_over_costs_other_masters_nothing_and_follows_slots_that_move() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let (mutexes, master) = (mutexes(&cluster, None), cluster.node_of(LOCK));
    hand_over(&mutexes, 2).await;
    eventually("both are subscribed", SOON, async || {
        cluster
            .nodes()
            .iter()
            .map(|node| channels(node, "td:wake:*"))
            .sum::<usize>()
            == 2 * GROUPS
    })
    .await;
    let of_others = || cluster.nodes().iter().map(received).sum::<u64>();
    // Before they were subscribed, messages went to all masters.
    eventually("these messages", SOON, async || {
        of_others() == calls(master, "publish") * (cluster.nodes().len() as u64 - 1)
    })
    .await;
    let (before, messages, to_all) = (
        of_others(),
        calls(master, "spublish"),
        calls(master, "publish"),
    );
    hand_over(&mutexes, HANDOVERS).await;
    assert!(calls(master, "spublish") >= messages + HANDOVERS);
    assert_eq!((of_others(), calls(master, "publish")), (before, to_all));

    let tag = tag(master, LOCK);
    let own = format!("td:wake:{{{tag}}}:*");
    // The channels move, and the key does not: messages go to all nodes.
    let channel = SlotMove::begin(&cluster, &format!("{{{tag}}}"));
    let other = channel.to;
    channel.end();
    let to_all = calls(master, "publish");
    hand_over(&mutexes, HANDOVERS).await;
    assert!(calls(master, "publish") >= to_all + HANDOVERS);
    eventually("the subscriptions to follow", SOON, async || {
        channels(other, &own) == 2
    })
    .await;
    // The key follows.
    SlotMove::between(master, other, LOCK).end();
    hand_over(&mutexes, 2).await;
    let (messages, to_all) = (calls(other, "spublish"), calls(other, "publish"));
    hand_over(&mutexes, HANDOVERS).await;
    assert!(calls(other, "spublish") >= messages + HANDOVERS);
    assert_eq!(calls(other, "publish"), to_all);
}

/// The rule of an older version does not allow these messages.
#[tokio::test]
async fn where_they_are_denied_wake_ups_go_to_all_nodes() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let store = Store::builder().cluster(cluster.urls()).unwrap();
    let rule = store
        .acl_rule("app")
        .unwrap()
        .replace(" +ssubscribe +spublish", "");
    cluster
        .nodes()
        .iter()
        .for_each(|node| node.set_user(&rule, &["on", ">secret"]));
    let mutexes = mutexes(&cluster, Some(&Credentials::new("app", "secret")));
    let master = cluster.node_of(LOCK);
    hand_over(&mutexes, 2).await;
    let subscribed = |node: &RedisServer| {
        node.query::<Vec<String>>(&["PUBSUB", "CHANNELS", "td:wake:????????????????"])
            .unwrap()
            .len()
            == 2
    };
    eventually("both are subscribed", SOON, async || {
        cluster.nodes().iter().all(subscribed)
    })
    .await;
    let to_all = calls(master, "publish");
    hand_over(&mutexes, HANDOVERS).await;
    assert!(calls(master, "publish") >= to_all + HANDOVERS);
    assert_eq!(
        cluster
            .nodes()
            .iter()
            .map(|node| channels(node, "*"))
            .sum::<usize>(),
        0
    );
}
