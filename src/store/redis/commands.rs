//! Commands other than script calls: `PING`, which checks a connection; and for operators `SCAN`, which lists the
//! contents of the store, and `FUNCTION`, which lists and deletes the libraries of functions on each master.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::{self, Value};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::error::Error;
use crate::error::reasons::{Cause, Outage};
use crate::store::Store;
use crate::store::redis::call::{CallGuard, Failed, IDLE};
use crate::store::redis::link::{Link, Route, RuntimeLinks};
use crate::store::redis::{RedisStore, errors};

impl RedisStore {
    /// Checks a connection that was idle, so that a call that is sent at most once is not lost with it. If there is no
    /// connection, it connects. If the connection is closed, the call makes another one.
    pub(super) async fn probe(&self, runtime: &Handle, link: &Arc<Link>) -> Result<(), Failed> {
        // The connection of a pool for a Cluster connects to several nodes, and replaces these connections by itself.
        if self.source.is_pool_of_cluster() {
            return Ok(());
        }
        let held = self.hold(runtime, link).await?;
        if link.answered_within(IDLE) {
            return Ok(());
        }
        let sent = Instant::now();
        let ping = redis::cmd("PING");
        let mut connection = held.connection.clone();
        match self
            .in_time(runtime, link, pin!(connection.send(&ping)))
            .await
        {
            Some(Ok(_)) => link.answered(),
            Some(Err(error)) => drop(self.failed(link, &held, sent, errors::outage(error))),
            None => return Err(self.failed(link, &held, sent, self.timed_out())),
        }
        Ok(())
    }

    /// Sends a `PING` to the server, even while the breaker is open. Returns how long the reply took.
    pub(in crate::store) async fn ping(
        self: &Arc<Self>,
        runtime: &Handle,
    ) -> Result<Duration, Error> {
        let links = &self.links(runtime);
        let ping = &redis::cmd("PING");
        let masters = self.source.numbers().into_iter();
        // One master of a Cluster that answers is enough. They are pending at once: each may take a whole timeout. There is
        // always a number.
        let pending = masters.map(|master| {
            Box::pin(async move {
                let route = links.route(links.number(master, 0));
                self.ask_at(links, &route, ping, false).await
            })
        });
        let ((_, took), _) = select_ok(pending).await?;
        Ok(took)
    }

    /// Returns the next master, if there is one. The masters may change meanwhile: all masters that have slots now are
    /// included.
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
    /// long it took without connecting. `alone`: the connection of a pool for a Cluster also sends it to this master
    /// only.
    pub(super) async fn ask_at(
        &self,
        links: &RuntimeLinks,
        route: &Route,
        command: &redis::Cmd,
        alone: bool,
    ) -> Result<(redis::Value, Duration), Outage> {
        let _under_way = CallGuard(self, links);
        let held = route.link.hold(&links.runtime).await.inspect_err(|_| {
            self.source.look_for_masters(None);
        })?;
        let sent = Instant::now();
        let address = self.source.address_in_pool(route.master).filter(|_| alone);
        let mut connection = held.connection.clone();
        let pending = pin!(connection.send_at(address, command));
        let outage = match self.in_time(&links.runtime, &route.link, pending).await {
            Some(Ok(reply)) => {
                route.link.answered();
                // The connection of a pool sends the command to all masters of a Cluster.
                if !held.connection.is_cluster() {
                    self.succeeded(route);
                }
                return Ok((reply, sent.elapsed()));
            }
            Some(Err(error)) => errors::outage(error),
            None => self.timed_out(),
        };
        let Failed { outage, .. } = self.failed(&route.link, &held, sent, outage);
        if errors::is_outage(outage.cause) && !held.connection.is_cluster() {
            route.breaker.failed(sent, &outage, false);
            self.source.look_for_masters(None);
        }
        Err(outage)
    }
}

/// How many keys the server scans in one call: about 0.3 ms of its time.
const LOOKED_AT: usize = 1000;

/// The progress of a scan: the masters that are done, and the position in the current one.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct Position {
    done: Vec<usize>,
    /// The current master, and its cursor.
    at: Option<(usize, u64)>,
}

