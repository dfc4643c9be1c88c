//! What acquires, releases, renewals and heartbeats answer, by the time.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::*;
use crate::lease::holder::{FENCES, Holder};
use crate::lease::settings::{Rules, Source};
use crate::wait_group::holders::PermitHolders;

const SECOND: i64 = 1_000_000;
const START: i64 = 1_000_000 * SECOND;
const TTL: i64 = 30 * SECOND;
const SPANS: Spans = Spans { grant: 1_500_000, alive: 7 * SECOND, tombstone: 60 * SECOND };

type Locked = KeyState<Holder>;

/// The token of a lock, with this ttl.
fn token_of(id: u64, ttl: i64) -> Token {
    format!("aaaaaaaaaaaaaaaa-{id:x}.{ttl:x}").into()
}

fn token(id: u64) -> Token {
    token_of(id, TTL)
}

fn permit(id: u64, suffix: &str) -> Token {
    format!("{}/{suffix}", token(id)).into()
}

fn ask_of<H: Holders>(state: &mut KeyState<H>, token: &Token, terms: Terms, now: i64) -> Standing {
    state.acquire(token, terms, None, None, now, SPANS)
}

fn ask<H: Holders>(state: &mut KeyState<H>, token: &Token, max_waiters: i64, now: i64) -> Standing {
    ask_of(state, token, Terms { max_waiters, ..Terms::usual(TTL) }, now)
}

fn release<H: Holders>(state: &mut KeyState<H>, token: &Token, now: i64) -> Was {
    state.release(token, false, now, SPANS)
}

/// A lock that the first token holds, and for which the others wait.
fn crowd() -> (Locked, [Token; 4]) {
    let (mut state, tokens) = (Locked::default(), [1, 2, 3, 4].map(token));
    let standing = |state: &mut Locked, nth: usize| ask(state, &tokens[nth], 9, START);
    assert_eq!(standing(&mut state, 0), Standing::Held { expiry: START + TTL, fence: START });
    for (before, nth) in [1, 2].into_iter().enumerate() {
        let soonest = START + TTL;
        assert_eq!(standing(&mut state, nth), Standing::Queued { soonest, before: before as i64 });
    }
    (state, tokens)
}

/// The ids of the waiters that were granted the lease, until when, and their fences.
fn grants<H: Holders>(state: &mut KeyState<H>) -> Vec<(u64, i64, i64)> {
    let grant = |push: Push| match push.news {
        News::Granted { expiry, fence } => (push.ids[0], expiry, fence),
        other => panic!("{other:?}"),
    };
    state.pushes().into_iter().map(grant).collect()
}

/// A key that is always in use again keeps no memory of a crowd for ever.
#[test]
fn a_state_that_is_used_again_has_no_memory_of_a_crowd() {
    let spans = Spans { grant: 1000, alive: 1000, tombstone: 2000 };
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
    let usual = Terms::usual(TTL);
    let all = [
        usual,
        Terms { ttl: 1000, ..usual },
        Terms { ttl: 86_400 * SECOND, ..usual },
        Terms { max_waiters: 0, ..usual },
        Terms { max_waiters: 1, ..usual },
        Terms { max_waiters: 256, ..usual },
        Terms { rank: 1, ..usual },
        Terms { rank: 8, ..usual },
        Terms { placed: true, ..usual },
        Terms { rank: 1, placed: true, ..usual },
    ];
    for (at, terms) in all.iter().enumerate() {
        let same = all.iter().position(|other| other.number() == terms.number());
        assert_eq!(same, Some(at), "{terms:?}");
    }
    assert_eq!(Terms { max_waiters: 2, rank: 3, placed: true, ttl: 1001 }.written(), [1001, 2, 83]);
}

