//! What each fault does to each primitive, in figures: two workers use all primitives at the same time while a fault strikes
//! again and again. Their histories are judged, and checked for linearizability.
//!
//! `FAULTS=long` strikes more often. `target/faults/` then has a table (`*.md`) and the histories (`*/*.jsonl`).

mod answers;
mod budgets;
mod calls;
mod claims;
mod fault;
mod history;
mod judge;
mod linearizable;
mod site;
mod verdict;
mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use fault::Fault;
use history::{History, Primitive, now};
use verdict::{HEADER, Row, summary};

use support::program::since_7_0;

/// No call takes longer: 1 s for its turn, 500 ms each to be sent and to connect, and four times that for the reply, as long as
/// earlier replies arrive. A worker that is stopped stands still for 1.5 s more.
const LONGEST_CALL: Duration = Duration::from_secs(6);

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

async fn run(fault: Fault, loses: Loses, rounds: u32) {
    if matches!(fault, Fault::SentinelKill | Fault::ClusterKill | Fault::SlotMigration) && !since_7_0() {
        return;
    }
    let Some(mut scene) = fault.scene().await else { return };
    let mut recovery = vec![Duration::ZERO; Primitive::ALL.len()];
    for round in 0..rounds {
        scene.served_since(now()).await;
        let since = fault.strike(&mut scene, round).await;
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
    for row in rows {
        check(fault, loses, &row);
    }
}

/// Prints the rows, and keeps them and the histories if they are of a long run.
fn report(fault: Fault, rows: &[Row], files: &[PathBuf]) {
    let lines: String = rows.iter().map(|row| format!("| {fault:?} | {row}\n")).collect();
    print!("{HEADER}{lines}");
    if is_long() || rows.iter().any(Row::is_remarkable) {
        let dir = results().join(format!("{fault:?}"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(results().join(format!("{fault:?}.md")), lines).unwrap();
        let name = fault.to_string();
        std::fs::write(results().join(format!("{fault:?}.summary")), summary(&name, rows)).unwrap();
        for file in files {
            std::fs::copy(file, dir.join(file.file_name().unwrap())).unwrap();
        }
    }
}

fn check(fault: Fault, loses: Loses, row: &Row) {
    let what = format!("{fault:?}: {row}");
    assert_eq!(row.leaked, 0, "{what}");
    assert!(row.longest < LONGEST_CALL, "{what}");
    assert!(row.operations > row.failed, "{what}");
    assert_eq!(row.invented, 0, "answers that no run has made; {what}");
    assert_eq!(row.overdue, 0, "refusals and answers of a state that should be over; {what}");
    assert!(row.denied == 0 || loses == Loses::State, "{} releases deny their leases; {what}", row.denied);
    match loses {
        Loses::Leaders if row.primitive.is_flight() => {
            assert_eq!(row.unordered.clone().unwrap_or_default(), [""; 0], "{what}");
        }
        Loses::Refill if matches!(row.primitive, Primitive::TokenBucket | Primitive::Budget) => {
            assert_eq!(row.double, 0, "{what}")
        }
        Loses::Nothing | Loses::Refill | Loses::Leaders => {
            assert_eq!(row.double, 0, "{what}");
            assert_eq!(row.unordered.clone().unwrap_or_default(), [""; 0], "{what}");
        }
        Loses::State => assert!(row.unfenced == 0 || row.caught.is_none(), "{what}"),
    }
}

macro_rules! faults {
    ($($name:ident: $fault:ident loses $loses:ident, $short:expr, $long:expr;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                run(Fault::$fault, Loses::$loses, rounds($short, $long)).await;
            }
        )*
    };
}

// How often each strikes, in a short run and in a long one.
faults! {
    no_fault: None loses Nothing, 2, 40;
    cut: Cut loses Leaders, 1, 20;
    stall: Stall loses Leaders, 1, 20;
    slow: Slow loses Leaders, 1, 10;
    reply_dropped: ReplyDropped loses Leaders, 1, 20;
    resets: Resets loses Leaders, 1, 20;
    partition: Partition loses Leaders, 1, 20;
    script_flush: ScriptFlush loses Nothing, 2, 40;
    client_kill: ClientKill loses Nothing, 2, 40;
    client_pause: ClientPause loses Leaders, 1, 20;
    busy: Busy loses Leaders, 1, 20;
    out_of_memory: OutOfMemory loses Leaders, 1, 20;
    evict_all: EvictAll loses State, 1, 20;
    evict_volatile: EvictVolatile loses State, 1, 20;
    read_only: ReadOnly loses Leaders, 1, 20;
    restart: Restart loses State, 1, 20;
    restart_everysec: RestartEverysec loses State, 1, 20;
    restart_always: RestartAlways loses Leaders, 1, 20;
    sentinel_kill: SentinelKill loses State, 1, 20;
    cluster_kill: ClusterKill loses State, 1, 20;
    slot_migration: SlotMigration loses Leaders, 1, 4;
    clock_forward: ClockForward loses State, 1, 20;
    clock_back: ClockBack loses Refill, 1, 20;
    server_stopped: ServerStopped loses Leaders, 1, 20;
    client_stopped: ClientStopped loses Leaders, 1, 20;
    host_suspended: HostSuspended loses Leaders, 1, 20;
    client_killed: ClientKilled loses Leaders, 1, 20;
}

/// Checks the histories of a folder again: `HISTORIES=target/faults/Cut cargo test … table::histories -- --ignored`.
#[test]
#[ignore = "needs histories: set HISTORIES to a folder of *.jsonl files"]
fn histories() {
    let Ok(dir) = std::env::var("HISTORIES") else { return };
    let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("HISTORIES={dir:?}: {error}"));
    let files =
        files.map(|file| file.unwrap().path()).filter(|path| path.extension() == Some("jsonl".as_ref()));
    let history = History::read(files);
    print!("{HEADER}");
    for primitive in Primitive::ALL {
        println!("| {dir} | {}", Row::of(primitive, &history));
    }
}
