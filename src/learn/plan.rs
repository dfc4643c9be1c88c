//! Converts the limits that an upstream reports into quotas, and into the number of tokens that may be left.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::bucket::decision::Decision;
use crate::bucket::quota::{Limit, Quota};
use crate::bucket::quotas::{Quotas, repeated};
use crate::layers::rate_limit::hooks::Block;
use crate::learn::{Learned, Policy};

/// The settings for converting policies into quotas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Planner {
    pub(crate) burst_percent: u8,
    /// The longest time for which an upstream can stop its clients.
    pub(crate) longest: Duration,
}

impl Default for Planner {
    fn default() -> Self {
        Self {
            burst_percent: 1,
            longest: Block::LONGEST,
        }
    }
}

/// The changes that result from a response of an upstream.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// `None`: no limit was reported, or it has no window.
    pub(crate) quotas: Option<Quotas>,
    /// For each quota, how many tokens may be left after the request that got the response. A negative number is a
    /// debt.
    pub(crate) most_left: Vec<Option<i64>>,
    /// The number of limits or windows that were out of range.
    pub(crate) clamped: u64,
}

/// The numbers of a quota.
struct Numbers {
    /// Tokens per hundred windows.
    rate: u32,
    burst: u32,
    window: Duration,
    is_clamped: bool,
}

impl Numbers {
    fn quota(&self) -> Quota {
        Quota::new(self.rate, self.window.saturating_mul(100)).burst(self.burst)
    }
}

/// The percentage of a limit that is used. The rest is for requests that take longer than others.
const USED: u64 = 97;

/// The resolution of a reported reset.
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Further policies are not learned.
const MOST_QUOTAS: usize = 8;

impl Planner {
    /// The maximum limit, so that [`USED`] times it is a rate. Larger limits are cut to it.
    const MOST: u64 = 40_000_000;

    pub(crate) const WINDOWS: RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_secs(366 * 86_400);

    /// Returns the numbers of the quota of a policy.
    fn numbers(self, policy: &Policy) -> Option<Numbers> {
        let (told, told_window) = (policy.limit?, policy.window?);
        let limit = told.clamp(1, Self::MOST);
        let window = told_window.clamp(*Self::WINDOWS.start(), *Self::WINDOWS.end());
        let beyond_one = match policy.refills {
            true => limit - 1,
            false => limit * u64::from(self.burst_percent.min(90)) / 100,
        };
        // A token bucket of the upstream has the burst in addition to its rate, a window does not.
        let rate = USED * limit - if policy.refills { 0 } else { 100 * beyond_one };
        let (rate, burst) = (
            u32::try_from(rate).ok()?,
            u32::try_from(beyond_one + 1).ok()?,
        );
        // A request passes now and then, whatever limit is reported: its response may report another one.
        let window =
            window.min((self.longest.saturating_mul(rate) / 100).max(*Self::WINDOWS.start()));
        Some(Numbers {
            rate,
            burst,
            window,
            is_clamped: limit != told || window != told_window,
        })
    }

    /// Returns the numbers of the quota of a policy. `known` was learned before. A guessed window is never shortened:
    /// near the end of a window, the reset is as near as that of a shorter one.
    fn learned(self, policy: &Policy, known: Option<&Limit>) -> Option<Numbers> {
        let is_known = |numbers: &Numbers| {
            let quotas = Quotas::new([numbers.quota()]);
            known.is_some_and(|known| {
                quotas.is_ok_and(|quotas| quotas.limits()[0].tokens == known.tokens)
            })
        };
        let of_window = |window| {
            self.numbers(&Policy {
                window: Some(window),
                ..policy.clone()
            })
        };
        let mut longer = policy.longer.iter().filter(|_| known.is_some());
        longer
            .find_map(|window| of_window(*window).filter(is_known))
            .or_else(|| self.numbers(policy))
    }

    /// Returns how many tokens may be left.
    fn most_left(self, policy: &Policy, numbers: &Numbers) -> Option<i64> {
        let remaining = i64::try_from(policy.remaining?).unwrap_or(i64::MAX);
        let Some(reset) = policy.reset.filter(|_| !policy.refills) else {
            return Some(remaining);
        };
        // The remaining requests are for the rest of the window, in which tokens are refilled.
        let rest = reset
            .min(numbers.window)
            .min(self.longest)
            .saturating_sub(SECOND);
        let back =
            f64::from(numbers.rate) / 100.0 * (rest.as_secs_f64() / numbers.window.as_secs_f64());
        Some(remaining.saturating_sub(back as i64))
    }
}

impl Plan {
    /// `known`: the quotas that were learned before.
    pub(crate) fn of(learned: &Learned, known: Option<&Quotas>) -> Self {
        let known = known.map_or(&[][..], Quotas::limits);
        let planner = learned.planner;
        let (mut quotas, mut this) = (Vec::new(), Self::default());
        for policy in &learned.policies {
            let Some(numbers) = planner.learned(policy, known.get(quotas.len())) else {
                continue;
            };
            this.clamped += u64::from(numbers.is_clamped || quotas.len() == MOST_QUOTAS);
            if quotas.len() < MOST_QUOTAS {
                quotas.push((numbers.quota(), policy));
                this.most_left.push(planner.most_left(policy, &numbers));
            }
        }
        // If a policy has no name, or a name occurs twice, the quotas are named by their positions.
        let names = quotas.iter().map(|(_, policy)| policy.name.as_ref());
        let is_named = names.clone().all(|name| name.is_some()) && repeated(names).is_none();
        let named = quotas
            .into_iter()
            .map(|(quota, policy)| match &policy.name {
                Some(name) if is_named => quota.named(name.clone()),
                _ => quota,
            });
        let named: Vec<_> = named.collect();
        if !named.is_empty() {
            // The numbers are in range, so this does not fail.
            this.quotas = Quotas::new(named).ok();
        }
        this
    }

