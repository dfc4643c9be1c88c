//! What a request costs within the layer, over the in-memory store: `cargo bench --bench layer`.
//!
//! The figures that this crate owes come from `cargo bench --bench decisions -- layer`, which lets the
//! contestants take turns; this program is for looking closer.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod stacks;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use governor::{DefaultKeyedRateLimiter, Quota};
use http::{Request, StatusCode};

use self::stacks::{
    BURST, Inner, KEY, RATE, Service, bucket, governor_by_header, governor_by_peer,
    governor_refused, our_permit, ours_by_header, ours_by_peer, ours_refused, request_with_header,
    request_with_peer, runtime, time, towers_permit,
};

criterion_group!(benches, layers, decisions);
criterion_main!(benches);

/// Per request: the service alone, and within each layer.
fn layers(criterion: &mut Criterion) {
    bench(
        criterion,
        "header/inner service alone",
        Inner,
        request_with_header,
    );
    bench(
        criterion,
        "header/our RateLimitLayer",
        ours_by_header(),
        request_with_header,
    );
    bench(
        criterion,
        "header/tower_governor",
        governor_by_header(),
        request_with_header,
    );
    bench(
        criterion,
        "peer/inner service alone",
        Inner,
        request_with_peer,
    );
    bench(
        criterion,
        "peer/our RateLimitLayer",
        ours_by_peer(),
        request_with_peer,
    );
    bench(
        criterion,
        "peer/tower_governor",
        governor_by_peer(),
        request_with_peer,
    );
    bench(
        criterion,
        "permit/our ConcurrencyLimitLayer",
        our_permit(),
        request_with_header,
    );
    bench(
        criterion,
        "permit/tower's ConcurrencyLimit",
        towers_permit(),
        request_with_header,
    );
    refused(criterion, "refused/our RateLimitLayer", ours_refused());
    refused(criterion, "refused/tower_governor", governor_refused());
}

fn bench(
    criterion: &mut Criterion,
    name: &str,
    mut service: impl Service,
    request: fn() -> Request<()>,
) {
    let runtime = runtime();
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|requests| {
            time(&runtime, &mut service, request, requests, StatusCode::OK)
        });
    });
}

/// The same once a first request has been admitted.
fn refused(criterion: &mut Criterion, name: &str, mut service: impl Service) {
    let (runtime, request) = (runtime(), request_with_header);
    time(&runtime, &mut service, request, 1, StatusCode::OK);
    criterion.bench_function(name, |bencher| {
        let refused = StatusCode::TOO_MANY_REQUESTS;
        bencher.iter_custom(|requests| time(&runtime, &mut service, request, requests, refused));
    });
}

/// Per decision, without a layer: one key, and 10 000 keys in turn.
fn decisions(criterion: &mut Criterion) {
    let keys: Vec<String> = (0..10_000).map(|i| format!("key-{i:016}")).collect();
    let runtime = runtime();
    for (name, keys) in [("one key", &[KEY.to_owned()][..]), ("10 000 keys", &keys)] {
        let bucket = bucket();
        criterion.bench_function(&format!("{name}/TokenBucket::allow"), |bencher| {
            bencher.iter_custom(|decisions| {
                runtime.block_on(async {
                    let since = Instant::now();
                    for key in keys.iter().cycle().take(decisions as usize) {
                        black_box(bucket.allow(key).await.unwrap());
                    }
                    since.elapsed()
                })
            });
        });
        let (rate, burst) = (
            NonZeroU32::new(RATE).unwrap(),
            NonZeroU32::new(BURST).unwrap(),
        );
        let governor = DefaultKeyedRateLimiter::keyed(Quota::per_second(rate).allow_burst(burst));
        criterion.bench_function(&format!("{name}/governor"), |bencher| {
            let mut keys = keys.iter().cycle();
            bencher.iter(|| black_box(governor.check_key(keys.next().unwrap()).is_ok()));
        });
    }
}
