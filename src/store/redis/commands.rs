//! Commands other than script calls: those that try a connection, and those that ask a master about itself.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::call::{Failed, IDLE};
use super::link::Link;
use super::runtime::{Route, RuntimeLinks};
use super::{RedisStore, UnderWay, failure};
use crate::Error;
use crate::error::Outage;

impl RedisStore {
    /// Tries a connection that was idle, so that a call that is sent at most once is not lost with it. If there is none, it
    /// connects. If it is closed, the call makes another.
    pub(super) async fn probe(&self, runtime: &Handle, link: &Arc<Link>) -> Result<(), Failed> {
        // The connection of a pool for a Cluster leads to several nodes, and replaces the connections to them by itself.
        if self.source.is_pool_of_cluster() {
            return Ok(());
        }
        let held = self.hold(runtime, link).await?;
        if link.answered_within(IDLE) {
            return Ok(());
        }
        let (sent, ping) = (Instant::now(), redis::cmd("PING"));
        let mut connection = held.connection.clone();
        match self
            .in_time(runtime, link, pin!(connection.send(&ping)))
            .await
        {
            Some(Ok(_)) => link.answered(),
            Some(Err(error)) => drop(self.failed(link, &held, sent, failure::outage(error))),
            None => return Err(self.failed(link, &held, sent, self.timed_out())),
        }
        Ok(())
    }

    /// Sends a `PING` to the server, even while the breaker is open. Returns how long the answer took.
    pub(in crate::store) async fn ping(
        self: &Arc<Self>,
        runtime: &Handle,
    ) -> Result<Duration, Error> {
        let (links, ping) = (self.links(runtime), redis::cmd("PING"));
        let mut outcome = None;
        // One master of a Cluster that answers is enough.
        for master in self.source.numbers() {
            match self
                .ask_at(&links, &links.route(links.number(master, 0)), &ping, false)
                .await
            {
                Ok((_, took)) => return Ok(took),
                Err(outage) => outcome = Some(outage),
            }
        }
        Err(outcome.unwrap_or_else(|| self.timed_out()).into())
    }

    /// The next of all masters, if there is one. They may change meanwhile: each that has slots now is one.
    pub(super) fn next_master(&self, done: &[usize]) -> Option<usize> {
        self.source
            .all_masters()
            .into_iter()
            .find(|number| !done.contains(number))
    }

    /// Sends a command of an operator to a master.
    pub(super) async fn ask_master(
        self: &Arc<Self>,
        runtime: &Handle,
        master: usize,
        command: &redis::Cmd,
    ) -> Result<redis::Value, Error> {
        let links = self.links(runtime);
        Ok(self
            .ask_at(&links, &links.route(links.number(master, 0)), command, true)
            .await?
            .0)
    }

    /// Sends a command other than a script call to a master, even while the breaker is open. Returns the reply, and how
    /// long it took without connecting. `alone`: also the connection of a pool for a Cluster sends it to this master, and to
    /// no other.
    pub(super) async fn ask_at(
        &self,
        links: &RuntimeLinks,
        route: &Route,
        command: &redis::Cmd,
        alone: bool,
    ) -> Result<(redis::Value, Duration), Outage> {
        let _under_way = UnderWay(self, links);
        let held = route.link.hold(&links.runtime).await.inspect_err(|_| {
            self.source.look_for_masters(None);
        })?;
        let sent = Instant::now();
        let address = self.source.address_in_pool(route.master).filter(|_| alone);
        let mut connection = held.connection.clone();
        let asked = pin!(connection.send_at(address, command));
        let outage = match self.in_time(&links.runtime, &route.link, asked).await {
            Some(Ok(reply)) => {
                route.link.answered();
                // The connection of a pool asks all masters of a Cluster.
                if !held.connection.is_cluster() {
                    self.succeeded(route);
                }
                return Ok((reply, sent.elapsed()));
            }
            Some(Err(error)) => failure::outage(error),
            None => self.timed_out(),
        };
        let Failed { outage, .. } = self.failed(&route.link, &held, sent, outage);
        if failure::is_outage(outage.cause) && !held.connection.is_cluster() {
            route.breaker.failed(sent, &outage, false);
            self.source.look_for_masters(None);
        }
        Err(outage)
    }
}
