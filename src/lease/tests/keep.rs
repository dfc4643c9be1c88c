//! How a process renews a lease, hands it on, and releases it.

use super::*;

/// A lease of `left` ms with the fence 7, and the id of its token. Its holder receives it at 1 ms. The others are in
/// the line behind it, and their leases have these ttls.
fn handed(left: i64, line: &[u64]) -> (Steps, u64) {
    let mut steps = Steps::new();
    let first = in_line(0, 30_000);
    let id = steps.one(&first);
    for (number, ttl) in (1..).zip(line) {
        assert!(steps.comes(&in_line(number, *ttl)).is_empty());
    }
    let (sent, answer) = (
        steps.at(0),
        Answer::acquired(SERVER, held(left), None, false),
    );
    let effects = steps.step(
        1,
        Event::Answered {
            id,
            sent,
            answer,
            polled: Some(first),
        },
    );
    assert_eq!(said(&effects), ["give 7"]);
    (steps, id)
}

impl Steps {
    /// A holder releases its lease.
    fn ends(&mut self, at: u64, id: u64, fence: i64) -> Vec<String> {
        said(&self.step(
            at,
            Event::Ends {
                release: release(1000),
                id,
                fence,
                detached: false,
            },
        ))
    }

    /// The reply to a renewal that was sent at this time arrives a ms later.
    fn renewed(
        &mut self,
        sent: u64,
        id: u64,
        renewed: Option<Renewed>,
        scheduled: bool,
    ) -> Vec<String> {
        let (at, until) = (self.at(sent).at, self.at(sent + 29_698).at);
        let renewed = renewed.unwrap_or(Renewed::Valid { sent: at, until });
        self.renewal(sent + 1, id, renewed, scheduled)
    }
}

/// After a third of its time, and a little earlier, so that renewals that are due at about the same time run together.
#[test]
fn leases_are_renewed_after_a_third_of_their_time() {
    let steps = Steps::new();
    let due = |at, left: u64, watchdog| {
        let grant = grant((1, "token".into()), steps.at(at).at, ms(left), false);
        let waiter = of(0, |options| options.watchdog = watchdog);
        let due = waiter
            .holding
            .options
            .first_renewal(steps.began, &grant.validity, grant.at)?;
        Some((due - steps.began).as_millis())
    };
    for (at, left, renewed) in [
        (0, 30_000, 10_000),
        (1000, 30_000, 10_000),
        (1249, 30_000, 10_000),
        (1250, 30_000, 11_250),
        (0, 3000, 1000),
        (700, 3000, 1500),
        (999, 3000, 1500),
    ] {
        let due = [true, false].map(|watchdog| due(at, left, watchdog));
        assert_eq!(due, [Some(renewed), None], "{at}");
    }
}

#[test]
fn a_lease_is_handed_on_with_rising_fences() {
    let (mut steps, id) = handed(30_000, &[30_000; 3]);
    assert_eq!(steps.next(), Some(8750));
    assert_eq!(steps.ends(2, id, 7), ["give 8"]);
    assert_eq!(steps.ends(2, id, 7), [""; 0], "it has another holder");
    assert_eq!(
        steps.next(),
        Some(1002),
        "it is to be accepted within a second"
    );
    steps.step(2, Event::Accepted { id, fence: 7 });
    assert_eq!(steps.next(), Some(1002));
    steps.step(2, Event::Accepted { id, fence: 8 });
    assert_eq!(steps.next(), Some(252), "and is renewed soon");
    // A waiter that does not accept it is skipped.
    assert_eq!(steps.ends(2, id, 8), ["give 9"]);
    let early = steps.at(1001).at;
    steps.tokens.make_due(early);
    steps.sends(1001, &[], Some(1002));
    assert_eq!(said(&steps.due(1002)), ["taken back", "give 10"]);
    steps.sends(2002, &["taken back", "release"], Some(2102));
}

