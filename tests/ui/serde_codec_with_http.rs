use axum::Router;
use tower_distributed::extract::shared_get;
use tower_distributed::single_flight::Json;
use tower_distributed::{SingleFlight, Store, web};

fn main() {
    let flight = SingleFlight::builder(Json)
        .build(&Store::in_memory(), "pages")
        .unwrap();
    let _: Router = Router::new().layer(web::single_flight(flight, shared_get()));
}
