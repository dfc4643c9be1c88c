//! The gateways: one that lasts, and others that are replaced.

use std::sync::Arc;

use super::presence::REFEREE;
use super::referee::Referee;
use super::terms::FORGE;
use crate::DEPLOYS;
use crate::child::{self, Child};
use crate::load::Gateways;
use support::redis_server::RedisServer;
use support::replicated::ReplicatedCluster;

const GATEWAYS: usize = 3;

pub struct Fleet {
    /// The first one lasts. The others: the oldest first.
    gateways: Vec<Gateway>,
    pub ports: Gateways,
    pub problems: Vec<String>,
    urls: String,
    referee: u16,
}

pub struct Gateway {
    child: Child,
    pub port: u16,
    pub process: u32,
}

impl Fleet {
    pub fn start(cluster: &ReplicatedCluster, referee: &Referee) -> Self {
        let urls: Vec<_> = cluster.nodes().map(RedisServer::url).collect();
        let (ports, urls, referee) = (Arc::default(), urls.join(","), referee.port);
        let mut fleet = Self {
            gateways: Vec::new(),
            ports,
            problems: Vec::new(),
            urls,
            referee,
        };
        (0..GATEWAYS).for_each(|_| fleet.add());
        fleet
    }

    pub fn lasting(&self) -> &Gateway {
        &self.gateways[0]
    }

    /// Replaces the oldest gateway as a deploy does: it answers the requests that it has.
    pub fn deploy(&mut self) {
        self.add();
        let old = self.remove();
        self.end_one(old);
    }

    /// Kills the oldest gateway, and starts another one after that.
    pub fn kill(&mut self) {
        let Gateway { child, port, .. } = self.gateways.remove(1);
        drop(child);
        self.ports.write().unwrap().retain(|other| *other != port);
        self.add();
    }

    /// Ends all.
    pub fn end(&mut self) {
        std::mem::take(&mut self.gateways)
            .into_iter()
            .for_each(|gateway| self.end_one(gateway));
    }

    fn add(&mut self) {
        let mut command = child::copy(DEPLOYS, &self.urls);
        command.env(REFEREE, self.referee.to_string());
        if self.gateways.is_empty() {
            command.env_remove(FORGE);
        }
        let mut child = child::start_all([command]).remove(0);
        let told: Vec<u32> = child.numbers();
        let (port, process) = (u16::try_from(told[0]).unwrap(), told[1]);
        self.gateways.push(Gateway {
            child,
            port,
            process,
        });
        self.ports.write().unwrap().push(port);
    }

    /// Takes the oldest gateway off the list.
    fn remove(&mut self) -> Gateway {
        let old = self.gateways.remove(1);
        self.ports.write().unwrap().retain(|port| *port != old.port);
        old
    }

    fn end_one(&mut self, mut gateway: Gateway) {
        let status = gateway.child.end();
        if !status.success() {
            self.problems
                .push(format!("a gateway that was to end: {status}"));
        }
    }
}
