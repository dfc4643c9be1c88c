use redis::Value;

use super::*;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures::{START, adjust, one};

fn quotas(burst: u32) -> Quotas {
    one(Quota::per_second(1000).burst(burst))
}

fn prefetch(bucket: &mut Bucket, quotas: &Quotas, most: i64) -> (i64, u32) {
    let prefetched = Prefetch {
        quotas: quotas.clone(),
        most,
    }
    .apply(bucket, START);
    (prefetched.count, prefetched.state.remaining())
}

#[test]
fn a_quarter_of_what_is_available_is_prefetched_but_no_few_tokens() {
    let of = |burst, most| prefetch(&mut Bucket::default(), &quotas(burst), most);
    assert_eq!([of(31, 100), of(32, 7)], [(0, 31), (0, 32)]);
    assert_eq!(
        [of(32, 100), of(32, 8), of(39, 9)],
        [(8, 24), (8, 24), (9, 30)]
    );
    assert_eq!(of(4000, 100), (100, 3900));
}

#[test]
fn nothing_is_prefetched_during_a_block() {
    let (mut bucket, quotas) = (Bucket::default(), quotas(4000));
    adjust(&mut bucket, &quotas, START, (0, 1_000_000));
    let before = bucket.clone();
    assert_eq!(
        Prefetch { quotas, most: 100 }
            .apply(&mut bucket, START + 1)
            .count,
        0
    );
    assert_eq!(bucket, before, "nothing is written");
}

#[test]
fn the_process_that_prefetched_tokens_has_them() {
    let (mut bucket, quotas) = (Bucket::default(), quotas(80));
    assert_eq!(
        [70, 60].map(|left| prefetch(&mut bucket, &quotas, 10) == (10, left)),
        [true; 2]
    );
    // Others reserved more than there is.
    adjust(&mut bucket, &quotas, START, (100, 0));
    for (tokens, left) in [(0, 0), (40, 0), (45, 5), (120, 80), (200, 80)] {
        let mut seen = bucket.clone();
        seen.hold(&quotas, START, tokens);
        assert_eq!(seen.free(&quotas, START, 0), left, "{tokens}");
    }
}

#[test]
fn forged_replies_are_refused() {
    let quotas = quotas(40);
    // Behind the number of tokens: the end of a block, and a level.
    let told = |count| Value::Array([count, 0, START, 0, START, 0].map(Value::Int).to_vec());
    let read = |reply: Value| {
        let prefetch = Prefetch {
            quotas: quotas.clone(),
            most: 10,
        };
        let read = prefetch.decode(0, START, Fields::new(&[reply], false));
        read.map(|read| (read.count, read.state.remaining()))
            .map_err(|error| error.0)
    };
    assert_eq!(
        [0, 10].map(|count| read(told(count))),
        [0, 10].map(|count| Ok((count, 40)))
    );
    assert!(
        [-1, 11, i64::MAX]
            .into_iter()
            .all(|count| read(told(count)).is_err())
    );
    assert_eq!(read(Value::Int(-1)).unwrap_err(), WRONG_TYPE.0);
    assert_ne!(read(Value::Int(10)).unwrap_err(), WRONG_TYPE.0);
}
