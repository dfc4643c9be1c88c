//! The judges themselves: they find what is wrong in forged histories. That they find nothing in what the faults explain is
//! shown by each run of the table.

use super::history::{Event, History, Primitive, Record};
use super::verdict::Row;
use super::worker::{ALONE, BURST, PERMITS, oldest};

type Events = Vec<(u64, u32, Event)>;

/// The row of one key that several workers have used. Each of their tasks does one thing after the other.
fn judged(primitive: Primitive, key: &str, workers: &[Events]) -> Row {
    let mut history = History::default();
    for events in workers {
        let record = |(at, task, event): &(u64, u32, Event)| {
            let (at, task, key, event) = (*at, *task, key.to_owned(), event.clone());
            Record {
                at,
                task,
                primitive,
                key,
                event,
            }
        };
        history.add(&events.iter().map(record).collect::<Vec<_>>());
    }
    Row::of(primitive, &history)
}

fn unordered(row: &Row) -> usize {
    row.unordered.as_ref().unwrap().len()
}

fn is_wrong(primitive: Primitive, key: &str, workers: &[Events]) -> bool {
    unordered(&judged(primitive, key, workers)) > 0
}

/// A question and its answer, 5 ns later.
fn call(at: u64, task: u32, asked: Event, answer: Event) -> Events {
    vec![(at, task, asked), (at + 5, task, answer)]
}

fn failed() -> Event {
    Event::Failed("reset".to_owned())
}

