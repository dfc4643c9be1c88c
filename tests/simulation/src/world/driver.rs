//! The life of a world: its processes, their callers, and what goes wrong meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::shape::{Fault, Servers};
use super::{Process, World};
use crate::server::{Keeps, Server};

/// What a user may not run for a while.
const DENIED: [&str; 6] = ["EVALSHA", "EVAL", "FCALL", LOAD, "SUBSCRIBE", "PING"];
const LOAD: &str = "FUNCTION|LOAD";

/// A process, and the tasks of its callers.
struct Running {
    process: Arc<Process>,
    callers: Vec<JoinHandle<()>>,
}

impl World {
    /// Lives until its time is over and all has ended.
    pub(super) async fn live(self: Arc<Self>) {
        let mut running: Vec<_> = (0..self.shape.processes)
            .filter_map(|number| self.start(number))
            .collect();
        let mut number = self.shape.processes;
        while !self.is_over() {
            self.pause(self.shape.calm).await;
            let fault = self.network.one(&self.shape.faults).copied();
            match fault {
                None => sleep(self.ends.saturating_duration_since(Instant::now())).await,
                Some(Fault::Kill) => {
                    let at = self.network.draw(running.len() as u64) as usize;
                    // At most one in a while: a fleet that is killed faster serves nobody.
                    if self.network.happens(300) && at < running.len() {
                        self.kill(running.swap_remove(at));
                        running.extend(self.start(number));
                        number += 1;
                    }
                }
                Some(fault) => self.strike(fault),
            }
        }
        for one in &mut running {
            for caller in one.callers.drain(..) {
                if let Err(error) = caller.await {
                    self.condemn(format!("a caller panicked: {error}"));
                }
            }
        }
        let processes = running.into_iter().map(|one| one.process).collect();
        self.end(processes).await;
    }

    fn start(self: &Arc<Self>, number: usize) -> Option<Running> {
        let process = Arc::new(self.process(number)?);
        let callers = (0..self.shape.callers).map(|_| {
            let (world, process) = (Arc::clone(self), Arc::clone(&process));
            let runtime = process.runtime.clone();
            runtime.spawn(async move { world.call_again_and_again(&process).await })
        });
        Some(Running {
            callers: callers.collect(),
            process,
        })
    }

    /// Kills a process: its callers end at once, and nothing that its tasks still do reaches a server.
    fn kill(&self, running: Running) {
        self.judges.count("killed");
        self.network.kill(running.process.number);
        running.callers.iter().for_each(JoinHandle::abort);
    }

    async fn fail_over(self: Arc<Self>) {
        let is_told = |is_uncertain| match self.shape.waits_for_replica() {
            true => self.judges.forget_charges(),
            false => self.judges.is_uncertain(is_uncertain),
        };
        is_told(true);
        let network = Arc::clone(&self.network);
        network.fail_over(self.servers.clone()).await;
        // By then each client has heard of the new master.
        sleep(Duration::from_secs(3)).await;
        is_told(false);
    }

    fn strike(self: &Arc<Self>, fault: Fault) {
        let network = Arc::clone(&self.network);
        // The nodes of a quorum have faults as well, but for those of Sentinels and Clusters.
        let of_quorum = !self.nodes.is_empty() && fault != Fault::Move && network.happens(500);
        let servers = match of_quorum {
            true => &self.nodes,
            false => &self.servers,
        };
        let Some(address) = network.one(servers).cloned() else {
            return;
        };
        let span = |most: u64| Duration::from_millis(network.draw(most));
        if network.happens(500) {
            network.with_server(&address, Server::save);
        }
        match fault {
            Fault::Cut => network.cut_one(),
            Fault::Stall => network.stall_one(span(3000)),
            Fault::Part => network.part_one(span(4000)),
            Fault::Restart | Fault::RestartEmpty | Fault::RestartOld => {
                let keeps = match fault {
                    Fault::Restart => Keeps::All,
                    Fault::RestartOld => Keeps::Saved,
                    _ => Keeps::Nothing,
                };
                if keeps != Keeps::All {
                    self.judges.forget();
                }
                let (away, loads) = (span(1500), span(500));
                tokio::spawn(Arc::clone(&network).restart(address, keeps, away, loads));
            }
            Fault::Evict => {
                self.judges.evicted();
                network.evict_one(&address);
            }
            Fault::Age => network.age(&address),
            Fault::Stop => network.stop(&address, span(2500)),
            Fault::Flush => {
                network.flush_scripts(&address);
                if network.happens(300) {
                    network.flush_functions(&address);
                }
            }
            Fault::Full => {
                let span = span(4000);
                tokio::spawn(Arc::clone(&network).fill(address, span));
            }
            Fault::Deny => {
                let denied = network.one(&DENIED).copied().unwrap_or("PING");
                let span = span(1500);
                tokio::spawn(Arc::clone(&network).deny(address, denied, span));
            }
            Fault::Clock => {
                let by = network.draw(20_000_000) as i64 - 10_000_000;
                self.judges.clock_is_set(by);
                // Servers agree on the time, or a lease would change its end with its server.
                self.all_servers()
                    .for_each(|address| network.set_clock(address, by));
            }
            Fault::Move => match (self.shape.servers, &self.topology) {
                (Servers::Sentinel, _) => drop(tokio::spawn(Arc::clone(self).fail_over())),
                (_, Some(topology)) => drop(tokio::spawn(network.move_slot(Arc::clone(topology)))),
                _ => return,
            },
            Fault::Freeze => {
                let processes = self.runtimes.processes();
                let Some(process) = network.one(&processes).copied() else {
                    return;
                };
                let span = span(4000);
                network.note(&format!("p{process} stands still"), format!("{span:?}"));
                self.runtimes.stop(process, span);
            }
            // Only `live` knows the processes.
            Fault::Kill => {}
        }
        self.judges.count("faults");
    }
}