#[test]
fn as_many_wait_as_the_terms_say() {
    let (mut state, [a, b, c, d]) = crowd();
    let soonest = START + TTL;
    assert_eq!(ask(&mut state, &a, 0, START), Standing::Held { expiry: soonest, fence: START }, "again");
    assert_eq!(ask(&mut state, &b, 0, START), Standing::Queued { soonest, before: 0 }, "it waits already");
    assert_eq!(ask(&mut state, &c, 0, START), Standing::Queued { soonest, before: 1 });
    for max_waiters in 0..=2 {
        let standing = ask(&mut state, &d, max_waiters, START);
        assert_eq!(standing, Standing::Refused { soonest, before: 2 }, "{max_waiters}");
    }
    let (mut other, mut later) = (state.clone(), state.clone());
    assert_eq!(ask(&mut other, &d, 3, START), Standing::Queued { soonest, before: 2 });
    // Who stopped sending heartbeats counts until its turn comes, or the queue is full.
    let dead = START + SPANS.alive;
    assert_eq!(ask(&mut state, &d, 2, dead - 1000), Standing::Refused { soonest, before: 2 });
    assert_eq!(ask(&mut state, &d, 2, dead), Standing::Queued { soonest, before: 0 });
    assert_eq!(ask(&mut later, &d, 3, dead), Standing::Queued { soonest, before: 2 });
    // Who waits until no permit is held takes nobody's place in the queue.
    let mut state = KeyState::<PermitHolders>::default();
    ask(&mut state, &permit(1, "1/1"), 9, START);
    let idle = |max_waiters| Terms { max_waiters, rank: 8, ..Terms::usual(TTL) };
    for (id, before) in [(2, 0), (5, 1)] {
        let standing = ask_of(&mut state, &permit(id, "idle"), idle(9), START);
        assert_eq!(standing, Standing::Queued { soonest, before });
    }
    state.heartbeat(&[permit(2, "idle")], None, START + SECOND, SPANS);
    let refused = |before| Standing::Refused { soonest, before };
    assert_eq!(ask(&mut state, &permit(3, "1/1"), 0, dead), refused(0));
    assert_eq!(ask_of(&mut state, &permit(4, "idle"), idle(0), dead), refused(2));
}

/// Outcomes leave nothing to do: for any caller that does not hold, or for callers that would have to wait.
#[test]
fn who_has_nothing_to_do_does_not_wait() {
    let (mut state, [a, b, _, d]) = crowd();
    let mut acquire = |token, done| state.acquire(token, Terms::usual(TTL), None, Some(done), START, SPANS);
    assert!(matches!(acquire(&a, true), Standing::Held { .. }));
    assert_eq!([acquire(&d, true), acquire(&d, false), acquire(&b, true)], [Standing::Done; 3]);
    assert!(matches!(acquire(&b, false), Standing::Queued { .. }), "it has its place");
    let mut free = Locked::default();
    let mut acquire = |done| free.acquire(&a, Terms::usual(TTL), None, Some(done), START, SPANS);
    assert_eq!(acquire(true), Standing::Done);
    assert!(matches!(acquire(false), Standing::Held { .. }));
}

/// The next waiter that is alive holds for a short time, with a higher fence.
#[test]
fn a_release_grants_the_lock_to_the_next_waiter() {
    let (mut state, [a, b, c, d]) = crowd();
    assert_eq!(release(&mut state, &d, START), Was::Neither);
    assert_eq!(release(&mut state, &b, START), Was::Waiting);
    assert_eq!((release(&mut state, &b, START), state.queue.ahead(0)), (Was::Neither, 1));
    let short = token_of(5, 4000);
    ask(&mut state, &short, 9, START);
    assert_eq!(release(&mut state, &a, START), Was::Held);
    let (expiry, fence) = (START + SPANS.grant, START + FENCES);
    assert_eq!(grants(&mut state), [(3, expiry, fence)]);
    assert_eq!(ask(&mut state, &c, 0, START), Standing::Held { expiry, fence });
    assert_eq!(release(&mut state, &c, START), Was::Held);
    // The ttl of this one is less than a grant lasts.
    assert_eq!(grants(&mut state), [(5, START + 4000, fence + FENCES)]);
    assert!(state.is_in_use(START) && !state.is_in_use(START + 4000));
    assert_eq!(release(&mut state, &short, START), Was::Held);
    assert!(grants(&mut state).is_empty() && !state.is_in_use(START));

    // The first one is dead when its turn comes, by the end of the lease.
    let (mut state, [_, _, c, d]) = crowd();
    state.heartbeat(std::slice::from_ref(&c), None, START + 28 * SECOND, SPANS);
    let now = START + TTL;
    let soonest = now + SPANS.grant;
    assert_eq!(ask(&mut state, &d, 9, now), Standing::Queued { soonest, before: 0 });
    assert_eq!(grants(&mut state), [(3, now + SPANS.grant, now)]);
}

