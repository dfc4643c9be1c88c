use super::super::*;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;

/// The product of the time and the rate is more than 64 bits can hold.
#[test]
fn a_share_of_very_few_tokens_is_counted() {
    let mut pace = Quotas::new([Quota::per_second(10).burst(5)])
        .unwrap()
        .limits()[0]
        .pace;
    (pace.tokens.num, pace.tokens.den) = (1 << 62, 1000);
    for (span, part, tokens) in [
        (1 << 61, 0, 500),
        (1 << 61, 1, 499),
        (3 << 61, 0, 1500),
        (-(1 << 61), 1, -501),
    ] {
        assert_eq!(tokens_in(&pace, span, part), tokens, "{span} {part}");
    }
}
