//! What can be said of the types.

use static_assertions::{assert_impl_all, assert_not_impl_any};
use tower::{BoxError, Layer};
use tower_distributed::{Layered, SingleFlightLayer};

use crate::probe::Probe;

type Flights = SingleFlightLayer<String, String>;
type Service = Layered<Probe, Flights>;
type Future = <Service as tower::Service<String>>::Future;

assert_impl_all!(Flights: Clone, Send, Sync, std::fmt::Debug, Layer<Probe>);
assert_impl_all!(Service: Clone, Send, Sync, std::fmt::Debug, tower::Service<String, Error = BoxError>);
assert_impl_all!(Future: Send, std::fmt::Debug, std::future::Future<Output = Result<String, BoxError>>);

// The probe's error cannot be made of a request that it does not take.
assert_not_impl_any!(Service: tower::Service<std::rc::Rc<str>>);
