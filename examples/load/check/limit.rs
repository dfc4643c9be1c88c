//! The interval bound of a rate limit.

use tower_distributed::{Error, Quota, Store, TokenBucket};

use super::{Verdict, at, grouped};
use crate::interval_bound::{Bound, Interval};
use crate::message::Note;

/// Added to each interval: the server's clock and the one of this machine tick apart.
const EXTRA_US: u64 = 1000;
/// Two clocks that are both slewed by NTP run apart by at most this, in millionths.
const DRIFT_PPM: u64 = 1000;
/// A fill time of so many tokens tells the rate to many digits.
const MANY: u32 = 100_000;

/// What a quota allows.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    text: String,
    bound: Bound,
}

impl Limit {
    pub(crate) async fn of(quota: Quota) -> Result<Self, Error> {
        let own = fill(quota.clone()).await?;
        let burst = own.0;
        // The rate does not depend on the burst. Rates that cannot have a large burst are slow: their own tells enough.
        let (tokens, period) = fill(quota.clone().burst(burst.max(MANY)))
            .await
            .unwrap_or(own);
        // `None`: tokens never come back.
        let (tokens, period_us) =
            period.map_or((0, 1), |period| (u64::from(tokens), period.max(1)));
        let bound = Bound {
            burst: burst.into(),
            tokens,
            period_us,
            extra_us: EXTRA_US,
            drift_ppm: DRIFT_PPM,
        };
        Ok(Self {
            text: quota.to_string(),
            bound,
        })
    }

    /// Returns how many may be admitted within the first `seconds` under one key.
    pub(crate) fn allowed(&self, seconds: f64) -> f64 {
        self.bound.burst as f64
            + seconds * self.bound.tokens as f64 * 1e6 / self.bound.period_us as f64
    }

    /// Checks every interval, for each key.
    pub(crate) fn check(&self, notes: &[Note]) -> Verdict {
        let admitted = grouped(notes, |note| match *note {
            Note::Admitted { key, from, to } => Some((key, (from, to))),
            _ => None,
        });
        let beyond = |interval: Interval| interval.admitted as f64 - self.bound.allowed(interval);
        let worst = admitted
            .iter()
            .filter_map(|(key, spans)| Some((key, self.bound.worst(spans)?)));
        let Some((key, worst)) =
            worst.max_by(|one, other| beyond(one.1).total_cmp(&beyond(other.1)))
        else {
            return Verdict {
                holds: true,
                text: format!("interval bound of {}: nothing was admitted", self.text),
            };
        };
        let holds = self.bound.allows(worst);
        let text = format!(
            "interval bound of {} {}: the worst interval is {} to {} ({}{}), with {} admitted and {:.1} allowed \
             (of {} keys; tolerance {} ms + {} % of the interval)",
            self.text,
            if holds { "kept" } else { "BROKEN" },
            at(worst.from),
            at(worst.to),
            at(worst.to - worst.from),
            if admitted.len() > 1 {
                format!(", key {key}")
            } else {
                String::new()
            },
            worst.admitted,
            self.bound.allowed(worst),
            admitted.len(),
            EXTRA_US as f64 / 1e3,
            DRIFT_PPM as f64 / 1e4,
        );
        Verdict { holds, text }
    }
}

/// Returns the burst of a quota, and the µs that an empty bucket takes to fill.
async fn fill(quota: Quota) -> Result<(u32, Option<u64>), Error> {
    let state = TokenBucket::new(&Store::in_memory(), "quota", quota)?
        .peek("any")
        .await?;
    let balance = state.tightest();
    let window = balance
        .window
        .map(|window| u64::try_from(window.as_micros()).unwrap_or(u64::MAX));
    Ok((balance.limit, window))
}
