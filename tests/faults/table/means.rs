//! How the faults are done.

use std::time::Duration;

use deadpool_redis::redis::Value;

use super::fault::SHORT;
use super::history::now;
use super::site::{SOON, Scene, Servers};
use support::cluster::RedisCluster;
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::replicated::ReplicatedCluster;
use support::slot_move::SlotMove;

/// How long a fault lasts: no condition to wait for.
pub(super) async fn last(time: Duration) {
    tokio::time::sleep(time).await;
}

pub(super) async fn while_faulty(
    links: &[FaultProxy],
    lasts: Duration,
    fault: impl Fn(&FaultProxy),
) {
    links.iter().for_each(&fault);
    last(lasts).await;
    links.iter().for_each(FaultProxy::heal);
}

/// Has each master carry out a command.
pub(super) async fn to_masters(scene: &Scene, command: &[&str]) {
    eventually("each master to take a command", SOON, async || {
        scene
            .servers
            .masters()
            .into_iter()
            .all(|server| server.query::<Value>(command).is_ok())
    })
    .await;
}

fn answers(node: &RedisServer) -> bool {
    node.query::<String>(&["PING"]).is_ok()
}

/// Keeps the server busy with a script.
pub(super) async fn spin(server: &RedisServer, lasts: Duration) {
    let mut client = server.client();
    let spinning = std::thread::spawn(move || {
        let spin = "while true do end";
        let spin = deadpool_redis::redis::cmd("EVAL").arg(spin).arg(0).clone();
        let _ = client.as_mut().map(|client| client.query::<()>(&spin));
    });
    last(lasts).await;
    eventually("the script to be killed", SOON, async || {
        let _ = server.query::<Value>(&["SCRIPT", "KILL"]);
        spinning.is_finished() && answers(server)
    })
    .await;
}

/// Has the server evict keys: it never has quite enough memory.
pub(super) async fn evict(server: &RedisServer, policy: &str) {
    const STEP: u64 = 20_000;
    let field = |section: &str, name: &str| {
        let info = server.query::<String>(&["INFO", section]).ok()?;
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().parse::<u64>().ok()
    };
    let set = |name: &str, value: &str| {
        server
            .query::<Value>(&["CONFIG", "SET", name, value])
            .is_ok()
    };
    let (mut before, mut evicted) = (None, 0);
    eventually("the server to evict keys", SOON, async || {
        if let (Some(used), Some(now)) = (
            field("memory", "used_memory"),
            field("stats", "evicted_keys"),
        ) && set("maxmemory-policy", policy)
        {
            // It counts from 0 after a restart.
            evicted += now.saturating_sub(before.replace(now).unwrap_or(now));
            set("maxmemory", &(used - STEP).to_string());
        }
        evicted > 100
    })
    .await;
    eventually("the server to have memory", SOON, async || {
        set("maxmemory", "0") && set("maxmemory-policy", "noeviction")
    })
    .await;
}

/// Kills a master and waits until another node has taken over. Returns when it was killed.
pub(super) async fn kill_master(servers: &Servers, round: u32) -> u64 {
    let at = now();
    match servers {
        Servers::Sentinel(sentinel) => sentinel.kill_master().await,
        Servers::Cluster(cluster) => cluster.kill_master(round as usize).await,
        Servers::One(_) => panic!("nobody takes over"),
    }
    at
}

/// Moves the slots of the mutex and the bucket that are used now, and of others.
pub(super) async fn migrate(servers: &Servers, lasts: Duration) {
    let Servers::Cluster(ReplicatedCluster { cluster, .. }) = servers else {
        panic!("there are no slots")
    };
    let mut keys = Vec::new();
    for node in cluster.nodes() {
        keys.extend(node.query::<Vec<String>>(&["KEYS", "td:{*"]).unwrap());
    }
    let mut slots = Vec::new();
    for part in [
        "{Mutex:",
        "{WaitGroup:",
        "{RwLock:",
        "{TokenBucket:",
        "{SingleFlight:",
    ] {
        let Some(key) = keys.iter().rfind(|key| key.contains(part)) else {
            continue;
        };
        let slot = cluster.nodes()[0].cli(&["CLUSTER", "KEYSLOT", key]);
        // A slot moves once: after that, it is not where it was.
        if !slots.contains(&slot) && is_at_home(cluster, key) {
            let moving = SlotMove::begin(cluster, key);
            last(if slots.len().is_multiple_of(2) {
                lasts
            } else {
                SHORT
            })
            .await;
            moving.end();
            slots.push(slot);
        }
    }
}

/// Whether the slot of a key has not been moved yet.
fn is_at_home(cluster: &RedisCluster, key: &str) -> bool {
    cluster.node_of(key).query::<i64>(&["EXISTS", key]).is_ok()
}
