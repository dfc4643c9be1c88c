//! The replies to acquires, releases, renewals and heartbeats, at different times.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use super::*;
use crate::lease::holders::{FENCES, Holder};
use crate::wait_group::permits::PermitHolders;

const SECOND: i64 = 1_000_000;
const START: i64 = 1_000_000 * SECOND;
const TTL: i64 = 30 * SECOND;
const SPANS: Spans = Spans {
    grant: 1_500_000,
    alive: 7 * SECOND,
    tombstone: 60 * SECOND,
};

type Locked = KeyState<Holder>;

fn token(id: u64) -> Token {
    format!("aaaaaaaaaaaaaaaa-{id:x}.{TTL:x}").into()
}

fn permit(id: u64, suffix: &str) -> Token {
    format!("{}/{suffix}", token(id)).into()
}

fn ask<H: Holders>(state: &mut KeyState<H>, token: &Token, max_waiters: i64, now: i64) -> Position {
    let terms = AcquireTerms {
        max_waiters,
        ..AcquireTerms::usual(TTL)
    };
    state.acquire(token, terms, None, None, now, SPANS)
}

fn release<H: Holders>(state: &mut KeyState<H>, token: &Token, now: i64) -> TokenState {
    state.release(token, false, now, SPANS)
}

const HELD: Position = Position::Held {
    expiry: START + TTL,
    fence: START,
};

const fn queued(before: i64) -> Position {
    Position::Queued {
        soonest: START + TTL,
        before,
    }
}

const fn refused(before: i64) -> Position {
    Position::Refused {
        soonest: START + TTL,
        before,
    }
}

/// A lock that the first token holds, and for which the others wait.
fn crowd() -> (Locked, [Token; 4]) {
    let (mut state, tokens) = (Locked::default(), [1, 2, 3, 4].map(token));
    for (token, expected) in tokens.iter().zip([HELD, queued(0), queued(1)]) {
        assert_eq!(ask(&mut state, token, 9, START), expected, "{token}");
    }
    (state, tokens)
}

/// The ids of the waiters that were granted the lease, until when, and their fences.
fn grants<H: Holders>(state: &mut KeyState<H>) -> Vec<(u64, i64, i64)> {
    let grant = |push: Push| match push.news {
        PushKind::Granted { expiry, fence } => (push.ids[0], expiry, fence),
        other => panic!("{other:?}"),
    };
    state.pushes().into_iter().map(grant).collect()
}

/// A key that is always used again does not keep the memory of a crowd forever.
#[test]
fn a_state_that_is_used_again_has_no_memory_of_a_crowd() {
    let spans = Spans {
        grant: 1000,
        alive: 1000,
        tombstone: 2000,
    };
    let mut state = KeyState::<Holder<true, ()>>::default();
    for id in 0..100 {
        state.release(&format!("0123456789abcdef-{id}").into(), true, 1, spans);
    }
    assert!(!state.is_idle(2000) && state.is_idle(2001));
    state.clear();
    assert_eq!(state.tombstones.capacity(), 0);
    let mut state = crowd().0;
    state.clear();
    assert!(!state.is_in_use(START) && state.is_idle(START));
}

/// Calls in one group must have equal terms.
#[test]
fn terms_that_differ_have_different_numbers() {
    let mut numbers = HashSet::new();
    for (ttl, max_waiters) in [TTL, 1000, 86_400 * SECOND]
        .map(|ttl| [0, 1, 256].map(|most| (ttl, most)))
        .concat()
    {
        for (rank, placed) in [
            (0, false),
            (1, false),
            (8, false),
            (0, true),
            (1, true),
            (8, true),
        ] {
            let terms = AcquireTerms {
                ttl,
                max_waiters,
                rank,
                placed,
            };
            assert!(numbers.insert(terms.number()), "{terms:?}");
        }
    }
    let terms = AcquireTerms {
        ttl: 1001,
        max_waiters: 2,
        rank: 3,
        placed: true,
    };
    assert_eq!(terms.written(), [1001, 2, 83]);
}