/// A lease of a task: asked for, granted, held for the last time, and released.
fn lease(task: u32, share: u32, fence: u64, at: [u64; 4]) -> Events {
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

#[test]
fn a_second_holder_is_found() {
    // It still believes in its lease at 40.
    let first = || lease(0, ALONE, 7, [0, 10, 40, 50]);
    // A token that does not rise tells nothing, unless both calls were under way at the same time: then the second one
    // may have been granted first.
    for (fence, call, caught) in [(8, 5, 1), (6, 15, 0), (7, 15, 0), (7, 5, 0), (6, 5, 1)] {
        let second = lease(1, ALONE, fence, [call, 22, 60, 70]);
        let found = judged(Primitive::Mutex, "k", &[[first(), second].concat()]);
        assert_eq!((found.double, unordered(&found)), (1, 1), "{fence} {call}");
        assert_eq!(
            (found.caught, found.unfenced),
            (Some(caught), 1 - caught),
            "{fence} {call}"
        );
    }
    // A reader beside a writer has its token.
    let reader = lease(1, 1, 7, [5, 22, 60, 70]);
    let found = judged(Primitive::RwLock, "k", &[[first(), reader].concat()]);
    assert_eq!(
        (found.double, found.caught, unordered(&found)),
        (1, Some(0), 1)
    );
    let permits = (0..=PERMITS)
        .flat_map(|task| lease(task, 1, 0, [0, 10, 40, 50]))
        .collect();
    let found = judged(Primitive::WaitGroup, "k", &[permits]);
    assert_eq!(
        (found.double, found.caught, unordered(&found)),
        (1, None, 1)
    );
}

#[test]
fn what_no_lock_answers_is_found() {
    let mutex = |events: &[Events]| is_wrong(Primitive::Mutex, "k", &[events.concat()]);
    let held = || lease(0, ALONE, 7, [0, 10, 40, 50]);
    let refused = call(60, 1, Event::Acquire(ALONE), Event::Refused);
    assert!(mutex(&[held(), refused]), "a refusal without a holder");
    for fence in [6, 7] {
        let next = lease(1, ALONE, fence, [60, 70, 80, 90]);
        assert!(mutex(&[held(), next]), "{fence} does not rise");
    }
    // Until 40 a killed holder believed in it.
    let early = lease(1, ALONE, 8, [5, 30, 70, 80]);
    assert!(
        mutex(&[held()[..4].to_vec(), early]),
        "its lease has ended early"
    );
    let mut denied = lease(0, ALONE, 7, [0, 10, 20, 30]);
    denied[5].2 = Event::Released(false);
    assert_eq!(judged(Primitive::Mutex, "k", &[denied]).denied, 1);
}

fn takes(remaining: &[Option<u32>]) -> Events {
    let take = |(at, remaining): (u64, &Option<u32>)| {
        let answer = if remaining.is_some() {
            Event::Admitted(*remaining)
        } else {
            Event::Refused
        };
        call(10 * at, 0, Event::Ask, answer)
    };
    (0..).zip(remaining).flat_map(take).collect()
}

#[test]
fn tokens_that_are_given_out_twice_are_found() {
    let twice: Vec<_> = (0..BURST).rev().map(Some).chain([Some(0)]).collect();
    let found = judged(Primitive::TokenBucket, "k", &[takes(&twice)]);
    assert_eq!((found.double, unordered(&found)), (1, 1));
    let bucket = |events: Events| is_wrong(Primitive::TokenBucket, "k", &[events]);
    assert!(bucket(takes(&[Some(BURST - 1), Some(BURST - 1)])));
    assert!(bucket(takes(&[None])), "it is full");
    // With a call whose answer was lost, no more than a token is gone.
    let mut lost = takes(&[Some(BURST - 1), None, Some(BURST - 4)]);
    lost[3].2 = failed();
    assert!(bucket(lost));
    let new = [0, 10].map(|at| call(at, 0, Event::Ask, Event::Admitted(None)));
    assert_eq!(
        judged(Primitive::BloomFilter, "k", &[new.concat()]).double,
        1
    );
    let capture = |task| {
        claim(
            task,
            0,
            Event::Acquire(1),
            Event::Confirm,
            Event::Released(true),
        )
    };
    let captures = (0..=BURST).flat_map(capture).collect();
    assert_eq!(judged(Primitive::Budget, "k", &[captures]).double, 1);
}

#[test]
fn what_lasts_too_long_is_found() {
    let refused = call(
        0,
        0,
        Event::Ask,
        Event::Overdue("refused for 7193 s".to_owned()),
    );
    let found = judged(Primitive::TokenBucket, "k", &[refused]);
    assert_eq!((found.overdue, found.refused, found.failed), (1, 0, 0));
    for primitive in [Primitive::SingleFlight, Primitive::StaleFlight] {
        let (made, over) = (7, 7 + u64::try_from(oldest(primitive).as_nanos()).unwrap());
        // The second task joins the call of the first one, and the third one has nothing to join.
        for (began, overdue) in [(over, 1), (over + 1, 3)] {
            let mut events = vec![(began, 0, Event::Ask), (over + 30, 0, Event::Got(made))];
            events.extend(call(over + 20, 1, Event::Ask, Event::Got(made)));
            events.extend(call(over + 40, 2, Event::Ask, Event::Got(made)));
            assert_eq!(
                judged(primitive, "k", &[events]).overdue,
                overdue,
                "{primitive:?}"
            );
        }
    }
}

/// A claim from `at` on, which is held for 10 ns and ends as the event and its answer say.
fn claim(task: u32, at: u64, asked: Event, end: Event, answer: Event) -> Events {
    let mut events = call(at, task, asked, Event::Granted(1));
    events.extend([(at + 6, task, Event::Held), (at + 10, task, Event::Held)]);
    events.extend(call(at + 12, task, end, answer));
    events
}

fn confirmed(at: u64, answer: Event) -> Events {
    claim(0, at, Event::Acquire(ALONE), Event::Confirm, answer)
}

#[test]
fn an_item_that_is_handled_twice_is_found() {
    let done = |at| confirmed(at, Event::Released(true));
    let refused = |at, answer| call(at, 0, Event::Acquire(ALONE), answer);
    let forget = |answer| call(30, 0, Event::Forget, answer);
    let released = claim(
        0,
        0,
        Event::Acquire(ALONE),
        Event::Release,
        Event::Released(true),
    );
    let anyway = claim(
        0,
        30,
        Event::AcquireAnyway,
        Event::Release,
        Event::Released(true),
    );
    for kind in [Primitive::Dedupe, Primitive::FilterDedupe] {
        let claims = |events: &[Events]| is_wrong(kind, "k", &[events.concat()]);
        assert_eq!(judged(kind, "k", &[[done(0), done(30)].concat()]).double, 1);
        assert!(claims(&[done(0), done(30)]));
        assert!(
            claims(&[done(0), forget(failed()), done(40), done(60)]),
            "forgotten once"
        );
        assert!(claims(&[done(0), forget(Event::Forgotten(false))]));
        assert!(claims(&[done(0), anyway.clone(), done(60)]));
        // A duplicate that nobody confirmed, or that is new later.
        assert!(claims(&[refused(30, Event::Duplicate)]));
        assert!(claims(&[released.clone(), refused(30, Event::Duplicate)]));
        assert!(claims(&[
            confirmed(0, failed()),
            refused(30, Event::Duplicate),
            done(60)
        ]));
        assert!(claims(&[confirmed(0, Event::Released(false)), done(30)]));
        let second = claim(1, 3, Event::Acquire(ALONE), Event::Confirm, failed());
        assert!(claims(&[done(0), second[..4].to_vec()]), "two hold it");
        assert!(
            claims(&[refused(0, Event::Refused)]),
            "in flight, but nobody holds it"
        );
    }
}

/// A run of this task that makes this answer: called, begun, made.
fn run(task: u32, [called, begun, made]: [u64; 3]) -> Events {
    vec![
        (called, task, Event::Acquire(ALONE)),
        (begun, task, Event::Granted(0)),
        (begun, task, Event::Held),
        (made, task, Event::Made(made)),
        (made, task, Event::Release),
        (made, task, Event::Released(true)),
    ]
}

fn got(at: u64, answer: u64) -> Events {
    call(at, 0, Event::Ask, Event::Got(answer))
}

#[test]
fn an_answer_that_was_forgotten_or_replaced_is_found() {
    let flights = |workers: &[Events]| is_wrong(Primitive::SingleFlight, "k", workers);
    let one = || run(1, [0, 5, 10]);
    let forgot = || call(30, 0, Event::Forget, Event::Forgotten(true));
    assert!(flights(&[
        [one(), forgot()].concat(),
        [got(20, 10), got(40, 10)].concat()
    ]));
    assert!(flights(&[
        one(),
        [got(20, 10), forgot(), got(40, 10)].concat()
    ]));
    // It may join no call of before, for its process knows.
    let before = vec![(28, 7, Event::Ask), (44, 7, Event::Got(10))];
    assert!(flights(&[
        one(),
        [before, got(20, 10), forgot(), got(40, 10)].concat()
    ]));
    let two = [one(), run(2, [30, 35, 40])].concat();
    assert!(flights(&[
        two,
        [got(20, 10), got(50, 40), got(60, 10)].concat()
    ]));
    // Nobody made it, or not yet.
    for answer in [11, 30] {
        let runs = [one(), run(2, [20, 25, 30])].concat();
        assert_eq!(
            judged(Primitive::SingleFlight, "k", &[runs, got(15, answer)]).invented,
            1
        );
    }
}

#[test]
fn a_leader_that_lost_the_lead_publishes_nothing() {
    // The other one leads before the first one is done.
    let workers = [run(1, [0, 5, 30]), run(1, [10, 15, 20]), got(40, 30)];
    assert!(is_wrong(Primitive::StaleFlight, "k", &workers));
    let mut first = run(1, [0, 5, 30]);
    first.insert(3, (25, 1, Event::Held));
    let found = judged(Primitive::StaleFlight, "k", &[first, run(1, [10, 15, 20])]);
    assert_eq!(found.double, 1, "two leaders");
}
