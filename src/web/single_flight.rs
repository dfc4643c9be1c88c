//! Single flights, set up for HTTP.

use std::convert::Infallible;

use http::Request;

use crate::extract::SharedGet;
use crate::response::{Answer, Refuse, Responses, refuse};
use crate::{KeyExtractor, SingleFlight, SingleFlightLayer};

/// A [`SingleFlightLayer`] for HTTP: [responses are shared](Responses) with their bodies, refusals are responses.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_distributed::{SingleFlight, Store, extract, response::AnswerCodec, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let flight = SingleFlight::builder(AnswerCodec).ttl(Duration::from_millis(100));
/// let flight = flight.build(&Store::in_memory(), "prices")?;
/// let layer = web::single_flight(flight, extract::shared_get().ignore_field("x-app-version")?);
/// let app: Router = Router::new().route("/prices", get(async || "all of them")).layer(layer);
/// # Ok(()) }
/// ```
///
/// [`shared_get`](crate::extract::shared_get) checks the requests. GET and HEAD take part, unless they have a body,
/// credentials, conditions, a header field that is not
/// [known to be harmless](crate::extract::shared_get#fields-that-are-harmless), or the like. All others are answered by
/// themselves. Method, scheme, host, path, query, and the fields by which services choose what they answer for are part of
/// every key.
///
/// **A response must not reach another user.** A request with a field of your own is handled alone, until you name the field
/// with [`ignore_field`](SharedGet::ignore_field), because no response depends on it. This crate cannot see client
/// certificates and addresses: if they matter, add them to the key with [`SharedGet::new`]. Tokens in the query are part of the
/// key.
///
/// **A client must not change what others get.** If another header field changes a response, name it in `Vary`, add it to the
/// key, or remove it from requests that come from outside.
///
/// To share private responses among the requests of one user, add the user to the key and do not check the requests:
/// `SingleFlightLayer::new(flight, key).capture(Responses::default()).reject_with(refuse())`.
#[must_use]
pub fn single_flight<B, K>(
    flight: SingleFlight<Answer>,
    key: SharedGet<K>,
) -> SingleFlightLayer<Request<B>, Answer, Infallible, Responses, Refuse>
where
    SharedGet<K>: KeyExtractor<Request<B>> + Send + Sync + 'static,
{
    SingleFlightLayer::new(flight, key)
        .capture(Responses::default())
        .reject_with(refuse())
}
