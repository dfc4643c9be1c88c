use axum::Router;
use axum::extract::Request;
use tower_distributed::response::refuse;
use tower_distributed::{SingleFlight, SingleFlightLayer, Store};

fn main() {
    let flight = SingleFlight::<String>::new(&Store::in_memory(), "pages").unwrap();
    let layer = SingleFlightLayer::new(flight, |request: &Request| request.uri().to_string());
    let _: Router = Router::new().layer(layer.reject_with(refuse()));
}
