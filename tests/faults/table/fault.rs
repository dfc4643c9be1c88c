//! The faults, and what they do to a scene.

use std::time::Duration;

use super::Fault;
use super::history::now;
use super::means::{evict, kill_master, last, migrate, spin, to_masters, while_faulty};
use super::site::{Scene, Servers, links};
use super::worker::TTL;
use support::clock_shim::ServerClock;
use support::program::has_functions;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::replicated::ReplicatedCluster;
use support::sentinel::Sentinel;

/// Faults last for more and for less than the ttl of a lease, in turns.
pub(crate) const SHORT: Duration = Duration::from_millis(300);
pub(crate) const LONG: Duration = Duration::from_millis(1500);
const TWO_HOURS: i64 = 7200;

impl Fault {
    /// Whether it is one of the way to the server.
    fn has_links(self) -> bool {
        matches!(
            self,
            Self::Cut
                | Self::Stall
                | Self::Slow
                | Self::ReplyDropped
                | Self::Resets
                | Self::Partition
        )
    }

    /// Starts what the fault needs. `None` where that cannot be had.
    pub(crate) async fn scene(self) -> Option<Scene> {
        let has = |fault| self == fault;
        let arguments: &[_] = if has(Self::Busy) {
            &["--lua-time-limit", "10"]
        } else {
            &[]
        };
        let mut clock = None;
        let servers = if has(Self::SentinelKill) {
            Servers::Sentinel(Box::new(Sentinel::start().await))
        } else if has(Self::SlotMigration) || has(Self::ClusterKill) {
            Servers::Cluster(match has(Self::ClusterKill) {
                true => ReplicatedCluster::start("").await,
                false => ReplicatedCluster::bare().await,
            })
        } else if has(Self::ClockForward) || has(Self::ClockBack) {
            let (set, server) = ServerClock::start(arguments).await?;
            clock = Some(set);
            Servers::One(server)
        } else {
            let config = match (has(Self::RestartEverysec), has(Self::RestartAlways)) {
                (true, _) => "appendonly yes\nappendfsync everysec",
                (_, true) => "appendonly yes\nappendfsync always",
                _ => "",
            };
            Servers::One(RedisServer::launch(|| config.to_owned(), arguments).await)
        };
        let links = match &servers {
            Servers::One(server) if self.has_links() => links(server).await,
            _ => Vec::new(),
        };
        Some(Scene::start(servers, clock, links).await)
    }

    /// Does it once, the times of `lasts`. Returns the time from which the recovery counts: the end of the fault, or the death
    /// of a master.
    pub(crate) async fn strike(self, scene: &Scene, round: u32, lasts: Duration) -> u64 {
        match self {
            Self::None => {}
            Self::Cut => while_faulty(&scene.links, lasts, FaultProxy::cut).await,
            Self::Stall => while_faulty(&scene.links, lasts, FaultProxy::stall).await,
            Self::ReplyDropped => while_faulty(&scene.links, lasts, FaultProxy::drop_replies).await,
            Self::Resets => {
                for _ in 0..lasts.as_millis() / 100 {
                    while_faulty(&scene.links, Duration::from_millis(1), FaultProxy::cut).await;
                    last(Duration::from_millis(99)).await;
                }
            }
            Self::Partition => {
                let proxy = &scene.links[0];
                if round.is_multiple_of(2) {
                    proxy.cut()
                } else {
                    proxy.stall()
                }
                last(lasts).await;
                proxy.heal();
            }
            Self::Slow => {
                for part in [1, 8, 3] {
                    scene
                        .links
                        .iter()
                        .for_each(|proxy| proxy.delay_replies(TTL * part / 4));
                    last(lasts).await;
                }
                scene
                    .links
                    .iter()
                    .for_each(|proxy| proxy.delay_replies(Duration::ZERO));
            }
            Self::ScriptFlush => {
                to_masters(scene, &["SCRIPT", "FLUSH"]).await;
                if has_functions() {
                    to_masters(scene, &["FUNCTION", "FLUSH"]).await;
                }
            }
            Self::ClientKill => {
                to_masters(scene, &["CLIENT", "KILL", "TYPE", "normal"]).await;
                to_masters(scene, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            }
            Self::ClientPause => {
                let ms = lasts.as_millis().to_string();
                to_masters(scene, &["CLIENT", "PAUSE", &ms, "ALL"]).await;
                last(lasts).await;
            }
            Self::Busy => spin(scene.servers.server(), lasts).await,
            Self::OutOfMemory => {
                to_masters(scene, &["CONFIG", "SET", "maxmemory", "1"]).await;
                last(lasts).await;
                to_masters(scene, &["CONFIG", "SET", "maxmemory", "0"]).await;
            }
            Self::EvictAll => evict(scene.servers.server(), "allkeys-lru").await,
            Self::EvictVolatile => evict(scene.servers.server(), "volatile-lru").await,
            Self::ReadOnly => {
                // Its master does not exist, so it keeps what it has.
                to_masters(scene, &["REPLICAOF", "127.0.0.1", "1"]).await;
                last(lasts).await;
                to_masters(scene, &["REPLICAOF", "NO", "ONE"]).await;
            }
            Self::Restart | Self::RestartEverysec | Self::RestartAlways => {
                scene.servers.server().restart().await;
            }
            Self::SentinelKill | Self::ClusterKill => {
                return kill_master(&scene.servers, round).await;
            }
            Self::SlotMigration => migrate(&scene.servers, lasts).await,
            Self::ClockForward | Self::ClockBack => {
                let sign = if self == Self::ClockForward { 1 } else { -1 };
                scene
                    .clock
                    .as_ref()
                    .unwrap()
                    .set(sign * TWO_HOURS * i64::from(round + 1));
                // Until what lasts for longer than it should is found.
                last(lasts).await;
            }
            Self::ServerStopped => {
                scene.servers.server().pause();
                last(lasts).await;
                scene.servers.server().resume();
            }
            Self::ClientStopped => {
                scene.oldest().child.pause();
                last(lasts).await;
                scene.oldest().child.resume();
            }
            Self::HostSuspended => {
                scene.servers.server().pause();
                scene.workers.iter().for_each(|worker| worker.child.pause());
                last(lasts).await;
                scene.servers.server().resume();
                scene
                    .workers
                    .iter()
                    .for_each(|worker| worker.child.resume());
            }
            Self::ClientKilled => scene.oldest().child.kill(),
        }
        now()
    }

    /// Brings back the servers that were lost, for the next round.
    pub(crate) async fn mend(self, scene: &Scene) {
        match &scene.servers {
            Servers::Sentinel(sentinel) if self == Self::SentinelKill => {
                sentinel.replica().restart().await;
                sentinel.settled().await;
            }
            Servers::Cluster(cluster) if self == Self::ClusterKill => cluster.mend().await,
            _ => {}
        }
    }
}
