//! What is printed at the end.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::args::Target;
use crate::check::Verdict;
use crate::message::Counts;
use crate::totals::Totals;

/// Different errors that are printed.
const MOST_ERRORS: usize = 5;

/// Whether the run is a success, and what there is to say.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) is_success: bool,
    pub(crate) text: String,
}

impl Report {
    pub(crate) fn new(target: &Target, totals: &Totals, verdicts: &[Verdict]) -> Self {
        let mut text = String::new();
        let answered = totals.counts().admitted + totals.counts().refused > 0;
        // Writing to a string cannot fail.
        let _ = write(&mut text, target, totals);
        for verdict in verdicts {
            let _ = writeln!(text, "{}", verdict.text);
        }
        for (index, process) in totals.processes.iter().enumerate() {
            if let Some(trouble) = &process.trouble {
                let _ = writeln!(
                    text,
                    "process {index} {trouble}, before it had told its last calls and latencies"
                );
            }
        }
        if !answered {
            let _ = writeln!(text, "nothing was answered");
        }
        let is_success =
            answered && totals.is_complete() && verdicts.iter().all(|verdict| verdict.holds);
        Self { is_success, text }
    }
}

fn write(text: &mut String, target: &Target, totals: &Totals) -> std::fmt::Result {
    if totals.interrupted {
        writeln!(text, "stopped by Ctrl-C")?;
    }
    writeln!(
        text,
        "{:<10} {:>10} {:>10} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "process", "admitted", "refused", "errors", "p50", "p90", "p99", "max"
    )?;
    for (index, process) in totals.processes.iter().enumerate() {
        let latencies = process.latencies().filter(|_| process.done.is_some());
        line(text, &index.to_string(), process.counts, latencies.as_ref())?;
    }
    line(text, "all", totals.counts(), totals.latencies().as_ref())?;
    let answers = totals.texts(|done| &done.answers);
    let counts: Vec<_> = answers
        .iter()
        .map(|(answer, count)| format!("{answer}: {count}"))
        .collect();
    writeln!(text, "answers: {}", counts.join(", "))?;
    errors(text, totals)?;
    let (not_started, lost): (u64, u64) = totals.done().fold((0, 0), |sum, done| {
        (sum.0 + done.not_started, sum.1 + done.lost)
    });
    if not_started > 0 {
        writeln!(
            text,
            "{not_started} calls of the schedule were not made: no task was free. Raise --tasks"
        )?;
    }
    if lost > 0 {
        writeln!(
            text,
            "{lost} leases were lost while they were held; they are left out of the checks"
        )?;
    }
    if let Target::SingleFlight(_) = target {
        let of = |text| answers.get(text).copied().unwrap_or(0);
        let calls = of("called the origin");
        writeln!(
            text,
            "{calls} calls of the origin for {} answers",
            calls + of("shared")
        )?;
    }
    Ok(())
}

fn line(
    text: &mut String,
    name: &str,
    counts: Counts,
    latencies: Option<&Histogram<u64>>,
) -> std::fmt::Result {
    let Counts {
        admitted,
        refused,
        errors,
    } = counts;
    write!(text, "{name:<10} {admitted:>10} {refused:>10} {errors:>8}")?;
    for quantile in [0.5, 0.9, 0.99, 1.0] {
        let latency = latencies.filter(|latencies| !latencies.is_empty());
        let latency = latency.map(|latencies| short(latencies.value_at_quantile(quantile)));
        write!(text, " {:>10}", latency.as_deref().unwrap_or("-"))?;
    }
    writeln!(text)
}

/// µs with their unit.
fn short(micros: u64) -> String {
    format!("{:.1?}", Duration::from_micros(micros))
}

/// The most frequent errors.
fn errors(text: &mut String, totals: &Totals) -> std::fmt::Result {
    let mut errors: Vec<_> = totals.texts(|done| &done.errors).into_iter().collect();
    errors.sort_unstable_by_key(|&(_, count)| std::cmp::Reverse(count));
    for (error, count) in errors.iter().take(MOST_ERRORS) {
        writeln!(text, "error, {count} times: {error}")?;
    }
    let others: u64 = errors
        .iter()
        .skip(MOST_ERRORS)
        .map(|(_, count)| count)
        .sum();
    if others > 0 {
        writeln!(text, "error, {others} times: others")?;
    }
    Ok(())
}
