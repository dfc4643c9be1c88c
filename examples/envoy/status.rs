//! The status of a descriptor.

use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, RateLimit};
use envoy_types::pb::google::protobuf::Duration as ProtoDuration;
use tower_distributed::token_bucket::Balance;

pub(crate) use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;

const DAY: u64 = 86_400;

/// The status by the tightest of the balances of a bucket. `retry_after`: when a refused request may be admitted.
pub(crate) fn new(
    balances: &[Balance<'_>],
    is_over: bool,
    retry_after: Option<Duration>,
) -> DescriptorStatus {
    let tightest = balances.iter().min_by_key(|balance| balance.remaining);
    let reset = match is_over {
        true => retry_after,
        false => tightest.and_then(|balance| balance.reset_after),
    };
    DescriptorStatus {
        code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: tightest.map(|balance| RateLimit {
            requests_per_unit: balance.limit,
            unit: unit(balance.window).into(),
            name: String::new(),
        }),
        limit_remaining: tightest.map_or(0, |balance| balance.remaining),
        duration_until_reset: reset.map(|reset| ProtoDuration {
            seconds: reset.as_secs().try_into().unwrap_or(i64::MAX),
            nanos: reset.subsec_nanos().cast_signed(),
        }),
        quota: None,
    }
}

/// The unit in which an empty bucket fills, if it is one.
fn unit(window: Option<Duration>) -> Unit {
    match window.map(|window| (window.as_secs(), window.subsec_nanos())) {
        Some((1, 0)) => Unit::Second,
        Some((60, 0)) => Unit::Minute,
        Some((3600, 0)) => Unit::Hour,
        Some((DAY, 0)) => Unit::Day,
        Some((seconds, 0)) if seconds == 7 * DAY => Unit::Week,
        Some((seconds, 0)) if (28 * DAY..=31 * DAY).contains(&seconds) => Unit::Month,
        Some((seconds, 0)) if (365 * DAY..=366 * DAY).contains(&seconds) => Unit::Year,
        _ => Unit::Unknown,
    }
}
