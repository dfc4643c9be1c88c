//! The faults, and what they do to a scene.

use std::fmt;
use std::time::Duration;

use super::history::now;
use super::site::{Link, Scene, Servers};
use super::worker::TTL;
use support::clock_shim::ServerClock;
use support::cluster::RedisCluster;
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::sentinel::Sentinel;
use support::slot_move::SlotMove;

const SOON: Duration = Duration::from_secs(40);
/// Faults last for more and for less than the ttl of a lease, in turns.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_millis(1500);
const TWO_HOURS: i64 = 7200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Cut,
    Stall,
    /// Replies take 0 to 2 × ttl.
    Slow,
    /// Commands run, and their replies are dropped.
    ReplyDropped,
    /// All connections are closed every 100 ms.
    Resets,
    /// One of the workers is cut off.
    Partition,
    ScriptFlush,
    ClientKill,
    ClientPause,
    Busy,
    OutOfMemory,
    EvictAll,
    EvictVolatile,
    ReadOnly,
    Restart,
    RestartEverysec,
    RestartAlways,
    SentinelKill,
    ClusterKill,
    SlotMigration,
    ClockForward,
    ClockBack,
    ServerStopped,
    ClientStopped,
    HostSuspended,
    ClientKilled,
}

/// For readers of the table.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Cut => "connections closed, and refused for 0.3 or 1.5 s",
            Self::Stall => "network stalled for 0.3 or 1.5 s",
            Self::Slow => "replies take 0 to 2 s (2 × ttl)",
            Self::ReplyDropped => "commands run, replies dropped for 0.3 or 1.5 s",
            Self::Resets => "connections closed every 100 ms",
            Self::Partition => "one of two processes cut off for 1.5 s",
            Self::ScriptFlush => "`SCRIPT FLUSH`",
            Self::ClientKill => "`CLIENT KILL` of all connections",
            Self::ClientPause => "`CLIENT PAUSE` for 0.3 or 1.5 s",
            Self::Busy => "busy with a script for 0.3 or 1.5 s",
            Self::OutOfMemory => "out of memory, `noeviction`, for 0.3 or 1.5 s",
            Self::EvictAll => "100 keys evicted, `allkeys-lru`",
            Self::EvictVolatile => "100 keys evicted, `volatile-lru`",
            Self::ReadOnly => "`READONLY` for 0.3 or 1.5 s",
            Self::Restart => "server killed and restarted, without persistence",
            Self::RestartEverysec => "server killed and restarted, `appendfsync everysec`",
            Self::RestartAlways => "server killed and restarted, `appendfsync always`",
            Self::SentinelKill => "master killed, Sentinel",
            Self::ClusterKill => "master killed, Cluster",
            Self::SlotMigration => "slots moved, each for 0.3 or 1.5 s",
            Self::ClockForward => "clock of the server set forward by 2 h",
            Self::ClockBack => "clock of the server set back by 2 h",
            Self::ServerStopped => "server stopped (`SIGSTOP`) for 0.3 or 1.5 s",
            Self::ClientStopped => "process stopped (`SIGSTOP`) for 1.5 s",
            Self::HostSuspended => "server and processes stopped for 0.3 or 1.5 s",
            Self::ClientKilled => "process killed",
        })
    }
}

impl Fault {
    /// Starts what the fault needs. `None` where that cannot be had.
    pub(crate) async fn scene(self) -> Option<Scene> {
        let mut clock = None;
        let servers = match self {
            Self::Busy => Servers::One(RedisServer::with_args(&["--lua-time-limit", "10"]).await),
            Self::RestartEverysec => Servers::One(with_aof("everysec").await),
            Self::RestartAlways => Servers::One(with_aof("always").await),
            Self::SentinelKill => Servers::Sentinel(Box::new(Sentinel::start().await)),
            Self::SlotMigration => {
                Servers::Cluster { cluster: RedisCluster::start().await, replicas: Vec::new() }
            }
            Self::ClusterKill => {
                let cluster = RedisCluster::start().await;
                let mut replicas = Vec::new();
                for node in 0..cluster.nodes().len() {
                    replicas.push(cluster.replica_of(node).await);
                }
                Servers::Cluster { cluster, replicas }
            }
            Self::ClockForward | Self::ClockBack => {
                let (set, server) = ServerClock::start().await?;
                clock = Some(set);
                Servers::One(server)
            }
            _ => Servers::One(RedisServer::start().await),
        };
        let links = match self {
            Self::Slow => Scene::slow_links(servers.server()).await,
            Self::Cut | Self::Stall | Self::ReplyDropped | Self::Resets | Self::Partition => {
                Scene::links(servers.server()).await
            }
            _ => Vec::new(),
        };
        Some(Scene::start(servers, clock, links).await)
    }

