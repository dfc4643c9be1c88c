//! All leases, or none.

#![allow(clippy::unwrap_used)]

use redis::Value;

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
fn all_are_held_or_none() {
    let [first, other] = [[1, 2], [3, 4]].map(tokens);
    let mut states = [State::default(), State::default()];
    let held = All::Held(vec![(NOW + TTL, NOW); 2]);
    assert_eq!([(); 2].map(|()| acquire(&first).step(&mut states, NOW)), [held.clone(), held]);
    states[0].release(&first[0], false, NOW, SPANS);
    let refused = |before| All::Refused { soonest: NOW + TTL, before };
    assert_eq!((acquire(&other).step(&mut states, NOW), states[0].holders.used()), (refused(0), 0));
    states[1].queue.line_up(tokens([5, 6])[0].clone(), (0, Default::default()), NOW + 1, NOW);
    assert_eq!(acquire(&other).step(&mut states, NOW), refused(1));
    assert_eq!((acquire(&other).step(&mut states, NOW), states[0].holders.used()), (refused(1), 0));
    // A waiter whose lease is free comes first.
    states[1].release(&first[1], false, NOW, SPANS);
    let mut all = States(states.to_vec());
    assert!(!all.is_idle(NOW) && all.pushes().len() == 1 && all.pushes().is_empty());
    all.0.iter_mut().for_each(|state| state.sweep(NOW + 10 * TTL));
    assert!(all.is_idle(NOW + 10 * TTL));
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

#[test]
fn a_reply_says_what_is_held() {
    let read = |reply: &[i64], twice| {
        let values: Vec<_> = reply.iter().map(|value| Value::Int(*value)).collect();
        let answer = acquire(&tokens([1, 2])).decode(0, NOW, Fields::new(&values, twice)).ok()?;
        assert_eq!((answer.now, answer.twice), (NOW, twice));
        Some(answer.what)
    };
    assert_eq!(read(&[1, 9, 5, 8, 6], false), Some(All::Held(vec![(9, 5), (8, 6)])));
    assert_eq!(read(&[0, 9, 3], true), Some(All::Refused { soonest: 9, before: 3 }));
    assert_eq!(read(&[-2], true), Some(All::Withdrawn));
    assert_eq!([read(&[-1], false), read(&[1, 9, 5, 8], false)], [None, None]);
}
