//! An origin that says in each answer what it depends on, and gateways before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use serde_json::{Map, Value, json};
use tower_distributed::extract::shared_get;
use tower_distributed::response::AnswerCodec;
use tower_distributed::single_flight::SingleFlightBuilder;
use tower_distributed::web::single_flight;
use tower_distributed::{Refusal, SingleFlight, Store};

/// The field that tells requests apart; an answer that depends on it is for one request alone.
pub(super) const NONCE: &str = "x-nonce";
/// The field with what the answer depends on, which HEAD has as well.
pub(super) const ECHO: &str = "x-echo";
/// For which request it was made, by its nonce: what an answer does not depend on.
pub(super) const MADE_FOR: &str = "x-made-for";
/// What makes a request private.
pub(super) const PRIVATE: [&str; 3] = ["authorization", "cookie", "x-api-key"];

/// What there is to ask for: the name of the last segment of the path.
pub(super) const KINDS: [&str; 14] = [
    "plain",
    "language",
    "accept",
    "cookie",
    "anything",
    "private",
    "no-store",
    "session",
    "sometimes",
    "deep",
    "deeper",
    "missing",
    "broken",
    "turned",
];

#[derive(Clone, Default)]
pub(super) struct Origin {
    handled: Arc<AtomicUsize>,
}

impl Origin {
    /// What it answers, after a while.
    pub(super) async fn answer(self, request: Request<Body>) -> Response<Body> {
        let number = self.handled.fetch_add(1, Ordering::SeqCst);
        for _ in 0..number % 7 {
            tokio::task::yield_now().await;
        }
        let mut answer = decide(&request, number);
        let echo = echo(&request, &answer.depends);
        let headers = &mut answer.headers;
        headers.append(MADE_FOR, request.headers()[NONCE].clone());
        headers.append(ECHO, HeaderValue::try_from(echo.clone()).unwrap());
        if !answer.vary.is_empty() {
            headers.append(
                "vary",
                HeaderValue::try_from(answer.vary.join(", ")).unwrap(),
            );
        }
        headers.append("content-length", echo.len().into());
        let has_body =
            *request.method() != Method::HEAD && answer.status != StatusCode::NOT_MODIFIED;
        let mut response = Response::new(if has_body {
            Body::from(echo)
        } else {
            Body::empty()
        });
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        response
    }

    /// The origin behind the layer, as one process of a fleet.
    pub(super) fn behind(
        &self,
        store: &Store,
        name: &str,
        settings: impl FnOnce(Builder) -> Builder,
    ) -> Router {
        let flight = settings(
            SingleFlight::builder(AnswerCodec).pass_for(std::time::Duration::from_millis(1)),
        )
        .build(store, name)
        .unwrap();
        let key = shared_get()
            .ignore_field("x-nonce")
            .unwrap()
            .ignore_field("x-region")
            .unwrap();
        let origin = self.clone();
        Router::new()
            .fallback(move |request: Request<Body>| origin.clone().answer(request))
            .layer(single_flight(flight, key).reject_with(never))
    }
}

/// Nobody is refused here.
fn never<B>(refusal: Refusal) -> Response<B> {
    panic!("{refusal:?}")
}

pub(super) type Builder =
    SingleFlightBuilder<tower_distributed::response::Answer, std::convert::Infallible>;

struct Decided {
    status: StatusCode,
    headers: HeaderMap,
    vary: Vec<&'static str>,
    depends: Vec<&'static str>,
}

impl Decided {
    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers
            .append(name, HeaderValue::from_str(value).unwrap());
        self
    }

    /// It is what these fields of the request make it, and says so.
    fn varying(mut self, fields: &[&'static str]) -> Self {
        self.vary.extend(fields);
        self.depends.extend(fields);
        self
    }

    fn of_one(mut self) -> Self {
        self.depends.push(NONCE);
        self
    }
}

fn decide(request: &Request<Body>, number: usize) -> Decided {
    let has = |name: &str| request.headers().contains_key(name);
    let of = |status| Decided {
        status,
        headers: HeaderMap::new(),
        vary: Vec::new(),
        depends: Vec::new(),
    };
    let ok = || of(StatusCode::OK);
    // Whoever is known is greeted, and no header field says so.
    if PRIVATE.iter().any(|field| has(field))
        || !matches!(*request.method(), Method::GET | Method::HEAD)
    {
        return ok().of_one();
    }
    if has("range") {
        return of(StatusCode::PARTIAL_CONTENT).of_one();
    }
    if has("if-none-match") {
        return of(StatusCode::NOT_MODIFIED).of_one();
    }
    let (html, german) = (
        is(request, "accept", "text/html"),
        is(request, "accept-language", "de"),
    );
    match request.uri().path().rsplit('/').next().unwrap() {
        "language" => ok().varying(&["accept-language"]),
        "accept" => ok().varying(&["accept", "accept-language"]),
        "cookie" => ok().varying(&["cookie"]),
        "anything" => ok().of_one().with("vary", "*"),
        "private" => ok().of_one().with("cache-control", "max-age=60, private"),
        "no-store" => ok().of_one().with("cache-control", "no-store"),
        "session" => ok()
            .of_one()
            .with("set-cookie", &format!("session={number}")),
        "sometimes" if number.is_multiple_of(2) => ok()
            .of_one()
            .with("set-cookie", &format!("session={number}")),
        "deep" if html => ok().varying(&["accept"]),
        "deep" => ok().varying(&["accept", "accept-language"]),
        "deeper" if html => ok().varying(&["accept"]),
        "deeper" if german => ok().varying(&["accept", "accept-language", "x-region"]),
        "deeper" => ok().varying(&["accept", "accept-language"]),
        "missing" => of(StatusCode::NOT_FOUND).varying(&["accept-language"]),
        "broken" if number.is_multiple_of(2) => of(StatusCode::INTERNAL_SERVER_ERROR),
        "broken" => of(StatusCode::FORBIDDEN).of_one(),
        // What it varies by turns with each answer.
        "turned" if number.is_multiple_of(2) => ok().varying(&["accept"]),
        "turned" => ok().varying(&["accept-language"]),
        _ => ok(),
    }
}

fn is(request: &Request<Body>, name: &str, value: &str) -> bool {
    request.headers().get(name).is_some_and(|own| own == value)
}

/// What a request has in these fields: all values, in order.
pub(super) fn values(headers: &HeaderMap, name: &str) -> Value {
    headers
        .get_all(HeaderName::try_from(name).unwrap())
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect()
}

fn echo(request: &Request<Body>, depends: &[&'static str]) -> String {
    let fields: Map<_, _> = depends
        .iter()
        .map(|name| ((*name).to_owned(), values(request.headers(), name)))
        .collect();
    json!({
        "method": request.method().as_str(),
        "host": values(request.headers(), "host"),
        "target": request.uri().to_string(),
        "fields": fields,
    })
    .to_string()
}
