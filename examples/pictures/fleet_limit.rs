//! Two processes under one rate limit: what both admit together stays below the bound.

use tower_distributed::{Quota, Store, TokenBucket};

use crate::canvas::{ACCENT, Align, Done, INK, MIST, STEEL, page, steps};
use crate::measured::{Fleet, Role, counted, note, on_server};

const RATE: u32 = 40;
const BURST: u32 = 20;
const END: f64 = 5.0;
/// When the second process begins to send.
const SECOND: f64 = 2.0;
/// The mean time between two requests of a process.
const EVERY: f64 = 1.0 / 90.0;

pub(crate) fn draw() -> Done<String> {
    on_server(async |server| {
        let events = Fleet::start("fleet-limit", &server.url(), 2)?
            .finish()
            .await;
        let count = |what: &str, process: usize| {
            events
                .iter()
                .filter(|event| event.what == what && event.process == process)
                .count()
        };
        let both = counted(&events, |event| event.what == "admitted", END);
        let first = counted(
            &events,
            |event| event.what == "admitted" && event.process == 0,
            END,
        );
        let bound = |at: f64| f64::from(BURST) + f64::from(RATE) * at;
        let (admitted, offered) = (count("admitted", 0) + count("admitted", 1), events.len());
        let title = "Two processes under one limit: 40 requests per second, burst 20";
        let subtitle = format!(
            "Each process is offered 90 per second, B from 2 s on. {admitted} of {offered} are admitted, the bound is {}.",
            bound(END)
        );
        page(title, &subtitle, &note(server)?, |page| {
            let panel = page.panel((56..776, 94..348), 0.0..END, 0.0..230.0);
            panel.y_axis(&[0, 50, 100, 150, 200], "admitted so far")?;
            panel.x_axis(&[0, 1, 2, 3, 4, 5], "s")?;
            let (both, first) = (steps(&both), steps(&first));
            panel.area(&both, STEEL, 0.7)?;
            panel.area(&first, MIST, 1.0)?;
            panel.line(both, INK, 1.6)?;
            panel.dashed((0.0, bound(0.0)), (END, bound(END)), ACCENT, 1.6)?;
            panel.label(
                (3.4, bound(3.4)),
                (-12.0, -10.0),
                "bound: burst + rate · t",
                ACCENT,
                Align::Right,
            )?;
            panel.label(
                (4.2, 40.0),
                (0.0, 0.0),
                &format!("A: {}", count("admitted", 0)),
                INK,
                Align::Middle,
            )?;
            let b = format!("B: {}", count("admitted", 1));
            panel.label((4.6, 160.0), (0.0, 0.0), &b, INK, Align::Middle)
        })
    })
}

pub(crate) async fn play(role: &Role) -> Done {
    let store = Store::redis(&role.url)?;
    let bucket = TokenBucket::new(&store, "fleet-limit", Quota::per_second(RATE).burst(BURST))?;
    store.ping().await?;
    let mut at = if role.process == 0 { 0.0 } else { SECOND };
    while at < END {
        role.until(at).await;
        let admitted = bucket.allow("ann").await?.is_admitted();
        role.tell(if admitted { "admitted" } else { "refused" }, 0);
        at += EVERY * 2.0 * rand::random::<f64>();
    }
    Ok(())
}
