//! What each process of a run does: calls the target from many tasks, and tells what came of it.

use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::{Load, Run};
use crate::clock;
use crate::message::Message;
use crate::recorder::{Call, Recorder};
use crate::target::Callee;

/// How often it tells.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Runs to the end of the load. `run` is the name of the run.
pub(crate) async fn work(load: &Load, run: &str) -> Result<(), String> {
    // Ctrl-C reaches all processes of the terminal. The first of them tells this one when to stop.
    tokio::spawn(async { while tokio::signal::ctrl_c().await.is_ok() {} });
    let callee = match Callee::open(&load.target, run, load.run.tasks).await {
        Ok(callee) => Arc::new(callee),
        Err(error) => return tell(&Message::Failed(error)),
    };
    tell(&Message::Ready)?;
    let (told, mut orders) = watch::channel(Order::Wait);
    std::thread::spawn(move || listen(&told));
    let start = loop {
        match *orders.borrow_and_update() {
            Order::Go(start) => break start,
            Order::Stop => return Ok(()),
            Order::Wait => {}
        }
        orders.changed().await.map_err(|error| error.to_string())?;
    };
    let recorder = Recorder::new(start).map_err(|error| error.to_string())?;
    let schedule = Arc::new(Schedule::new(start, &load.run));
    let mut tasks = JoinSet::new();
    for _ in 0..load.run.tasks {
        let (callee, recorder) = (Arc::clone(&callee), recorder.clone());
        let (schedule, mut orders) = (Arc::clone(&schedule), orders.clone());
        tasks.spawn(async move {
            while let Some((number, due, from)) = schedule.next(&mut orders).await {
                callee
                    .call(Call {
                        recorder: &recorder,
                        number,
                        due,
                        from,
                    })
                    .await;
                // A store in memory answers at once, and the other tasks have their turn too.
                tokio::task::yield_now().await;
            }
        });
    }
    let mut ticks = tokio::time::interval(TELL_EVERY);
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err(error.to_string()),
                None => break,
            },
            _ = ticks.tick() => tell(&Message::Progress(recorder.progress()))?,
        }
    }
    tell(&Message::Progress(recorder.progress()))?;
    tell(&Message::Done(
        recorder.done(schedule.not_started(clock::now())),
    ))
}

/// What the first process wants.
#[derive(Clone, Copy, Debug)]
enum Order {
    Wait,
    /// Begin at this time.
    Go(Duration),
    Stop,
}

/// Reads orders: a line with the start in ns; then the end of the input, also when the first process dies.
fn listen(told: &watch::Sender<Order>) {
    let mut line = String::new();
    if stdin().lock().read_line(&mut line).is_ok()
        && let Ok(start) = line.trim().parse()
    {
        told.send_replace(Order::Go(Duration::from_nanos(start)));
        line.clear();
        let _ = stdin().lock().read_line(&mut line);
    }
    told.send_replace(Order::Stop);
}

fn tell(message: &Message) -> Result<(), String> {
    let line = serde_json::to_string(message).map_err(|error| error.to_string())?;
    writeln!(stdout().lock(), "{line}").map_err(|error| format!("nobody listens: {error}"))
}

/// When calls begin.
#[derive(Debug)]
struct Schedule {
    start: Duration,
    end: Duration,
    /// The time between two calls of an open loop, in seconds.
    every: Option<f64>,
    next: AtomicU64,
}

impl Schedule {
    fn new(start: Duration, run: &Run) -> Self {
        let every = run.rate.map(|rate| 1.0 / rate);
        Self {
            start,
            end: start + run.seconds,
            every,
            next: AtomicU64::new(0),
        }
    }

    /// Waits for the next call. Returns its number, when it had to begin and when it begins; `None` at the end.
    ///
    /// In an open loop, a call that no task was free for had to begin earlier than it does, so its latency has the
    /// time that it waited for a task.
    async fn next(&self, orders: &mut watch::Receiver<Order>) -> Option<(u64, Duration, Duration)> {
        if matches!(*orders.borrow(), Order::Stop) || clock::now() >= self.end {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let due = match self.every {
            None => self.start,
            Some(every) => self.start + Duration::from_secs_f64(every * number as f64),
        };
        if due >= self.end {
            return None;
        }
        let wait = due.saturating_sub(clock::now());
        if wait.is_zero() {
            let now = clock::now();
            return Some((number, if self.every.is_some() { due } else { now }, now));
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = orders.wait_for(|order| matches!(order, Order::Stop)) => return None,
        }
        let now = clock::now();
        Some((number, now, now))
    }

    /// Returns how many calls of the schedule had to begin before `now`, and did not.
    fn not_started(&self, now: Duration) -> u64 {
        let Some(every) = self.every else { return 0 };
        let planned = now.min(self.end).saturating_sub(self.start).as_secs_f64() / every;
        // Truncated: the call at the very end is not due.
        (planned as u64).saturating_sub(self.next.load(Ordering::Relaxed))
    }
}
