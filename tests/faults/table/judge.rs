//! The judges themselves: they find what is wrong in forged histories.

use super::history::{Event, History, Primitive, Record};
use super::linearizable;
use super::verdict::Row;
use super::worker::{ALONE, BURST, PERMITS, TTL, oldest};

/// The history of tasks that do one thing after the other: at, task, event.
fn history(primitive: Primitive, events: &[(u64, u32, Event)]) -> History {
    let mut history = History::default();
    let record = |(at, task, event): &(u64, u32, Event)| {
        let (at, task, key, event) = (*at, *task, "k".to_owned(), event.clone());
        Record { at, task, primitive, key, event }
    };
    history.add(&events.iter().map(record).collect::<Vec<_>>());
    history
}

fn is_linearizable(primitive: Primitive, events: &[(u64, u32, Event)]) -> bool {
    let history = history(primitive, events);
    let (operations, holds) = history.keys(primitive).remove("k").unwrap();
    linearizable::check(primitive, &operations, &holds)
}

fn row(primitive: Primitive, events: &[(u64, u32, Event)]) -> Row {
    Row::of(primitive, &history(primitive, events))
}

fn unordered(row: &Row) -> usize {
    row.unordered.as_ref().unwrap().len()
}

/// A lease of a task: asked for, granted, held for the last time, and released.
fn lease(task: u32, share: u32, fence: u64, at: [u64; 4]) -> Vec<(u64, u32, Event)> {
    let [asked, granted, held, released] = at;
    vec![
        (asked, task, Event::Acquire(share)),
        (granted, task, Event::Granted(fence)),
        (granted + 1, task, Event::Held),
        (held, task, Event::Held),
        (held + 1, task, Event::Release),
        (released, task, Event::Released(true)),
    ]
}

fn sorted(leases: &[Vec<(u64, u32, Event)>]) -> Vec<(u64, u32, Event)> {
    let mut events = leases.concat();
    events.sort_by_key(|(at, _, _)| *at);
    events
}

fn refusal(task: u32, call: u64, end: u64) -> Vec<(u64, u32, Event)> {
    vec![(call, task, Event::Acquire(ALONE)), (end, task, Event::Refused)]
}

fn takes(remaining: &[Option<u32>]) -> Vec<(u64, u32, Event)> {
    let take = |(at, remaining): (u64, &Option<u32>)| {
        let answer = if remaining.is_some() { Event::Admitted(*remaining) } else { Event::Refused };
        [(10 * at, 0, Event::Ask), (10 * at + 5, 0, answer)]
    };
    (0..).zip(remaining).flat_map(take).collect()
}

#[test]
fn one_after_the_other_is_linearizable() {
    let mutex = sorted(&[lease(0, ALONE, 7, [0, 10, 20, 30]), lease(1, ALONE, 8, [5, 22, 40, 50])]);
    assert!(is_linearizable(Primitive::Mutex, &mutex));
    assert_eq!(row(Primitive::Mutex, &mutex).double, 0);
    let full: Vec<_> = (0..BURST).rev().map(Some).chain([None]).collect();
    assert!(is_linearizable(Primitive::TokenBucket, &takes(&full)));
}

#[test]
fn a_second_holder_is_found() {
    // The first one still believes in its lease at 40.
    let late = sorted(&[lease(0, ALONE, 7, [0, 10, 40, 50]), lease(1, ALONE, 8, [5, 22, 60, 70])]);
    let found = row(Primitive::Mutex, &late);
    assert_eq!((found.double, found.caught, unordered(&found)), (1, Some(1), 1));
    // A token that does not rise tells nothing, unless both calls were under way at the same time: then the second one
    // may have been granted first.
    for (fence, call, caught) in [(6, 15, 0), (7, 15, 0), (7, 5, 0), (6, 5, 1)] {
        let stale =
            sorted(&[lease(0, ALONE, 7, [0, 10, 40, 50]), lease(1, ALONE, fence, [call, 22, 60, 70])]);
        let found = row(Primitive::Mutex, &stale);
        assert_eq!((found.double, found.caught, found.unfenced), (1, Some(caught), 1 - caught));
    }
    // A reader beside a writer, and more permits than there are.
    let reader = sorted(&[lease(0, ALONE, 7, [0, 10, 40, 50]), lease(1, 1, 7, [5, 22, 60, 70])]);
    assert_eq!(unordered(&row(Primitive::RwLock, &reader)), 1);
    let permits: Vec<_> = (0..=PERMITS).map(|task| lease(task, 1, 0, [0, 10, 40, 50])).collect();
    let found = row(Primitive::WaitGroup, &sorted(&permits));
    assert_eq!((found.double, unordered(&found)), (1, 1));
    assert_eq!(row(Primitive::WaitGroup, &sorted(&permits[1..])).double, 0);
}

#[test]
fn readers_share() {
    let readers = sorted(&[lease(0, 1, 7, [0, 10, 40, 50]), lease(1, 1, 7, [5, 22, 60, 70])]);
    let found = row(Primitive::RwLock, &readers);
    assert_eq!((found.double, unordered(&found)), (0, 0));
}

#[test]
fn a_token_that_does_not_rise_is_found() {
    for fence in [6, 7] {
        let events = sorted(&[lease(0, ALONE, 7, [0, 10, 20, 30]), lease(1, ALONE, fence, [40, 50, 60, 70])]);
        assert!(!is_linearizable(Primitive::Mutex, &events), "{fence}");
    }
}

