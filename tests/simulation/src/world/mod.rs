//! A world: servers, processes with stores and callers, faults, and judges, all from one seed.

mod callers;
mod driver;
mod end;
pub mod judges;
mod quiet;
mod runtimes;
pub mod shape;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tower_distributed::Store;

use self::callers::Primitives;
use self::callers::layers::Upstream;
use self::callers::quorums::NODES;
use self::judges::Judges;
use self::runtimes::{LONG_TURN, Runtimes, TURN};
use self::shape::{Fault, Servers, Shape};
use crate::network::{Dialer, Kind, Network};
use crate::server::cluster::Topology;
use crate::server::sentinel::Sentinel;
use crate::server::{Server, lock};
use crate::truth::Request;
use crate::{memory, os};

/// What a world was like.
#[derive(Debug, Default)]
pub struct Outcome {
    pub seed: u64,
    /// A digest of all that has happened, and how much that was.
    pub digest: u64,
    pub events: u64,
    pub broken: Vec<String>,
    /// How often what has happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// How often each command has run.
    pub commands: BTreeMap<&'static str, u64>,
    /// The requests at the server, if they were to be kept.
    pub requests: Vec<Request>,
}

/// A process of the fleet.
pub struct Process {
    pub number: usize,
    /// Where its tasks run.
    pub runtime: Handle,
    pub store: Store,
    pub primitives: Primitives,
}

impl Process {
    /// Its stores: one, and those of the nodes of a quorum.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        let quorum = self.primitives.quorum.iter();
        std::iter::once(&self.store).chain(quorum.flat_map(|quorum| &quorum.nodes))
    }
}

pub struct World {
    pub shape: Shape,
    pub network: Arc<Network>,
    pub judges: Judges,
    /// The addresses of the servers.
    pub servers: Vec<String>,
    /// The independent servers of a quorum.
    pub nodes: Vec<String>,
    /// The slots of a Cluster.
    pub topology: Option<Arc<Mutex<Topology>>>,
    upstream: Upstream,
    runtimes: Runtimes,
    /// When the callers stop to begin new calls.
    pub ends: Instant,
    has_callers: AtomicBool,
}

/// How a world is played.
#[derive(Clone, Copy, Debug, Default)]
pub struct Play {
    /// For how many virtual seconds callers begin calls.
    pub seconds: u64,
    /// Whether all that happens is printed.
    pub is_printed: bool,
    /// Whether the requests at the server are kept, for [`truth`](crate::truth).
    pub is_recorded: bool,
}

impl Play {
    pub fn of(seconds: u64) -> Self {
        Self {
            seconds,
            ..Self::default()
        }
    }
}

/// The requests of a world at its server.
pub fn recorded(seed: u64) -> Vec<Request> {
    let how = Play {
        is_recorded: true,
        ..Play::of(10)
    };
    play(seed, how).requests
}

/// Plays a world on a thread of its own.
pub fn play(seed: u64, how: Play) -> Outcome {
    let world = std::thread::Builder::new().spawn(move || {
        memory::enter();
        os::enter(seed);
        let outcome = run(seed, how);
        os::leave();
        memory::leave();
        outcome
    });
    let crashed = |what: String| Outcome {
        seed,
        broken: vec![what],
        ..Outcome::default()
    };
    match world.map(std::thread::JoinHandle::join) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            crashed(format!("it panicked: {}", text.unwrap_or_default()))
        }
        Err(error) => crashed(format!("no thread: {error}")),
    }
}

fn run(seed: u64, how: Play) -> Outcome {
    let runtime = runtimes::runtime(seed).unwrap_or_else(|error| panic!("no runtime: {error}"));
    let world = runtime.block_on(async {
        os::start();
        Arc::new(World::new(seed, how))
    });
    let life = runtime.spawn(Arc::clone(&world).live());
    match world.shape.has_runtimes {
        false => {
            if let Err(error) = runtime.block_on(life) {
                world.condemn(format!("it panicked: {error}"));
            }
        }
        true => {
            while !life.is_finished() {
                let turn = match world.has_callers.load(Ordering::Relaxed) {
                    true => TURN,
                    false => LONG_TURN,
                };
                let now = runtime.block_on(async {
                    sleep(turn).await;
                    Instant::now()
                });
                world.runtimes.step(now, turn);
            }
        }
    }
    let outcome = runtime.block_on(async { world.outcome(seed) });
    world.runtimes.end();
    outcome
}

impl World {
    fn new(seed: u64, how: Play) -> Self {
        let mut shape = Shape::new(seed);
        if how.is_recorded {
            // One server that answers all requests can be compared.
            shape.servers = Servers::One;
            shape.has_foreign_keys = false;
            shape.kinds.retain(|kind| *kind != shape::Kind::Quorum);
            use Fault::{Cut, Full, Kill, Stall};
            let keeps = |fault: &Fault| matches!(fault, Cut | Stall | Full | Kill);
            shape.faults.retain(keeps);
        }
        if how.is_printed {
            println!("{shape:#?}");
        }
        let network = Network::new(seed ^ 0x0ac7, shape.weather, shape.wakes(), how);
        let ends = Instant::now() + Duration::from_secs(how.seconds) * shape.times;
        let mut world = Self {
            shape,
            network: Arc::new(network),
            judges: Judges::default(),
            servers: vec![],
            nodes: vec![],
            topology: None,
            upstream: Upstream::default(),
            runtimes: Runtimes::default(),
            ends,
            has_callers: AtomicBool::new(true),
        };
        world.build();
        world
    }

