//! Concurrency against its cap: jobs of two processes that run and wait.

use std::time::Duration;

use tower_distributed::{Store, WaitGroup};

use crate::canvas::{ACCENT, Align, Done, INK, MIST, MUTED, STEEL, page, steps};
use crate::measured::{Event, Fleet, Role, note, on_server};

const CAP: u32 = 5;
const END: f64 = 5.0;
/// When the workers of each process begin, and when they stop.
const SHIFTS: [(f64, f64); 2] = [(0.2, 4.4), (1.4, 3.4)];
const WORKERS: u64 = 6;

pub(crate) fn draw() -> Done<String> {
    on_server(async |server| {
        let events = Fleet::start("concurrency", &server.url(), 2)?
            .finish()
            .await;
        let all = level(&events, |event| change(&event.what));
        let first = level(&events, |event| {
            if event.process == 0 {
                change(&event.what)
            } else {
                0.0
            }
        });
        let waiting = level(&events, |event| match &*event.what {
            "waits" => 1.0,
            "begins" => -1.0,
            _ => 0.0,
        });
        let most = all.iter().fold(0.0_f64, |most, point| most.max(point.1));
        let jobs = events.iter().filter(|event| event.what == "begins").count();
        let title = "Two processes, at most 5 jobs at the same time";
        let subtitle = format!(
            "A has 6 workers all the time, B from {} s to {} s. {jobs} jobs of 60 to 240 ms; at most {most} ran at the \
             same time.",
            SHIFTS[1].0, SHIFTS[1].1
        );
        page(title, &subtitle, &note(server)?, |page| {
            let panel = page.panel((56..776, 94..166), 0.0..END, 0.0..12.0);
            panel.y_axis(&[0, 6, 12], "waiters")?;
            panel.line([(0.0, 0.0), (END, 0.0)], MUTED, 1.0)?;
            panel.area(&waiting, MIST, 1.0)?;

            let panel = page.panel((56..776, 208..348), 0.0..END, 0.0..6.0);
            panel.y_axis(&[0, 1, 2, 3, 4, 5], "running")?;
            panel.x_axis(&[0, 1, 2, 3, 4, 5], "s")?;
            panel.area(&all, STEEL, 1.0)?;
            panel.area(&first, MIST, 1.0)?;
            panel.dashed((0.0, CAP.into()), (END, CAP.into()), ACCENT, 1.6)?;
            panel.label(
                (END, CAP.into()),
                (0.0, -11.0),
                "limit",
                ACCENT,
                Align::Right,
            )?;
            panel.label((0.8, 1.5), (0.0, 0.0), "A", INK, Align::Middle)?;
            panel.label((2.5, CAP.into()), (0.0, -11.0), "B", STEEL, Align::Middle)
        })
    })
}

fn change(what: &str) -> f64 {
    match what {
        "begins" => 1.0,
        "ends" => -1.0,
        _ => 0.0,
    }
}

/// Sums up what the events change.
fn level(events: &[Event], change: impl Fn(&Event) -> f64) -> Vec<(f64, f64)> {
    let (mut points, mut level) = (vec![(0.0, 0.0)], 0.0);
    for event in events {
        let change = change(event);
        if change != 0.0 {
            level += change;
            points.push((event.at, level));
        }
    }
    points.push((END, level));
    steps(&points)
}

pub(crate) async fn play(role: &Role) -> Done {
    let store = Store::redis(&role.url)?;
    let jobs = WaitGroup::new(&store, "concurrency", CAP)?;
    store.ping().await?;
    let (begin, end) = SHIFTS[role.process];
    role.until(begin).await;
    let workers = (0..WORKERS).map(async |worker| {
        for job in 0.. {
            if role.now() >= end {
                break;
            }
            role.tell("waits", worker);
            let permit = jobs.add("acme").await?;
            role.tell("begins", worker);
            tokio::time::sleep(Duration::from_millis(60 + (worker * 71 + job * 47) % 180)).await;
            role.tell("ends", worker);
            permit.done().await?;
        }
        Ok::<_, tower_distributed::Error>(())
    });
    futures::future::try_join_all(workers).await?;
    Ok(())
}