/// A waiter that stopped sending heartbeats counts until it reaches the front, or the queue is full.
#[test]
fn as_many_wait_as_the_terms_say() {
    let (state, [a, b, _, d]) = crowd();
    let dead = START + SPANS.alive;
    for (token, max_waiters, now, expected) in [
        (&a, 0, START, HELD),
        (&b, 0, START, queued(0)), // it waits already
        (&d, 0, START, refused(2)),
        (&d, 2, dead - 1000, refused(2)),
        (&d, 3, START, queued(2)),
        (&d, 3, dead, queued(2)),
        (&d, 2, dead, queued(0)),
    ] {
        let standing = ask(&mut state.clone(), token, max_waiters, now);
        assert_eq!(standing, expected, "{token} {max_waiters}");
    }
    // A waiter that waits until no permit is held does not count in the bound of the queue.
    let mut state = KeyState::<PermitHolders>::default();
    ask(&mut state, &permit(1, "1/1"), 9, START);
    let idle = AcquireTerms {
        rank: 8,
        ..AcquireTerms::usual(TTL)
    };
    let standing = state.acquire(&permit(2, "idle"), idle, None, None, START, SPANS);
    assert_eq!(standing, queued(0));
    assert_eq!(ask(&mut state, &permit(3, "1/1"), 0, START), refused(0));
}

#[test]
fn a_renewal_never_makes_a_lease_shorter_and_revives_none() {
    let (mut state, [a, b, c, _]) = crowd();
    let (now, until) = (START + 10 * SECOND, START + 10 * SECOND + TTL);
    assert_eq!(state.renew(&b, TTL, 0, now), None);
    for ttl in [TTL, SECOND, TTL] {
        assert_eq!(state.renew(&a, ttl, 0, now), Some(until));
    }
    assert_eq!(state.renew(&a, TTL + 1000, 0, now), Some(until + 1000));
    // The next fence is higher than this one. A lower one has no effect.
    let fence = START + 900 * SECOND;
    for fence in [fence, START, fence] {
        assert_eq!(state.renew(&a, 0, fence, now), Some(until + 1000));
    }
    assert_eq!(release(&mut state, &c, now), TokenState::Waiting);
    state.heartbeat(&[b], None, until, SPANS);
    assert_eq!(state.renew(&a, TTL, 0, until + 1000), None);
    state.heartbeat(&[], None, until + 1000, SPANS);
    assert_eq!(
        grants(&mut state),
        [(2, until + 1000 + SPANS.grant, fence + FENCES)]
    );
}

/// The places of a process that has not renewed a grant are skipped until its next heartbeat. So they cost only one
/// grant.
#[test]
fn a_process_that_lets_a_grant_expire_counts_as_dead() {
    for beats in [false, true] {
        let mut state = KeyState::<PermitHolders>::default();
        for id in 1..=4 {
            ask(&mut state, &permit(id, "1/1"), 9, START);
        }
        let [other, next] =
            [5, 6].map(|id| Token::from(format!("bbbbbbbbbbbbbbbb-{id}.1c9c380/1/1")));
        ask(&mut state, &other, 9, START);
        release(&mut state, &permit(1, "1/1"), START);
        assert!(state.holders.held(&permit(2, "1/1"), START).is_some());
        let now = START + SPANS.grant;
        if beats {
            state.heartbeat(&[permit(3, "1/1")], None, now + 1, SPANS);
        } else {
            state.heartbeat(std::slice::from_ref(&other), None, now, SPANS);
        }
        assert_eq!(state.holders.held(&other, now).is_some(), !beats);
        assert_eq!(state.holders.held(&permit(3, "1/1"), now).is_some(), beats);
        // Waiters that are put behind all others do not count in the bound of the queue.
        assert!(
            beats
                || matches!(
                    ask(&mut state, &next, 1, now),
                    Position::Queued { before: 0, .. }
                )
        );
    }
    // A grant that was renewed, and ends later, is not evidence against its process.
    let mut state = KeyState::<PermitHolders>::default();
    for id in 1..=3 {
        ask(&mut state, &permit(id, "1/1"), 9, START);
    }
    release(&mut state, &permit(1, "1/1"), START);
    state.renew(&permit(2, "1/1"), 2 * SECOND, 0, START);
    state.heartbeat(&[], None, START + 2 * SECOND, SPANS);
    assert!(state.holders.held(&permit(3, "1/1"), START).is_some());
}
