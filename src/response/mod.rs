//! HTTP responses: refusals, header fields, bodies that hold a lease, and shared responses.

mod refuse;

pub use self::refuse::{Refuse, refuse};
pub(crate) use crate::http::reading::{Reading, Taken};
pub use crate::lease::http::{LeaseEnd, LeasedBody, UntilBodyEnd};
pub use crate::single_flight::http::answer::{Answer, AnswerCodec};
pub use crate::single_flight::http::flight_body::FlightBody;
pub use crate::single_flight::http::responses::Responses;
pub use crate::single_flight::http::shareable::is_shareable;
pub(crate) use crate::single_flight::http::shareable::{arguments, items, list};
pub use crate::token_bucket::http::fields::RateLimitFields;
pub use crate::token_bucket::http::retry_after::RetryAfter;