/// The line acquires again if the turn of its process is over, or the lease does not match the next waiter.
#[test]
fn what_is_not_handed_on_is_released() {
    for (left, ttl, at, effects) in [
        (765, 30_000, 2, &["give 8"][..]),
        (755, 30_000, 2, &["release", "acquire"][..]), // half of the shortest grant is not left
        (765, 30_000, 800, &["release", "acquire"][..]),
        (30_000, 29_000, 2, &["release", "acquire"][..]),
        (30_000, 30_000, 3, &["release", "acquire"][..]),
    ] {
        let (mut steps, id) = handed(left, &[ttl]);
        assert_eq!(steps.ends(at, id, 7), effects, "{left} {ttl} {at}");
    }
    // There is no waiter. The reply to the release is awaited by its caller, or the release is owed.
    for (detached, renews, owed) in [(false, false, 0), (true, false, 1), (false, true, 1)] {
        let (mut steps, id) = handed(30_000, &[]);
        let release = Release {
            renews,
            ..release(1000)
        };
        let effects = steps.step(
            2,
            Event::Ends {
                release,
                id,
                fence: 7,
                detached,
            },
        );
        assert_eq!(
            (said(&effects), steps.tokens.owed()),
            (vec!["release".into()], owed)
        );
    }
    // It is left to others: the waiters of this process wait for another one.
    let (mut steps, id) = handed(30_000, &[30_000]);
    let release = Release {
        renews: true,
        ..release(1000)
    };
    let effects = steps.step(
        2,
        Event::Ends {
            release,
            id,
            fence: 7,
            detached: true,
        },
    );
    assert_eq!(said(&effects), ["release", "acquire"]);
    let (mut steps, id) = handed(30_000, &[30_000]);
    assert!(steps.step(2, Event::Forgotten { id, fence: 6 }).is_empty());
    assert_eq!(
        said(&steps.step(2, Event::Forgotten { id, fence: 7 })),
        ["acquire"]
    );
}

