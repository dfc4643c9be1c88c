//! Early refresh: decides when an answer is refreshed before its ttl ends. Each caller draws at random. A refresh
//! is more likely the nearer the end is and the longer a run takes, so that one caller refreshes early and the
//! others do not meet an expired answer (Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache
//! Stampede Prevention", 2015).

use std::time::Duration;

use crate::random;

/// Draws how long before the end of its ttl an answer is refreshed: from an exponential distribution whose mean is the
/// duration of a run times beta. If runs take similar times, a beta of 1 minimises the callers that meet an expired
/// answer.
pub(super) fn ahead(beta: f64, run: Duration) -> Duration {
    // The fraction is never 0, so its logarithm is finite.
    run.mul_f64(beta * -random::fraction().ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_what_a_run_takes() {
        let run = Duration::from_millis(10);
        for beta in [0.5, 1.0, 3.0] {
            let sum = (0..20_000).map(|_| ahead(beta, run)).sum::<Duration>();
            let ratio = sum.as_secs_f64() / 20_000.0 / run.as_secs_f64() / beta;
            assert!((0.9..1.1).contains(&ratio), "{beta}: {ratio}");
        }
        assert_eq!(ahead(1.0, Duration::ZERO), Duration::ZERO);
    }
}