#[test]
fn an_acquire_that_was_withdrawn_is_refused_for_a_while() {
    let (mut state, [a, b, c, _]) = (Locked::default(), [1, 2, 3, 4].map(token));
    let withdraw = |state: &mut Locked, token: &Token, now| state.release(token, true, now, SPANS);
    assert_eq!(withdraw(&mut state, &a, START), Was::Neither);
    assert_eq!(withdraw(&mut state, &b, START + 30 * SECOND), Was::Neither);
    let end = START + SPANS.tombstone;
    assert_eq!(ask(&mut state, &a, 9, end - 1), Standing::Withdrawn);
    assert!(matches!(ask(&mut state, &c, 9, end), Standing::Held { .. }));
    assert!(matches!(ask(&mut state, &a, 9, end), Standing::Queued { .. }));
    // The clock is set back: the old withdrawal says nothing.
    assert!(matches!(ask(&mut state, &a, 9, end - SECOND), Standing::Queued { .. }));
    assert_eq!(ask(&mut state, &b, 9, end - SECOND), Standing::Withdrawn);
    assert_eq!(withdraw(&mut state, &a, end), Was::Waiting);
    assert_eq!(withdraw(&mut state, &c, end), Was::Held);
    assert_eq!((state.tombstones.len(), state.is_in_use(end)), (3, false));
    withdraw(&mut state, &c, end + 30 * SECOND);
    assert_eq!(state.tombstones.len(), 2, "that of `b` has ended");
}

/// A queue in which nobody sends heartbeats ends. Who lines up extends that once half of the time is over.
#[test]
fn a_queue_is_kept_while_waiters_are_alive() {
    let (mut state, [a, b, c, d]) = crowd();
    state.renew(&a, 50 * SECOND, 0, START);
    let end = START + SPANS.tombstone;
    let stands = |state: &Locked, token: &Token, now| {
        let mut state = state.clone();
        state.sweep(now);
        (state.queue.contains(token), state.is_in_use(now))
    };
    assert_eq!([end - 1, end].map(|now| stands(&state, &b, now)), [(true, true), (false, false)]);
    let half = START + SPANS.tombstone / 2;
    let mut at_half = state.clone();
    ask(&mut at_half, &d, 9, half);
    assert_eq!(stands(&at_half, &d, end), (false, false));
    let mut later = state.clone();
    ask(&mut later, &d, 9, half + 1000);
    assert_eq!(stands(&later, &d, end), (true, true));
    // Each heartbeat of a waiter extends it, and none of another token.
    let mut beaten = state.clone();
    beaten.heartbeat(&[d], None, START + SECOND, SPANS);
    assert!(!stands(&beaten, &c, end).0);
    state.heartbeat(std::slice::from_ref(&c), None, START + SECOND, SPANS);
    assert_eq!([end, end + SECOND].map(|now| stands(&state, &c, now).0), [true, false]);
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
    // The next fence is higher than this one. A lower one says nothing.
    let fence = START + 900 * SECOND;
    for fence in [fence, START, fence] {
        assert_eq!(state.renew(&a, 0, fence, now), Some(until + 1000));
    }
    assert_eq!(release(&mut state, &c, now), Was::Waiting);
    state.heartbeat(&[b], None, until, SPANS);
    assert_eq!(state.renew(&a, TTL, 0, until + 1000), None);
    state.heartbeat(&[], None, until + 1000, SPANS);
    assert_eq!(grants(&mut state), [(2, until + 1000 + SPANS.grant, fence + FENCES)]);
}

#[test]
fn a_heartbeat_tells_how_each_waiter_stands() {
    let (mut state, [a, b, c, d]) = crowd();
    let now = START + 6 * SECOND;
    let (soonest, standings) = state.heartbeat(&[a.clone(), c.clone(), d.clone()], None, now, SPANS);
    let held = Standing::Held { expiry: START + TTL, fence: START };
    let [waits, gone] =
        [Standing::Queued { soonest: 0, before: 0 }, Standing::Refused { soonest: 0, before: 0 }];
    assert_eq!((soonest, &standings[..]), (START + TTL, &[held, waits, gone][..]));
    let is_alive = |after| state.queue.is_alive(&c, now + after);
    assert!(is_alive(SPANS.alive - 1) && !is_alive(SPANS.alive));
    // The other one is dead a second later, when the lock is released.
    release(&mut state, &a, now + SECOND);
    assert_eq!(grants(&mut state).iter().map(|(id, ..)| *id).collect::<Vec<_>>(), [3]);

    // After an eviction, who has no place must ask again.
    let (mut state, _) = crowd();
    state.queue.evict();
    assert!(matches!(ask(&mut state, &c, 9, START), Standing::Queued { before: 0, .. }));
    assert_eq!(state.heartbeat(&[b.clone(), c], None, START, SPANS).1, [gone, waits]);
    assert!(!state.queue.contains(&b));
    assert!(matches!(ask(&mut state, &b, 9, START), Standing::Queued { before: 1, .. }));
}

