//! The servers, the links to them, and the workers.

use std::path::PathBuf;
use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{Store, StoreBuilder};

use super::history::{Event, History, Primitive, Record, Tail, now};
use super::worker::{PERMITS, Primitives, ROLE, TTL};
use support::clock_shim::ServerClock;
use support::eventually;
use support::keys::keys_without_ttl;
use support::processes::{Child, setting};
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::replicated::ReplicatedCluster;
use support::scratch_dir::ScratchDir;
use support::sentinel::Sentinel;

const WORKERS: usize = 2;
/// For each part of a call: waiting to be sent, connecting, and waiting for the reply.
const PART: Duration = Duration::from_millis(500);
/// What is bound to happen.
pub(crate) const SOON: Duration = Duration::from_secs(40);

pub(crate) enum Servers {
    One(RedisServer),
    Sentinel(Box<Sentinel>),
    Cluster(ReplicatedCluster),
}

impl Servers {
    /// The server, or the masters.
    pub(crate) fn masters(&self) -> Vec<&RedisServer> {
        match self {
            Self::One(server) => vec![server],
            Self::Sentinel(sentinel) => vec![sentinel.master()],
            Self::Cluster(cluster) => cluster.masters(),
        }
    }

    /// The only server.
    pub(crate) fn server(&self) -> &RedisServer {
        let Self::One(server) = self else {
            panic!("there is more than one server")
        };
        server
    }

    /// For [`store_of_role`].
    fn address(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Sentinel(sentinel) => {
                format!(
                    "sentinel {} {}",
                    sentinel.service_name(),
                    sentinel.sentinel_urls().join(" ")
                )
            }
            Self::Cluster(replicated) => format!("cluster {}", replicated.cluster.urls().join(" ")),
        }
    }
}

/// A link for each worker.
pub(crate) async fn links(server: &RedisServer) -> Vec<FaultProxy> {
    join_all((0..WORKERS).map(|_| FaultProxy::start(server.port()))).await
}

fn builder() -> StoreBuilder {
    Store::builder()
        .timeout(PART)
        .connect_timeout(PART)
        .queue_timeout(PART)
}

fn store_at(address: &str) -> Store {
    let mut words = address.split(' ');
    match words.next() {
        Some("sentinel") => {
            let service = words.next().unwrap();
            builder().sentinel(words, service).unwrap()
        }
        Some("cluster") => builder().cluster(words).unwrap(),
        _ => builder().redis(address).unwrap(),
    }
}

pub(crate) fn store_of_role() -> Store {
    store_at(&setting("STORE"))
}

pub(crate) struct Worker {
    pub(crate) child: Child,
    /// Of the link that it uses.
    address: String,
    tail: Tail,
    is_dead: bool,
}

pub(crate) struct Scene {
    pub(crate) servers: Servers,
    pub(crate) clock: Option<ServerClock>,
    pub(crate) links: Vec<FaultProxy>,
    pub(crate) workers: Vec<Worker>,
    dir: ScratchDir,
}

impl Scene {
    /// Starts the workers on links of their own, if there are any.
    pub(crate) async fn start(
        servers: Servers,
        clock: Option<ServerClock>,
        links: Vec<FaultProxy>,
    ) -> Self {
        let mut scene = Self {
            servers,
            clock,
            links,
            workers: Vec::new(),
            dir: ScratchDir::new(),
        };
        for number in 0..WORKERS {
            let link = scene.links.get(number).map(FaultProxy::port);
            let address = link.map(|port| format!("redis://127.0.0.1:{port}"));
            scene
                .spawn(address.unwrap_or_else(|| scene.servers.address()))
                .await;
        }
        scene
    }

    async fn spawn(&mut self, address: String) {
        let history = self
            .dir
            .path()
            .join(format!("{}.jsonl", self.workers.len()));
        let text = history.to_str().unwrap();
        let stop = self.stop_file();
        let env = [
            ("STORE", address.as_str()),
            ("HISTORY", text),
            ("STOP", stop.to_str().unwrap()),
        ];
        let mut child = Child::spawn(ROLE, &env);
        assert_eq!(child.next_line().await, "ready");
        self.workers.push(Worker {
            child,
            address,
            tail: Tail::of(&history),
            is_dead: false,
        });
    }

    /// The oldest worker.
    pub(crate) fn oldest(&self) -> &Worker {
        self.workers.iter().find(|worker| !worker.is_dead).unwrap()
    }