/// The first waiter has left. The next one needs a lease of another ttl.
#[test]
fn a_grant_that_suits_nobody_is_released() {
    let mut steps = Steps::new();
    let one = in_line(0, 30_000);
    let id = steps.one(&one);
    steps.comes(&in_line(1, 29_000));
    steps.leaves(1, &one, id, false);
    let effects = steps.answered(2, id, held(30_000));
    let [Effect::Release { release, .. }, Effect::Acquire { .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    // For as long as the lease lasts, and a waiter counts as alive.
    let left = ms(29_697 + 7000);
    assert!(
        !release.withdrawn && release.left <= left && left - release.left < ms(2),
        "{release:?}"
    );
}

#[test]
fn a_grant_that_comes_too_late_is_given_to_nobody() {
    let late = |waiter, is_queued: bool| {
        let mut steps = Steps::new();
        let id = steps.one(&waiter);
        if !is_queued {
            return said(&steps.answered(9, id, held(2)));
        }
        steps.answered(1, id, QUEUED);
        steps.stands(9, id, held(2))
    };
    assert_eq!(late(single(0), false), ["failed", "release"]);
    assert_eq!(late(single(0), true), ["again", "release"]);
    for is_queued in [false, true] {
        assert_eq!(late(in_line(0, 30_000), is_queued), ["release", "acquire"]);
    }
}

/// A grant lasts for a short time, and is renewed for any holder. A lease that was acquired without waiting is not
/// renewed without a watchdog.
#[test]
fn a_grant_is_renewed_also_without_a_watchdog() {
    let waiter = of(0, |options| options.watchdog = false);
    let mut steps = Steps::new();
    let id = steps.one(&waiter);
    steps.answered(1, id, QUEUED);
    steps.stands(3, id, held(1500));
    steps.step(4, Event::Accepted { id, fence: 7 });
    assert!(matches!(steps.next(), Some(450..500)), "{:?}", steps.next());
    let mut steps = Steps::new();
    let id = steps.one(&waiter);
    steps.answered(1, id, held(1500));
    steps.step(4, Event::Accepted { id, fence: 7 });
    assert_eq!(steps.next(), None);
}

#[test]
fn a_renewal_that_failed_is_sent_again_until_the_lease_ends() {
    let (mut steps, id) = handed(30_000, &[30_000]);
    let early = steps.at(500).at;
    steps.tokens.make_due(early);
    steps.sends(500, &[], Some(8750));
    assert_eq!(said(&steps.due(8750)), ["renew"]);
    let until = steps.next().unwrap();
    assert!(
        (29_690..29_700).contains(&until),
        "{until}: a line waits no longer than that"
    );
    assert_eq!(
        steps.renewed(8799, id, Some(Renewed::Unknown), true),
        [""; 0]
    );
    assert_eq!(steps.next(), Some(11_300), "after a twelfth of the ttl");
    assert_eq!(said(&steps.due(11_300)), ["renew"]);
    assert_eq!(said(&steps.due(until - 1)), [""; 0]);
    steps.sends(until + 1, &["lost", "acquire"], None);

    // The holder alone may keep it after its end: the store may reply that it is held.
    let (mut steps, id) = handed(30_000, &[]);
    steps.sends(8750, &["renew"], None);
    assert_eq!(
        steps.renewed(until, id, Some(Renewed::Unknown), true),
        [""; 0]
    );
    assert_eq!(steps.next(), None);
    for (ttl, pause) in [(1200, 100), (120, 20)] {
        let mut steps = Steps::new();
        let id = steps.one(&of(0, |options| options.ttl = ms(ttl)));
        steps.answered(1, id, held(ttl as i64));
        assert_eq!(
            steps.next(),
            Some(1 + ttl / 2),
            "it is to be accepted within half of its ttl"
        );
        steps.step(2, Event::Accepted { id, fence: 7 });
        let due = steps.next().unwrap();
        assert_eq!(said(&steps.due(due)), ["renew"]);
        steps.renewed(due, id, Some(Renewed::Unknown), true);
        assert_eq!(steps.next(), Some(due + 1 + pause));
    }
}

#[test]
fn the_answer_to_a_renewal_says_until_when_the_lease_lasts() {
    let (mut steps, id) = handed(30_000, &[]);
    // The holder renews it itself: the next renewal is as planned.
    assert_eq!(
        (steps.renewed(100, id, None, false), steps.next()),
        (vec!["valid".into()], Some(8750))
    );
    assert_eq!(said(&steps.due(8750)), ["renew"]);
    assert_eq!(
        (steps.renewed(8760, id, None, false), steps.next()),
        (vec!["valid".into()], None)
    );
    assert_eq!(
        (steps.renewed(8799, id, None, true), steps.next()),
        (vec!["valid".into()], Some(18_750))
    );
    assert_eq!(
        steps.renewed(18_750, id, Some(Renewed::Gone), true),
        ["lost"]
    );

    // The reply arrives after the end: the lease is released.
    let (mut steps, id) = handed(30_000, &[30_000]);
    assert_eq!(
        steps.renewed(29_700, id, None, true),
        ["lost", "release", "acquire"]
    );
    let (mut steps, id) = handed(30_000, &[30_000]);
    assert_eq!(
        steps.renewed(100, id, Some(Renewed::Gone), false),
        ["lost", "acquire"]
    );
}

/// A message that arrived while a renewal was in flight is verified by the next attempt, if that renewal fails.
#[test]
fn a_message_is_answered_by_the_next_renewal() {
    let (mut steps, id) = handed(30_000, &[]);
    assert_eq!(said(&steps.due(8750)), ["renew"]);
    steps.pushed(8751, id, PushEvent::Gone);
    steps.renewed(8752, id, Some(Renewed::Unknown), true);
    assert_eq!(steps.next(), Some(8753 + 2500));
    assert_eq!(said(&steps.due(11_253)), ["renew"]);
    assert_eq!(
        (steps.renewed(11_260, id, None, true), steps.next()),
        (vec!["valid".into()], Some(21_250))
    );
}
