//! HTTP responses: refusals, header fields, bodies that hold a lease, and shared responses.

mod refuse;

pub use self::refuse::{Refuse, refuse};
pub use crate::lease::http::{LeaseEnd, LeasedBody, UntilBodyEnd};
#[cfg(feature = "single-flight")]
pub use crate::single_flight::http::answer::{Answer, AnswerCodec};
#[cfg(feature = "single-flight")]
pub use crate::single_flight::http::flight_body::FlightBody;
#[cfg(feature = "single-flight")]
pub use crate::single_flight::http::responses::Responses;
#[cfg(feature = "single-flight")]
pub use crate::single_flight::http::shareable::is_shareable;
#[cfg(feature = "rate-limit")]
pub use crate::token_bucket::http::fields::RateLimitFields;
#[cfg(feature = "rate-limit")]
pub use crate::token_bucket::http::learn::UpstreamLimits;
#[cfg(feature = "rate-limit")]
pub use crate::token_bucket::http::meter_body::{MeterBody, MeteredBody};
#[cfg(feature = "rate-limit")]
pub use crate::token_bucket::http::retry_after::RetryAfter;
