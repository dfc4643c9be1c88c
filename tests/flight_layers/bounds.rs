//! What can be said of the types.

use std::convert::Infallible;

use static_assertions::{assert_impl_all, assert_not_impl_any};
use tower::{BoxError, Layer};
use tower_distributed::single_flight::{ResponseFuture, SingleFlightService, WholeResponse};
use tower_distributed::{AsError, SingleFlightLayer};

use crate::probe::{Echo, Probe};

type Flights = SingleFlightLayer<String, String>;
type Service = SingleFlightService<Probe, String, String>;
type Future =
    ResponseFuture<Echo<String>, String, String, Infallible, WholeResponse, AsError, String, BoxError>;

assert_impl_all!(Flights: Clone, Send, Sync, std::fmt::Debug, Layer<Probe>);
assert_impl_all!(Service: Clone, Send, Sync, std::fmt::Debug, tower::Service<String, Error = BoxError>);
assert_impl_all!(Future: Send, std::fmt::Debug, std::future::Future<Output = Result<String, BoxError>>);

// The probe's error cannot be made of a request that it does not take.
assert_not_impl_any!(Service: tower::Service<std::rc::Rc<str>>);
