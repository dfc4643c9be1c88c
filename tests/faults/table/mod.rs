//! What each fault does to each primitive, in figures: two workers use all primitives at the same time while a fault strikes
//! again and again. Their histories are judged, and checked for linearizability.
//!
//! [`combined`] has two faults strike at once, at random.
//!
//! `FAULTS=long` strikes more often. `target/faults/` then has a table (`*.md`) and the histories (`*/*.jsonl`).

mod answers;
mod budgets;
mod calls;
mod claims;
mod combined;
mod fault;
mod forged;
mod history;
mod judge;
mod linearizable;
mod means;
mod site;
mod verdict;
mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use fault::{Fault, LONG, SHORT};
use history::{History, Primitive, now};
use site::Scene;
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

/// A fault that begins some time after the beginning of its round.
#[derive(Clone, Copy, Debug)]
struct Strike {
    fault: Fault,
    after: Duration,
    lasts: Duration,
}

async fn run(fault: Fault, rounds: u32) {
    let lasts = |round: u32| if round.is_multiple_of(2) { LONG } else { SHORT };
    let strike = |round| vec![Strike { fault, after: Duration::ZERO, lasts: lasts(round) }];
    run_rounds(&fault.to_string(), &format!("{fault:?}"), &[fault], (0..rounds).map(strike).collect()).await;
}

/// Runs rounds of strikes that overlap, and judges what happened by the weakest promise of their faults.
async fn run_rounds(title: &str, name: &str, faults: &[Fault], rounds: Vec<Vec<Strike>>) {
    let needs_7_0 = |fault| matches!(fault, &Fault::SentinelKill | Fault::ClusterKill | Fault::SlotMigration);
    if faults.iter().any(needs_7_0) && !since_7_0() {
        return;
    }
    let Some(mut scene) = Fault::scene(faults).await else { return };
    let mut recovery = vec![Duration::ZERO; Primitive::ALL.len()];
    for (round, strikes) in (0..).zip(rounds) {
        scene.served_since(now()).await;
        let mut since = strike(&scene, round, &strikes);
        if strikes.iter().any(|strike| strike.fault == Fault::ClientKilled) {
            scene.replace_worker().await;
            since = now();
        }
        scene.served_since(since).await;
        for fault in faults {
            fault.mend(&scene).await;
        }
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
    report(title, name, &rows, &files);
    let loses: Vec<_> = faults.iter().map(|fault| fault.loses()).collect();
    for row in rows {
        check(name, &loses, &row);
    }
}

/// Does the strikes of a round, each on a thread of its own, since one may block while another one lasts. Returns the time from
/// which the recovery counts.
fn strike(scene: &Scene, round: u32, strikes: &[Strike]) -> u64 {
    let one = |strike: Strike| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::sleep(strike.after).await;
            strike.fault.strike(scene, round, strike.lasts).await
        })
    };
    let all = || {
        std::thread::scope(|threads| {
            let begun: Vec<_> = strikes.iter().map(|strike| threads.spawn(|| one(*strike))).collect();
            begun.into_iter().map(|strike| strike.join().unwrap()).max().unwrap()
        })
    };
    tokio::task::block_in_place(all)
}

/// Prints the rows, and keeps them and the histories if they are of a long run or show that something was lost.
fn report(title: &str, name: &str, rows: &[Row], files: &[PathBuf]) {
    let lines: String = rows.iter().map(|row| format!("| {name} | {row}\n")).collect();
    print!("{HEADER}{lines}");
    if is_long() || rows.iter().any(Row::is_remarkable) {
        let dir = results().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(results().join(format!("{name}.md")), lines).unwrap();
        std::fs::write(results().join(format!("{name}.summary")), summary(title, rows)).unwrap();
        for file in files {
            std::fs::copy(file, dir.join(file.file_name().unwrap())).unwrap();
        }
    }
}

/// With several faults, each excuses what it may do.
fn check(name: &str, faults: &[Loses], row: &Row) {
    let what = format!("{name}: {row}");
    let may_lose = |loses| faults.contains(&loses);
    assert_eq!(row.leaked, 0, "{what}");
    assert!(row.longest < LONGEST_CALL, "{what}");
    assert!(row.operations > row.failed, "{what}");
    assert_eq!(row.invented, 0, "answers that no run has made; {what}");
    assert_eq!(row.overdue, 0, "refusals and answers of a state that should be over; {what}");
    if may_lose(Loses::State) {
        assert!(row.unfenced == 0 || row.caught.is_none(), "{what}");
        return;
    }
    assert_eq!(row.denied, 0, "releases that deny their leases; {what}");
    if !(may_lose(Loses::Leaders) && row.primitive.is_flight()) {
        assert_eq!(row.double, 0, "{what}");
    }
    let refills = matches!(row.primitive, Primitive::TokenBucket | Primitive::Budget);
    if !(may_lose(Loses::Refill) && refills) {
        assert_eq!(row.unordered.clone().unwrap_or_default(), [""; 0], "{what}");
    }
}

macro_rules! faults {
    ($($name:ident: $fault:ident loses $loses:ident, $short:expr, $long:expr;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                run(Fault::$fault, rounds($short, $long)).await;
            }
        )*

        impl Fault {
            fn loses(self) -> Loses {
                match self {
                    $(Self::$fault => Loses::$loses,)*
                }
            }

            const ALL: &[Self] = &[$(Self::$fault),*];
        }
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
