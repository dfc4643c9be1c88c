//! Several servers: a master with a replica that Sentinels watch, and a Cluster whose slots move.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;

use super::{Host, Kind, Network};
use crate::server::cluster::{Topology, slot};
use crate::server::replication::apply;
use crate::server::reply::{Bytes, Reply};
use crate::server::sentinel::SWITCHED;
use crate::server::{Channel, Keeps, lock, message};

impl Network {
    /// Lets a server follow another one.
    pub fn replicate(&self, master: &str, replica: &str) {
        for address in [master, replica] {
            self.with_server(address, |server| {
                server.log.changed = Arc::clone(&self.changed)
            });
        }
        self.with_server(master, |server| server.log.is_kept = true);
        self.with_server(replica, |server| server.master = Some(master.into()));
    }

    /// Carries changes from masters to their replicas, after up to so many ms each time.
    pub async fn carry(self: Arc<Self>, servers: Vec<String>, lag: u64) {
        loop {
            let has_changes = |address: &String| {
                self.with_server(address, |server| server.log.has_changes()) == Some(true)
            };
            if !servers.iter().any(has_changes) {
                self.changed.notified().await;
            }
            sleep(Duration::from_millis(1 + self.draw(lag))).await;
            for replica in &servers {
                let master = self.with_server(replica, |server| server.master.clone());
                let Some(Some(master)) = master else { continue };
                // A server that stands still, or is gone, passes nothing on.
                if self.is_away(&master) || self.is_away(replica) {
                    continue;
                }
                let changes = self.with_server(&master, |server| server.log.take());
                self.with_server(replica, |server| {
                    apply(server, changes.into_iter().flatten())
                });
            }
        }
    }

    fn is_away(&self, address: &str) -> bool {
        let now = tokio::time::Instant::now();
        let is_away = |host: &Host| host.refuses_until > now || host.stops_until > now;
        lock(&self.state).hosts.get(address).is_none_or(is_away)
    }

    /// A replica takes the place of its master, which dies, or stands still and is its replica afterwards. The Sentinels name
    /// the new master once it serves.
    pub async fn fail_over(self: Arc<Self>, servers: Vec<String>) {
        let is_master = |one: &String| self.with_server(one, |server| server.master.is_none());
        let one = |which| servers.iter().find(|one| is_master(one) == Some(which));
        let (Some(master), Some(replica)) = (one(true).cloned(), one(false).cloned()) else {
            return;
        };
        // One at a time.
        if std::mem::replace(&mut lock(&self.state).is_failing_over, true) {
            return;
        }
        self.note("fails over", format!("{master} to {replica}"));
        let noticed = Duration::from_millis(200 + self.draw(1500));
        let back = Duration::from_millis(self.draw(2000));
        match self.draw(3) {
            0 => {
                let (network, away) = (Arc::clone(&self), noticed + back);
                tokio::spawn(network.restart(master.clone(), Keeps::All, away, Duration::ZERO));
            }
            1 => self.stop(&master, noticed + back),
            // It serves on beside its successor for a while.
            _ => {}
        }
        sleep(noticed).await;
        self.with_server(&master, |server| server.log.is_kept = false);
        self.with_server(&replica, |server| {
            server.master = None;
            server.log.take();
        });
        self.name(&replica);
        sleep(back).await;
        // What it has granted meanwhile is lost.
        let kept = self.with_server(&replica, |server| {
            server.log.is_kept = true;
            server.log.take();
            (lock(&server.database).entries.clone(), server.texts())
        });
        self.with_server(&master, |server| {
            server.master = Some(replica.clone());
            server.log.take();
            let (entries, texts) = kept.unwrap_or_default();
            lock(&server.database).entries = entries;
            server.take_over(&texts);
        });
        self.note("follows", master);
        lock(&self.state).is_failing_over = false;
    }

    /// Lets all Sentinels name another master, and tell so.
    fn name(&self, master: &str) {
        let mut state = lock(&self.state);
        for host in state.hosts.values_mut() {
            if let Kind::Sentinel(sentinel) = &mut host.kind {
                sentinel.master = master.into();
                sentinel.epoch += 1;
            }
        }
        // Nobody subscribes to these channels elsewhere.
        for open in state.connections.values() {
            for channel in SWITCHED.map(|channel| (false, Bytes::from(channel))) {
                if open.session.channels.contains(&channel) {
                    self.push(open, &message(&channel, &Bytes::from(master)));
                }
            }
        }
    }

    /// Moves a slot that has a key to another node of a Cluster, key by key.
    pub async fn move_slot(self: Arc<Self>, topology: Arc<Mutex<Topology>>) {
        let nodes = lock(&topology).masters.clone();
        let [from, to] = [(); 2].map(|()| self.draw(nodes.len() as u64) as usize);
        let all = self.keys(&nodes[from]);
        let Some(slot) = self.one(&all).map(|key| slot(key)) else {
            return;
        };
        if !lock(&topology).migrate(slot, from, to) {
            return;
        }
        let (from, to) = (&nodes[from], &nodes[to]);
        self.note("moves", format!("slot {slot} from {from} to {to}"));
        loop {
            sleep(Duration::from_millis(self.draw(60))).await;
            let mut left = self.keys(from);
            left.retain(|key| self::slot(key) == slot);
            let Some(key) = self.one(&left) else { break };
            let entry = self.with_server(from, |server| lock(&server.database).entries.remove(key));
            if let Some(Some(entry)) = entry {
                self.with_server(to, |server| {
                    lock(&server.database).entries.insert(key.clone(), entry)
                });
            }
        }
        lock(&topology).moved(slot);
        self.unsubscribe(from, slot);
    }

    /// A node tells that the channels of a slot are elsewhere.
    fn unsubscribe(&self, address: &str, gone: u16) {
        let mut ended = Vec::new();
        let mut state = lock(&self.state);
        let connections = state.connections.values_mut();
        for open in connections.filter(|open| open.address == address) {
            let is_gone = |(is_shard, name): &&Channel| *is_shard && slot(name) == gone;
            let channels = open.session.channels.iter().filter(is_gone).cloned();
            for channel in channels.collect::<Vec<_>>() {
                open.session.channels.remove(&channel);
                let kind = Reply::bulk("sunsubscribe");
                let told = vec![kind, Reply::Bulk(channel.1.clone()), Reply::Int(0)];
                self.push(open, &Reply::Push(told));
                ended.push(channel);
            }
        }
        drop(state);
        self.with_server(address, |server| server.has_left(&ended));
    }
}
