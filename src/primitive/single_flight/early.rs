//! Early refresh: decides when an answer is refreshed before its ttl ends. Each caller draws at random. A refresh
//! is more likely the nearer the end is and the longer a run takes, so that one caller refreshes early and the
//! others do not meet an expired answer (Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache
//! Stampede Prevention", 2015).

use std::time::Duration;

use crate::random;

/// The beta of the algorithm. If runs take similar times, 1 minimises the callers that meet an expired answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early(pub(super) f64);

impl Early {
    pub(super) const BETAS: std::ops::RangeInclusive<f64> = 0.01..=100.0;

    /// Draws how long before the end of its ttl an answer is refreshed: from an exponential distribution whose mean
    /// is the duration of a run times beta.
    pub(super) fn ahead(self, run: Duration) -> Duration {
        // The fraction is never 0, so its logarithm is finite.
        run.mul_f64(self.0 * -random::fraction().ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_what_a_run_takes() {
        let run = Duration::from_millis(10);
        for beta in [0.5, 1.0, 3.0] {
            let sum = (0..20_000).map(|_| Early(beta).ahead(run)).sum::<Duration>();
            let ratio = sum.as_secs_f64() / 20_000.0 / run.as_secs_f64() / beta;
            assert!((0.9..1.1).contains(&ratio), "{beta}: {ratio}");
        }
        assert_eq!(Early(1.0).ahead(Duration::ZERO), Duration::ZERO);
    }
}
