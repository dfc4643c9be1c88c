//! When a process sends calls, and which.

use super::*;

/// In time to keep its place, when the next lease ends, and at once if messages may have been missed.
#[test]
fn a_waiter_sends_its_heartbeat_in_time() {
    let usual = single(0);
    let foreign = of(0, |options| options.foreign = true);
    let rare = of(0, |options| {
        (options.ask_every, options.foreign) = (ms(9000), true)
    });
    for (waiter, sent, now, soonest, due) in [
        (&usual, UP, UP, 0, 2000),
        (&usual, UP, UP, SERVER + 500_000, 502),
        (&usual, UP, UP, SERVER + 1000, 3), // it was sent 1 ms ago
        (&usual, UP, UP, SERVER - 1, 3),
        (&usual, UP, UP, SERVER + 9_000_000, 2000),
        (&usual, UP, Link::Up(2), SERVER + 500_000, 1),
        (&usual, Link::Down, UP, 0, 1),
        (&usual, Link::Down, Link::Down, SERVER + 500_000, 50),
        (&foreign, UP, UP, 0, 50),
        (&rare, UP, UP, 0, 2000),
    ] {
        let mut steps = Steps::new();
        let id = steps.one(waiter);
        // The longest call, and the longest grant.
        assert_eq!(steps.next(), Some(3500 + 1500));
        let standing = Position::Queued { soonest, before: 0 };
        let answer = Answer::acquired(SERVER, standing, None, false);
        let (sent, now) = (steps.linked(0, sent), steps.linked(1, now));
        let effects = steps.tokens.step(
            Event::Answered {
                id,
                sent,
                answer,
                polled: None,
            },
            now,
        );
        assert_eq!(said(&effects), ["subscribe"]);
        assert_eq!(steps.next(), Some(due), "{soonest}");
        assert!(steps.due(due - 1).is_empty());
        steps.sends(due, &["heartbeat of 1"], None);
    }
}

/// Waiters that arrive at different times send their heartbeats together, so that a hundred of them cost no more than
/// one.
#[test]
fn heartbeats_of_many_waiters_go_together() {
    let mut steps = Steps::new();
    for number in 0..100 {
        let at = 17 * number;
        let id = acquire(&steps.arrives(at, &single(number)));
        steps.answered(at + 1, id, QUEUED);
    }
    let (mut calls, mut beats) = (0, 0);
    while let Some(due) = steps.next().filter(|due| *due <= 60_000) {
        for effect in steps.due(due) {
            let Effect::Heartbeat { waiters, .. } = effect else {
                panic!("{effect:?}")
            };
            calls += 1;
            beats += waiters.len();
            let each = waiters.iter().map(|(id, _)| (*id, QUEUED)).collect();
            let (sent, now) = (steps.at(due), SERVER);
            steps.step(
                due + 1,
                Event::Positions {
                    sent,
                    now,
                    soonest: 0,
                    each,
                },
            );
        }
    }
    assert!(
        beats >= 100 * 28,
        "{beats} heartbeats of 100 waiters in a minute"
    );
    assert!(calls <= 62, "{calls} calls in a minute");
}

/// A failed heartbeat is sent again soon, and its waiters report an outage until the next one must have ended.
#[test]
fn a_heartbeat_that_failed_is_sent_again() {
    let mut steps = Steps::new();
    let id = steps.one(&single(0));
    steps.unanswered(0, id, Cause::TimedOut);
    assert_eq!(
        steps.next_in_outage(0),
        (Some(5000), false),
        "it has sent none"
    );
    steps.answered(1, id, QUEUED);
    steps.due(2001);
    steps.unanswered(2100, id, Cause::WrongType);
    assert_eq!(steps.next_in_outage(2100), (Some(2150), false));
    steps.due(2150);
    steps.unanswered(2200, id, Cause::TimedOut);
    steps.unanswered(2240, id, Cause::TimedOut);
    assert_eq!(steps.next(), Some(2250));
    assert_eq!(
        [7699, 7700].map(|ms| steps.next_in_outage(ms).1),
        [true, false]
    );
    steps.due(2250);
    steps.stands(2252, id, QUEUED);
    assert_eq!(steps.next_in_outage(2252), (Some(4000), false));
    // Once messages arrive again, or may have been missed, all waiters send heartbeats.
    for (link, due) in [(Link::Down, 2350), (UP, 2300)] {
        let now = steps.linked(2300, link);
        steps.tokens.step(Event::Signal(Signal::Relinked), now);
        assert_eq!(steps.next(), Some(due));
    }
}

