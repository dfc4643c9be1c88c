//! In some worlds each process has a runtime of its own, and stands still at times, as one does that is stopped, swapped out or
//! kept from its processor. All runtimes go on by turns, a millisecond each while there are callers.

use std::sync::Mutex;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, RngSeed, Runtime};
use tokio::time::{Instant, advance, sleep};

use crate::server::lock;

/// How far all runtimes go on before the first goes on again. Their clocks differ by no more.
pub const TURN: Duration = Duration::from_millis(1);
/// The same once nobody calls any more.
pub const LONG_TURN: Duration = Duration::from_millis(20);

struct Own {
    process: usize,
    runtime: Runtime,
    /// It stands still before.
    stops_until: Instant,
    /// What its clock is behind.
    behind: Duration,
}

/// A runtime whose clock and choices are those of a world.
pub fn runtime(seed: u64) -> std::io::Result<Runtime> {
    let seeds = RngSeed::from_bytes(&seed.to_le_bytes());
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).rng_seed(seeds);
    builder.build()
}

/// The runtimes of processes, apart from that of the world.
#[derive(Default)]
pub struct Runtimes(Mutex<Vec<Own>>);

impl Runtimes {
    /// Makes a runtime for a process.
    pub fn add(&self, process: usize, seed: u64) -> std::io::Result<Handle> {
        let runtime = runtime(seed)?;
        let handle = runtime.handle().clone();
        let own = Own {
            process,
            runtime,
            stops_until: Instant::now(),
            behind: Duration::ZERO,
        };
        lock(&self.0).push(own);
        Ok(handle)
    }

    /// Lets a process stand still.
    pub fn stop(&self, process: usize, span: Duration) {
        if let Some(own) = lock(&self.0).iter_mut().find(|own| own.process == process) {
            own.stops_until = Instant::now() + span;
        }
    }

    /// The processes that have one.
    pub fn processes(&self) -> Vec<usize> {
        lock(&self.0).iter().map(|own| own.process).collect()
    }

    /// Ends all of them. To be called outside of all runtimes.
    pub fn end(&self) {
        let all = std::mem::take(&mut *lock(&self.0));
        drop(all);
    }

    /// Each goes on for a turn, unless it stands still. To be called outside of all runtimes.
    pub fn step(&self, now: Instant, turn: Duration) {
        // Processes may be added by the world's runtime only.
        let mut all = std::mem::take(&mut *lock(&self.0));
        for own in &mut all {
            if own.stops_until > now {
                own.behind += turn;
                continue;
            }
            let behind = std::mem::take(&mut own.behind);
            own.runtime.block_on(async {
                if !behind.is_zero() {
                    advance(behind).await;
                }
                sleep(turn).await;
            });
        }
        let mut added = lock(&self.0);
        all.append(&mut added);
        *added = all;
    }
}
