//! The false-positive rate of a Bloom filter over its fill, beside the theory. Deterministic: the hash has no seed.

use tower_distributed::{BloomFilter, Store};

use crate::canvas::{ACCENT, Align, Done, INK, MUTED, STEEL, page};

const CAPACITY: u64 = 10_000;
const RATE: f64 = 0.01;
/// Absent items that are looked up at each fill.
const PROBES: u64 = 50_000;
/// The filter is measured each time it holds another so many percent of its capacity.
const PERCENT: u64 = 10;
const LAST: u64 = 160;

pub(crate) fn draw() -> Done<String> {
    let (measured, bits, hashes) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run())?;
    let theory = |percent: f64| {
        let items = percent / 100.0 * CAPACITY as f64;
        let set = 1.0 - (-f64::from(hashes) * items / bits as f64).exp();
        100.0 * set.powi(hashes as i32)
    };
    let title = "A Bloom filter keeps its false-positive rate up to its capacity";
    let subtitle = format!(
        "Capacity 10 000, rate 1 %: {:.1} KiB, {hashes} hashes. Each dot: the share of 50 000 absent items that \
         are reported as present.",
        bits as f64 / 8192.0
    );
    let note = "computed: the items item-0, item-1, … in memory; the hash has no seed, so every store gives these dots";
    page(title, &subtitle, note, |page| {
        let panel = page.panel((56..776, 94..342), 0.0..LAST as f64, 0.0..9.0);
        panel.y_axis(&[0, 1, 2, 4, 6, 8], "false positives, %")?;
        panel.x_axis(
            &[0, 20, 40, 60, 80, 100, 120, 140, 160],
            "items inserted, % of the capacity",
        )?;
        panel.line([(100.0, 0.0), (100.0, 9.0)], MUTED, 1.0)?;
        panel.label((100.0, 9.0), (-8.0, 8.0), "capacity", MUTED, Align::Right)?;
        panel.line(
            (0..=LAST).map(|percent| (percent as f64, theory(percent as f64))),
            STEEL,
            1.6,
        )?;
        for &point in &measured {
            panel.dot(point, 3.6, ACCENT)?;
        }
        panel.label(
            (146.0, theory(146.0)),
            (-14.0, -12.0),
            "theory: (1 − e^(−kn/m))^k",
            STEEL,
            Align::Right,
        )?;
        panel.label(
            (100.0, 1.0),
            (-8.0, -14.0),
            "1 %, as configured",
            INK,
            Align::Right,
        )?;
        panel.label(
            (130.0, theory(130.0)),
            (10.0, 14.0),
            "counted",
            ACCENT,
            Align::Left,
        )?;
        Ok(())
    })
}

/// Returns the rates in percent over the fill in percent, the bits and the hashes.
async fn run() -> Done<(Vec<(f64, f64)>, u64, u32)> {
    let seen = BloomFilter::new(&Store::in_memory(), "items", CAPACITY, RATE)?;
    let mut measured = Vec::new();
    let step = CAPACITY * PERCENT / 100;
    for inserted in (0..=CAPACITY * LAST / 100).step_by(step as usize) {
        let found = seen
            .contains_all((0..PROBES).map(|item| format!("absent-{item}")))
            .await?;
        let wrong = found.into_iter().filter(|&found| found).count();
        measured.push((
            100.0 * inserted as f64 / CAPACITY as f64,
            100.0 * wrong as f64 / PROBES as f64,
        ));
        seen.insert_all((inserted..inserted + step).map(|item| format!("item-{item}")))
            .await?;
    }
    Ok((measured, seen.size().bits, seen.size().hashes))
}
