//! Prefetched tokens against one call to the store for each decision.

use std::time::{Duration, Instant};

use tower_distributed::{Quota, Store, TokenBucket};

use crate::canvas::{ACCENT, Align, Done, INK, STEEL, page};
use crate::measured::{note, on_server};
use support::redis_server::RedisServer;

const TASKS: usize = 8;
const SECONDS: f64 = 2.0;

/// What one way of deciding cost.
struct Cost {
    /// Sorted, in microseconds.
    times: Vec<f64>,
    /// Calls to the server for 1000 decisions.
    commands: f64,
}

pub(crate) fn draw() -> Done<String> {
    on_server(async |server| {
        let store = Store::redis(&server.url())?;
        let exact = TokenBucket::new(&store, "exact", Quota::per_second(1_000_000))?;
        let ahead = TokenBucket::new(&store, "ahead", Quota::per_second(1_000_000))?
            .prefetch(Duration::from_millis(10))?;
        let (exact, ahead) = (
            measure(server, &exact).await?,
            measure(server, &ahead).await?,
        );
        let title = "Prefetch: a hot key without a call to Redis for each request";
        let subtitle = "Share of decisions made within a time: one key, 8 tasks without a pause. Calls: to Redis, \
                        each a batch.";
        page(title, subtitle, &note(server)?, |page| {
            let panel = page.panel((56..776, 94..342), -1.0..4.0, 0.0..104.0);
            panel.y_axis(&[0, 50, 100], "% of decisions")?;
            let ticks = [
                (-1.0, "0.1"),
                (0.0, "1"),
                (1.0, "10"),
                (2.0, "100"),
                (3.0, "1 000"),
                (4.0, "10 000"),
            ];
            let ticks = ticks.map(|(at, label)| (at, label.to_owned()));
            panel.x_labels(&ticks, "µs for a decision")?;
            panel.line(shares(&exact.times), STEEL, 2.0)?;
            panel.line(shares(&ahead.times), ACCENT, 2.0)?;
            for (cost, name, color) in [
                (&ahead, "prefetch(10 ms)", ACCENT),
                (&exact, "exact", STEEL),
            ] {
                let at = (middle(&cost.times).log10(), 50.0);
                panel.dot(at, 4.0, color)?;
                let median = format!("median {:.1} µs", middle(&cost.times));
                let commands = format!("{:.0} calls per 1000", cost.commands);
                for (line, (text, color)) in [(name, color), (&median, INK), (&commands, INK)]
                    .into_iter()
                    .enumerate()
                {
                    panel.label(
                        at,
                        (14.0, 8.0 + 16.0 * line as f64),
                        text,
                        color,
                        Align::Left,
                    )?;
                }
            }
            Ok(())
        })
    })
}

async fn measure(server: &RedisServer, bucket: &TokenBucket) -> Done<Cost> {
    // The process finds out which keys are hot.
    decide(bucket, 0.5).await?;
    let before = commands(server)?;
    let mut times = decide(bucket, SECONDS).await?;
    let commands = commands(server)? - before;
    times.sort_by(f64::total_cmp);
    Ok(Cost {
        commands: 1_000.0 * commands / times.len() as f64,
        times,
    })
}

async fn decide(bucket: &TokenBucket, seconds: f64) -> Done<Vec<f64>> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let bucket = bucket.clone();
        tasks.spawn(async move {
            let (began, mut times) = (Instant::now(), Vec::new());
            while began.elapsed().as_secs_f64() < seconds {
                let sent = Instant::now();
                bucket.allow("ann").await?;
                times.push(sent.elapsed().as_secs_f64() * 1e6);
                tokio::task::yield_now().await;
            }
            Ok::<_, tower_distributed::Error>(times)
        });
    }
    let times = tasks
        .join_all()
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    Ok(times.concat())
}

/// Runs of a script so far. The server also counts the commands within a script, which are not counted here.
fn commands(server: &RedisServer) -> Done<f64> {
    let stats: String = server.query(&["INFO", "commandstats"])?;
    let scripts = stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval") || line.starts_with("cmdstat_fcall"));
    let calls = scripts.filter_map(|line| {
        line.split_once("calls=")?
            .1
            .split(',')
            .next()?
            .parse::<f64>()
            .ok()
    });
    Ok(calls.sum())
}

fn middle(times: &[f64]) -> f64 {
    times.get(times.len() / 2).copied().unwrap_or(1.0)
}

/// The share of times up to a time, over the logarithm of the time.
fn shares(times: &[f64]) -> Vec<(f64, f64)> {
    const POINTS: usize = 200;
    let at = |point: usize| {
        let rank = (times.len() - 1) * point / POINTS;
        (
            times[rank].log10().clamp(-1.0, 4.0),
            100.0 * point as f64 / POINTS as f64,
        )
    };
    if times.is_empty() {
        Vec::new()
    } else {
        (0..=POINTS).map(at).collect()
    }
}
