//! What each fault does to each primitive, in figures: two workers use all primitives at the same time while a fault strikes
//! again and again. Their histories are judged, and checked for linearizability.
//!
//! `FAULTS=long` strikes more often. `target/faults/` then has the figures (`*.txt`) and the histories (`*/*.jsonl`).

mod answers;
mod calls;
mod claims;
mod fault;
mod history;
mod judge;
mod linearizable;
mod means;
mod site;
mod verdict;
mod worker;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fault::{LONG, SHORT};
use history::{Primitive, now};
use verdict::{Row, summary};

use support::program::since_7_0;

/// No call hangs: by its bounds it takes 4 s, and 1.5 s more in a worker that is stopped. How late it is on a busy machine is not
/// judged here: the worlds of `tests/simulation` judge the bounds.
const LONGEST_CALL: Duration = Duration::from_secs(20);

/// What a fault may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loses {
    /// No double grant, and each history is linearizable.
    Nothing,
    /// A bucket has less than a token more or less, by the time that the clock was set: too little for a double grant.
    Refill,
    /// Flights may run beside each other, since a leader goes on by default if its lease could not be renewed in time.
    Leaders,
    /// The server may lose keys, or end leases early: double grants, which the fencing tokens tell apart.
    State,
}

fn rounds(short: u32, long: u32) -> u32 {
    if is_long() { long } else { short }
}

fn is_long() -> bool {
    std::env::var("FAULTS").is_ok_and(|mode| mode == "long")
}

fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/faults")
}

async fn run(fault: Fault, rounds: u32) {
    let needs_7_0 = matches!(
        fault,
        Fault::SentinelKill | Fault::ClusterKill | Fault::SlotMigration
    );
    if needs_7_0 && !since_7_0() {
        return;
    }
    let Some(mut scene) = fault.scene().await else {
        return;
    };
    let mut recovery = vec![Duration::ZERO; Primitive::ALL.len()];
    for round in 0..rounds {
        scene.served_since(now()).await;
        let lasts = if round.is_multiple_of(2) { LONG } else { SHORT };
        let mut since = fault.strike(&scene, round, lasts).await;
        if fault == Fault::ClientKilled {
            scene.replace_worker().await;
            since = now();
        }
        scene.served_since(since).await;
        fault.mend(&scene).await;
        // A call may fail that was made before the end of the fault.
        scene.served_since(now()).await;
        for (longest, took) in recovery.iter_mut().zip(scene.recovered_since(since)) {
            *longest = took.max(*longest);
        }
    }
    let (history, files) = scene.end().await;
    let mut rows = Vec::new();
    for (primitive, recovery) in Primitive::ALL.into_iter().zip(recovery) {
        let mut row = Row::of(primitive, &history);
        row.recovery = recovery;
        row.leaked = scene.leaked(&history, primitive).await;
        rows.push(row);
    }
    report(fault, &rows, &files);
    rows.iter().for_each(|row| check(fault, row));
}

/// Prints the rows, and keeps them and the histories if they are of a long run or show that something was lost.
fn report(fault: Fault, rows: &[Row], files: &[PathBuf]) {
    let name = format!("{fault:?}");
    let lines: String = rows
        .iter()
        .map(|row| format!("{name}: {row:?}\n"))
        .collect();
    print!("{lines}");
    if is_long() || rows.iter().any(Row::is_remarkable) {
        let dir = results().join(&name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(results().join(format!("{name}.txt")), lines).unwrap();
        std::fs::write(
            results().join(format!("{name}.summary")),
            summary(&fault.to_string(), rows),
        )
        .unwrap();
        for file in files {
            std::fs::copy(file, dir.join(file.file_name().unwrap())).unwrap();
        }
    }
}

fn check(fault: Fault, row: &Row) {
    let (what, loses) = (format!("{fault:?}: {row:?}"), fault.loses());
    assert_eq!(row.leaked, 0, "{what}");
    assert!(row.longest < LONGEST_CALL, "{what}");
    assert!(row.operations > row.failed, "{what}");
    assert_eq!(row.invented, 0, "answers that no run has made; {what}");
    assert_eq!(
        row.overdue, 0,
        "refusals and answers of a state that should be over; {what}"
    );
    if loses == Loses::State {
        assert!(row.unfenced == 0 || row.caught.is_none(), "{what}");
        return;
    }
    assert_eq!(row.denied, 0, "releases that deny their leases; {what}");
    if !(loses == Loses::Leaders && row.primitive.is_flight()) {
        assert_eq!(row.double, 0, "{what}");
    }
    if !(loses == Loses::Refill && row.primitive == Primitive::TokenBucket) {
        assert_eq!(row.unordered.clone().unwrap_or_default(), [""; 0], "{what}");
    }
}

macro_rules! faults {
    ($($name:ident: $fault:ident $text:literal loses $loses:ident, $short:expr, $long:expr;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Fault {
            $($fault,)*
        }

        impl Fault {
            fn loses(self) -> Loses {
                match self {
                    $(Self::$fault => Loses::$loses,)*
                }
            }
        }

        /// For readers of the table.
        impl fmt::Display for Fault {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$fault => $text,)*
                })
            }
        }

        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                run(Fault::$fault, rounds($short, $long)).await;
            }
        )*
    };
}

