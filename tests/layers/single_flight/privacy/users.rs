//! Users who ask at random, and judge what they get by what it was made for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use super::origin::{ECHO, KINDS, MADE_FOR, NONCE, PRIVATE, values};

pub(super) fn rng(seed: u64, user: u64) -> StdRng {
    StdRng::seed_from_u64(seed ^ user.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// What was asked, to be judged by.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) target: String,
    pub(super) headers: HeaderMap,
}

fn one_of<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

/// A request of a user, most of them for what others ask for as well.
pub(super) fn ask(rng: &mut StdRng, user: u64) -> Asked {
    static NONCES: AtomicU64 = AtomicU64::new(0);
    let mut headers = HeaderMap::new();
    let mut put = |name: &'static str, value: &str| {
        headers.append(name, HeaderValue::from_str(value).unwrap())
    };
    put(NONCE, &NONCES.fetch_add(1, Ordering::Relaxed).to_string());
    put(
        "host",
        one_of(rng, &["a.example", "a.example", "a.example", "b.example"]),
    );
    for (name, of) in [
        (
            "accept",
            &[
                "text/html",
                "text/html",
                "text/html",
                "application/json",
                "",
            ][..],
        ),
        ("accept-language", &["de", "de", "de", "en", "en, de"]),
        ("x-region", &["eu", "eu", "us"]),
    ] {
        // None, one, or two lines of it.
        for _ in 0..one_of(rng, &[0, 1, 1, 1, 1, 1, 1, 1, 1, 2]) {
            put(name, one_of(rng, of));
        }
    }
    if rng.random_ratio(1, 5) {
        put(one_of(rng, &PRIVATE), &format!("user={user}"));
    }
    match rng.random_range(0..40) {
        0 => _ = put("range", "bytes=0-9"),
        1 => _ = put("if-none-match", "\"7\""),
        2 => _ = put("cache-control", "no-cache"),
        _ => {}
    }
    let method = match rng.random_range(0..20) {
        0 => Method::POST,
        1 => Method::DELETE,
        2 => Method::OPTIONS,
        3..=5 => Method::HEAD,
        _ => Method::GET,
    };
    let query = one_of(rng, &["", "", "", "", "", "?of=tea"]);
    Asked {
        method,
        target: format!("/{}{query}", one_of(rng, &KINDS)),
        headers,
    }
}

impl Asked {
    pub(super) fn request(&self) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.target.parse().unwrap();
        *request.headers_mut() = self.headers.clone();
        request
    }

    /// Whether the response was made for a request that is this one as far as it matters.
    pub(super) async fn judge<B>(&self, response: Response<B>) -> Judged
    where
        B: http_body::Body,
        B::Error: std::fmt::Debug,
    {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let echo = parts.headers[ECHO].to_str().unwrap();
        let told: Value = serde_json::from_str(echo).unwrap();
        let wrong = |what: &str| panic!("{what}\nasked {self:?}\ngot {:?} {echo}", parts.headers);
        if told["method"] != self.method.as_str() || told["target"] != json!(self.target) {
            wrong("the answer to something else");
        }
        if told["host"] != values(&self.headers, "host") {
            wrong("another host's answer");
        }
        for (name, made_for) in told["fields"].as_object().unwrap() {
            if *made_for != values(&self.headers, name) {
                wrong(&format!("an answer that depends on {name}"));
            }
        }
        let has_body = self.method != Method::HEAD && parts.status != StatusCode::NOT_MODIFIED;
        if body != (if has_body { echo } else { "" }).as_bytes() {
            wrong("another body than the head tells of");
        }
        let borrowed = parts.headers[MADE_FOR] != self.headers[NONCE];
        Judged {
            borrowed,
            status: parts.status,
        }
    }
}

#[derive(Debug)]
pub(super) struct Judged {
    /// Whether it was made for somebody else's request.
    borrowed: bool,
    status: StatusCode,
}

/// How many answers were another's, and how many there were, by what was asked for.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<String, (usize, usize)>);

impl Tally {
    pub(super) fn count(&mut self, asked: &Asked, judged: &Judged) {
        let kind = asked
            .target
            .trim_start_matches('/')
            .split('?')
            .next()
            .unwrap()
            .to_owned();
        let (borrowed, all) = self.0.entry(kind).or_default();
        (*borrowed, *all) = (*borrowed + usize::from(judged.borrowed), *all + 1);
        assert_ne!(judged.status, StatusCode::SERVICE_UNAVAILABLE);
    }

    pub(super) fn add(&mut self, other: Self) {
        for (kind, (borrowed, all)) in other.0 {
            let sum = self.0.entry(kind).or_default();
            *sum = (sum.0 + borrowed, sum.1 + all);
        }
    }

    /// How many were another's, and how many there were.
    pub(super) fn sums(&self) -> (usize, usize) {
        self.0.values().fold((0, 0), |sum, (borrowed, all)| {
            (sum.0 + borrowed, sum.1 + all)
        })
    }

    /// Of those, by what was asked for.
    pub(super) fn borrowed(&self, kind: &str) -> usize {
        self.0.get(kind).map_or(0, |(borrowed, _)| *borrowed)
    }
}
