//! A slot of a Cluster that moves from one node to another.

use crate::cluster::RedisCluster;
use crate::redis_server::RedisServer;

/// A slot on its way. Until the end, keys of it may be at either node.
pub struct SlotMove<'a> {
    pub from: &'a RedisServer,
    pub to: &'a RedisServer,
    slot: String,
}

impl<'a> SlotMove<'a> {
    /// Begins to move the slot of a key to another node.
    pub fn begin(cluster: &'a RedisCluster, key: &str) -> Self {
        let from = cluster.node_of(key);
        let to = cluster
            .nodes()
            .iter()
            .find(|node| node.port() != from.port())
            .unwrap();
        Self::between(from, to, key)
    }

    /// Begins to move the slot of a key from the node that has it.
    pub fn between(from: &'a RedisServer, to: &'a RedisServer, key: &str) -> Self {
        let slot = from.cli(&["CLUSTER", "KEYSLOT", key]);
        to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
        Self { from, to, slot }
    }

    /// Moves the keys. The two nodes know of it at once, and the others from them.
    pub fn end(self) {
        let nodes = [self.to, self.from];
        self.end_at(&nodes);
    }

    /// Moves the keys, and tells these nodes.
    pub fn end_at(self, nodes: &[&RedisServer]) {
        let Self { from, to, slot } = self;
        let port = to.port().to_string();
        loop {
            let keys: Vec<String> = from
                .query(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])
                .unwrap();
            if keys.is_empty() {
                break;
            }
            let move_keys = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            let keys = keys.iter().map(String::as_str);
            from.cli(&move_keys.into_iter().chain(keys).collect::<Vec<_>>());
        }
        // The new one first: until then, it sends callers back.
        let id = id(to);
        to.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        for node in nodes.iter().filter(|node| node.port() != to.port()) {
            node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }
}

fn id(node: &RedisServer) -> String {
    node.cli(&["CLUSTER", "MYID"])
}
