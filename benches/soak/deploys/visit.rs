//! What a caller writes into its request for the referee.

use axum::http::{HeaderValue, Request};

use crate::gateway::ESTIMATE;
use crate::load::Random;
use crate::routes::Route;

pub const VISIT: &str = "x-visit";

/// One of so many works is long: some are longer than the ttl of a lease.
const LONG: u64 = 100;
const LONG_MS: (u64, u64) = (2000, 10_000);
const SHORT_MS: u64 = 20;
/// Of exports, of which several work at once. Their callers wait for permits at times.
const EXPORT_MS: (u64, u64) = (200, 800);

#[derive(Clone, Debug)]
pub struct Visit {
    pub route: Route,
    pub key: String,
    /// When it was sent, in µs by the clock of the referee.
    pub sent: u64,
    /// How long the handler works, in ms.
    pub work: u64,
    /// Tokens that it uses.
    pub units: u32,
}

impl Visit {
    pub fn draw(route: Route, request: &Request<String>, sent: u64, random: &mut Random) -> Self {
        let is_long = route.is_held() && random.below(LONG) == 0;
        let (from, to) = match route {
            _ if is_long => LONG_MS,
            Route::Export => EXPORT_MS,
            _ => (0, SHORT_MS),
        };
        let work = from + random.below(to - from);
        let units = 1 + random.below(ESTIMATE.into()) as u32;
        Self {
            route,
            key: route.key(request),
            sent,
            work,
            units,
        }
    }

    pub fn header(&self) -> HeaderValue {
        let Self {
            route,
            key,
            sent,
            work,
            units,
        } = self;
        format!("{} {key} {sent} {work} {units}", *route as usize)
            .try_into()
            .unwrap()
    }

    pub fn parse(text: &str) -> Self {
        let mut words = text.split(' ');
        let mut word = || words.next().unwrap();
        Self {
            route: Route::ALL[word().parse::<usize>().unwrap()],
            key: word().to_owned(),
            sent: word().parse().unwrap(),
            work: word().parse().unwrap(),
            units: word().parse().unwrap(),
        }
    }
}
