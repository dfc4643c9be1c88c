//! What waits, holds, follows or retries is quiet: a server counts the calls of each state that can last.
//!
//! All states are watched at the same time, each at a server of its own. The bounds are those of the guide `operations`.

mod away;
mod followed;
mod leases;
mod monitor;

use std::future::Future;
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all};
use tower_distributed::Store;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
use tower_distributed::WaitGroup;

use self::monitor::{CONNECTIONS, Calls, Monitor};
use support::eventually;
use support::redis_server::RedisServer;

/// How long each state is watched.
const SPAN: Duration = Duration::from_secs(30);

/// Some 30 servers start at once.
const SOON: Duration = Duration::from_secs(30);

/// A state that lasts until its end.
pub(crate) struct Idle {
    name: &'static str,
    /// The fewest calls: without these, it is not the state that is meant.
    at_least: u64,
    /// The most commands in a second.
    at_most: f64,
    /// The most new connections in a second.
    connections: f64,
    servers: Box<dyn Servers>,
    /// Ends the state, and shows that it was real.
    end: LocalBoxFuture<'static, ()>,
}

/// What runs for one state, of which each is watched.
pub(crate) trait Servers {
    fn each(&self) -> Vec<&RedisServer>;
}

impl Servers for RedisServer {
    fn each(&self) -> Vec<&RedisServer> {
        vec![self]
    }
}

impl Idle {
    fn new(
        name: &'static str,
        (at_least, at_most): (u64, f64),
        server: impl Servers + 'static,
        end: impl Future<Output = ()> + 'static,
    ) -> Self {
        Self {
            name,
            at_least,
            at_most,
            connections: 0.2,
            servers: Box::new(server),
            end: Box::pin(end),
        }
    }

    fn check(&self, monitors: &mut [Monitor]) -> Result<String, String> {
        let (mut calls, mut longest) = (Calls::new(), SPAN);
        for (monitor, server) in monitors.iter_mut().zip(self.servers.each()) {
            let (counted, span) = monitor.calls(server);
            longest = longest.max(span);
            for (command, count) in counted {
                *calls.entry(command).or_default() += count;
            }
        }
        let most = |a_second: f64| (a_second * longest.as_secs_f64()).ceil() as u64;
        let (connections, most_connections) = (
            calls.get(CONNECTIONS).copied().unwrap_or(0),
            most(self.connections),
        );
        let (commands, at_most) = (
            calls.values().sum::<u64>() - connections,
            most(self.at_most),
        );
        let text = format!(
            "{}: {commands} commands, {} to {at_most} are right, and {connections} connections, at most \
             {most_connections} are right: {calls:?}",
            self.name, self.at_least
        );
        let is_right =
            (self.at_least..=at_most).contains(&commands) && connections <= most_connections;
        if is_right { Ok(text) } else { Err(text) }
    }
}

/// A store with default settings, like that of another process.
fn process(server: &RedisServer) -> Store {
    Store::redis(&server.url()).unwrap()
}

/// How many places are in all queues of a server.
fn waiting(server: &RedisServer) -> u64 {
    let queues: Vec<String> = server.query(&["KEYS", "*waiters"]).unwrap();
    queues
        .iter()
        .map(|queue| server.query::<u64>(&["ZCARD", queue]).unwrap())
        .sum()
}

async fn wait(server: &RedisServer, places: u64) {
    eventually("all of them wait", SOON, async || waiting(server) == places).await;
}

/// One of two processes holds a permit that the other waits for.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
async fn one_waits<S: Servers + 'static>(
    name: &'static str,
    bounds: (u64, f64),
    stores: [Store; 2],
    servers: S,
    has_queue: impl Fn(&S) -> &RedisServer,
) -> Idle {
    let [group, other] = stores.map(|store| WaitGroup::new(&store, "g", 1).unwrap());
    let permit = group.add("k").await.unwrap();
    let waiter = tokio::spawn(async move { other.add("k").await.unwrap().done().await.unwrap() });
    wait(has_queue(&servers), 1).await;
    Idle::new(name, bounds, servers, async move {
        assert!(permit.done().await.unwrap() && waiter.await.unwrap());
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_state_that_lasts_has_few_calls() {
    let states: Vec<LocalBoxFuture<'static, Idle>> = leases::states()
        .into_iter()
        .chain(followed::states())
        .chain(away::states())
        .collect();
    let states = join_all(states).await;
    let mut monitors: Vec<Vec<_>> = states
        .iter()
        .map(|state| {
            state
                .servers
                .each()
                .into_iter()
                .map(Monitor::start)
                .collect()
        })
        .collect();
    // What is counted is what happens in this time.
    tokio::time::sleep(SPAN).await;
    let checked: Vec<_> = states
        .iter()
        .zip(&mut monitors)
        .map(|(state, monitors)| state.check(monitors))
        .collect();
    checked
        .iter()
        .for_each(|text| println!("{}", text.as_ref().unwrap_or_else(|text| text)));
    let ends = states
        .into_iter()
        .map(|Idle { end, servers, .. }| async move {
            end.await;
            drop(servers);
        });
    join_all(ends).await;
    let loud: Vec<_> = checked.into_iter().filter_map(Result::err).collect();
    assert!(loud.is_empty(), "{}", loud.join("\n"));
}
