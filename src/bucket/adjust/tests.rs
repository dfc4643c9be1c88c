use super::*;
use crate::bucket::quota::Quota;
use crate::bucket::tests::fixtures::{START, adjust, one};

#[test]
fn tokens_are_given_up_to_a_full_bucket() {
    for quota in [Quota::per_second(10).burst(20), Quota::non_refilling(20)] {
        let (mut bucket, quotas) = (Bucket::default(), one(quota));
        let steps = [
            (12, 8),
            (-5, 13),
            (0, 13),
            (-6, 19),
            (30, 0),
            (-12, 1),
            (-100, 20),
            (-1, 20),
            (1, 19),
        ];
        for (tokens, left) in steps {
            assert_eq!(
                adjust(&mut bucket, &quotas, START, (tokens, 0)).remaining(),
                left,
                "{tokens}"
            );
        }
    }
}
