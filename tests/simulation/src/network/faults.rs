//! What goes wrong with connections, servers and processes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Kind, Line, Network, State, micros};
use crate::server::database::{Entry, Item};
use crate::server::reply::Bytes;
use crate::server::{Keeps, lock};

/// 2^52 and 2^22: how a queue writes that a rank has no more numbers for flows, see `lua/flows.lua`.
const LAST_NUMBER: f64 = 4_503_599_627_370_496.0 + 4_194_304.0;

impl Network {
    fn any_connection(&self) -> Option<u64> {
        let ids: Vec<_> = lock(&self.state).connections.keys().copied().collect();
        self.one(&ids).copied()
    }

    /// Changes one connection.
    pub fn cut_one(&self) {
        let Some(id) = self.any_connection() else {
            return;
        };
        let line = match self.draw(10) {
            0..=3 => Line::Closed,
            4..=7 => Line::Cut,
            8 => Line::Deaf,
            _ => Line::Mute,
        };
        self.note(&format!("c{id} becomes"), format!("{line:?}"));
        if let Some(open) = lock(&self.state).connections.get(&id) {
            open.line.send_replace(line);
        }
    }

    /// Stalls one connection, both ways.
    pub fn stall_one(&self, span: Duration) {
        let Some(id) = self.any_connection() else {
            return;
        };
        self.note(&format!("c{id} stalls"), format!("{span:?}"));
        if let Some(open) = lock(&self.state).connections.get_mut(&id) {
            open.stalled_until = Instant::now() + span;
        }
    }

    /// Cuts a process off for a span: nothing of it, or for it, arrives before.
    pub fn part_one(&self, span: Duration) {
        let of = |state: &State| {
            state
                .connections
                .values()
                .map(|open| open.process)
                .collect()
        };
        let processes: BTreeSet<_> = of(&lock(&self.state));
        let processes: Vec<_> = processes.into_iter().collect();
        let Some(process) = self.one(&processes) else {
            return;
        };
        self.note(&format!("p{process} is cut off"), format!("{span:?}"));
        let ends = Instant::now() + span;
        lock(&self.state).parted.insert(*process, ends);
    }

    /// Ends all connections that fit.
    fn end(&self, line: Line, fits: impl Fn(&str, usize) -> bool) {
        for open in lock(&self.state).connections.values() {
            if fits(&open.address, open.process) {
                open.line.send_replace(line);
            }
        }
    }

    /// Starts a server anew, with some of its keys. It refuses connections for a span, and loads its keys for another one.
    pub async fn restart(
        self: Arc<Self>,
        address: String,
        keeps: Keeps,
        away: Duration,
        loads: Duration,
    ) {
        let how = format!("{address}, keeps {keeps:?}, {away:?}, {loads:?}");
        self.note("restart", how);
        // What has not reached it yet is lost.
        self.end(Line::Cut, |other, _| other == address);
        let now = Instant::now();
        if let Some(host) = lock(&self.state).hosts.get_mut(&address) {
            host.refuses_until = now + away;
            host.stops_until = host.stops_until.min(now);
            if let Kind::Server(server) = &mut host.kind {
                server.set_time(micros());
                server.restart(keeps);
                server.condition.is_loading = true;
            }
        }
        sleep(away + loads).await;
        self.with_server(&address, |server| server.condition.is_loading = false);
    }

    /// Lets a machine stand still.
    pub fn stop(&self, address: &str, span: Duration) {
        self.note("stops", format!("{address} {span:?}"));
        if let Some(host) = lock(&self.state).hosts.get_mut(address) {
            host.stops_until = Instant::now() + span;
        }
    }

    /// Fills the memory of a server for a span.
    pub async fn fill(self: Arc<Self>, address: String, span: Duration) {
        self.note("full", format!("{address} {span:?}"));
        self.with_server(&address, |server| server.condition.is_full = true);
        sleep(span).await;
        self.with_server(&address, |server| server.condition.is_full = false);
    }

    /// Denies commands to the user for a span.
    pub async fn deny(self: Arc<Self>, address: String, command: &'static str, span: Duration) {
        self.note("denies", format!("{address} {command} {span:?}"));
        self.with_server(&address, |server| {
            server.condition.denied.insert(command.into())
        });
        sleep(span).await;
        self.with_server(&address, |server| server.condition.denied.remove(command));
    }

    /// Sets the clock of a server forth or back.
    pub fn set_clock(&self, address: &str, by: i64) {
        self.note("clock", format!("{address} {by}"));
        self.with_server(address, |server| server.condition.clock += by);
    }

    /// A server that is short of memory drops a key.
    pub fn evict_one(&self, address: &str) {
        let keys = self.keys(address);
        if let Some(key) = self.one(&keys) {
            self.note("evicts", key);
            self.with_server(address, |server| server.evict(key));
        }
    }

    /// Another program writes a hash to a key, on each server. Returns after how long it expires.
    pub fn put_foreign(&self, addresses: &[String], key: &[u8]) -> Duration {
        const LIFE: Duration = Duration::from_secs(3);
        self.note("foreign", key);
        for address in addresses {
            self.with_server(address, |server| {
                let mut database = lock(&server.database);
                let until = Some(database.micros / 1000 + LIFE.as_millis() as i64);
                let item = Item::Hash([(b"other".to_vec(), b"1".to_vec())].into());
                database.entries.insert(key.to_vec(), Entry { item, until });
            });
        }
        LIFE
    }

    /// The numbers of the flows in the queues of a server are nearly used up.
    pub fn age(&self, address: &str) {
        self.note("ages", address);
        let left = self.draw(2) as f64;
        self.with_server(address, |server| {
            for entry in lock(&server.database).entries.values_mut() {
                let Item::SortedSet(set) = &mut entry.item else {
                    continue;
                };
                let is_next = |member: &Bytes| matches!(&member[..], [b'N', b'0'..=b'9']);
                let members = set.iter().map(|(member, _)| member.clone());
                for next in members.filter(is_next).collect::<Vec<_>>() {
                    set.insert(&next, LAST_NUMBER - left);
                }
            }
        });
    }

    /// Lets a server forget its scripts.
    pub fn flush_scripts(&self, address: &str) {
        self.note("flush", address);
        self.with_server(address, |server| server.flush_scripts());
    }

    /// Lets a server lose its functions, as `FUNCTION FLUSH` does.
    pub fn flush_functions(&self, address: &str) {
        self.note("flush of functions", address);
        self.with_server(address, |server| server.flush_functions());
    }

    /// Cuts a process off for ever. The servers see its connections end, or nothing at all.
    pub fn kill(&self, process: usize) {
        let line = match self.happens(700) {
            true => Line::Closed,
            false => Line::Gone,
        };
        self.note(&format!("p{process} is killed"), format!("{line:?}"));
        lock(&self.state).killed.push(process);
        self.end(line, |_, other| other == process);
    }
}
