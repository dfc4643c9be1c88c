//! Five nodes, each of which is up, hangs, or has given the lock to somebody else: all 243 states.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use tokio::time::{Instant, timeout};
use tower_distributed::{Mutex, Store};

use crate::kinds::SOON;
use support::eventually;
use support::keys::keys_without_ttl;
use support::patient;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

const NODES: usize = 5;
/// So long that what goes away has been taken back, rather than run out.
const TTL: Duration = Duration::from_secs(60);
/// 600 ms, much for a node that is up on a busy machine.
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

fn count(set: Set) -> usize {
    set.count_ones() as usize
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_state_of_five_nodes_gets_the_right_answer() {
    let servers = join_all((0..NODES).map(|_| RedisServer::start())).await;
    warm_up(&servers).await;
    let (granted, refused, unavailable) = <(AtomicUsize, AtomicUsize, AtomicUsize)>::default();
    let began = Instant::now();
    let groups = (0..1 << NODES).map(|hung| {
        let (servers, granted, refused, unavailable) = (&servers, &granted, &refused, &unavailable);
        async move {
            for outcome in with_hung(servers, hung).await {
                match outcome {
                    Outcome::Granted => granted,
                    Outcome::Refused => refused,
                    Outcome::Unavailable => unavailable,
                }
                .fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    futures::stream::iter(groups).for_each_concurrent(AT_ONCE, |group| group).await;
    let [granted, refused, unavailable] = [granted, refused, unavailable].map(AtomicUsize::into_inner);
    println!("{granted} granted, {refused} refused, {unavailable} unavailable in {:?}", began.elapsed());
    // Three or more free of five that are up, hung or taken: 10·4 + 5·2 + 1.
    assert_eq!((granted, granted + refused + unavailable), (51, 243));
    assert_eq!(refused, 51);
    for server in &servers {
        assert_eq!(keys_without_ttl(server), [""; 0]);
    }
}

async fn warm_up(servers: &[RedisServer]) {
    let stores: Vec<_> = servers.iter().map(|server| patient!(server.url())).collect();
    let mutex = Mutex::builder().ttl(TTL).build_quorum(stores, "states").unwrap();
    eventually("all scripts to be known", SOON, async || {
        mutex.lock("warm").await.unwrap().unlock().await.unwrap();
        servers.iter().all(|server| server.query(&["EXISTS", "td:{states:warm}:fence"]) == Ok(1))
    })
    .await;
}

enum Outcome {
    Granted,
    Refused,
    Unavailable,
}

/// All states in which these nodes hang, at once: each on a key of its own, and by stores of its own.
async fn with_hung(servers: &[RedisServer], hung: Set) -> Vec<Outcome> {
    let hanging = (0..NODES).filter(|node| has(hung, *node));
    let proxies = join_all(hanging.map(|node| FaultProxy::start(servers[node].port()))).await;
    let taken = (0..1 << NODES).filter(|taken: &Set| taken & hung == 0);
    let states = join_all(taken.map(|taken| State::set(servers, &proxies, hung, taken))).await;
    proxies.iter().for_each(FaultProxy::stall);
    let outcomes = join_all(states.iter().map(State::ask)).await;
    join_all(states.iter().map(|state| state.clean(servers, !hung))).await;
    proxies.iter().for_each(FaultProxy::heal);
    join_all(states.iter().map(|state| state.clean(servers, hung))).await;
    outcomes
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
            let timeout = Duration::from_millis(if has(taken, 0) { 500 } else { 30_000 });
            let store = Store::builder().timeout(timeout).redis(&url).unwrap();
            let alone = Mutex::new(&store, "states").unwrap();
            eventually("a connection", SOON, async || alone.is_locked(&key).await.is_ok()).await;
            if has(taken, node) {
                server.cli(&["SET", &lock(&key), "somebody else", "PX", "600000"]);
            }
            stores.push(store);
        }
        let builder = Mutex::builder().ttl(TTL).timeout_factor(TIMEOUT_FACTOR);
        let builder = builder.fail_fast(taken % 3 == 1).shuffle_nodes(taken % 5 == 1);
        Self { hung, taken, mutex: builder.build_quorum(stores, "states").unwrap(), key }
    }

    async fn ask(&self) -> Outcome {
        let answer = timeout(DEADLINE, self.mutex.try_lock(&self.key)).await;
        match answer.unwrap_or_else(|_| panic!("{self}: no answer in time")) {
            Ok(guard) => {
                assert!(self.free() >= 3, "{self}: granted");
                assert!(guard.is_held() && guard.fence() > 0, "{self}: not held");
                let unlocked = timeout(DEADLINE, guard.unlock()).await;
                let unlocked = unlocked.unwrap_or_else(|_| panic!("{self}: not unlocked in time"));
                assert!(unlocked.unwrap(), "{self}: it was not held to the end");
                Outcome::Granted
            }
            Err(error) => {
                assert!(self.free() < 3, "{self}: {error}");
                // Refused where no majority could be had if all answered; else it is the outage.
                assert_eq!(error.is_refused(), count(self.taken) >= 3, "{self}: {error}");
                assert_eq!(error.is_unavailable(), !error.is_refused(), "{self}: {error}");
                if error.is_refused() { Outcome::Refused } else { Outcome::Unavailable }
            }
        }
    }

    fn free(&self) -> usize {
        NODES - count(self.hung) - count(self.taken)
    }

    /// No vote of ours is left on these nodes, and those of others are.
    async fn clean(&self, servers: &[RedisServer], nodes: Set) {
        for (node, server) in servers.iter().enumerate().filter(|(node, _)| has(nodes, *node)) {
            let expected = has(self.taken, node).then(|| "somebody else".to_owned());
            let what = format!("{self}: node {node} to hold nothing of ours");
            let name = lock(&self.key);
            eventually(&what, SOON, async || server.query(&["GET", &name]) == Ok(expected.clone())).await;
        }
    }
}

fn lock(key: &str) -> String {
    format!("td:{{states:{key}}}:lock")
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.key)
    }
}
