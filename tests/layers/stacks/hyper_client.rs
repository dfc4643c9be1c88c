//! hyper-util's client as a service, guarded: refusals as responses of the body that the caller reads.

use std::convert::Infallible;

use http::{Request, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};
use tower_distributed::extract::header;
use tower_distributed::response::{Refuse, refuse};
use tower_distributed::{RateLimitLayer, Refusal, Reject};

use crate::stores::{Stores, at_most, on_each_store};
use crate::upstream::Upstream;

on_each_store!(refusals_can_have_the_body_of_the_caller);

fn get(url: &str) -> Request<Full<Bytes>> {
    Request::get(url).header("authorization", "ann").body(Full::default()).unwrap()
}

type Body = UnsyncBoxBody<Bytes, BoxError>;

/// What `refuse()` answers, in a body that upstreams' bodies can have too.
#[derive(Clone)]
struct Boxed(Refuse);

impl<E> Reject<http::Response<Body>, E> for Boxed {
    type Error = E;

    fn reject(&self, refusal: Refusal) -> Result<http::Response<Body>, E> {
        let response: Result<http::Response<String>, E> = self.0.reject(refusal);
        Ok(response?.map(|text| text.map_err(|never: Infallible| match never {}).boxed_unsync()))
    }

    fn inner_error(error: E) -> E {
        error
    }
}

async fn refusals_can_have_the_body_of_the_caller(stores: Stores) {
    let url = Upstream::start().await.url;
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), header("authorization").unwrap());
    let guarded = ServiceBuilder::new()
        .layer(limit.reject_with(Boxed(refuse())))
        .map_response(|response: http::Response<Incoming>| {
            response.map(|body| body.map_err(Into::into).boxed_unsync())
        })
        .service(client);
    let call = async || -> Result<http::Response<Body>, Error> { guarded.clone().oneshot(get(&url)).await };
    let answer = async |response: http::Response<Body>| {
        (response.status(), response.into_body().collect().await.unwrap().to_bytes())
    };
    assert_eq!(answer(call().await.unwrap()).await, (StatusCode::OK, "hello".into()));
    let (status, body) = answer(call().await.unwrap()).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert!(body.starts_with(b"{\"type\":"), "{body:?}");
}
