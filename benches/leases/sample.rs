//! What one round of one contestant gave.

use crate::common::stats::percentile;
use crate::pairs::Tally;

#[derive(Clone, Copy)]
pub struct Sample {
    /// Pairs of lock and unlock.
    pub per_second: f64,
    /// Waits for a lock, nanoseconds.
    pub p50: f64,
    pub p99: f64,
    /// What the least served process got of its fair share; where there is one process, the least served caller.
    pub least_share: f64,
}

impl Sample {
    /// From the tallies of all processes.
    pub fn new(tallies: &[Tally]) -> Self {
        let per_process: Vec<u64> = tallies
            .iter()
            .map(|tally| tally.pairs.iter().sum())
            .collect();
        let shares = match tallies {
            [alone] => &alone.pairs,
            _ => &per_process,
        };
        let (least, all) = (
            shares.iter().min().copied().unwrap_or_default(),
            shares.iter().sum::<u64>(),
        );
        let rates = tallies
            .iter()
            .zip(&per_process)
            .map(|(tally, &pairs)| pairs as f64 / tally.took.as_secs_f64());
        let mut waits: Vec<_> = tallies
            .iter()
            .flat_map(|tally| &tally.waits)
            .copied()
            .collect();
        waits.sort_unstable();
        Self {
            per_second: rates.sum(),
            p50: percentile(&waits, 0.50),
            p99: percentile(&waits, 0.99),
            least_share: (least * shares.len() as u64) as f64 / all as f64,
        }
    }
}