#[test]
fn a_refusal_needs_a_holder() {
    let held = lease(0, ALONE, 7, [0, 10, 40, 50]);
    assert!(is_linearizable(Primitive::Mutex, &sorted(&[held.clone(), refusal(1, 20, 30)])));
    assert!(is_linearizable(Primitive::Mutex, &sorted(&[held.clone(), refusal(1, 45, 60)])));
    assert!(!is_linearizable(Primitive::Mutex, &sorted(&[held.clone(), refusal(1, 60, 70)])));
    // The call of another one has failed: it may have been granted.
    let failed = vec![(55, 2, Event::Acquire(ALONE)), (58, 2, Event::Failed("reset".to_owned()))];
    assert!(is_linearizable(Primitive::Mutex, &sorted(&[held, failed, refusal(1, 60, 70)])));
}

#[test]
fn a_lease_of_a_killed_holder_may_end_at_any_time() {
    let killed = lease(0, ALONE, 7, [0, 10, 40, 50])[..4].to_vec();
    let next = lease(1, ALONE, 8, [5, 60, 70, 80]);
    assert!(is_linearizable(Primitive::Mutex, &sorted(&[killed.clone(), refusal(2, 45, 50), next])));
    let early = lease(1, ALONE, 8, [5, 30, 70, 80]);
    assert!(!is_linearizable(Primitive::Mutex, &sorted(&[killed, early])));
}

#[test]
fn tokens_that_are_given_out_twice_are_found() {
    let twice: Vec<_> = (0..BURST).rev().map(Some).chain([Some(0)]).collect();
    let found = row(Primitive::TokenBucket, &takes(&twice));
    assert_eq!((found.double, unordered(&found)), (1, 1));
    assert!(!is_linearizable(Primitive::TokenBucket, &takes(&[Some(BURST - 1), Some(BURST - 1)])));
    assert!(!is_linearizable(Primitive::TokenBucket, &takes(&[None])), "it is full");
    // A token may be gone with a call whose answer was lost, and not more than one.
    let mut lost = takes(&[Some(BURST - 1), None, Some(BURST - 3)]);
    lost[3].2 = Event::Failed("reset".to_owned());
    assert!(is_linearizable(Primitive::TokenBucket, &lost));
    lost[5].2 = Event::Admitted(Some(BURST - 4));
    assert!(!is_linearizable(Primitive::TokenBucket, &lost));
}

#[test]
fn an_item_that_is_handled_twice_is_found() {
    let claim = |task, fence, at| {
        let mut claim = lease(task, ALONE, fence, at);
        claim[4].2 = Event::Confirm;
        claim
    };
    let again = sorted(&[claim(0, 7, [0, 10, 20, 30]), claim(1, 8, [40, 50, 60, 70])]);
    let found = row(Primitive::Dedupe, &again);
    assert_eq!((found.double, unordered(&found)), (1, 1));
    let new = [
        (0, 0, Event::Ask),
        (5, 0, Event::Admitted(None)),
        (10, 0, Event::Ask),
        (15, 0, Event::Admitted(None)),
    ];
    assert_eq!(row(Primitive::BloomFilter, &new).double, 1);
}

#[test]
fn what_lasts_too_long_is_found() {
    let refused = [(0, 0, Event::Ask), (5, 0, Event::Overdue("refused for 7193 s".to_owned()))];
    let found = row(Primitive::TokenBucket, &refused);
    assert_eq!((found.overdue, found.refused, found.failed), (1, 0, 0));
    assert_eq!(row(Primitive::SingleFlight, &refused).overdue, 1);
}

#[test]
fn an_answer_that_was_over_before_any_call_that_was_joined_is_found() {
    for primitive in [Primitive::SingleFlight, Primitive::StaleFlight] {
        let (made, over) = (7, 7 + u64::try_from(oldest(primitive).as_nanos()).unwrap());
        // The second task joins the call of the first one, and the third one has nothing to join.
        for (began, overdue) in [(over, [0, 1]), (over + 1, [2, 3])] {
            let mut events = vec![
                (began, 0, Event::Ask),
                (over + 20, 1, Event::Ask),
                (over + 30, 1, Event::Got(made)),
                (over + 30, 0, Event::Got(made)),
            ];
            assert_eq!(row(primitive, &events).overdue, overdue[0]);
            events.extend([(over + 40, 2, Event::Ask), (over + 50, 2, Event::Got(made))]);
            assert_eq!(row(primitive, &events).overdue, overdue[1]);
        }
    }
}

#[test]
fn only_tokens_tell_holders_apart() {
    let permits: Vec<_> = (0..=PERMITS).map(|task| lease(task, 1, 0, [0, 10, 40, 50])).collect();
    assert_eq!(row(Primitive::WaitGroup, &sorted(&permits)).caught, None);
    // A reader has the token of the last writer.
    let reader = sorted(&[lease(0, ALONE, 7, [0, 10, 40, 50]), lease(1, 1, 7, [5, 22, 60, 70])]);
    let found = row(Primitive::RwLock, &reader);
    assert_eq!((found.double, found.caught), (1, Some(0)));
}

#[test]
fn a_release_that_denies_its_lease_is_found() {
    let ttl = u64::try_from(TTL.as_nanos()).unwrap();
    for (at, denied) in [(30, 1), (ttl / 2 + 30, 0)] {
        let mut events = lease(0, ALONE, 7, [0, 10, 20, at]);
        events[5].2 = Event::Released(false);
        assert_eq!(row(Primitive::Mutex, &events).denied, denied, "{at}");
    }
}
