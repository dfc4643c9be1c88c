//! The network of a world and the servers in it. Each connection is a stream of bytes that is delayed, stalled, cut or loses
//! what goes one way.

mod connection;
mod faults;
mod fleets;
mod wakes;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tower_distributed::dial::{Dial, Stream};

pub use self::wakes::Wakes;
use crate::os;
use crate::server::reply::{Bytes, Reply};
use crate::server::sentinel::Sentinel;
use crate::server::{Server, Session, lock, message};
use crate::trace::Trace;
use crate::truth::Request;
use crate::world::Play;

/// How the names of commands begin that are compared with those of a real server.
const RECORDED: [&[u8]; 4] = [b"EVAL", b"FCALL", b"FUNCTION", b"GET"];

/// How a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    Open,
    /// What the client sends is lost, and it is not told.
    Deaf,
    /// What the server sends is lost, and the client is not told.
    Mute,
    /// Both.
    Gone,
    /// Closed after the server has run what has arrived.
    Closed,
    /// Closed before.
    Cut,
}

/// Bytes that are due at a time.
type Due = (Instant, Bytes);

/// A connection, as the network knows it.
struct Open {
    /// The address of the server, and the number of the client's process.
    address: String,
    process: usize,
    line: watch::Sender<Line>,
    session: Session,
    /// Nothing of it passes before.
    stalled_until: Instant,
    out: mpsc::UnboundedSender<Due>,
}

impl Open {
    /// Whether it is subscribed to the channel of the process with this name.
    fn listens(&self, name: &[u8]) -> bool {
        let mut channels = self.session.channels.iter();
        channels.any(|(_, channel)| channel.ends_with(name))
    }
}

/// A machine with a server or a Sentinel.
pub struct Host {
    pub kind: Kind,
    /// It refuses connections before.
    pub refuses_until: Instant,
    /// It stands still before.
    pub stops_until: Instant,
}

pub enum Kind {
    Server(Box<Server>),
    Sentinel(Sentinel),
}

/// How long a message takes.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Most messages take up to so many ms.
    pub usual: u64,
    /// Of 1 000 messages, so many take up to `slow` ms.
    pub often_slow: u64,
    pub slow: u64,
    /// Of 1 000 messages, so many take longer than a call may.
    pub often_late: u64,
}

#[derive(Default)]
struct State {
    hosts: BTreeMap<String, Host>,
    connections: BTreeMap<u64, Open>,
    /// Processes that reach nothing any more.
    killed: Vec<usize>,
    /// Processes that reach nothing before, and hear nothing.
    parted: BTreeMap<usize, Instant>,
    opened: u64,
    is_failing_over: bool,
    /// Requests that were run for each process.
    requests: BTreeMap<usize, u64>,
    /// The most that a process had run in a second, and what it has in this one.
    busiest: u64,
    rates: BTreeMap<usize, (u64, u64)>,
    recorded: Vec<Request>,
}

pub struct Network {
    state: Mutex<State>,
    random: Mutex<u64>,
    weather: Weather,
    /// The judge of those that wait, in worlds where nothing is wrong.
    pub wakes: Option<Wakes>,
    is_recorded: bool,
    /// That of the world. Servers and connections depend on no process.
    runtime: Handle,
    /// A server has noted something that replicas have to take over.
    changed: Arc<Notify>,
    pub trace: Trace,
}

impl Network {
    pub fn new(seed: u64, weather: Weather, wakes: Option<Wakes>, how: Play) -> Self {
        Self {
            state: Mutex::default(),
            random: Mutex::new(seed),
            weather,
            wakes,
            is_recorded: how.is_recorded,
            runtime: Handle::current(),
            changed: Arc::default(),
            trace: Trace::new(how.is_printed),
        }
    }

    pub fn add(&self, address: &str, kind: Kind) {
        let now = Instant::now();
        let host = Host {
            kind,
            refuses_until: now,
            stops_until: now,
        };
        lock(&self.state).hosts.insert(address.into(), host);
    }

    /// Notes what happens.
    pub fn note(&self, what: &str, bytes: impl AsRef<[u8]>) {
        self.trace.note(what, bytes);
    }

    /// A number below `end`.
    pub fn draw(&self, end: u64) -> u64 {
        os::draw(&mut lock(&self.random)) % end.max(1)
    }

    /// Whether something happens that does in so many of 1 000 cases.
    pub fn happens(&self, of_thousand: u64) -> bool {
        self.draw(1000) < of_thousand
    }

