//! The end of a world: it is quiet while nobody calls, all works once nothing is wrong, and nothing is left.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::shape::{Fault, Servers};
use super::{Process, World};
use crate::network::micros;
use crate::server::database::{Entry, Item};
use crate::server::lock;
use crate::server::sorted_set::Bound;

/// After this, all faults have ended, and everybody has heard of it.
const RECOVERED: Duration = Duration::from_secs(10);
/// Keys with these parts last until they are changed: settings of the fleet, and filters that never forget.
const LASTING: [&[u8]; 3] = [b":setting:", b":bits", b":config"];
/// Scores above it are no times.
const LIFT: f64 = 4_503_599_627_370_496.0;
/// Two late messages, one after the other, take up to 6 s with what repeats the call.
const SHUTDOWN: Duration = Duration::from_secs(15);

impl World {
    pub(super) async fn end(self: &Arc<Self>, processes: Vec<Arc<Process>>) {
        self.has_callers.store(false, Ordering::Relaxed);
        sleep(RECOVERED).await;
        self.no_lease_is_left();
        self.who_waits_is_quiet(&processes).await;
        // What was held for that is given back.
        sleep(Duration::from_secs(3)).await;
        self.who_is_idle_is_quiet(&processes).await;
        for process in processes {
            let (world, runtime) = (Arc::clone(self), process.runtime.clone());
            let ended = runtime.spawn(async move {
                world.all_works(&process).await;
                for store in process.stores() {
                    if let Err(error) = store.shutdown(SHUTDOWN).await {
                        world.condemn(format!("process {}: {error}", process.number));
                    }
                }
            });
            if let Err(error) = ended.await {
                self.condemn(format!("a process panicked at its end: {error}"));
            }
        }
        sleep(Duration::from_secs(5)).await;
        self.nothing_is_left();
        self.no_task_is_left();
        self.nobody_hammers();
    }

    /// Whether a process was killed, which leaves what it had.
    fn has_killed(&self) -> bool {
        self.judges.counts().contains_key("killed")
    }

    /// Whether a server may forget what it has answered, or a process what it holds.
    pub(super) fn may_forget(&self) -> bool {
        use Fault::{Clock, Evict, Kill, Move, RestartOld};
        let forgets = |fault: &Fault| matches!(fault, Kill | RestartOld | Clock | Evict | Move);
        self.shape.faults.iter().any(forgets)
    }

    /// What was released, or given up, is free before its time: no release is lost while its process lives.
    fn no_lease_is_left(&self) {
        // A release that the server denies is not sent again.
        if self.may_forget() || self.shape.faults.contains(&Fault::Deny) {
            return;
        }
        let (from, to) = (Bound::open(micros() as f64), Bound::open(LIFT));
        let is_held = |key: &[u8], entry: &Entry| match &entry.item {
            Item::Text(_) => key.ends_with(b":lock"),
            Item::SortedSet(set) => {
                key.ends_with(b":holders") && set.between(from, to).next().is_some()
            }
            _ => false,
        };
        self.has_no_key(&format!("held, {RECOVERED:?} after the last call"), is_held);
    }

    /// No server has a key of this kind.
    fn has_no_key(&self, what: &str, is_one: impl Fn(&[u8], &Entry) -> bool) {
        for address in self.all_servers() {
            let found = self.network.with_server(address, |server| {
                let mut database = lock(&server.database);
                database.sweep();
                let found = database
                    .entries
                    .iter()
                    .filter(|(key, entry)| is_one(key, entry))
                    .take(5);
                found
                    .map(|(key, _)| key.escape_ascii().to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            });
            if let Some(found) = found.filter(|found| !found.is_empty()) {
                self.condemn(format!("{what}: {found}"));
            }
        }
    }

    /// No task of a process outlives it: those that are left are of the world.
    fn no_task_is_left(&self) {
        // Where each process has a runtime of its own, its tasks are there.
        if self.shape.has_runtimes || self.has_killed() {
            return;
        }
        let own = match self.shape.servers {
            Servers::Sentinel => 2, // carries what is written to the replica
            Servers::One | Servers::Cluster => 1,
        };
        let tasks = Handle::current().metrics().num_alive_tasks();
        if tasks > own {
            self.condemn(format!("{} tasks are left after the shutdown", tasks - own));
        }
    }

    fn nothing_is_left(&self) {
        let connections = self.network.connections();
        // The connections of a process that was killed may be open as long as the machine knows nothing of it.
        if connections > 0 && !self.has_killed() {
            self.condemn(format!(
                "{connections} connections are open after the shutdown"
            ));
        }
        let lasts = |key: &[u8]| {
            LASTING
                .iter()
                .any(|part| key.windows(part.len()).any(|own| own == *part))
        };
        self.has_no_key("keys without an end", |key, entry| {
            entry.until.is_none() && !lasts(key)
        });
    }
}