    /// Returns for each quota how many tokens to charge after the request with this decision: the tokens that the
    /// bucket had left then, but the upstream had not. Empty if the decision was made under other quotas.
    pub(crate) fn missing(&self, decision: &Decision) -> Vec<i64> {
        let (Some(quotas), state) = (&self.quotas, &decision.state) else {
            return Vec::new();
        };
        let levels = || state.bucket.levels.iter().zip(quotas.limits());
        let of_first_limit = state.quotas.limits().iter().zip(quotas.limits());
        let is_same = state.bucket.levels.len() >= quotas.limits().len()
            && state.quotas.limits().len() >= quotas.limits().len()
            && of_first_limit
                .clone()
                .all(|(used, learned)| used.tokens == learned.tokens);
        if decision.is_local || !is_same {
            return Vec::new();
        }
        let missing = levels().zip(&self.most_left).map(|((level, limit), most)| {
            let left = level.tokens(limit, state.now);
            most.map_or(0, |most| left.saturating_sub(most).max(0))
        });
        missing.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(limit: u64, seconds: u64) -> Policy {
        Policy {
            limit: Some(limit),
            window: Some(Duration::from_secs(seconds)),
            ..Policy::named("a")
        }
    }

    fn plan(policies: impl IntoIterator<Item = Policy>) -> Plan {
        Plan::of(
            &Learned {
                policies: policies.into_iter().collect(),
                ..Learned::default()
            },
            None,
        )
    }

    fn text(policies: impl IntoIterator<Item = Policy>) -> String {
        plan(policies)
            .quotas
            .map(|quotas| quotas.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn a_window_is_spread_and_a_token_bucket_is_not() {
        assert_eq!(text([policy(20, 1)]), "1164/min, burst 1, named \"a\"");
        assert_eq!(
            text([Policy {
                refills: true,
                ..policy(60, 60)
            }]),
            "3492/h, burst 60, named \"a\""
        );
        let twice = [policy(20, 1), policy(5000, 3600)];
        assert_eq!(text(twice.clone()), "1164/min, burst 1; 80/min, burst 51");
        assert_eq!(
            text([
                Policy {
                    limit: None,
                    ..policy(1, 1)
                },
                Policy {
                    window: None,
                    ..policy(1, 1)
                }
            ]),
            ""
        );
    }

    /// In any window, at most the limit is sent, even if the window is 3 % longer.
    #[test]
    fn no_quota_admits_more_than_the_limit_in_a_window() {
        for percent in [0, 1, 7, 50, 90] {
            for limit in (1..400).chain([999, 5000, 99_999, Planner::MOST]) {
                let planner = Planner {
                    burst_percent: percent,
                    ..Planner::default()
                };
                let quota = planner.numbers(&policy(limit, 60)).unwrap().quota();
                let quotas = Quotas::new([quota]).unwrap();
                let pace = &quotas.limits()[0];
                let admitted = pace.burst as f64 + 61.8e6 * pace.den as f64 / pace.num as f64;
                assert!(admitted.floor() as u64 <= limit, "{limit}: {admitted}");
                assert!(
                    percent > 1 || admitted >= 0.95 * limit as f64,
                    "{limit}: {admitted}"
                );
            }
        }
    }

    #[test]
    fn what_is_out_of_range_is_clamped_and_counted() {
        for (limit, seconds) in [
            (0, 1),
            (u64::MAX, 1),
            (10, 0),
            (10, u64::MAX),
            (0, 0),
            (u64::MAX, u64::MAX),
        ] {
            for refills in [false, true] {
                let plan = plan([Policy {
                    refills,
                    ..policy(limit, seconds)
                }]);
                assert_eq!(
                    (plan.quotas.is_some(), plan.clamped),
                    (true, 1),
                    "{limit} {seconds}"
                );
            }
        }
        assert_eq!(
            text([policy(1, 366 * 86_400)]),
            "12/h, burst 1, named \"a\""
        );
        let many = plan((0..20).map(|_| policy(1, 1)));
        assert_eq!(
            (
                many.quotas.unwrap().limits().len(),
                many.most_left.len(),
                many.clamped
            ),
            (8, 8, 12)
        );
    }

    #[test]
    fn what_remains_is_for_the_rest_of_the_window() {
        let left = |remaining, reset: Option<u64>| {
            let reset = reset.map(Duration::from_secs);
            plan([Policy {
                remaining: Some(remaining),
                reset,
                ..policy(100, 100)
            }])
            .most_left[0]
                .unwrap()
        };
        assert_eq!(
            (left(30, None), left(30, Some(1)), left(30, Some(11))),
            (30, 30, 21)
        );
        assert_eq!(
            (
                left(0, Some(50)),
                left(0, Some(u64::MAX)),
                left(u64::MAX, None)
            ),
            (-47, -95, i64::MAX)
        );
    }
}