// What each is, what it may do, and how often it strikes in a short run and in a long one.
faults! {
    no_fault: None "none" loses Nothing, 2, 40;
    cut: Cut "connections closed, and refused for 0.3 or 1.5 s" loses Leaders, 1, 20;
    stall: Stall "network stalled for 0.3 or 1.5 s" loses Leaders, 1, 20;
    slow: Slow "replies take 0 to 2 s (2 × ttl)" loses Leaders, 1, 10;
    reply_dropped: ReplyDropped "commands run, replies dropped for 0.3 or 1.5 s" loses Leaders, 1, 20;
    resets: Resets "connections closed every 100 ms" loses Leaders, 1, 20;
    partition: Partition "one of two processes cut off for 1.5 s" loses Leaders, 1, 20;
    script_flush: ScriptFlush "`SCRIPT FLUSH` and `FUNCTION FLUSH`" loses Nothing, 2, 40;
    client_kill: ClientKill "`CLIENT KILL` of all connections" loses Nothing, 2, 40;
    client_pause: ClientPause "`CLIENT PAUSE` for 0.3 or 1.5 s" loses Leaders, 1, 20;
    busy: Busy "busy with a script for 0.3 or 1.5 s" loses Leaders, 1, 20;
    out_of_memory: OutOfMemory "out of memory, `noeviction`, for 0.3 or 1.5 s" loses Leaders, 1, 20;
    evict_all: EvictAll "100 keys evicted, `allkeys-lru`" loses State, 1, 20;
    evict_volatile: EvictVolatile "100 keys evicted, `volatile-lru`" loses State, 1, 20;
    read_only: ReadOnly "`READONLY` for 0.3 or 1.5 s" loses Leaders, 1, 20;
    restart: Restart "server killed and restarted, without persistence" loses State, 1, 20;
    restart_everysec: RestartEverysec "server killed and restarted, `appendfsync everysec`"
        loses State, 1, 20;
    restart_always: RestartAlways "server killed and restarted, `appendfsync always`" loses Leaders, 1, 20;
    sentinel_kill: SentinelKill "master killed, Sentinel" loses State, 1, 20;
    cluster_kill: ClusterKill "master killed, Cluster" loses State, 1, 20;
    slot_migration: SlotMigration "slots moved, each for 0.3 or 1.5 s" loses Leaders, 1, 4;
    clock_forward: ClockForward "clock of the server set forward by 2 h" loses State, 1, 20;
    clock_back: ClockBack "clock of the server set back by 2 h" loses Refill, 1, 20;
    server_stopped: ServerStopped "server stopped (`SIGSTOP`) for 0.3 or 1.5 s" loses Leaders, 1, 20;
    client_stopped: ClientStopped "process stopped (`SIGSTOP`) for 1.5 s" loses Leaders, 1, 20;
    host_suspended: HostSuspended "server and processes stopped for 0.3 or 1.5 s" loses Leaders, 1, 20;
    client_killed: ClientKilled "process killed" loses Leaders, 1, 20;
}
