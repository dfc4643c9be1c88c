//! What the layer adds to a request, over the in-memory store, beside tower_governor's.

use std::time::{Duration, Instant};

use http::{Request, StatusCode};

use self::stacks::{Inner, Service, time};
use crate::common::stats::median;
use crate::common::{Bench, figure};

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
        let of = "refused, by header";
        figure(REFUSED, compare(bench, of, stacks::request_with_header, ours, governor, refused).1);
    }
    if !bench.settings.wants(ADDED) && !bench.settings.wants(RATIO) {
        return;
    }
    println!();
    // Whichever kind of key is worse for ours is the figure.
    let by_header = compare(
        bench,
        "by header",
        stacks::request_with_header,
        stacks::ours_by_header(),
        stacks::governor_by_header(),
        StatusCode::OK,
    );
    let by_peer = compare(
        bench,
        "by peer address",
        stacks::request_with_peer,
        stacks::ours_by_peer(),
        stacks::governor_by_peer(),
        StatusCode::OK,
    );
    figure(ADDED, by_header.0.max(by_peer.0));
    figure(RATIO, by_header.1.max(by_peer.1));
}

/// What ours adds, and its time beside tower_governor's.
fn compare(
    bench: &Bench,
    by: &str,
    request: fn() -> Request<()>,
    mut ours: impl Service,
    mut governor: impl Service,
    status: StatusCode,
) -> (f64, f64) {
    let rounds: Vec<Round> = (0..bench.settings.rounds)
        .map(|_| round(request, &mut ours, &mut governor, status, bench.settings.length))
        .collect();
    let of = |read: fn(&Round) -> f64| median(rounds.iter().map(read));
    let (inner, mine, theirs) = (of(|round| round.inner), of(|round| round.ours), of(|round| round.governor));
    println!(
        "{by}, per request: inner {inner:.0} ns, in ours {mine:.0} ns, in tower_governor {theirs:.0} ns"
    );
    (of(|round| round.ours - round.inner), of(|round| round.ours / round.governor))
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
