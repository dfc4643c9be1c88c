//! A mutex over four processes. One is killed and one is stopped while it holds the lock.

use std::time::Duration;

use tower_distributed::{Mutex, Store};

use crate::canvas::{ACCENT, Align, Done, INK, MIST, PAPER, STEEL, page};
use crate::measured::{Event, Fleet, Role, note, on_server};

const PROCESSES: usize = 4;
const END: f64 = 5.0;
const TTL: Duration = Duration::from_millis(600);
const WORK: Duration = Duration::from_millis(140);
/// The process that is killed, and from when on.
const KILLED: (usize, f64) = (1, 1.0);
/// The process that is stopped, and from when on.
const STOPPED: (usize, f64) = (2, 2.5);
const STOPPED_FOR: Duration = Duration::from_millis(1_300);

pub(crate) fn draw() -> Done<String> {
    on_server(async |server| {
        let mut fleet = Fleet::start("mutex-timeline", &server.url(), PROCESSES)?;
        let killed = strike(&fleet, KILLED).await;
        fleet.process(KILLED.0).kill9();
        let stopped = strike(&fleet, STOPPED).await;
        fleet.process(STOPPED.0).pause();
        tokio::time::sleep(STOPPED_FOR).await;
        fleet.process(STOPPED.0).resume();
        let resumed = fleet.now();
        let events = fleet.finish().await;

        let holds = holds(&events, killed);
        let title = "A mutex over four processes: one is killed, one is stopped";
        let subtitle = "Bars: the lock is held; numbers: the order of the fencing tokens. Lease of 600 ms, renewed while the holder runs.";
        page(title, subtitle, &note(server)?, |page| {
            let panel = page.panel((56..776, 76..344), 0.0..END, 4.0..0.0);
            panel.x_axis(&[0, 1, 2, 3, 4, 5], "s")?;
            for process in 0..PROCESSES {
                let middle = process as f64 + 0.5;
                let name = ["A", "B", "C", "D"][process];
                let end = if process == KILLED.0 { killed } else { END };
                panel.line([(0.0, middle), (end, middle)], MIST, 1.0)?;
                panel.label((0.0, middle), (-14.0, 0.0), name, INK, Align::Right)?;
            }
            let (row, next) = (KILLED.0 as f64, next_lock(&holds, killed));
            panel.bar((killed, row + 0.2), (next, row + 0.8), MIST, 0.8)?;
            let row = STOPPED.0 as f64;
            panel.bar((stopped, row + 0.2), (resumed, row + 0.8), MIST, 0.35)?;
            panel.bar(
                (stopped, row + 0.2),
                (next_lock(&holds, stopped), row + 0.8),
                MIST,
                0.8,
            )?;
            for hold in &holds {
                let row = hold.process as f64;
                let struck = hold.process == STOPPED.0 && hold.from < stopped && hold.to > stopped;
                let to = if struck { stopped } else { hold.to };
                panel.bar((hold.from, row + 0.2), (to, row + 0.8), STEEL, 1.0)?;
                let (number, wide) = (hold.place.to_string(), to - hold.from > 0.1);
                let (at, dx, color, align) = if wide {
                    ((hold.from + to) / 2.0, 0.0, PAPER, Align::Middle)
                } else {
                    (hold.from, -3.0, INK, Align::Right)
                };
                panel.sized((at, row + 0.5), (dx, 0.0), &number, 9.0, color, align)?;
                if let (Some(late), Some(highest)) = (hold.write, hold.refused_by) {
                    panel.cross((late, row + 0.5), 5.0, ACCENT)?;
                    let text = format!(
                        "C resumes: its late write with {} is refused, {highest} has written",
                        hold.place
                    );
                    panel.label((late, row + 1.0), (10.0, 0.0), &text, ACCENT, Align::Right)?;
                }
            }
            panel.cross((killed, KILLED.0 as f64 + 0.5), 5.0, ACCENT)?;
            let text = format!(
                "B is killed: its lease ends, the next holder has the lock {:.0} ms later",
                1e3 * (next - killed)
            );
            panel.label(
                (killed, KILLED.0 as f64 + 1.0),
                (-8.0, 0.0),
                &text,
                ACCENT,
                Align::Left,
            )?;
            let text = "C is stopped (SIGSTOP)";
            panel.label((stopped, row + 0.5), (8.0, 0.0), text, INK, Align::Left)
        })
    })
}

/// Waits until a process has held the lock for a moment. Returns the time.
async fn strike(fleet: &Fleet, (process, from): (usize, f64)) -> f64 {
    loop {
        let events = fleet.events();
        let last = events.iter().rfind(|event| event.process == process);
        let now = fleet.now();
        if last
            .is_some_and(|event| event.what == "locked" && event.at > from && now - event.at > 0.06)
            || now > END
        {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

struct Hold {
    process: usize,
    from: f64,
    to: f64,
    fence: u64,
    /// The place of the fencing token among all, from 1.
    place: usize,
    write: Option<f64>,
    /// The place of the highest fencing token that had written before, if that is higher.
    refused_by: Option<usize>,
}

/// When the lock was granted the first time after `at`.
fn next_lock(holds: &[Hold], at: f64) -> f64 {
    holds
        .iter()
        .map(|hold| hold.from)
        .filter(|&from| from > at)
        .fold(END, f64::min)
}

fn holds(events: &[Event], killed: f64) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    let locked = events.iter().filter(|event| event.what == "locked");
    let mut fences: Vec<u64> = locked.map(|event| event.number).collect();
    fences.sort_unstable();
    let mut highest = 0;
    for event in events {
        let (process, fence) = (event.process, event.number);
        let place = fences.partition_point(|&other| other <= fence);
        if event.what == "locked" {
            let to = if process == KILLED.0 { killed } else { END };
            holds.push(Hold {
                process,
                from: event.at,
                to,
                fence,
                place,
                write: None,
                refused_by: None,
            });
        }
        let Some(hold) = holds.iter_mut().find(|hold| hold.fence == fence) else {
            continue;
        };
        match &*event.what {
            "writes" => {
                hold.write = Some(event.at);
                hold.refused_by = (place < highest).then_some(highest);
                highest = highest.max(place);
            }
            "unlocks" => hold.to = event.at,
            _ => {}
        }
    }
    holds
}

pub(crate) async fn play(role: &Role) -> Done {
    let store = Store::redis(&role.url)?;
    let mutex = Mutex::builder().ttl(TTL).build(&store, "mutex-timeline")?;
    store.ping().await?;
    role.until(0.1 + 0.05 * role.process as f64).await;
    while role.now() < END - 0.4 {
        let guard = mutex.lock("invoices").await?;
        role.tell("locked", guard.fence());
        tokio::time::sleep(WORK).await;
        // A careful holder checks `is_held` here. Even so it could be stopped after the check.
        role.tell("writes", guard.fence());
        role.tell("unlocks", guard.fence());
        guard.unlock().await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
