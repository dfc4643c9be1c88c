//! What layers add to a request, over the in-memory store, beside tower_governor's and tower's own.

use std::sync::Barrier;
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
const GOVERNOR: &str = "tower_governor";
const PERMIT: &str = "permit-vs-tower-concurrency-limit";
const THREADS: &str = "permit-two-threads-vs-tower-concurrency-limit";
const TOWER: &str = "tower's ConcurrencyLimit";
/// Requests to one, then to the next: short enough that all see the same weather.
const SLICE: u32 = 2048;

/// Nanoseconds per request.
struct Round {
    inner: f64,
    ours: f64,
    peer: f64,
}

pub fn run(bench: &Bench) {
    if bench.settings.wants(REFUSED) {
        let (ok, refused) = (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS);
        let (mut ours, mut governor) = (stacks::ours_refused(), stacks::governor_refused());
        let runtime = stacks::runtime();
        time(&runtime, &mut ours, stacks::request_with_header, 1, ok);
        time(&runtime, &mut governor, stacks::request_with_header, 1, ok);
        let of = "a refused request, key from a header";
        let compared = compare(
            bench,
            of,
            stacks::request_with_header,
            ours,
            governor,
            refused,
        );
        compared.tell(REFUSED, GOVERNOR);
    }
    if bench.settings.wants(PERMIT) {
        let (of, request) = (
            "a permit of a limit that is not reached",
            stacks::request_with_header,
        );
        let (ours, peer) = (stacks::our_permit(), stacks::towers_permit());
        compare(bench, of, request, ours, peer, StatusCode::OK).tell(PERMIT, TOWER);
    }
    if bench.settings.wants(THREADS) {
        tell_threads(bench);
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
    let worse = if by_header.ratio > by_peer.ratio {
        by_header
    } else {
        by_peer
    };
    worse.tell(RATIO, GOVERNOR);
}

/// A permit, where two threads at once handle requests under one limit.
fn tell_threads(bench: &Bench) {
    let (ours, peer) = (stacks::our_permit(), stacks::towers_permit());
    let length = bench.settings.length / 2;
    let rounds: Vec<_> = (0..bench.settings.rounds)
        .map(|_| (on_two_threads(&ours, length), on_two_threads(&peer, length)))
        .collect();
    Versus {
        name: THREADS,
        measures: "ns per request of each of two threads, in memory: a permit of one limit",
        ours: median(rounds.iter().map(|(ours, _)| *ours)),
        peer: TOWER,
        theirs: median(rounds.iter().map(|(_, peer)| *peer)),
        ratio: median(rounds.iter().map(|(ours, peer)| ours / peer)),
        better: Better::Lower,
    }
    .tell();
}

/// Nanoseconds per request of each thread.
fn on_two_threads<S: Service + Clone + Send>(service: &S, length: Duration) -> f64 {
    let begin = Barrier::new(2);
    let alone = |mut service: S| {
        let runtime = stacks::runtime();
        begin.wait();
        let (end, mut took, mut slices) = (Instant::now() + length, Duration::ZERO, 0);
        while Instant::now() < end {
            took += time(
                &runtime,
                &mut service,
                stacks::request_with_header,
                SLICE.into(),
                StatusCode::OK,
            );
            slices += 1;
        }
        took.as_nanos() as f64 / f64::from(slices * SLICE)
    };
    std::thread::scope(|scope| {
        let other = service.clone();
        let other = scope.spawn(|| alone(other));
        (alone(service.clone()) + other.join().unwrap()) / 2.0
    })
}

/// Nanoseconds per request.
struct Compared {
    by: &'static str,
    added: f64,
    inner: f64,
    ours: f64,
    peer: f64,
    ratio: f64,
}

impl Compared {
    fn tell(&self, name: &str, peer: &str) {
        Versus {
            name,
            measures: &format!(
                "ns per request in memory ({:.0} are the service's): {}",
                self.inner, self.by
            ),
            ours: self.ours,
            peer,
            theirs: self.peer,
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
    mut peer: impl Service,
    status: StatusCode,
) -> Compared {
    let rounds: Vec<Round> = (0..bench.settings.rounds)
        .map(|_| round(request, &mut ours, &mut peer, status, bench.settings.length))
        .collect();
    let of = |read: fn(&Round) -> f64| median(rounds.iter().map(read));
    Compared {
        by,
        added: of(|round| round.ours - round.inner),
        inner: of(|round| round.inner),
        ours: of(|round| round.ours),
        peer: of(|round| round.peer),
        ratio: of(|round| round.ours / round.peer),
    }
}

fn round(
    request: fn() -> Request<()>,
    ours: &mut impl Service,
    peer: &mut impl Service,
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
        took[2] += time(&runtime, peer, request, SLICE.into(), status);
        slices += 1;
    }
    let [inner, ours, peer] = took.map(|took| took.as_nanos() as f64 / f64::from(slices * SLICE));
    Round { inner, ours, peer }
}
