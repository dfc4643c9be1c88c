//! Five nodes, each of which is up, hangs, or has given the lock to somebody else: all 243 states.

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use tokio::time::timeout;
use tower_distributed::Mutex;

use crate::leases::kinds::{LONG, SOON, hasty, open};
use support::eventually;
use support::keys::keys_without_ttl;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

const NODES: usize = 5;
/// 600 ms, much for a node that is up on a busy machine. What goes away is taken back long before it runs out.
const TIMEOUT_FACTOR: f64 = 0.01;
/// Twice for the votes and the fence, and much more for the same machine.
const DEADLINE: Duration = Duration::from_secs(5);
/// How many sets of hanging nodes are seen to at a time.
const AT_ONCE: usize = 8;

/// One bit a node.
type Set = usize;

fn has(set: Set, node: usize) -> bool {
    set >> node & 1 == 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_state_of_five_nodes_gets_the_right_answer() {
    let servers = join_all((0..NODES).map(|_| RedisServer::start())).await;
    let stores: Vec<_> = servers.iter().map(|server| open(&server.url())).collect();
    let mutex = Mutex::builder().ttl(LONG).build_quorum(stores, "states").unwrap();
    eventually("all scripts to be known", SOON, async || {
        mutex.lock("warm").await.unwrap().unlock().await.unwrap();
        servers.iter().all(|server| server.query(&["EXISTS", "td:{states:warm}:fence"]) == Ok(1))
    })
    .await;
    let groups = (0..1 << NODES).map(|hung| with_hung(&servers, hung));
    futures::stream::iter(groups).for_each_concurrent(AT_ONCE, |group| group).await;
    for server in &servers {
        assert_eq!(keys_without_ttl(server), [""; 0]);
    }
}

/// All states in which these nodes hang, at once: each on a key of its own, and by stores of its own.
async fn with_hung(servers: &[RedisServer], hung: Set) {
    let hanging = (0..NODES).filter(|node| has(hung, *node));
    let proxies = join_all(hanging.map(|node| FaultProxy::start(servers[node].port()))).await;
    let taken = (0..1 << NODES).filter(|taken: &Set| taken & hung == 0);
    let states = join_all(taken.map(|taken| State::set(servers, &proxies, hung, taken))).await;
    proxies.iter().for_each(FaultProxy::stall);
    join_all(states.iter().map(State::ask)).await;
    join_all(states.iter().map(|state| state.clean(servers, !hung))).await;
    proxies.iter().for_each(FaultProxy::heal);
    join_all(states.iter().map(|state| state.clean(servers, hung))).await;
}

struct State {
    hung: Set,
    taken: Set,
    key: String,
    mutex: Mutex,
}

impl State {
    /// Everybody has a connection when it begins; those that are to hang through their proxies.
    async fn set(servers: &[RedisServer], proxies: &[FaultProxy], hung: Set, taken: Set) -> Self {
        let key = format!("hung {hung:05b} taken {taken:05b}");
        let (mut proxies, mut stores) = (proxies.iter(), Vec::new());
        for (node, server) in servers.iter().enumerate() {
            let url = if has(hung, node) { proxies.next().unwrap().url() } else { server.url() };
            // Half of them with breakers that open, half without a time-out that is of any use.
            let store = hasty(&url, if has(taken, 0) { 500 } else { 30_000 });
            let alone = Mutex::new(&store, "states").unwrap();
            eventually("a connection", SOON, async || alone.is_locked(&key).await.is_ok()).await;
            if has(taken, node) {
                server.cli(&["SET", &lock(&key), "somebody else", "PX", "600000"]);
            }
            stores.push(store);
        }
        let builder = Mutex::builder().ttl(LONG).timeout_factor(TIMEOUT_FACTOR);
        let builder = builder.fail_fast(taken % 3 == 1).shuffle_nodes(taken % 5 == 1);
        Self { hung, taken, mutex: builder.build_quorum(stores, "states").unwrap(), key }
    }

    /// It is granted if a majority is free, refused if no majority could be had if all answered; else it is the outage.
    async fn ask(&self) {
        let Self { hung, taken, key, .. } = self;
        let is_free = NODES as u32 - hung.count_ones() - taken.count_ones() >= 3;
        match timeout(DEADLINE, self.mutex.try_lock(key)).await.expect(key) {
            Ok(guard) => {
                assert!(is_free, "{key}: granted");
                assert!(guard.is_held() && guard.fence() > 0, "{key}: not held");
                let unlocked = timeout(DEADLINE, guard.unlock()).await.expect(key);
                assert!(unlocked.unwrap(), "{key}: it was not held to the end");
            }
            Err(error) => {
                assert!(!is_free, "{key}: {error}");
                assert_eq!(error.is_refused(), taken.count_ones() >= 3, "{key}: {error}");
                assert_eq!(error.is_unavailable(), !error.is_refused(), "{key}: {error}");
            }
        }
    }

    /// No vote of ours is left on these nodes, and those of others are.
    async fn clean(&self, servers: &[RedisServer], nodes: Set) {
        for (node, server) in servers.iter().enumerate().filter(|(node, _)| has(nodes, *node)) {
            let expected = has(self.taken, node).then(|| "somebody else".to_owned());
            let what = format!("{}: node {node} to hold nothing of ours", self.key);
            let name = lock(&self.key);
            eventually(&what, SOON, async || server.query(&["GET", &name]) == Ok(expected.clone())).await;
        }
    }
}

fn lock(key: &str) -> String {
    format!("td:{{states:{key}}}:lock")
}
