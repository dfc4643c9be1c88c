//! A Redis Cluster for one test.

use std::time::Duration;

use crate::eventually;
use crate::ports::free_port;
use crate::redis_server::RedisServer;

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;
const START_DEADLINE: Duration = Duration::from_secs(30);

/// Three masters without replicas, each with a third of the slots. Needs Redis 7.0 (see
/// [`since_7_0`](crate::program::since_7_0)).
///
/// A cluster node accepts writes two seconds after its start at the earliest, so share a cluster if you can.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    /// Further lines of configuration, of all nodes.
    config: &'static str,
}

impl RedisCluster {
    /// Starts the nodes and waits until each node sees all nodes and all slots served.
    pub async fn start() -> Self {
        Self::with_config("").await
    }

    /// The same with further lines of configuration.
    pub async fn with_config(config: &'static str) -> Self {
        let node = || start_node(config);
        let (first, second, third) = tokio::join!(node(), node(), node());
        let cluster = Self {
            nodes: vec![first, second, third],
            config,
        };
        cluster.share_out_slots();
        cluster.introduce_nodes();
        cluster.settled().await;
        cluster
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the node that serves `key`.
    pub fn node_of(&self, key: &str) -> &RedisServer {
        let slot: usize = self.nodes[0].query(&["CLUSTER", "KEYSLOT", key]).unwrap();
        let node = (0..MASTERS).find(|&node| slot <= last_slot(node)).unwrap();
        &self.nodes[node]
    }

    /// Starts a node that is in no cluster.
    pub async fn stranger(&self) -> RedisServer {
        start_node(self.config).await
    }

    /// Takes a node in that has no slots yet.
    pub async fn admit(&self, node: &RedisServer) {
        introduce(&self.nodes[0], node);
        let id = node.cli(&["CLUSTER", "MYID"]);
        eventually("all to know the new node", START_DEADLINE, async || {
            let knows = |other: &RedisServer| {
                let nodes = other.cli(&["CLUSTER", "NODES"]);
                nodes
                    .lines()
                    .any(|line| line.starts_with(&id) && line.contains(" connected"))
            };
            self.nodes.iter().all(knows)
                && node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        })
        .await;
    }

    /// Removes a node that has no slots any more.
    pub async fn dismiss(&self, node: RedisServer) {
        let id = node.cli(&["CLUSTER", "MYID"]);
        for other in &self.nodes {
            other.cli(&["CLUSTER", "FORGET", &id]);
        }
        drop(node);
        self.settled().await;
    }

    /// Starts a replica of a node, and waits until it is in step.
    pub async fn replica_of(&self, node: usize) -> RedisServer {
        let (master, replica) = (&self.nodes[node], self.stranger().await);
        introduce(master, &replica);
        let id = master.cli(&["CLUSTER", "MYID"]);
        let replicate = ["CLUSTER", "REPLICATE", &id];
        eventually(
            "the replica to know its master",
            START_DEADLINE,
            async || replica.query::<String>(&replicate).is_ok(),
        )
        .await;
        let replica_id = replica.cli(&["CLUSTER", "MYID"]);
        // A replica that has not heard from the other masters yet gets no votes, if its own dies.
        eventually(
            "the replica to be in step, and all to know all",
            START_DEADLINE,
            async || {
                let knows_replica = |node: &RedisServer| {
                    let nodes = node.cli(&["CLUSTER", "NODES"]);
                    nodes
                        .lines()
                        .any(|line| line.starts_with(&replica_id) && line.contains("slave"))
                        && nodes
                            .lines()
                            .all(|line| line.contains(" connected") && !line.contains("handshake"))
                };
                replica
                    .cli(&["INFO", "replication"])
                    .contains("master_link_status:up")
                    && replica
                        .cli(&["CLUSTER", "INFO"])
                        .contains(&format!("cluster_size:{MASTERS}\r\n"))
                    && self.nodes.iter().chain([&replica]).all(knows_replica)
            },
        )
        .await;
        replica
    }

    /// Waits until every node sees the whole cluster, for example after a restart of one node.
    pub async fn settled(&self) {
        let what = "every cluster node to see a whole cluster";
        eventually(what, START_DEADLINE, async || {
            self.nodes.iter().all(sees_whole_cluster)
        })
        .await;
    }

    fn share_out_slots(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let first = index
                .checked_sub(1)
                .map_or(0, |previous| last_slot(previous) + 1)
                .to_string();
            let last = last_slot(index).to_string();
            // Unique from the start. Otherwise the nodes would first have to resolve the conflict.
            let epoch = (index + 1).to_string();
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
    }

    fn introduce_nodes(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            self.nodes[index + 1..]
                .iter()
                .for_each(|other| introduce(node, other));
        }
    }
}

fn introduce(node: &RedisServer, other: &RedisServer) {
    let (_, bus): (String, String) = other.query(&["CONFIG", "GET", "cluster-port"]).unwrap();
    node.cli(&[
        "CLUSTER",
        "MEET",
        "127.0.0.1",
        &other.port().to_string(),
        &bus,
    ]);
}

async fn start_node(config: &str) -> RedisServer {
    let config = || {
        format!(
            "cluster-enabled yes\n\
             cluster-config-file nodes.conf\n\
             cluster-port {}\n\
             cluster-announce-ip 127.0.0.1\n\
             cluster-node-timeout 1500\n\
             {config}\n",
            free_port()
        )
    };
    RedisServer::launch(config, &[]).await
}

fn sees_whole_cluster(node: &RedisServer) -> bool {
    let info: String = node.query(&["CLUSTER", "INFO"]).unwrap_or_default();
    [
        "cluster_state:ok",
        "cluster_known_nodes:3",
        "cluster_size:3",
    ]
    .iter()
    .all(|line| info.contains(&format!("{line}\r\n")))
}

fn last_slot(node: usize) -> usize {
    (node + 1) * SLOTS / MASTERS - 1
}
