//! The first process: starts the others, follows what they tell, and stops them.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::args::Load;
use crate::clock;
use crate::message::Message;
use crate::totals::Totals;

/// Names the run, in the environment of the other processes.
pub(crate) const RUN: &str = "TOWER_DISTRIBUTED_LOAD_RUN";

/// For a process to start and connect.
const PATIENCE: Duration = Duration::from_secs(30);
/// After the last calls, for the report of a process.
const REPORT: Duration = Duration::from_secs(30);
/// From the order to begin until all have read it.
const HEAD_START: Duration = Duration::from_millis(50);
const DRAW_EVERY: Duration = Duration::from_millis(250);

/// A line of a process, or its end.
type Told = (usize, Result<Message, String>);

/// All processes of a run. Dropping it kills them.
struct Fleet {
    stdins: Vec<Option<ChildStdin>>,
    told: mpsc::Receiver<Told>,
}

/// Runs the load in as many processes as asked for, and returns what they told. Fails if one cannot begin.
pub(crate) async fn run(load: &Load) -> Result<Totals, String> {
    let run = &load.run;
    let mut interrupts = interrupts();
    let mut fleet = Fleet::start(run.processes as usize)?;
    tokio::select! {
        ready = fleet.ready() => ready?,
        _ = interrupts.recv() => return Err("stopped before the start".into()),
    }
    let start = clock::now() + HEAD_START;
    fleet.begin(start).await;

    let mut totals = Totals::new(fleet.stdins.len());
    let bar = bar(run.seconds);
    let mut ticks = tokio::time::interval(DRAW_EVERY);
    let longest = HEAD_START + run.seconds + load.target.longest_call() + REPORT;
    let deadline = Instant::now() + longest;
    while !totals.all_ended() {
        tokio::select! {
            told = fleet.told.recv() => match told {
                Some((process, Ok(message))) => totals.hear(process, message),
                Some((process, Err(end))) => totals.ended(process, &end),
                None => break,
            },
            _ = ticks.tick() => draw(&bar, &totals, start),
            _ = interrupts.recv() => {
                if totals.interrupted {
                    return Err("stopped by the second Ctrl-C, without a report".into());
                }
                totals.interrupted = true;
                fleet.stop();
            }
            () = tokio::time::sleep_until(deadline) => {
                return Err(format!("a process has not ended within {longest:?}"));
            }
        }
    }
    bar.finish_and_clear();
    Ok(totals)
}

impl Fleet {
    fn start(processes: usize) -> Result<Self, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("cannot find this program: {error}"))?;
        // Different for each run, so that no state is left in a store from an earlier one.
        let name = format!("load-{:016x}", rand::random::<u64>());
        let (teller, told) = mpsc::channel(1024);
        let mut stdins = Vec::new();
        for process in 0..processes {
            let mut command = Command::new(&program);
            command.args(std::env::args_os().skip(1)).env(RUN, &name);
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true);
            let mut child = command
                .spawn()
                .map_err(|error| format!("cannot start process {process}: {error}"))?;
            stdins.push(child.stdin.take());
            tokio::spawn(listen(process, child, teller.clone()));
        }
        Ok(Self { stdins, told })
    }

    /// Waits until all are connected.
    async fn ready(&mut self) -> Result<(), String> {
        let mut waiting = self.stdins.len();
        let all = async {
            while waiting > 0 {
                match self.told.recv().await {
                    Some((_, Ok(Message::Ready))) => waiting -= 1,
                    Some((_, Ok(Message::Failed(error)))) => return Err(error),
                    Some((process, Err(end))) => return Err(format!("process {process} {end}")),
                    _ => {}
                }
            }
            Ok(())
        };
        let ready = tokio::time::timeout(PATIENCE, all).await;
        ready.unwrap_or_else(|_| {
            Err(format!(
                "{waiting} processes were not ready within {PATIENCE:?}"
            ))
        })
    }

    async fn begin(&mut self, start: Duration) {
        let order = format!("{}\n", start.as_nanos());
        for stdin in self.stdins.iter_mut().flatten() {
            // One that has died tells by its end.
            let _ = stdin.write_all(order.as_bytes()).await;
        }
    }

    /// Tells all to make no more calls.
    fn stop(&mut self) {
        self.stdins.clear();
    }
}

/// Passes on what a process tells, and at last how it ended.
async fn listen(process: usize, mut child: Child, teller: mpsc::Sender<Told>) {
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let message =
                serde_json::from_str(&line).map_err(|error| format!("told nonsense: {error}"));
            if teller.send((process, message)).await.is_err() {
                return;
            }
        }
    }
    let end = child
        .wait()
        .await
        .map_or_else(|error| format!("is lost: {error}"), how);
    // The other side ends only with the program.
    let _ = teller.send((process, Err(end))).await;
}

fn how(status: ExitStatus) -> String {
    format!("ended with {status}")
}

/// Tells of each Ctrl-C.
fn interrupts() -> mpsc::Receiver<()> {
    let (teller, told) = mpsc::channel(2);
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() && teller.send(()).await.is_ok() {}
        // Without a signal handler it runs to its end.
        std::future::pending::<()>().await;
    });
    told
}

fn bar(length: Duration) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
    // A template that cannot be read leaves the default style.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}") {
        bar.set_style(style);
    }
    bar
}

fn draw(bar: &ProgressBar, totals: &Totals, start: Duration) {
    let passed = clock::now().saturating_sub(start);
    let (rates, all) = (totals.last_second(passed), totals.counts());
    bar.set_position(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX));
    bar.set_message(format!(
        "admitted {}/s  refused {}/s  errors {}/s  ({} in all)",
        rates.admitted,
        rates.refused,
        rates.errors,
        all.all()
    ));
}
