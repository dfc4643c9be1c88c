//! What the layer adds to a request, over the in-memory store, beside tower_governor's.

use std::time::{Duration, Instant};

use http::{Request, StatusCode};

use self::stacks::{Inner, Service, time};
use crate::common::Bench;
use crate::common::report::{Better, Versus, figure};
use crate::common::stats::median;

#[path = "../layer/stacks.rs"]
pub mod stacks;

const ADDED: &str = "layer-added-ns";
const RATIO: &str = "layer-vs-tower-governor";
const REFUSED: &str = "layer-refused-vs-tower-governor";
/// Requests to one, then to the next: short enough that all see the same weather.
const SLICE: u32 = 2048;

/// Nanoseconds per request.
struct Round {
    inner: f64,
    ours: f64,
    governor: f64,
}

pub fn run(bench: &Bench) {
    if bench.settings.wants(REFUSED) {
        let (ok, refused) = (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS);
        let (mut ours, mut governor) = (stacks::ours_refused(), stacks::governor_refused());
        let runtime = stacks::runtime();
        time(&runtime, &mut ours, stacks::request_with_header, 1, ok);
        time(&runtime, &mut governor, stacks::request_with_header, 1, ok);
        let of = "a refused request, key from a header";
        compare(bench, of, stacks::request_with_header, ours, governor, refused).tell(REFUSED);
    }
    if !bench.settings.wants(ADDED) && !bench.settings.wants(RATIO) {
        return;
    }
    // Whichever kind of key is worse for ours is the figure.
    let by_header = compare(
        bench,
        "an admitted request, key from a header",
        stacks::request_with_header,
        stacks::ours_by_header(),
        stacks::governor_by_header(),
        StatusCode::OK,
    );
    let by_peer = compare(
        bench,
        "an admitted request, key from the address",
        stacks::request_with_peer,
        stacks::ours_by_peer(),
        stacks::governor_by_peer(),
        StatusCode::OK,
    );
    let measures = "ns that the layer adds to an admitted request, in memory";
    figure(ADDED, measures, by_header.added.max(by_peer.added));
    let worse = if by_header.ratio > by_peer.ratio { by_header } else { by_peer };
    worse.tell(RATIO);
}

/// Nanoseconds per request.
struct Compared {
    by: &'static str,
    added: f64,
    inner: f64,
    ours: f64,
    governor: f64,
    ratio: f64,
}

impl Compared {
    fn tell(&self, name: &str) {
        Versus {
            name,
            measures: &format!("ns per request in memory ({:.0} are the service's): {}", self.inner, self.by),
            ours: self.ours,
            peer: "tower_governor",
            theirs: self.governor,
            ratio: self.ratio,
            better: Better::Lower,
        }
        .tell();
    }
}

fn compare(
    bench: &Bench,
    by: &'static str,
    request: fn() -> Request<()>,
    mut ours: impl Service,
    mut governor: impl Service,
    status: StatusCode,
) -> Compared {
    let rounds: Vec<Round> = (0..bench.settings.rounds)
        .map(|_| round(request, &mut ours, &mut governor, status, bench.settings.length))
        .collect();
    let of = |read: fn(&Round) -> f64| median(rounds.iter().map(read));
    Compared {
        by,
        added: of(|round| round.ours - round.inner),
        inner: of(|round| round.inner),
        ours: of(|round| round.ours),
        governor: of(|round| round.governor),
        ratio: of(|round| round.ours / round.governor),
    }
}

fn round(
    request: fn() -> Request<()>,
    ours: &mut impl Service,
    governor: &mut impl Service,
    status: StatusCode,
    length: Duration,
) -> Round {
    let runtime = stacks::runtime();
    let mut took = [Duration::ZERO; 3];
    let mut slices = 0;
    let end = Instant::now() + length;
    while Instant::now() < end {
        took[0] += time(&runtime, &mut Inner, request, SLICE.into(), StatusCode::OK);
        took[1] += time(&runtime, ours, request, SLICE.into(), status);
        took[2] += time(&runtime, governor, request, SLICE.into(), status);
        slices += 1;
    }
    let [inner, ours, governor] = took.map(|took| took.as_nanos() as f64 / f64::from(slices * SLICE));
    Round { inner, ours, governor }
}
