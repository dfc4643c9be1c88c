//! The effects of messages, crowds and shutdowns.

use super::*;

/// The numbers of the releases.
fn releases(effects: &[Effect<Names>]) -> Vec<u64> {
    let number = |effect: &_| match effect {
        Effect::Release { owed, .. } => *owed,
        _ => None,
    };
    effects.iter().filter_map(number).collect()
}

/// A grant is announced before the reply to the acquire. A later copy of the acquire finds the token queued again,
/// after the server's clock was set back: the grant has ended, although its expiry is in the future.
#[test]
fn a_message_that_came_before_the_answer_grants_nothing() {
    let mut steps = Steps::new();
    let id = steps.one(&in_line(0, 30_000));
    steps.pushed(1, id, GRANTED);
    steps.due(5000);
    assert_eq!(said(&steps.answered(5001, id, QUEUED)), ["subscribe"]);
    assert_eq!(said(&steps.due(5001)), ["heartbeat of 1"]);
}

/// A heartbeat cannot be sent, and its waiter gives up: its place is withdrawn, since it would otherwise be granted a
/// lease.
#[test]
fn who_gives_up_leaves_no_place() {
    let mut steps = Steps::new();
    let id = steps.one(&single(HASTY));
    steps.answered(1, id, QUEUED);
    assert_eq!(said(&steps.due(5000)), ["heartbeat of 1"]);
    assert_eq!(
        steps.unanswered(5001, id, Cause::BreakerOpen),
        ["withdraw", "failed"]
    );
}

/// When a crowd leaves, as many waiters are withdrawn at once as the rules permit, and another one with each reply, or
/// when a release has to be sent again.
#[test]
fn a_crowd_is_withdrawn_in_turns() {
    let mut steps = Steps::new();
    let crowd: Vec<_> = (0..10).map(single).collect();
    let ids: Vec<_> = crowd.iter().map(|waiter| steps.one(waiter)).collect();
    ids.iter()
        .for_each(|id| drop(steps.answered(1, *id, QUEUED)));
    let leaves = crowd.iter().zip(ids);
    let leaves = leaves.flat_map(|(waiter, id)| releases(&steps.leaves(2, waiter, id, false)));
    let sent: Vec<_> = leaves.collect();
    // Withdrawals that are not sent yet are owed too.
    assert_eq!((sent.len(), steps.tokens.owed()), (RULES.releases, 10));

    let next = releases(&steps.released(3, sent[0], Ok(())));
    assert_eq!(next.len(), 1);
    for owed in [sent[1], next[0]] {
        let failed = steps.released(4, owed, Err(away(Cause::NotSent)));
        assert_eq!(releases(&failed).len(), 0);
    }
    let mut sends = |ms| releases(&steps.due(ms)).len();
    // Both are sent again, and two others.
    assert_eq!([103, 104].map(&mut sends), [0, 4]);
    // A server that hangs gets two others every 100 ms, until none is left, and each a second time.
    assert_eq!([204, 304, 404, 504, 2000].map(&mut sends), [4, 4, 3, 1, 0]);
    assert_eq!(steps.tokens.owed(), 9);
}

/// A key of another type refuses a withdrawal, and may be gone when the acquire runs, which has no reply yet.
#[test]
fn a_withdrawal_is_sent_again_while_a_key_of_another_type_refuses_it() {
    for answered in [false, true] {
        let mut steps = Steps::new();
        let waiter = single(0);
        let id = steps.one(&waiter);
        if answered {
            steps.answered(1, id, QUEUED);
        }
        let sent = releases(&steps.leaves(2, &waiter, id, !answered));
        steps.released(3, sent[0], Err(away(Cause::WrongType)));
        assert_eq!(
            releases(&steps.due(103)).len(),
            usize::from(!answered),
            "its queue is gone with the key, if it was in one"
        );
    }
}

/// A crowd whose calls are cut off at a key of another type does not keep the server busy afterwards.
#[test]
fn a_withdrawal_that_is_refused_again_and_again_is_sent_less_and_less_often() {
    let mut steps = Steps::new();
    let waiter = single(0);
    let id = steps.one(&waiter);
    let mut sent = releases(&steps.leaves(0, &waiter, id, true));
    let mut times = Vec::new();
    while let Some(number) = sent.pop() {
        let at = times.last().copied().unwrap_or(0);
        steps.released(at, number, Err(away(Cause::WrongType)));
        let Some(next) = steps.next() else { break };
        sent = releases(&steps.due(next));
        times.push(next);
    }
    assert_eq!(times[..6], [100, 300, 700, 1500, 3100, 6300]);
    assert!((10..=12).contains(&times.len()), "in a minute: {times:?}");
    assert_eq!(steps.tokens.owed(), 0);
}

