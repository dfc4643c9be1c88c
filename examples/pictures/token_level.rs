//! The level of a token bucket, with admitted and refused requests. Deterministic: in memory, on a paused clock.

use std::time::Duration;

use tokio::time::{Instant, advance};
use tower_distributed::token_bucket::BucketState;
use tower_distributed::{Quota, Store, TokenBucket};

use crate::canvas::{ACCENT, Align, Done, INK, MIST, STEEL, page};

const RATE: u32 = 5;
const BURST: u32 = 10;
const STEP: Duration = Duration::from_millis(20);
const SECONDS: u32 = 8;

/// What the client does: so many requests, one every so many milliseconds, from this millisecond on.
const SCRIPT: [(u64, u64, u64); 4] = [
    (400, 16, 20),
    (2_000, 10, 200),
    (4_400, 26, 60),
    (7_000, 3, 200),
];

pub(crate) fn draw() -> Done<String> {
    let (levels, requests) = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?
        .block_on(run())?;
    let title = "A token bucket: 5 tokens per second, burst 10";
    let admitted = requests.iter().filter(|request| request.2).count();
    let subtitle = format!(
        "The level at each request. {admitted} of {} requests find a token, the others are refused at once.",
        requests.len()
    );
    let note = "computed: the decisions of the store in memory for a script of requests, on a paused clock";
    page(title, &subtitle, note, |page| {
        let panel = page.panel((56..776, 94..348), 0.0..SECONDS.into(), 0.0..11.0);
        panel.y_axis(&[0, 5, 10], "tokens")?;
        panel.x_axis(&[0, 1, 2, 3, 4, 5, 6, 7, 8], "s")?;
        panel.area(&levels, MIST, 0.45)?;
        panel.line(levels.iter().copied(), STEEL, 1.6)?;
        for &(at, level, _) in requests.iter().filter(|request| !request.2) {
            panel.ring((at, level), 3.2, ACCENT)?;
        }
        for &(at, level, _) in requests.iter().filter(|request| request.2) {
            panel.dot((at, level), 3.2, INK)?;
        }
        panel.label(
            (0.48, 10.0),
            (8.0, -8.0),
            "a burst of 10 is admitted at once …",
            INK,
            Align::Left,
        )?;
        panel.label(
            (0.74, 0.3),
            (4.0, -12.0),
            "… then refused",
            ACCENT,
            Align::Left,
        )?;
        panel.label(
            (2.9, 2.6),
            (0.0, -18.0),
            "5 per second: all are admitted",
            INK,
            Align::Middle,
        )?;
        panel.label(
            (4.98, 4.8),
            (0.0, 0.0),
            "17 per second: each",
            INK,
            Align::Left,
        )?;
        panel.label(
            (4.98, 4.1),
            (0.0, 0.0),
            "new token admits one",
            INK,
            Align::Left,
        )?;
        Ok(())
    })
}

type Levels = Vec<(f64, f64)>;
type Requests = Vec<(f64, f64, bool)>;

/// Returns the level over time, and time, level and decision of each request.
async fn run() -> Done<(Levels, Requests)> {
    let bucket = TokenBucket::new(
        &Store::in_memory(),
        "api",
        Quota::per_second(RATE).burst(BURST),
    )?;
    let mut due: Vec<u64> = SCRIPT
        .iter()
        .flat_map(|&(from, count, every)| (0..count).map(move |request| from + request * every))
        .collect();
    due.sort_unstable();
    let mut due = due.into_iter().peekable();

    let (mut levels, mut requests) = (Levels::new(), Requests::new());
    let began = Instant::now();
    while began.elapsed() <= Duration::from_secs(SECONDS.into()) {
        let now = began.elapsed().as_secs_f64();
        levels.push((now, level(&bucket.peek("ann").await?)));
        while due
            .next_if(|&at| Duration::from_millis(at) <= began.elapsed())
            .is_some()
        {
            let before = level(&bucket.peek("ann").await?);
            let decision = bucket.allow("ann").await?;
            let after = level(&decision.state);
            requests.push((
                now,
                if decision.is_admitted() {
                    after
                } else {
                    before
                },
                decision.is_admitted(),
            ));
            levels.push((now, after));
        }
        advance(STEP).await;
    }
    Ok((without_straight_parts(&levels), requests))
}

/// The level with its fraction: `remaining` is rounded down, the time until the bucket is full is exact.
fn level(state: &BucketState) -> f64 {
    let missing = state.reset_after().unwrap_or_default().as_secs_f64() * f64::from(RATE);
    f64::from(BURST) - missing
}

/// Removes points in the middle of straight lines.
fn without_straight_parts(points: &[(f64, f64)]) -> Levels {
    let mut kept: Levels = Vec::new();
    for (index, &point) in points.iter().enumerate() {
        let straight = match (kept.last(), points.get(index + 1)) {
            (Some(before), Some(after)) if after.0 > point.0 && point.0 > before.0 => {
                let slope = |a: (f64, f64), b: (f64, f64)| (b.1 - a.1) / (b.0 - a.0);
                (slope(*before, point) - slope(point, *after)).abs() < 1e-3
            }
            _ => false,
        };
        if !straight {
            kept.push(point);
        }
    }
    kept
}