    fn build(&mut self) {
        if self.shape.has(&[shape::Kind::Quorum]) {
            self.nodes = NODES.map(str::to_owned).into();
            NODES.iter().for_each(|address| self.start_server(address));
        }
        match self.shape.servers {
            Servers::One => self.add_server("a:1"),
            Servers::Sentinel => {
                self.add_server("a:1");
                self.add_server("b:1");
                self.network.replicate("a:1", "b:1");
                for address in ["s:1", "s:2"] {
                    let sentinel = Sentinel {
                        name: "main".into(),
                        master: "a:1".into(),
                        epoch: 0,
                    };
                    self.network.add(address, Kind::Sentinel(sentinel));
                }
                let lag = [1, 20, 80][self.shape.setting(21, 3) as usize];
                tokio::spawn(Arc::clone(&self.network).carry(self.servers.clone(), lag));
            }
            Servers::Cluster => {
                let addresses = ["a:1", "b:1", "c:1"];
                let topology = Topology::new(addresses.map(str::to_owned).into());
                let topology = Arc::new(Mutex::new(topology));
                for (number, address) in addresses.into_iter().enumerate() {
                    self.add_server(address);
                    let node = (Arc::clone(&topology), number);
                    let join = |server: &mut Server| server.join(node);
                    self.network.with_server(address, join);
                }
                self.topology = Some(topology);
            }
        }
    }

    fn add_server(&mut self, address: &str) {
        self.start_server(address);
        self.servers.push(address.into());
    }

    fn start_server(&self, address: &str) {
        match Server::new() {
            Ok(server) => self.network.add(address, Kind::Server(Box::new(server))),
            Err(error) => self.condemn(format!("no Lua: {error}")),
        }
    }

    /// The servers, and the nodes of a quorum.
    pub fn all_servers(&self) -> impl Iterator<Item = &String> {
        self.servers.iter().chain(&self.nodes)
    }

    /// A new process with its store and its primitives.
    fn process(&self, number: usize) -> Option<Process> {
        let runtime = match self.shape.has_runtimes {
            true => self.runtimes.add(number, self.network.draw(u64::MAX)).ok(),
            false => None,
        };
        let runtime = runtime.unwrap_or_else(Handle::current);
        let dialer = Arc::new(Dialer {
            network: Arc::clone(&self.network),
            process: number,
        });
        let builder = Store::builder()
            .background(runtime.clone())
            .dial(Arc::clone(&dialer) as _);
        let builder = builder.functions(self.shape.setting(40, 6) > 0);
        // A queue that is full at times, which is told as an overload.
        let builder = match self.shape.setting(41, 12) {
            0 => builder.max_queued(20),
            _ => builder,
        };
        let store = match self.shape.servers {
            Servers::One => builder.redis("redis://a:1"),
            Servers::Sentinel => {
                let builder = match self.shape.waits_for_replica() {
                    true => builder.replicas(1, Duration::from_millis(200)),
                    false => builder,
                };
                builder.sentinel(["redis://s:1", "redis://s:2"], "main")
            }
            Servers::Cluster => builder.cluster(["redis://a:1", "redis://b:1"]),
        };
        let made = store.and_then(|store| {
            let primitives = Primitives::new(&self.shape, &store, (&runtime, &dialer))?;
            Ok(Process {
                number,
                runtime,
                store,
                primitives,
            })
        });
        made.inspect_err(|error| self.condemn(format!("a process cannot start: {error}")))
            .ok()
    }

    /// Something is wrong.
    pub fn condemn(&self, what: impl Into<String>) {
        self.judges.condemn(what);
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.ends
    }

    /// A random pause of up to so many ms.
    async fn pause(&self, longest: u64) {
        sleep(Duration::from_millis(self.network.draw(longest + 1))).await;
    }

    fn outcome(&self, seed: u64) -> Outcome {
        let (digest, events) = self.network.trace.end();
        let mut commands = BTreeMap::new();
        for address in self.all_servers() {
            self.network.with_server(address, |server| {
                for (name, count) in &lock(&server.database).calls {
                    *commands.entry(*name).or_default() += count;
                }
            });
        }
        let (mut broken, mut counts) = (self.judges.broken(), self.judges.counts());
        if let Some(wakes) = &self.network.wakes {
            let (judged, late) = wakes.end();
            counts.insert("woken", judged);
            broken.extend(late);
        }
        Outcome {
            seed,
            digest,
            events,
            broken,
            counts,
            commands,
            requests: self.network.recorded(),
        }
    }
}
