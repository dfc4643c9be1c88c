//! All leases, or none.

#![allow(clippy::unwrap_used)]

use super::*;

const NOW: i64 = 1_000_000_000_000;
const TTL: i64 = 30_000_000;
const SPANS: Spans = Spans { grant: 1_500_000, alive: 7_000_000, tombstone: 60_000_000 };

fn tokens(ids: [u64; 2]) -> [Token; 2] {
    ids.map(|id| format!("aaaaaaaaaaaaaaaa-{id:x}.{TTL:x}").into())
}

fn acquire(tokens: &[Token]) -> AcquireAll {
    AcquireAll { channels: "channels".into(), spans: SPANS, ttl: TTL, tokens: tokens.into() }
}

#[test]
fn what_was_withdrawn_takes_nothing_until_that_is_forgotten() {
    let [first, other] = [[1, 2], [3, 4]].map(tokens);
    let mut states = [State::default(), State::default()];
    states[1].release(&first[1], true, NOW, SPANS);
    let end = NOW + SPANS.tombstone;
    states[1].release(&other[1], true, end - 1, SPANS);
    assert_eq!(acquire(&first).step(&mut states, end - 1), All::Withdrawn);
    assert_eq!(states[0].holders.used(), 0);
    assert_eq!(acquire(&other).step(&mut states, end), All::Withdrawn);
    assert_eq!(acquire(&first).step(&mut states, end), All::Held(vec![(end + TTL, end); 2]));
}
