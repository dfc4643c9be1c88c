//! Draws the run: what was admitted so far with the line that is allowed, and calls per second.

use crate::args::Target;
use crate::canvas::{ACCENT, Align, Done, INK, MIST, MUTED, Panel, STEEL, page, steps};
use crate::check::Limit;
use crate::message::{BIN, Counts};
use crate::totals::Totals;

const BIN_SECONDS: f64 = BIN as f64 / 1e6;
/// Bins that are drawn; more are joined.
const MOST_BARS: usize = 240;

/// Returns an SVG. `keys` buckets have the limit each.
pub(crate) fn draw(target: &Target, limit: Option<&Limit>, totals: &Totals) -> Done<String> {
    let (joined, bars) = bars(&totals.bins);
    let bar = BIN_SECONDS * joined as f64;
    let end = bar * bars.len() as f64;
    let keys = target.keys();
    let allowed = |at: f64| limit.map(|limit| keys as f64 * limit.allowed(at));
    let formula = if keys > 1 {
        format!("{keys} · (burst + rate · t)")
    } else {
        "burst + rate · t".to_owned()
    };
    let all = totals.counts();
    let title = "Load: admitted and refused";
    let subtitle = format!(
        "{}, {} processes: {} admitted, {} refused, {} errors.",
        name(target),
        totals.processes.len(),
        all.admitted,
        all.refused,
        all.errors
    );
    page(title, &subtitle, "drawn by the example load", |page| {
        let mut so_far = vec![(0.0, 0.0)];
        for (index, counts) in bars.iter().enumerate() {
            let before = so_far[index].1;
            so_far.push((bar * (index + 1) as f64, before + counts.admitted as f64));
        }
        let top = [all.admitted as f64, allowed(end).unwrap_or(0.0)]
            .into_iter()
            .fold(1.0, f64::max)
            * 1.08;
        let panel = page.panel((86..776, 94..208), 0.0..end, 0.0..top);
        panel.y_axis(&ticks(top, 3), "admitted so far")?;
        panel.area(&so_far, STEEL, 0.7)?;
        if let Some(at_end) = allowed(end) {
            panel.dashed(
                (0.0, allowed(0.0).unwrap_or(0.0)),
                (end, at_end),
                ACCENT,
                1.6,
            )?;
            panel.label(
                (end, top),
                (0.0, -13.0),
                &format!("allowed: {formula}"),
                ACCENT,
                Align::Right,
            )?;
        }

        let rate = |counts: &Counts| (counts.admitted as f64 / bar, counts.refused as f64 / bar);
        let top = bars
            .iter()
            .map(|counts| rate(counts).0 + rate(counts).1)
            .fold(1.0, f64::max)
            * 1.08;
        let panel = page.panel((86..776, 254..340), 0.0..end, 0.0..top);
        panel.y_axis(&ticks(top, 3), "per second")?;
        panel.x_axis(&ticks(end, 6), "s")?;
        stack(&panel, &bars, bar, rate)?;
        for (left, color, text) in [(640, STEEL, "admitted"), (716, MIST, "refused")] {
            page.text((left, 238), "■", 12.0, color, Align::Left)?;
            page.text((left + 14, 238), text, 11.0, MUTED, Align::Left)?;
        }
        Ok(())
    })
}

/// Draws admitted, and refused above it.
fn stack(
    panel: &Panel<'_>,
    bars: &[Counts],
    bar: f64,
    rate: impl Fn(&Counts) -> (f64, f64),
) -> Done {
    let at = |index: usize| bar * index as f64;
    let line = |height: &dyn Fn((f64, f64)) -> f64| {
        let last = bars
            .last()
            .map(|counts| (at(bars.len()), height(rate(counts))));
        let points = bars
            .iter()
            .enumerate()
            .map(|(index, counts)| (at(index), height(rate(counts))));
        steps(&points.chain(last).collect::<Vec<_>>())
    };
    let both = line(&|(admitted, refused)| admitted + refused);
    panel.area(&both, MIST, 1.0)?;
    panel.area(&line(&|(admitted, _)| admitted), STEEL, 1.0)?;
    panel.line(both, INK, 0.6)
}

/// Joins bins until there are few enough. Returns how many make one bar.
fn bars(bins: &[Counts]) -> (usize, Vec<Counts>) {
    let joined = bins.len().div_ceil(MOST_BARS).max(1);
    let bars = bins.chunks(joined).map(|bins| {
        let mut sum = Counts::default();
        bins.iter().for_each(|counts| sum.add(*counts));
        sum
    });
    (joined, bars.collect())
}

/// Returns round numbers from 0 to at most `top`, about `count` of them.
fn ticks(top: f64, count: u32) -> Vec<f64> {
    let raw = top / f64::from(count);
    let power = 10.0_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= raw);
    let step = step.unwrap_or(raw);
    // Below 1, decimal fractions would print all their digits.
    (0..)
        .map(|index| (f64::from(index) * step * 1e6).round() / 1e6)
        .take_while(|tick| *tick <= top)
        .collect()
}

/// The target as the command line names it, without credentials.
fn name(target: &Target) -> String {
    match target {
        Target::Http(http) => {
            format!(
                "{} at {}",
                http.url.path(),
                http.url.host_str().unwrap_or_default()
            )
        }
        Target::TokenBucket(_) => "TokenBucket".to_owned(),
        Target::WaitGroup(_) => "WaitGroup".to_owned(),
        Target::Mutex(_) => "Mutex".to_owned(),
        Target::RwLock(_) => "RwLock".to_owned(),
        Target::SingleFlight(_) => "SingleFlight".to_owned(),
        Target::Dedupe(_) => "Dedupe".to_owned(),
    }
}
