//! Calls of an origin with and without single flight.

use std::sync::Arc;
use std::time::Duration;

use tower_distributed::single_flight::Postcard;
use tower_distributed::{SingleFlight, Store};

use crate::canvas::{ACCENT, Align, Done, INK, MIST, page, steps};
use crate::measured::{Fleet, Role, counted, note, on_server};

const END: f64 = 4.0;
const EVERY: f64 = 0.01;
/// How long the origin takes.
const WORK: Duration = Duration::from_millis(200);
/// How long its answer is shared.
const TTL: Duration = Duration::from_millis(500);

pub(crate) fn draw() -> Done<String> {
    on_server(async |server| {
        let events = Fleet::start("single-flight", &server.url(), 2)?
            .finish()
            .await;
        let of = |what: &'static str| counted(&events, |event| event.what == what, END);
        let (without, with) = (steps(&of("without")), steps(&of("with")));
        let last = |points: &[(f64, f64)]| points.last().map_or(0.0, |point| point.1);
        let answered = last(&of("answer"));
        let title = "Single flight: one call of the origin for all callers";
        let subtitle = "The origin takes 200 ms, its answers are shared for 0.5 s. Two processes, each with 100 \
                        requests per second.";
        page(title, subtitle, &note(server)?, |page| {
            let panel = page.panel((56..776, 94..348), 0.0..END, 0.0..850.0);
            panel.y_axis(&[0, 200, 400, 600, 800], "calls of the origin")?;
            panel.x_axis(&[0, 1, 2, 3, 4], "s")?;
            panel.area(&without, MIST, 0.45)?;
            panel.line(without.iter().copied(), INK, 1.6)?;
            panel.line(with.iter().copied(), ACCENT, 2.0)?;
            for run in events.iter().filter(|event| event.what == "with") {
                panel.dot((run.at, 6.0), 3.2, ACCENT)?;
            }
            let text = format!("without: {} calls", last(&without));
            panel.label((2.6, 520.0), (-12.0, -8.0), &text, INK, Align::Right)?;
            let text = format!(
                "with single flight: {} calls, {answered} answers",
                last(&with)
            );
            panel.label(
                (END, last(&with)),
                (-6.0, -16.0),
                &text,
                ACCENT,
                Align::Right,
            )
        })
    })
}

pub(crate) async fn play(role: Role) -> Done {
    let store = Store::redis(&role.url)?;
    let reports = SingleFlight::<u64>::builder(Postcard)
        .ttl(TTL)
        .build(&store, "single-flight")?;
    store.ping().await?;
    let (role, mut calls) = (Arc::new(role), tokio::task::JoinSet::new());
    let mut at = 0.1 + EVERY / 2.0 * role.process as f64;
    while at < END - 0.1 {
        role.until(at).await;
        calls.spawn({
            let role = Arc::clone(&role);
            async move {
                origin(&role, "without").await;
            }
        });
        let (role, reports) = (Arc::clone(&role), reports.clone());
        calls.spawn(async move {
            let with = Arc::clone(&role);
            let work = move || async move { origin(&with, "with").await };
            if reports.run("2026-11", work).await.is_ok() {
                role.tell("answer", 0);
            }
        });
        at += EVERY;
    }
    calls.join_all().await;
    Ok(())
}

/// The origin, which tells that it was called.
async fn origin(role: &Role, how: &str) -> u64 {
    role.tell(how, 0);
    tokio::time::sleep(WORK).await;
    7
}
