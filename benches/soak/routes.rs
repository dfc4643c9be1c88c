//! What the callers ask for, and which answers they may get.

use axum::http::header::HOST;
use axum::http::{Method, Request, StatusCode};

use crate::gateway::USER;
use crate::load::Random;

/// The header that names a message.
pub const MESSAGE: &str = "webhook-id";

/// One of so many requests goes to most routes.
const ROUTES: u64 = 11;

/// Where a request goes. Each has a layer of its own, inside of the limit for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Limited,
    Export,
    Read,
    Write,
    Invoice,
    Report,
    Webhook,
    Event,
    Completion,
}

impl Route {
    pub const ALL: [Self; 9] = [
        Self::Limited,
        Self::Export,
        Self::Read,
        Self::Write,
        Self::Invoice,
        Self::Report,
        Self::Webhook,
        Self::Event,
        Self::Completion,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Limited => "rate limit, half refused",
            Self::Export => "concurrency limit, one key",
            Self::Read => "rw lock, reads",
            Self::Write => "rw lock, writes",
            Self::Invoice => "mutex",
            Self::Report => "single flight",
            Self::Webhook => "dedupe, exact",
            Self::Event => "dedupe, filter",
            Self::Completion => "token budget",
        }
    }

    /// One of eleven requests each, two of eleven for the limit and the reads.
    pub fn draw(random: &mut Random) -> Self {
        match random.below(ROUTES) {
            0 | 1 => Self::Limited,
            2 | 3 => Self::Read,
            4 => Self::Write,
            5 => Self::Export,
            6 => Self::Invoice,
            7 => Self::Report,
            8 => Self::Webhook,
            9 => Self::Event,
            _ => Self::Completion,
        }
    }

    /// Whether a lease is held meanwhile.
    pub fn is_held(self) -> bool {
        self != Self::Limited
    }

    pub fn expects(self, status: StatusCode) -> bool {
        match self {
            Self::Limited | Self::Completion => {
                matches!(status, StatusCode::OK | StatusCode::TOO_MANY_REQUESTS)
            }
            // Refused: by a filter as a duplicate, or since it is being handled.
            Self::Webhook | Self::Event => matches!(status, StatusCode::OK | StatusCode::CONFLICT),
            _ => status == StatusCode::OK,
        }
    }

    /// `number`: of the request. Those of all callers are different, and grow. `spread`: the more, the fewer requests
    /// meet at one key.
    pub fn request(self, number: u64, spread: u64, random: &mut Random) -> Request<String> {
        let (method, path) = match self {
            Self::Limited => (Method::GET, "limited".to_owned()),
            Self::Export => (Method::GET, "export".to_owned()),
            Self::Read => (
                Method::GET,
                format!("document/{}", random.below(100 * spread)),
            ),
            Self::Write => (
                Method::PUT,
                format!("document/{}", random.below(100 * spread)),
            ),
            Self::Invoice => (
                Method::POST,
                format!("invoice/{}", random.below(10 * spread)),
            ),
            Self::Report => (Method::GET, format!("report/{}", random.below(20 * spread))),
            Self::Webhook => (Method::POST, "webhook".to_owned()),
            Self::Event => (Method::POST, "event".to_owned()),
            Self::Completion => (Method::POST, "completion".to_owned()),
        };
        let user = match self {
            // Half of them from users who ask too often.
            Self::Limited | Self::Completion if random.below(2) == 0 => random.below(16),
            _ => random.below(1000 * spread),
        };
        // Half of the messages repeat one of the last ones. A message has the numbers of several requests, since only
        // some of them go to one route.
        let message = if random.below(2) == 0 {
            number
        } else {
            number.saturating_sub(random.below(1000))
        };
        let message = message / ROUTES;
        Request::builder()
            .method(method)
            .uri(format!("/{path}"))
            // A part of the key of a flight, whichever gateway is asked.
            .header(HOST, "soak")
            .header(USER, format!("user-{user}"))
            .header(MESSAGE, format!("message-{message}"))
            .body(String::new())
            .unwrap()
    }

    /// What the layer of the route has as its key: requests with the same one are limited, locked or joined together.
    pub fn key(self, request: &Request<String>) -> String {
        let header = |name| request.headers()[name].to_str().unwrap();
        let path = request.uri().path();
        match self {
            Self::Limited | Self::Completion => format!("{path}/{}", header(USER)),
            Self::Webhook | Self::Event => format!("{path}/{}", header(MESSAGE)),
            _ => path.to_owned(),
        }
    }
}