/// A withdrawal that a key of another type refuses does not delay those of other keys.
#[test]
fn a_key_of_another_type_does_not_hold_up_others() {
    let mut steps = Steps::new();
    let crowd: Vec<_> = (0..9).map(single).collect();
    let leave = |steps: &mut Steps, waiter| {
        let id = steps.one(waiter);
        releases(&steps.leaves(2, waiter, id, true))
    };
    for waiter in &crowd[..RULES.releases + 1] {
        for sent in leave(&mut steps, waiter) {
            steps.released(3, sent, Err(away(Cause::WrongType)));
        }
    }
    let sent: Vec<_> = crowd[4..]
        .iter()
        .map(|waiter| leave(&mut steps, waiter).len())
        .collect();
    assert_eq!(
        sent,
        [1, 1, 0, 0, 0],
        "as many as the rules say are under way"
    );
}

/// A lease that a process has held since the start. With `renew`, a watchdog renews it first after that many ms.
/// Returns its id, and the time until which it is valid.
fn holds(steps: &mut Steps, twice: bool, renew: Option<u64>) -> (u64, Instant) {
    let waiter = of(0, |options| options.watchdog = renew.is_some());
    let grant = grant(
        steps.tokens.party.token(&waiter),
        steps.began,
        ms(29_000),
        twice,
    );
    let (id, ends) = (grant.id, grant.validity.until());
    let lease = steps.tokens.party.lease(&waiter, grant.clone());
    let (options, renew) = (waiter.holding, renew.map(|renew| steps.began + ms(renew)));
    steps.step(
        0,
        Event::Holds {
            grant,
            lease,
            options,
            renew,
        },
    );
    (id, ends)
}

/// The acquire of a caller that does not wait was sent twice: one copy may run after the release.
#[test]
fn a_lease_whose_acquire_was_sent_twice_is_withdrawn() {
    for (twice, release) in [(true, "withdraw"), (false, "release")] {
        let mut steps = Steps::new();
        holds(&mut steps, twice, None);
        let effects = steps.step(2, Event::Signal(Signal::ShutDown));
        assert_eq!(said(&effects), ["lost", release]);
    }
}

/// A message that a lease is gone may be forged, or late. The store is queried at once, and only its reply ends the
/// lease.
#[test]
fn a_message_ends_no_lease_that_is_held() {
    let mut steps = Steps::new();
    let (id, ends) = holds(&mut steps, false, Some(10_000));
    assert!(steps.pushed(5, id, PushEvent::Gone).is_empty());
    assert_eq!(said(&steps.due(5)), ["renew"]);
    // The renewal may have run before the message was sent. However many messages arrive, one more renewal follows.
    for _ in 0..3 {
        assert!(steps.pushed(6, id, PushEvent::Gone).is_empty());
    }
    assert!(steps.due(6).is_empty());
    let (sent, until) = (steps.at(5).at, ends + ms(5));
    let renewed = Renewed::Valid { sent, until };
    assert_eq!(steps.renewal(7, id, renewed, true), ["valid"]);
    assert_eq!(said(&steps.due(7)), ["renew"]);
    assert_eq!(steps.renewal(8, id, renewed, true), ["valid"]);
    assert!(steps.due(5000).is_empty());
    assert_eq!(said(&steps.due(10_008)), ["renew"], "as planned");
    // The server replies that the lease is gone.
    assert_eq!(steps.renewal(10_009, id, Renewed::Gone, true), ["lost"]);
}

/// A message does not extend a lease that no watchdog renews. In an outage, the look-up is repeated at the pace of
/// renewals.
#[test]
fn a_message_extends_no_lease_without_a_watchdog() {
    let mut steps = Steps::new();
    let (id, ends) = holds(&mut steps, false, None);
    assert!(steps.due(10_000).is_empty());
    steps.pushed(10_000, id, PushEvent::Gone);
    assert_eq!(said(&steps.due(10_000)), ["ask"]);
    steps.renewal(10_500, id, Renewed::Unknown, true);
    assert!(steps.due(10_500).is_empty());
    assert_eq!(said(&steps.due(13_000)), ["ask"]);
    let sent = steps.at(13_000).at;
    steps.renewal(13_001, id, Renewed::Valid { sent, until: ends }, true);
    assert!(steps.due(28_000).is_empty());
}