/// An outcome is entered with what it has to know. It ends the lease, and the waiters are told, if there is something to tell.
#[test]
fn an_outcome_ends_the_lease_and_reaches_the_waiters() {
    let told = Arc::from(&b"told"[..]);
    let news = |news| vec![Push { ids: vec![2, 3], news }];
    for (entered, level, pushes) in [
        (Entered::Nothing, 0, vec![]),
        (Entered::Something, 0, news(News::Gone)),
        (Entered::Filled(7), 7, news(News::Gone)),
        (Entered::Told(Arc::clone(&told)), 0, news(News::Told(told))),
    ] {
        let (mut state, [a, b, ..]) = crowd();
        let refused = state.complete(&a, START, |_, _| Err::<Entered, _>("no"));
        assert_eq!((refused, state.holders.held(&a, START).is_some()), (Err("no"), true));
        let enter = |_: &mut _, Completing { is_held, has_waiters }| {
            assert!(is_held && has_waiters);
            Ok::<_, ()>(entered.clone())
        };
        assert_eq!(state.complete(&a, START, enter), Ok((true, level)));
        assert_eq!((state.holders.used(), state.pushes()), (0, pushes.clone()));
        assert_eq!(state.queue.contains(&b), pushes.is_empty());
    }
    let (mut state, [_, _, _, d]) = crowd();
    let of_nobody = state.complete(&d, START, |_, Completing { is_held, .. }| {
        assert!(!is_held);
        Ok::<_, ()>(Entered::Something)
    });
    assert_eq!((of_nobody, state.holders.used()), (Ok((false, 0)), 1));
    let alone = |_: &mut _, Completing { has_waiters, .. }| Err::<Entered, _>(has_waiters);
    assert_eq!(state.complete(&d, START, alone), Err(false));
}

/// A look shows the holders whose leases last, the first one to end at the front, and changes nothing.
#[test]
fn a_look_shows_who_holds_by_the_end() {
    let mut state = KeyState::<PermitHolders>::default();
    let [a, b, d] = [(3, "1/5"), (2, "2/5"), (4, "9/9")].map(|(id, suffix)| permit(id, suffix));
    let c = format!("{}/1/5", token_of(1, 2 * TTL)).into();
    for (token, ttl) in [(&a, TTL), (&b, TTL), (&c, 2 * TTL), (&d, TTL)] {
        ask_of(&mut state, token, Terms::usual(ttl), START);
    }
    let shown = |state: &KeyState<PermitHolders>, now| {
        let (used, waiting, holders) = state.look(now);
        (used, waiting, holders.into_iter().map(|(token, expiry, _)| (token, expiry)).collect::<Vec<_>>())
    };
    let (soon, later) = (START + TTL, START + 2 * TTL);
    let all = vec![(b, soon), (a, soon), (c.clone(), later)];
    assert_eq!(shown(&state, START), (4, 1, all));
    assert_eq!(shown(&state, soon), (1, 1, vec![(c, later)]));
    assert_eq!(shown(&state, later), (0, 0, vec![]));
    assert!(state.is_in_use(later - 1) && !state.is_in_use(later) && !state.is_idle(later));
    assert_eq!(state.look(START).0, 4, "it was not changed");
}

/// An acquire that says what applies to all waiters.
fn tell(
    state: &mut KeyState<PermitHolders>,
    token: &Token,
    terms: Terms,
    (limit, rules): (Option<KeyLimit>, Rules),
    now: i64,
) -> Standing {
    state.acquire(token, terms, Some(&Told { limit, rules: rules.into() }), None, now, SPANS)
}

fn fleet(version: i64, limit: i64) -> Option<KeyLimit> {
    Some(KeyLimit { source: Source::Fleet, version, limit: Some(limit) })
}

