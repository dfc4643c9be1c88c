//! A Redis Cluster whose masters have replicas, for tests that take servers away.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::cluster::RedisCluster;
use crate::eventually;
use crate::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(40);

/// A replica that was asked to take over and has not done so within 5 s does so no more.
const GIVES_UP: Duration = Duration::from_secs(6);

/// Three masters, and at first a replica of each, or none. Needs Redis 7.0, as [`RedisCluster`] does.
pub struct ReplicatedCluster {
    pub cluster: RedisCluster,
    replicas: Vec<RedisServer>,
}

impl ReplicatedCluster {
    /// Starts the nodes, with further lines of configuration.
    pub async fn start(config: &'static str) -> Self {
        let cluster = RedisCluster::with_config(config).await;
        let mut replicas = Vec::new();
        for node in 0..cluster.nodes().len() {
            replicas.push(cluster.replica_of(node).await);
        }
        let replicated = Self { cluster, replicas };
        replicated.mend().await;
        replicated
    }

    /// Without replicas.
    pub async fn bare() -> Self {
        Self {
            cluster: RedisCluster::start().await,
            replicas: Vec::new(),
        }
    }

    /// All nodes, whatever they are now.
    pub fn nodes(&self) -> impl Iterator<Item = &RedisServer> {
        self.cluster.nodes().iter().chain(&self.replicas)
    }

    /// The nodes that are masters now, and answer.
    pub fn masters(&self) -> Vec<&RedisServer> {
        self.nodes()
            .filter(|node| replication(node).contains("role:master\r\n"))
            .collect()
    }

    /// Kills a master, one after the other by `round`, and waits until a replica has taken over.
    pub async fn kill_master(&self, round: usize) {
        let masters = self.masters();
        let count = masters.len();
        masters[round % count].kill9();
        eventually("a replica to take over", SOON, async || {
            self.masters().len() == count
        })
        .await;
    }

    /// Has the replica of a master take over from it, both alive.
    pub async fn fail_over(&self, round: usize) {
        let masters = self.masters();
        let port = format!("master_port:{}\r\n", masters[round % masters.len()].port());
        let replica = self
            .nodes()
            .find(|node| replication(node).contains(&port))
            .unwrap();
        let mut asked: Option<Instant> = None;
        eventually("the replica to take over", SOON, async || {
            // It may not be ready for that, or give up.
            if asked.is_none_or(|at| at.elapsed() > GIVES_UP) {
                asked = replica
                    .query::<()>(&["CLUSTER", "FAILOVER"])
                    .is_ok()
                    .then(Instant::now);
            }
            replication(replica).contains("role:master\r\n")
        })
        .await;
        self.mend().await;
    }

    /// Starts the nodes that were killed, and waits until every master has a replica, no node takes another one for dead,
    /// and all know who is whose replica. To a replica that they take for a master the others deny their votes, and it asks
    /// again after four times the nodes' timeout only.
    pub async fn mend(&self) {
        for dead in self.nodes().filter(|node| replication(node).is_empty()) {
            dead.restart().await;
        }
        eventually("every master to have a replica", SOON, async || {
            let in_step =
                |node: &&RedisServer| replication(node).contains("master_link_status:up\r\n");
            let known: BTreeSet<_> = self.nodes().map(nodes_known_to).collect();
            self.nodes().filter(in_step).count() == self.replicas.len()
                && known.len() == 1
                && known.iter().all(|nodes| !nodes.is_empty())
        })
        .await;
    }
}

/// Who is whose replica, as a node knows it. Empty if it takes a node for dead, or does not answer.
fn nodes_known_to(node: &RedisServer) -> BTreeSet<String> {
    let nodes: String = node.query(&["CLUSTER", "NODES"]).unwrap_or_default();
    if nodes.contains("fail") {
        return BTreeSet::new();
    }
    let known = nodes.lines().map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        format!(
            "{} {} {}",
            fields[0],
            fields[2].replace("myself,", ""),
            fields[3]
        )
    });
    known.collect()
}

/// Empty for a node that does not answer.
fn replication(node: &RedisServer) -> String {
    node.query(&["INFO", "replication"]).unwrap_or_default()
}
