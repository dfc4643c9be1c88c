//! What the callers ask for, and which answers they may get.

use axum::http::{Method, Request, StatusCode};

use crate::gateway::USER;
use crate::load::Random;

/// Where a request goes. Each has a layer of its own, inside of the limit for all.
#[derive(Clone, Copy, Debug)]
pub enum Route {
    Limited,
    Export,
    Read,
    Write,
    Invoice,
    Report,
    Webhook,
    Event,
}

impl Route {
    pub const ALL: [Self; 8] = [
        Self::Limited,
        Self::Export,
        Self::Read,
        Self::Write,
        Self::Invoice,
        Self::Report,
        Self::Webhook,
        Self::Event,
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
        }
    }

    /// One of ten requests each, two of ten for the limit and the reads.
    pub fn draw(random: &mut Random) -> Self {
        match random.below(10) {
            0 | 1 => Self::Limited,
            2 | 3 => Self::Read,
            4 => Self::Write,
            5 => Self::Export,
            6 => Self::Invoice,
            7 => Self::Report,
            8 => Self::Webhook,
            _ => Self::Event,
        }
    }

    pub fn expects(self, status: StatusCode) -> bool {
        match self {
            Self::Limited => matches!(status, StatusCode::OK | StatusCode::TOO_MANY_REQUESTS),
            // Refused: by a filter as a duplicate, or since it is being handled.
            Self::Webhook | Self::Event => matches!(status, StatusCode::OK | StatusCode::CONFLICT),
            _ => status == StatusCode::OK,
        }
    }

    /// `number`: of the request. Those of all callers are different, and grow.
    pub fn request(self, base: &str, number: u64, random: &mut Random) -> Request<String> {
        let (method, path) = match self {
            Self::Limited => (Method::GET, "limited".to_owned()),
            Self::Export => (Method::GET, "export".to_owned()),
            Self::Read => (Method::GET, format!("document/{}", random.below(1000))),
            Self::Write => (Method::PUT, format!("document/{}", random.below(1000))),
            Self::Invoice => (Method::POST, format!("invoice/{}", random.below(100))),
            Self::Report => (Method::GET, format!("report/{}", random.below(200))),
            Self::Webhook => (Method::POST, "webhook".to_owned()),
            Self::Event => (Method::POST, "event".to_owned()),
        };
        let user = match self {
            // Half of them from users who ask too often.
            Self::Limited if random.below(2) == 0 => random.below(16),
            _ => random.below(10_000),
        };
        // Half of the messages repeat one of the last thousand.
        let message = if random.below(2) == 0 { number } else { number.saturating_sub(random.below(1000)) };
        Request::builder()
            .method(method)
            .uri(format!("{base}/{path}"))
            .header(USER, format!("user-{user}"))
            .header("webhook-id", format!("message-{message}"))
            .body(String::new())
            .unwrap()
    }
}