/// A class that has waited for too long is not passed by one whose waiters fit. Newest first, one that fits holds at once.
#[test]
fn who_fits_may_hold_before_who_does_not() {
    let usual = Terms::usual(TTL);
    for (wait, holds) in [(SECOND - 1, true), (SECOND, false)] {
        let mut state = KeyState::<PermitHolders>::default();
        let told = || (None, Rules { aging: SECOND, ..Rules::default() });
        tell(&mut state, &permit(1, "2/3"), usual, told(), START);
        tell(&mut state, &permit(2, "3/3"), Terms { rank: 1, ..usual }, told(), START);
        let standing = tell(&mut state, &permit(3, "1/3"), usual, told(), START + wait);
        assert_eq!(matches!(standing, Standing::Held { .. }), holds, "{standing:?}");
        assert_eq!(matches!(standing, Standing::Queued { before: 0, .. }), !holds, "{standing:?}");
    }
    let mut state = KeyState::<PermitHolders>::default();
    let told = || (None, Rules { newest: 1, ..Rules::default() });
    tell(&mut state, &permit(1, "2/3"), usual, told(), START);
    tell(&mut state, &permit(2, "3/3"), usual, told(), START);
    let (now, fits, large) = (START + SECOND, permit(3, "1/3"), permit(4, "2/3"));
    let held = tell(&mut state, &fits, usual, told(), now);
    assert_eq!(held, Standing::Held { expiry: now + SPANS.grant, fence: 0 });
    // Else it is told its place: in the order of arrival, or in that in which they are served.
    let soonest = now + SPANS.grant;
    let placed = Terms { placed: true, ..usual };
    let standing = tell(&mut state.clone(), &large, placed, told(), now);
    assert_eq!(standing, Standing::Queued { soonest, before: 0 });
    assert_eq!(tell(&mut state, &large, usual, told(), now), Standing::Queued { soonest, before: 1 });
}

/// The limit is read at each grant: those who wait follow it, up and down, and what is too heavy for it holds alone.
#[test]
fn a_limit_that_is_changed_applies_to_those_who_wait() {
    let (mut state, usual) = (KeyState::<PermitHolders>::default(), Terms::usual(TTL));
    let told = |version, limit| (fleet(version, limit), Rules::default());
    for id in 1..=4 {
        tell(&mut state, &permit(id, "1/2"), usual, told(1, 2), START);
    }
    tell(&mut state, &permit(5, "3/2"), usual, told(1, 2), START);
    tell(&mut state, &permit(6, "1/2"), usual, told(1, 2), START);
    assert_eq!((state.holders.used(), grants(&mut state).len()), (2, 0));
    // A heartbeat of any waiter raises it.
    state.heartbeat(&[permit(6, "1/2")], fleet(2, 3), START, SPANS);
    assert_eq!((state.holders.used(), grants(&mut state).len()), (3, 1));
    state.heartbeat(&[permit(6, "1/2")], fleet(1, 9), START, SPANS);
    assert_eq!(state.holders.used(), 3, "an older version says nothing");
    state.heartbeat(&[permit(6, "1/2")], fleet(3, 1), START, SPANS);
    for (id, used) in [(1, 2), (2, 1), (3, 1), (4, 3)] {
        release(&mut state, &permit(id, "1/2"), START);
        assert_eq!(state.holders.used(), used, "{id}");
    }
    release(&mut state, &permit(5, "3/2"), START);
    assert_eq!((state.holders.used(), state.queue.has_places()), (1, false));
}

/// By a limit of 0 all are refused, also those who wait.
#[test]
fn a_limit_of_0_refuses_all() {
    let (mut state, usual) = (KeyState::<PermitHolders>::default(), Terms::usual(TTL));
    let told = |version, limit| (fleet(version, limit), Rules::default());
    for id in 1..=3 {
        tell(&mut state, &permit(id, "1/1"), usual, told(1, 1), START);
    }
    let standing = tell(&mut state, &permit(4, "1/1"), usual, told(2, 0), START);
    assert_eq!(standing, Standing::Refused { soonest: 0, before: 0 });
    let refused = |id| Push { ids: vec![id], news: News::Refused(Refusal::Closed) };
    assert_eq!(state.pushes(), [refused(2), refused(3)]);
    release(&mut state, &permit(1, "1/1"), START);
    assert!(state.holders.used() == 0 && state.queue.is_empty());
    let standing = tell(&mut state, &permit(5, "1/0"), usual, told(2, 0), START);
    assert_eq!(standing, Standing::Refused { soonest: 0, before: 0 });
}

