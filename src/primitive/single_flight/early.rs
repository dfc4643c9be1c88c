//! When an answer is made anew before its ttl is over: each who asks draws, the more likely the nearer the end is and the
//! longer a run takes, so that one is early and the others never meet the end (Vattani, Chierichetti and Lowenstein,
//! "Optimal Probabilistic Cache Stampede Prevention", 2015).

use std::time::Duration;

use crate::random;

/// How eager it is: 1 is what minimises the callers that meet the end, if runs take times that are alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early(pub(super) f64);

impl Early {
    pub(super) const BETAS: std::ops::RangeInclusive<f64> = 0.01..=100.0;

    /// How long before the end of an answer's ttl it is made anew: drawn each time, of an exponential distribution whose
    /// mean is the time that a run takes, times beta.
    pub(super) fn ahead(self, run: Duration) -> Duration {
        // Without 0 its logarithm is never infinite.
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
