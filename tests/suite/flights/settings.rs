//! Settings that are not allowed are told, with what is.

use std::time::Duration;

use tower_distributed::single_flight::{Postcard, SingleFlightBuilder};
use tower_distributed::{Error, SingleFlight, Store};

use super::{OneCodec, builder};

fn is_told(builder: SingleFlightBuilder<u64, u64>, parts: &[&str]) {
    told(builder.build(&Store::in_memory(), "x"), parts);
}

fn told<T>(built: Result<T, Error>, parts: &[&str]) {
    let error = built.err().unwrap();
    let text = error.to_string();
    assert!(
        error.is_invalid() && parts.iter().all(|part| text.contains(part)),
        "{text:?} names no {parts:?}"
    );
}

fn is_fine(builder: SingleFlightBuilder<u64, u64>) {
    builder.build(&Store::in_memory(), "x").unwrap();
}

const DAY: Duration = Duration::from_secs(86_400);
const NANO: Duration = Duration::from_nanos(1);

type Set = fn(Duration) -> SingleFlightBuilder<u64, u64>;

#[test]
fn spans() {
    let settings: [(&str, Set); 3] = [
        ("ttl must", |span| builder().ttl(span)),
        ("stale_while_revalidate must", |span| {
            builder().stale_while_revalidate(span)
        }),
        ("error_ttl must", |span| {
            builder().share_errors(Postcard).error_ttl(span)
        }),
    ];
    for span in [
        Duration::ZERO,
        Duration::from_millis(1) - NANO,
        DAY + NANO,
        Duration::MAX,
    ] {
        for (named, set) in settings {
            is_told(set(span), &[named, "1 ms to 1 day", &format!("{span:?}")]);
        }
    }
    for span in [Duration::from_millis(1), DAY] {
        is_fine(
            builder()
                .ttl(span)
                .stale_while_revalidate(span)
                .share_errors(Postcard)
                .error_ttl(span),
        );
    }
    for ttl in [Duration::from_millis(1), Duration::ZERO, DAY + NANO] {
        is_told(
            builder().lease_ttl(ttl),
            &["ttl of a lease", "10 ms to 1 day", &format!("{ttl:?}")],
        );
    }
}

#[test]
fn numbers() {
    for bytes in [0, (64 << 20) + 1, usize::MAX] {
        is_told(
            builder().largest_answer(bytes),
            &["largest_answer", "64 MiB", &bytes.to_string()],
        );
    }
    for (stored, largest) in [(0, 1), (10 + 1023, 10), (1 << 20, 1 << 20)] {
        let shown = [stored, largest as u64 + 1024].map(|bytes| bytes.to_string());
        let flight = builder().largest_answer(largest).max_stored(stored);
        is_told(flight, &["max_stored", "at least", &shown[0], &shown[1]]);
    }
    for beta in [0.0, -1.0, 0.009, 100.1, f64::NAN, f64::INFINITY] {
        is_told(
            builder().refresh_early(beta),
            &["refresh_early", "0.01 to 100", &beta.to_string()],
        );
    }
    is_told(
        builder().max_parallel(0),
        &["max_parallel", "at least 1", "is 0"],
    );
    is_told(
        builder().pass_for(Duration::ZERO),
        &["pass_for must be 1 ms to 1 day", "0ns"],
    );
    is_told(builder().error_ttl(DAY), &["share_errors", "86400s"]);
    for fine in [
        builder().largest_answer(1),
        builder().largest_answer(64 << 20),
        builder().max_stored(u64::MAX),
        builder().largest_answer(10).max_stored(10 + 1024),
        builder().refresh_early(0.01).max_wait(Duration::ZERO),
        builder().refresh_early(100.0).max_wait(Duration::MAX),
        builder().max_parallel(1).pass_for(DAY),
    ] {
        is_fine(fine);
    }
}

#[test]
fn names() {
    let long = "x".repeat(65);
    let codec = |name: &str| OneCodec {
        name: name.to_owned().leak(),
        encode: || unreachable!(),
    };
    for name in ["", "a b", "\n", "ä", &long] {
        let shown = format!("{name:?}");
        for builder in [
            SingleFlight::builder(codec(name)),
            builder().share_errors(codec(name)),
        ] {
            is_told(builder, &["codec", "1 to 64 visible", &shown]);
        }
        if !name.is_empty() {
            is_told(
                builder().version(name),
                &["version", "0 to 64 visible", &shown],
            );
        }
    }
    for name in ["x", &long[1..]] {
        is_fine(SingleFlight::builder(codec(name)).version(name));
    }
    for name in ["", "a b", "a:b", "{x}", "ä", &long, "\0"] {
        told(
            SingleFlight::<u64>::new(&Store::in_memory(), name),
            &["1 to 64", &format!("{name:?}")],
        );
    }
}