    /// One of some.
    pub fn one<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.draw(all.len() as u64) as usize)
    }

    fn delay(&self) -> Duration {
        let (weather, drawn) = (self.weather, self.draw(1000));
        Duration::from_millis(match drawn {
            _ if drawn < weather.often_late => 600 + self.draw(2000),
            _ if drawn < weather.often_late + weather.often_slow => self.draw(weather.slow),
            _ => self.draw(weather.usual + 1),
        })
    }

    /// Works on the server at an address.
    pub fn with_server<T>(&self, address: &str, work: impl FnOnce(&mut Server) -> T) -> Option<T> {
        match &mut lock(&self.state).hosts.get_mut(address)?.kind {
            Kind::Server(server) => {
                server.set_time(micros());
                Some(work(server))
            }
            Kind::Sentinel(_) => None,
        }
    }

    /// When a key expires at one of these servers that is no replica, in ms.
    pub fn expires(&self, servers: &[String], key: &[u8]) -> Option<i64> {
        let state = lock(&self.state);
        let ends = servers
            .iter()
            .filter_map(|address| match &state.hosts.get(address)?.kind {
                Kind::Server(server) if server.master.is_none() => {
                    lock(&server.database).entries.get(key)?.until
                }
                _ => None,
            });
        ends.max()
    }

    /// The keys of a server.
    fn keys(&self, address: &str) -> Vec<Bytes> {
        let keys = self.with_server(address, |server| {
            lock(&server.database).entries.keys().cloned().collect()
        });
        keys.unwrap_or_default()
    }

    /// When a process that is cut off now reaches the servers again.
    fn parted_until(&self, process: usize) -> Option<Instant> {
        let parted = lock(&self.state).parted.get(&process).copied();
        parted.filter(|ends| *ends > Instant::now())
    }

    /// The requests that servers have run for a process, without its subscriptions.
    pub fn requests(&self, process: usize) -> u64 {
        let sent = lock(&self.state).requests.get(&process).copied();
        sent.unwrap_or(0)
    }

    /// Whether all connections of these processes carry what is sent.
    pub fn is_well(&self, processes: &[usize]) -> bool {
        let state = lock(&self.state);
        let is_well =
            |open: &Open| !processes.contains(&open.process) || *open.line.borrow() == Line::Open;
        state.connections.values().all(is_well)
    }

    /// The most requests of a process in a second.
    pub fn busiest(&self) -> u64 {
        lock(&self.state).busiest
    }

    pub fn recorded(&self) -> Vec<Request> {
        std::mem::take(&mut lock(&self.state).recorded)
    }

    /// The connections that are open.
    pub fn connections(&self) -> usize {
        lock(&self.state).connections.len()
    }

    /// Runs a request of a connection. `None`: the connection or its server is gone.
    fn run(&self, connection: u64, arguments: &[Bytes]) -> Option<Bytes> {
        let state = &mut *lock(&self.state);
        let open = state.connections.get_mut(&connection)?;
        // Who has to subscribe again does so at once, in a Cluster to many channels.
        if !arguments[0].ends_with(b"SUBSCRIBE") {
            *state.requests.entry(open.process).or_default() += 1;
        }
        let (second, rate) = state.rates.entry(open.process).or_default();
        let now = os::elapsed().as_secs();
        *rate = if *second == now { *rate + 1 } else { 1 };
        *second = now;
        state.busiest = state.busiest.max(*rate);
        let host = state.hosts.get_mut(&open.address)?;
        let (replies, published) = match &mut host.kind {
            Kind::Server(server) => {
                server.set_time(micros());
                let is_compared = RECORDED.iter().any(|name| arguments[0].starts_with(name));
                if self.is_recorded && is_compared {
                    state.recorded.push(Request {
                        micros: micros(),
                        is_full: server.condition.is_full,
                        arguments: arguments.to_vec(),
                    });
                }
                let replies = server.run(&mut open.session, arguments);
                let published = std::mem::take(&mut lock(&server.database).published);
                (replies, published)
            }
            Kind::Sentinel(sentinel) => (sentinel.run(&mut open.session, arguments), vec![]),
        };
        let (protocol, process) = (open.session.protocol, open.process);
        let is_cluster = matches!(&host.kind, Kind::Server(server) if server.cluster.is_some());
        let from = open.address.clone();
        if let (Some(wakes), Kind::Server(server)) = (&self.wakes, &host.kind) {
            let listens = |name: &[u8]| {
                let mut connections = state.connections.values();
                Some(connections.find(|open| open.listens(name))?.process)
            };
            let mut database = lock(&server.database);
            wakes.ran((&from, process), arguments, &mut database, listens);
        }
        for (channel, text) in published {
            // In a Cluster all nodes pass on what is not for the nodes of a slot alone.
            for open in state.connections.values() {
                let is_here = open.address == from || is_cluster && !channel.0;
                if is_here && open.session.channels.contains(&channel) {
                    self.push(open, &message(&channel, &text));
                }
            }
        }
        let mut encoded = Bytes::new();
        for reply in &replies {
            reply.encode(protocol, &mut encoded);
        }
        Some(encoded)
    }

    fn push(&self, open: &Open, push: &Reply) {
        let mut encoded = Bytes::new();
        push.encode(open.session.protocol, &mut encoded);
        // A connection that has ended needs nothing.
        let _ = open.out.send((Instant::now() + self.delay(), encoded));
    }
}

/// The time of the world, in µs since the Unix epoch.
pub fn micros() -> i64 {
    (os::EPOCH * 1_000_000) as i64 + os::elapsed().as_micros() as i64
}

/// The network as one process sees it.
pub struct Dialer {
    pub network: Arc<Network>,
    pub process: usize,
}

impl Dial for Dialer {
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let (network, process) = (Arc::clone(&self.network), self.process);
        Box::pin(async move {
            sleep(network.delay()).await;
            while let Some(ends) = network.parted_until(process) {
                sleep_until(ends).await;
            }
            if lock(&network.state).killed.contains(&process) {
                std::future::pending::<()>().await;
            }
            let stream = network.open(process, address)?;
            Ok::<Box<dyn Stream>, io::Error>(Box::new(stream))
        })
    }
}