/// Outages are forgotten once they are out of date, including those of other keys.
#[test]
fn outages_are_forgotten() {
    let [old, fresh] = ["old", "fresh"].map(Key::from);
    let mut forgotten = 0;
    // The order of keys is random.
    for _ in 0..100 {
        let mut steps = Steps::new();
        for (key, at) in [(&old, 100), (&fresh, 3000)] {
            let (key, waiter) = (key.clone(), single(at));
            let id = acquire(&steps.step(0, Event::Arrives { key, waiter }));
            steps.answered(1, id, QUEUED);
            steps.due(2001);
            steps.unanswered(at, id, Cause::TimedOut);
            // Another call got a reply.
            steps.tokens.is_back(&"other".into(), steps.at(5599).at);
        }
        assert!(steps.outage(&old, 200) && steps.outage(&fresh, 3001));
        steps.tokens.is_back(&"other".into(), steps.at(5600).at);
        forgotten += usize::from(!steps.outage(&old, 200));
        assert!(steps.outage(&fresh, 3001));
        steps.tokens.is_back(&fresh, steps.at(5600).at);
        assert!(!steps.outage(&fresh, 3001) && !steps.outage(&old, 200));
    }
    assert!(forgotten > 0, "never while another one lasts");
}

/// A release without a reply, of a lease that lasts for `left` ms.
fn owed(left: u64, renews: bool) -> Steps {
    let mut steps = Steps::new();
    let release = Release {
        renews,
        ..release(left)
    };
    let effects = steps.step(0, Event::Releases(release));
    assert!(
        matches!(effects[..], [Effect::Release { owed: Some(0), .. }]),
        "{effects:?}"
    );
    steps
}