/// A full queue takes from its longest line of two or more, for one whose line is empty.
#[test]
fn a_full_queue_takes_from_its_longest_line() {
    let mut state = KeyState::<PermitHolders>::default();
    let terms = Terms { max_waiters: 4, ..Terms::usual(TTL) };
    let mut comes = |id, flow: &str| ask_of(&mut state, &permit(id, &format!("1/1/{flow}")), terms, START);
    assert!(matches!(comes(1, "a.1.."), Standing::Held { .. }));
    for id in 2..=5 {
        assert!(matches!(comes(id, "a.1.."), Standing::Queued { .. }));
    }
    assert!(matches!(comes(6, "a.1.."), Standing::Refused { .. }), "its own line is the longest");
    for (id, flow) in [(7, "b.1.."), (8, "c.1.."), (9, "...")] {
        assert!(matches!(comes(id, flow), Standing::Queued { before: 3, .. }), "{id}");
    }
    for (id, flow) in [(10, "d.1.."), (11, "b.1.."), (12, "...")] {
        assert!(matches!(comes(id, flow), Standing::Refused { .. }), "each has one: {id}");
    }
    let refused = |id| Push { ids: vec![id], news: News::Refused(Refusal::QueueFull) };
    assert_eq!(state.pushes(), [refused(5), refused(4), refused(3)]);
}

/// The places of a process that has not renewed a grant are passed, until its next heartbeat. So they cost one grant.
#[test]
fn a_process_that_lets_a_grant_expire_counts_as_dead() {
    for beats in [false, true] {
        let mut state = KeyState::<PermitHolders>::default();
        for id in 1..=4 {
            ask(&mut state, &permit(id, "1/1"), 9, START);
        }
        let other: Token = "bbbbbbbbbbbbbbbb-5.1c9c380/1/1".into();
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
    }
    // What was renewed, and ends later, says nothing of its process.
    let mut state = KeyState::<PermitHolders>::default();
    for id in 1..=3 {
        ask(&mut state, &permit(id, "1/1"), 9, START);
    }
    release(&mut state, &permit(1, "1/1"), START);
    state.renew(&permit(2, "1/1"), 2 * SECOND, 0, START);
    state.heartbeat(&[], None, START + 2 * SECOND, SPANS);
    assert!(state.holders.held(&permit(3, "1/1"), START).is_some());
}

/// The other waiters of such a process wait behind all others until its next heartbeat, which brings them back, also into a full
/// queue.
#[test]
fn the_other_waiters_of_a_process_that_lets_a_grant_expire_wait_behind() {
    for comes_back in [false, true] {
        let mut state = KeyState::<PermitHolders>::default();
        for id in 1..=4 {
            ask(&mut state, &permit(id, "1/1"), 9, START);
        }
        let others: [Token; 3] =
            [5, 6, 7].map(|id| format!("bbbbbbbbbbbbbbbb-{id}.1c9c380/1/1").as_str().into());
        for other in &others[..2] {
            ask(&mut state, other, 9, START);
        }
        release(&mut state, &permit(1, "1/1"), START);
        let now = START + SPANS.grant;
        state.heartbeat(&others[..2], None, now, SPANS);
        assert!(state.holders.held(&others[0], now).is_some());
        // Those that wait behind leave their room to others.
        assert!(matches!(ask(&mut state, &others[2], 2, now), Standing::Queued { before: 1, .. }));
        if comes_back {
            let standings = state.heartbeat(&[permit(3, "1/1"), permit(4, "1/1")], None, now + 1, SPANS).1;
            assert_eq!(standings, [Standing::Queued { soonest: 0, before: 0 }; 2]);
        }
        let mut served = Vec::new();
        for other in &others {
            release(&mut state, other, now + 2);
            served.push(state.look(now + 2).2.first().map(|(token, ..)| token.clone()));
        }
        let third = comes_back.then(|| permit(3, "1/1"));
        assert_eq!(served, [Some(others[1].clone()), Some(others[2].clone()), third]);
        // Those that never come back are forgotten.
        let later = now + SPANS.alive + SECOND;
        state.heartbeat(&[], None, later, SPANS);
        assert!(state.queue.is_empty());
    }
}
