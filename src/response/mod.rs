//! HTTP responses: refusals, header fields, bodies that hold a lease, and shared responses.

mod answer;
mod body;
mod fields;
mod flight_body;
mod freshness;
mod message;
mod reading;
mod refuse;
mod responses;
mod retry_after;
mod shareable;

pub use self::answer::{Answer, AnswerCodec};
pub use self::body::{LeaseEnd, LeasedBody, UntilBodyEnd};
pub use self::fields::RateLimitFields;
pub use self::flight_body::FlightBody;
pub(crate) use self::reading::{Reading, Taken};
pub use self::refuse::{Refuse, refuse};
pub use self::responses::Responses;
pub use self::retry_after::RetryAfter;
pub use self::shareable::is_shareable;
pub(crate) use self::shareable::{arguments, items, list};