impl Position {
    /// Returns the position for the next call, and leaves the one for the case that the call fails or is dropped: the
    /// current master is then scanned again from its first key, since it may be another server by then, whose cursors
    /// differ.
    pub(in crate::store) fn take(&mut self) -> Self {
        Self {
            done: self.done.clone(),
            at: self.at.take(),
        }
    }
}

impl RedisStore {
    /// Returns the next names that match a pattern; `None` at the end.
    pub(in crate::store) async fn scan(
        self: &Arc<Self>,
        runtime: &Handle,
        position: &mut Position,
        pattern: &str,
    ) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let next = || self.next_master(&position.done).map(|master| (master, 0));
        let Some((master, cursor)) = position.at.take().or_else(next) else {
            return Ok(None);
        };
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(pattern)
            .arg("COUNT")
            .arg(LOOKED_AT);
        let (cursor, names) =
            read(self.ask_master(runtime, master, &scan).await?).ok_or_else(|| {
                Error::unavailable(
                    Cause::Unexpected,
                    "SCAN returned something other than a cursor and names",
                )
            })?;
        match cursor {
            0 => position.done.push(master),
            cursor => position.at = Some((master, cursor)),
        }
        Ok(Some(names))
    }
}

fn read(reply: Value) -> Option<(u64, Vec<Vec<u8>>)> {
    let Value::Array(reply) = reply else {
        return None;
    };
    let [Value::BulkString(cursor), Value::Array(names)] = <[Value; 2]>::try_from(reply).ok()?
    else {
        return None;
    };
    let name = |name| {
        if let Value::BulkString(name) = name {
            Some(name)
        } else {
            None
        }
    };
    let cursor = std::str::from_utf8(&cursor).ok()?.parse().ok()?;
    Some((cursor, names.into_iter().map(name).collect::<Option<_>>()?))
}

/// Matches the names of the libraries of all versions.
const NAMES: &str = "td_*";

/// A library of functions that a version of this crate has loaded on a server. See
/// [`Operator::libraries`](crate::operator::Operator::libraries).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// `td_` and 16 digits of the digest of its text.
    pub name: String,
    /// The address of the server.
    pub server: String,
    /// Whether this process uses it: it has the same version and features of this crate.
    pub is_own: bool,
    master: usize,
}

impl Store {
    pub(crate) async fn libraries(&self) -> Result<Vec<Library>, Error> {
        let Some(store) = self.on_redis() else {
            return Ok(Vec::new());
        };
        let list = |store: Arc<RedisStore>, runtime: Handle| async move {
            store.libraries(&runtime).await
        };
        store.anywhere(list).await?
    }

    pub(crate) async fn delete_library(&self, library: &Library) -> Result<(), Error> {
        let Some(store) = self.on_redis() else {
            return Ok(());
        };
        let master = library.master;
        let mut delete = redis::cmd("FUNCTION");
        delete.arg("DELETE").arg(&library.name);
        let ask = |store: Arc<RedisStore>, runtime: Handle| async move {
            store.ask_master(&runtime, master, &delete).await
        };
        store.anywhere(ask).await?.map(drop)
    }
}

impl RedisStore {
    async fn libraries(self: &Arc<Self>, runtime: &Handle) -> Result<Vec<Library>, Error> {
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg(NAMES);
        let mut done = Vec::new();
        let mut found = Vec::new();
        while let Some(master) = self.next_master(&done) {
            let names = names(self.ask_master(runtime, master, &list).await?).ok_or_else(|| {
                Error::unavailable(
                    Cause::Unexpected,
                    "FUNCTION LIST returned something other than libraries with names",
                )
            })?;
            let in_pool = self.source.address_in_pool(master);
            let server = in_pool.unwrap_or_else(|| self.source.to_master(master).to_string());
            found.extend(names.into_iter().map(|name| Library {
                is_own: name == self.library.name,
                server: server.clone(),
                name,
                master,
            }));
            done.push(master);
        }
        found.sort_by(|one, other| (&one.name, &one.server).cmp(&(&other.name, &other.server)));
        Ok(found)
    }
}

fn names(reply: Value) -> Option<Vec<String>> {
    let libraries: Vec<HashMap<String, Value>> = redis::from_redis_value(reply).ok()?;
    let name = |mut library: HashMap<String, Value>| {
        redis::from_redis_value(library.remove("library_name")?).ok()
    };
    libraries.into_iter().map(name).collect()
}

#[cfg(test)]
mod tests;