    /// Does it once. Returns the time from which the recovery counts: the end of the fault, or the death of a master.
    pub(crate) async fn strike(self, scene: &mut Scene, round: u32) -> u64 {
        let lasts = if round.is_multiple_of(2) { LONG } else { SHORT };
        match self {
            Self::None => {}
            Self::Cut => while_faulty(scene, lasts, FaultProxy::cut).await,
            Self::Stall => while_faulty(scene, lasts, FaultProxy::stall).await,
            Self::ReplyDropped => while_faulty(scene, lasts, FaultProxy::drop_replies).await,
            Self::Resets => {
                for _ in 0..lasts.as_millis() / 100 {
                    while_faulty(scene, Duration::from_millis(1), FaultProxy::cut).await;
                    last(Duration::from_millis(99)).await;
                }
            }
            Self::Partition => {
                let Link::Faults(proxy) = &scene.links[0] else { panic!("no proxy") };
                if round.is_multiple_of(2) {
                    proxy.cut()
                } else {
                    proxy.stall()
                }
                last(LONG).await;
                proxy.heal();
            }
            Self::Slow => {
                for part in [1, 4, 2, 8, 3] {
                    for link in &scene.links {
                        let Link::Slow(proxy) = link else { panic!("no slow proxy") };
                        proxy.delay_replies(TTL * part / 4);
                    }
                    last(lasts).await;
                }
                for link in &scene.links {
                    let Link::Slow(proxy) = link else { panic!("no slow proxy") };
                    proxy.delay_replies(Duration::ZERO);
                }
            }
            Self::ScriptFlush => drop(scene.servers.server().cli(&["SCRIPT", "FLUSH"])),
            Self::ClientKill => {
                drop(scene.servers.server().cli(&["CLIENT", "KILL", "TYPE", "normal"]));
                drop(scene.servers.server().cli(&["CLIENT", "KILL", "TYPE", "pubsub"]));
            }
            Self::ClientPause => {
                let ms = lasts.as_millis().to_string();
                drop(scene.servers.server().cli(&["CLIENT", "PAUSE", &ms, "ALL"]));
                last(lasts).await;
            }
            Self::Busy => spin(scene.servers.server(), lasts).await,
            Self::OutOfMemory => {
                let memory = |limit| drop(scene.servers.server().cli(&["CONFIG", "SET", "maxmemory", limit]));
                memory("1");
                last(lasts).await;
                memory("0");
            }
            Self::EvictAll => evict(scene.servers.server(), "allkeys-lru").await,
            Self::EvictVolatile => evict(scene.servers.server(), "volatile-lru").await,
            Self::ReadOnly => {
                // Its master does not exist, so it keeps what it has.
                let follow = |host, port| drop(scene.servers.server().cli(&["REPLICAOF", host, port]));
                follow("127.0.0.1", "1");
                last(lasts).await;
                follow("NO", "ONE");
            }
            Self::Restart | Self::RestartEverysec | Self::RestartAlways => {
                scene.servers.server().restart().await;
            }
            Self::SentinelKill | Self::ClusterKill => return kill_master(&scene.servers, round).await,
            Self::SlotMigration => migrate(&scene.servers, lasts).await,
            Self::ClockForward | Self::ClockBack => {
                let sign = if self == Self::ClockForward { 1 } else { -1 };
                scene.clock.as_ref().unwrap().set(sign * TWO_HOURS * i64::from(round + 1));
                // Until what lasts for longer than it should is found.
                last(LONG).await;
            }
            Self::ServerStopped => {
                scene.servers.server().pause();
                last(lasts).await;
                scene.servers.server().resume();
            }
            Self::ClientStopped => {
                scene.workers[0].child.pause();
                last(LONG).await;
                scene.workers[0].child.resume();
            }
            Self::HostSuspended => {
                scene.servers.server().pause();
                scene.workers.iter().for_each(|worker| worker.child.pause());
                last(lasts).await;
                scene.servers.server().resume();
                scene.workers.iter().for_each(|worker| worker.child.resume());
            }
            Self::ClientKilled => scene.replace_worker().await,
        }
        now()
    }

