//! `ShouldRateLimit`: from descriptors to charges, and from statuses to the response.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};
use tower_distributed::{Error, Key};

use crate::limits::Charge;
use crate::live::{Edition, Live};
use crate::status::{self, DescriptorStatus};

pub(crate) struct Service(pub(crate) Arc<Live>);

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        if request.domain.is_empty() || request.descriptors.is_empty() {
            let needed = "a domain and descriptors are needed";
            return Err(Status::invalid_argument(needed));
        }
        let statuses = self.statuses(&request).await;
        let statuses = statuses.map_err(|error| Status::unavailable(error.to_string()))?;
        let over = statuses.iter().find(|status| is_over(status));
        let reset = over.and_then(|status| status.duration_until_reset.as_ref());
        let retry_after = reset.map(|reset| HeaderValue {
            key: "retry-after".to_owned(),
            // Rounded up.
            value: (reset.seconds + i64::from(reset.nanos > 0)).to_string(),
            ..HeaderValue::default()
        });
        Ok(Response::new(RateLimitResponse {
            overall_code: over.map_or(Code::Ok, |_| Code::OverLimit).into(),
            response_headers_to_add: retry_after.into_iter().collect(),
            statuses,
            ..RateLimitResponse::default()
        }))
    }
}

impl Service {
    async fn statuses(&self, request: &RateLimitRequest) -> Result<Vec<DescriptorStatus>, Error> {
        let mut statuses = vec![status::new(&[], false, None); request.descriptors.len()];
        let edition = self.0.domains.borrow().get(&request.domain).cloned();
        let (Some(edition), limits) = (edition, &self.0.limits) else {
            // A domain without rules has no limits.
            return Ok(statuses);
        };
        let (mut enforced, mut shadows) = (Vec::new(), Vec::new());
        for (at, descriptor) in request.descriptors.iter().enumerate() {
            let Some((rule, key)) = edition.domain.find(&descriptor.entries) else {
                continue;
            };
            let Some(charge) = charge(&edition, rule, key, descriptor, request) else {
                // Unlimited.
                statuses[at].limit_remaining = u32::MAX;
                continue;
            };
            if descriptor.is_negative_hits {
                charge.bucket().give_back(charge.key, charge.tokens).await?;
            } else if edition.domain.rules[rule].is_shadow {
                shadows.push((at, charge));
            } else if charge.tokens == 0 {
                statuses[at] = limits.peek(&charge).await?;
            } else {
                enforced.push((at, charge));
            }
        }
        if !statuses.iter().any(is_over) {
            let (places, charges): (Vec<_>, Vec<_>) = enforced.into_iter().unzip();
            let decided = limits.decide(&charges).await?;
            for (at, status) in places.into_iter().zip(decided) {
                statuses[at] = status;
            }
        }
        // A limit in shadow mode is charged for what the others admit, as it would be if it were enforced.
        if !statuses.iter().any(is_over) {
            for (at, charge) in shadows {
                if let Ok(mut decided) = limits.decide(&[charge]).await {
                    decided[0].set_code(Code::Ok);
                    statuses[at] = decided.remove(0);
                }
            }
        }
        Ok(statuses)
    }
}

fn is_over(status: &DescriptorStatus) -> bool {
    status.code() == Code::OverLimit
}

/// What a descriptor takes from its bucket. `None`: it is unlimited.
fn charge(
    edition: &Edition,
    rule: usize,
    key: Key,
    descriptor: &RateLimitDescriptor,
    request: &RateLimitRequest,
) -> Option<Charge> {
    let (limit, quotas) = edition.limit(rule)?;
    // The request may bring its own.
    let own = descriptor.limit.and_then(|own| {
        let unit = own.unit().as_str_name().to_lowercase();
        format!("{}/{unit}", own.requests_per_unit).parse().ok()
    });
    let hits = match descriptor.hits_addend {
        Some(own) => u32::try_from(own.value).unwrap_or(u32::MAX),
        None => request.hits_addend.max(1),
    };
    Some(Charge {
        limit: Arc::clone(limit),
        quotas: own.unwrap_or(quotas),
        key,
        tokens: hits.saturating_mul(edition.domain.rules[rule].cost),
    })
}