    /// Starts another worker in the place of the oldest one, which was killed.
    pub(crate) async fn replace_worker(&mut self) {
        let worker = self
            .workers
            .iter_mut()
            .find(|worker| !worker.is_dead)
            .unwrap();
        // Waits until it is gone.
        worker.child.kill9();
        worker.is_dead = true;
        let address = worker.address.clone();
        self.spawn(address).await;
    }

    fn stop_file(&self) -> PathBuf {
        self.dir.path().join("stop")
    }

    /// Waits until each primitive has served each worker after this time.
    pub(crate) async fn served_since(&mut self, since: u64) {
        for primitive in Primitive::ALL {
            for (number, worker) in self
                .workers
                .iter_mut()
                .enumerate()
                .filter(|(_, worker)| !worker.is_dead)
            {
                let what = format!("{primitive:?} to serve worker {number}");
                eventually(&what, SOON, async || {
                    worker.tail.read_on();
                    first_success(&worker.tail.records, primitive, since).is_some()
                })
                .await;
            }
        }
    }

    /// How long it took from this time on until each primitive served each worker, and none of their calls failed.
    pub(crate) fn recovered_since(&self, since: u64) -> Vec<Duration> {
        let took = |primitive| {
            let alive = self.workers.iter().filter(|worker| !worker.is_dead);
            let took = alive.map(|worker| {
                let records = &worker.tail.records;
                let first = first_success(records, primitive, since).unwrap_or_default();
                first.max(last_failure(records, primitive, since).unwrap_or_default())
            });
            took.max().unwrap_or_default()
        };
        Primitive::ALL.into_iter().map(took).collect()
    }

    /// Ends the workers. Returns the history and its files.
    pub(crate) async fn end(&mut self) -> (History, Vec<PathBuf>) {
        std::fs::write(self.stop_file(), "").unwrap();
        for worker in self.workers.iter_mut().filter(|worker| !worker.is_dead) {
            assert_eq!(worker.child.next_line().await, "done");
        }
        let files: Vec<_> = (0..self.workers.len())
            .map(|number| self.dir.path().join(format!("{number}.jsonl")))
            .collect();
        (History::read(files.clone()), files)
    }

    /// How much of a primitive stays in Redis for longer than it should: leases that cannot be had, and keys without a ttl.
    pub(crate) async fn leaked(&self, history: &History, primitive: Primitive) -> usize {
        let all = Primitives::of(&store_at(&self.servers.address()));
        let mut leaked = 0;
        for key in history.keys(primitive).into_keys() {
            let is_free = async || match primitive {
                // Whoever is refused ends what a clock that was set back has prolonged.
                Primitive::WaitGroup => all.permits.try_add_n(key, PERMITS).await.is_ok(),
                Primitive::Mutex => all.mutex.try_lock(key).await.is_ok(),
                Primitive::RwLock => all.rw_lock.try_write(key).await.is_ok(),
                _ => true,
            };
            let began = now();
            let mut free = is_free().await;
            while !free && Duration::from_nanos(now() - began) < 10 * TTL {
                tokio::time::sleep(Duration::from_millis(20)).await;
                free = is_free().await;
            }
            leaked += usize::from(!free);
        }
        let namespace = format!("{{{primitive:?}");
        let lasting = self
            .servers
            .masters()
            .into_iter()
            .flat_map(keys_without_ttl);
        leaked + lasting.filter(|key| key.contains(&namespace)).count()
    }
}

/// How long after `since` a primitive first served a worker: what it said came from the store.
fn first_success(records: &[Record], primitive: Primitive, since: u64) -> Option<Duration> {
    let refusals_count = matches!(
        primitive,
        Primitive::TokenBucket
            | Primitive::Dedupe
            | Primitive::FilterDedupe
            | Primitive::BloomFilter
    );
    let is_success = |event: &Event| match event {
        Event::Admitted(_) | Event::Granted(_) | Event::Got(_) | Event::Duplicate => true,
        Event::Refused => refusals_count,
        _ => false,
    };
    let later = records.iter().rev().take_while(|record| record.at > since);
    let success = later
        .filter(|record| record.primitive == primitive && is_success(&record.event))
        .last()?;
    Some(Duration::from_nanos(success.at - since))
}

fn last_failure(records: &[Record], primitive: Primitive, since: u64) -> Option<Duration> {
    let mut later = records.iter().rev().take_while(|record| record.at > since);
    let failure = later
        .find(|record| record.primitive == primitive && matches!(record.event, Event::Failed(_)))?;
    Some(Duration::from_nanos(failure.at - since))
}