/// Returns all due times until there are none, and whether a release is sent at each.
fn dues(steps: &mut Steps) -> Vec<(u64, bool)> {
    let next = || {
        let at = steps.next()?;
        Some((at, !steps.due(at).is_empty()))
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn a_release_is_sent_again_for_as_long_as_it_matters() {
    // The background sends it once, and waits for it, each time twice as long, until the end.
    let once = [100, 300, 700, 1500, 2500, 3500].map(|at| (at, at == 100));
    for (left, renews, count) in [
        (100, false, 1),
        (101, false, 2),
        (300, false, 2),
        (3500, false, 6),
        (60_000, false, 63),
        (99_000, false, 63),
        (99_000, true, 102),
    ] {
        let mut steps = owed(left, renews);
        let mut dues = dues(&mut steps);
        assert_eq!((dues.len(), steps.tokens.owed()), (count, 0), "{left}");
        let (end, sends) = dues.pop().unwrap();
        assert!(end >= left.min(60_000) && !sends, "{left}: {end}");
        dues.truncate(6);
        assert_eq!(dues, once[..dues.len()], "{left}");
    }
    // Also if the background had it from the start.
    let mut steps = owed(1000, false);
    steps.tokens.is_in_background(0);
    assert_eq!(
        dues(&mut steps),
        [100, 300, 700, 1500].map(|at| (at, false))
    );
}

#[test]
fn a_release_that_failed_is_sent_again() {
    let answer = |steps: &mut Steps, ms, owed, result| {
        steps.released(ms, owed, result);
        (steps.next(), steps.tokens.owed())
    };
    for (cause, again) in [
        (Cause::TimedOut, true),
        (Cause::Denied, false),
        (Cause::WrongType, false),
    ] {
        let owes = answer(&mut owed(1000, false), 50, 0, Err(away(cause)));
        assert_eq!(
            owes,
            if again { (Some(150), 1) } else { (None, 0) },
            "{cause:?}"
        );
    }
    for (at, owes) in [(299, (Some(399), 1)), (300, (None, 0))] {
        let mut steps = owed(300, false);
        assert_eq!(
            answer(&mut steps, at, 0, Err(away(Cause::TimedOut))),
            owes,
            "{at}"
        );
    }
    let mut steps = owed(9000, false);
    assert_eq!(said(&steps.due(100)), ["release"]);
    assert_eq!(
        answer(&mut steps, 101, 0, Ok(())),
        (Some(300), 1),
        "the last attempt counts"
    );
    assert_eq!(
        answer(&mut steps, 150, 1, Err(away(Cause::TimedOut))),
        (Some(350), 1)
    );
    // It is sent once more, even by a process that is about to end.
    assert!(steps.step(160, Event::Signal(Signal::Hurry)).is_empty());
    assert_eq!(steps.next(), Some(160));
    assert_eq!(said(&steps.due(160)), ["release"]);
    assert_eq!(answer(&mut steps, 161, 2, Ok(())), (None, 0));
    // In memory nothing fails.
    let mut steps = Steps::with(Rules {
        is_remote: false,
        ..RULES
    });
    let effects = steps.step(0, Event::Releases(release(1000)));
    assert!(
        matches!(effects[..], [Effect::Release { owed: None, .. }]),
        "{effects:?}"
    );
    steps.one(&single(0));
    assert_eq!((steps.next(), steps.tokens.owed()), (None, 0));
}

/// A line acquires again until its waiters are served, unless no call can follow, or the store was available.
#[test]
fn a_line_acquires_again_after_an_outage() {
    let mut steps = Steps::new();
    let id = steps.one(&in_line(0, 30_000));
    assert_eq!(steps.next(), Some(5000));
    assert!(steps.arrives(10, &in_line(1, 30_000)).is_empty());
    assert_eq!(
        steps.next(),
        Some(510),
        "the first future may not be polled"
    );
    steps.arrives(400, &in_line(2, 30_000));
    assert_eq!(steps.next(), Some(510));
    steps.sends(510, &["acquire"], None);
    assert_eq!(steps.failed(600, id, Cause::TimedOut, false), [""; 0]);
    assert_eq!(steps.next_in_outage(600), (Some(650), true));
    assert_eq!(said(&steps.due(650)), ["acquire"]);
    let effects = steps.failed(700, id, Cause::Ended, true);
    assert_eq!(effects, ["withdraw", "failed", "failed", "failed"]);

    // An acquire that was certainly not sent need not be withdrawn.
    for (cause, release) in [(Cause::NotSent, "release"), (Cause::TimedOut, "withdraw")] {
        let mut steps = Steps::new();
        let id = steps.one(&in_line(0, 30_000));
        steps.answered(1, id, QUEUED);
        let gone = Event::Pushed {
            id,
            news: PushEvent::Gone,
        };
        let id = acquire(&steps.step(2, gone));
        steps.failed(3, id, cause, false);
        assert_eq!(said(&steps.due(53)), ["acquire"]);
        steps.answered(54, id, held(30_000));
        let effects = steps.step(55, Event::Lost { id, fence: 7 });
        assert_eq!(said(&effects), ["lost", release], "{cause:?}");
    }
    // A single waiter acquires again by itself.
    for (cause, effects) in [
        (Cause::NotSent, &["failed"][..]),
        (Cause::TimedOut, &["withdraw", "failed"][..]),
    ] {
        let mut steps = Steps::new();
        let id = steps.one(&single(0));
        assert_eq!(steps.failed(1, id, cause, false), effects, "{cause:?}");
    }
    // It must do so if its future was not polled in time.
    let mut steps = Steps::new();
    steps.one(&single(0));
    assert_eq!(said(&steps.due(5000)), ["withdraw", "again"]);
}

#[test]
fn a_waiter_is_told_how_it_stands() {
    let queued = |rules: Rules| {
        let mut steps = Steps::with(rules);
        let id = steps.one(&single(0));
        steps.answered(1, id, QUEUED);
        (steps, id)
    };
    let refused = Position::Refused {
        soonest: 0,
        before: 0,
    };
    let (mut steps, id) = queued(RULES);
    assert_eq!(steps.stands(3, id, QUEUED), [""; 0]);
    assert_eq!(steps.stands(3, id, refused), ["again"]);
    let (mut steps, id) = queued(RULES);
    assert_eq!(steps.stands(3, id, held(1000)), ["give 7"]);
    let (mut steps, id) = queued(RULES);
    assert_eq!(steps.pushed(3, id, GRANTED), ["give 7"]);
    // A pushed grant does not show whether replicas have received it, so a heartbeat is sent.
    let (mut steps, id) = queued(Rules {
        is_durable: true,
        ..RULES
    });
    assert!(steps.pushed(3, id, GRANTED).is_empty());
    assert_eq!(said(&steps.due(3)), ["heartbeat of 1"]);
    // The message with an outcome may arrive a little later than the reply that the place is gone.
    let has_outcomes = Rules {
        has_outcomes: true,
        ..RULES
    };
    for found in [false, true] {
        let (mut steps, id) = queued(has_outcomes);
        assert_eq!(steps.stands(3, id, refused), [""; 0]);
        assert_eq!(steps.next(), Some(23));
        assert_eq!(steps.stands(3, id, held(1000)), [""; 0], "that is older");
        assert!(steps.pushed(4, id, GRANTED).is_empty());
        if found {
            assert_eq!(steps.pushed(5, id, PushEvent::Found(())), ["found"]);
        } else {
            assert_eq!(said(&steps.due(23)), ["again"]);
        }
    }
    let mut steps = Steps::new();
    let id = steps.one(&single(0));
    let refused = Position::Refused {
        soonest: SERVER + 500,
        before: 3,
    };
    assert_eq!(said(&steps.answered(1, id, refused)), ["refused 500 3"]);
}