    /// Brings back what was lost, for the next round.
    pub(crate) async fn mend(self, scene: &Scene) {
        match &scene.servers {
            Servers::Sentinel(sentinel) if self == Self::SentinelKill => {
                sentinel.replica().restart().await;
                sentinel.settled().await;
            }
            Servers::Cluster { cluster, replicas } if self == Self::ClusterKill => {
                let nodes = || cluster.nodes().iter().chain(replicas);
                for dead in nodes().filter(|node| !answers(node)) {
                    dead.restart().await;
                }
                eventually("every master to have a replica", SOON, async || {
                    let in_step = |node: &&RedisServer| {
                        node.cli(&["INFO", "replication"]).contains("master_link_status:up")
                    };
                    nodes().filter(in_step).count() == replicas.len()
                })
                .await;
            }
            _ => {}
        }
    }
}

/// How long a fault lasts: no condition to wait for.
async fn last(time: Duration) {
    tokio::time::sleep(time).await;
}

async fn while_faulty(scene: &Scene, lasts: Duration, fault: impl Fn(&FaultProxy)) {
    let proxies = || {
        scene.links.iter().map(|link| match link {
            Link::Faults(proxy) => proxy,
            Link::Slow(_) => panic!("a slow proxy has no faults"),
        })
    };
    proxies().for_each(&fault);
    last(lasts).await;
    proxies().for_each(FaultProxy::heal);
}

fn answers(node: &RedisServer) -> bool {
    node.query::<String>(&["PING"]).is_ok()
}

async fn with_aof(fsync: &str) -> RedisServer {
    RedisServer::launch(|| format!("appendonly yes\nappendfsync {fsync}"), &[]).await
}

/// Keeps the server busy with a script.
async fn spin(server: &RedisServer, lasts: Duration) {
    let mut client = server.client().unwrap();
    let spinning = std::thread::spawn(move || {
        let spin = "while true do end";
        let _ = client.query::<()>(deadpool_redis::redis::cmd("EVAL").arg(spin).arg(0));
    });
    last(lasts).await;
    server.cli(&["SCRIPT", "KILL"]);
    spinning.join().unwrap();
}

/// Has the server evict keys: it never has quite enough memory.
async fn evict(server: &RedisServer, policy: &str) {
    const STEP: u64 = 20_000;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", policy]);
    let evicted = || {
        let stats = server.cli(&["INFO", "stats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("evicted_keys:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let before = evicted();
    eventually("the server to evict keys", SOON, async || {
        let memory = server.cli(&["INFO", "memory"]);
        let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        let limit = used.trim().parse::<u64>().unwrap() - STEP;
        server.cli(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
        evicted() > before + 100
    })
    .await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
}

/// Kills a master and waits until another node has taken over. Returns when it was killed.
async fn kill_master(servers: &Servers, round: u32) -> u64 {
    let at = now();
    match servers {
        Servers::Sentinel(sentinel) => sentinel.kill_master().await,
        Servers::Cluster { .. } => {
            let masters = servers.masters();
            let count = masters.len();
            masters[round as usize % count].kill9();
            eventually("a replica to take over", SOON, async || servers.masters().len() == count).await;
        }
        Servers::One(_) => panic!("nobody takes over"),
    }
    at
}

/// Moves the slots of the mutex and the bucket that are used now, and of others.
async fn migrate(servers: &Servers, lasts: Duration) {
    let Servers::Cluster { cluster, .. } = servers else { panic!("there are no slots") };
    let mut keys = Vec::new();
    for node in cluster.nodes() {
        keys.extend(node.query::<Vec<String>>(&["KEYS", "td:{*"]).unwrap());
    }
    let mut slots = Vec::new();
    for part in ["{mutex:", "{permits:", "{rw:", "{bucket:", "{flights:"] {
        let Some(key) = keys.iter().rfind(|key| key.contains(part)) else { continue };
        let slot = cluster.nodes()[0].cli(&["CLUSTER", "KEYSLOT", key]);
        // A slot moves once: after that, it is not where it was.
        if !slots.contains(&slot) && is_at_home(cluster, key) {
            let moving = SlotMove::begin(cluster, key);
            last(lasts).await;
            moving.end();
            slots.push(slot);
        }
    }
}

/// Whether the slot of a key has not been moved yet.
fn is_at_home(cluster: &RedisCluster, key: &str) -> bool {
    cluster.node_of(key).query::<i64>(&["EXISTS", key]).is_ok()
}
