//! The judges of claims, flights and budgets: they find what is wrong in forged histories, and nothing in what the faults explain.

use super::answers::invented;
use super::claims::most_false_positives;
use super::history::{Event, History, HoldOutcome, HoldStep, Primitive, Record};
use super::verdict::Row;
use super::worker::{ALONE, BUDGET, EVERY_BURST, LASTING, TTL};

type Events = Vec<(u64, u32, Event)>;

/// The row of one key that several workers have used.
fn judged(primitive: Primitive, key: &str, workers: &[Events]) -> Row {
    Row::of(primitive, &history(primitive, key, workers))
}

fn history(primitive: Primitive, key: &str, workers: &[Events]) -> History {
    let mut history = History::default();
    for events in workers {
        let record = |(at, task, event): &(u64, u32, Event)| {
            let (at, task, key, event) = (*at, *task, key.to_owned(), event.clone());
            Record { at, task, primitive, key, event }
        };
        history.add(&events.iter().map(record).collect::<Vec<_>>());
    }
    history
}

fn is_ordered(primitive: Primitive, key: &str, workers: &[Events]) -> bool {
    judged(primitive, key, workers).unordered.unwrap().is_empty()
}

/// A question and its answer, 5 ns later.
fn call(at: u64, task: u32, asked: Event, answer: Event) -> Events {
    vec![(at, task, asked), (at + 5, task, answer)]
}

fn failed() -> Event {
    Event::Failed("reset".to_owned())
}

/// A claim from `at` on, which is held for 10 ns and ends as the event and its answer say.
fn claim(at: u64, asked: Event, end: Event, answer: Event) -> Events {
    let mut events = call(at, 0, asked, Event::Granted(1));
    events.extend([(at + 6, 0, Event::Held), (at + 10, 0, Event::Held)]);
    events.extend(call(at + 12, 0, end, answer));
    events
}

fn confirmed(at: u64) -> Events {
    claim(at, Event::Acquire(ALONE), Event::Confirm, Event::Released(true))
}

fn refused(at: u64, answer: Event) -> Events {
    call(at, 0, Event::Acquire(ALONE), answer)
}

fn is_dedupe_ordered(events: &[Events]) -> bool {
    let [exact, filter] =
        [Primitive::Dedupe, Primitive::FilterDedupe].map(|kind| is_ordered(kind, "k", &[events.concat()]));
    assert_eq!(exact, filter);
    exact
}

#[test]
fn a_confirmation_that_is_forgotten_is_found() {
    assert!(is_dedupe_ordered(&[confirmed(0), refused(30, Event::Duplicate)]));
    assert!(!is_dedupe_ordered(&[confirmed(0), confirmed(30)]));
    // It was asked for, or may have been.
    let forget = |answer| call(30, 0, Event::Forget, answer);
    assert!(is_dedupe_ordered(&[confirmed(0), forget(Event::Forgotten(true)), confirmed(40)]));
    assert!(is_dedupe_ordered(&[confirmed(0), forget(failed()), confirmed(40)]));
    assert!(!is_dedupe_ordered(&[confirmed(0), forget(failed()), confirmed(40), confirmed(60)]));
    assert!(!is_dedupe_ordered(&[confirmed(0), forget(Event::Forgotten(false))]));
    // The claim does not mind.
    let anyway = claim(30, Event::AcquireAnyway, Event::Release, Event::Released(true));
    assert!(is_dedupe_ordered(&[confirmed(0), anyway.clone(), refused(60, Event::Duplicate)]));
    assert!(!is_dedupe_ordered(&[confirmed(0), anyway, confirmed(60)]));
}

#[test]
fn a_duplicate_that_nobody_confirmed_is_found() {
    let released = claim(0, Event::Acquire(ALONE), Event::Release, Event::Released(true));
    for before in [vec![], released] {
        assert!(!is_dedupe_ordered(&[before, refused(30, Event::Duplicate)]));
    }
    // The answer to the confirmation was lost: it was carried out, or not yet.
    let lost = claim(0, Event::Acquire(ALONE), Event::Confirm, failed());
    assert!(is_dedupe_ordered(&[lost.clone(), refused(30, Event::Duplicate)]));
    assert!(is_dedupe_ordered(&[lost.clone(), confirmed(30), refused(60, Event::Duplicate)]));
    assert!(!is_dedupe_ordered(&[lost, refused(30, Event::Duplicate), confirmed(60)]));
    // A claim that was lost is confirmed too.
    let late = claim(0, Event::Acquire(ALONE), Event::Confirm, Event::Released(false));
    assert!(is_dedupe_ordered(&[late.clone(), refused(30, Event::Duplicate)]));
    assert!(!is_dedupe_ordered(&[late, confirmed(30)]));
}

#[test]
fn a_second_claim_is_found() {
    let mut both = [confirmed(0), confirmed(3).into_iter().map(|(at, _, event)| (at, 1, event)).collect()];
    both[1].retain(|(_, _, event)| *event != Event::Confirm && *event != Event::Released(true));
    let mut events = both.concat();
    events.sort_by_key(|(at, _, _)| *at);
    assert!(!is_dedupe_ordered(&[events]));
    assert!(!is_dedupe_ordered(&[refused(0, Event::Refused)]), "in flight, but nobody holds it");
}

#[test]
fn a_filter_is_wrong_at_its_rate() {
    for (items, rate, most) in [(5000, 1e-6, 0), (5000, 1e-3, 18), (0, 0.5, 0), (100, 0.01, 7)] {
        assert_eq!(most_false_positives(items, rate), most);
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

fn forgot(at: u64) -> Events {
    call(at, 0, Event::Forget, Event::Forgotten(true))
}

#[test]
fn an_answer_that_was_forgotten_is_found() {
    let flights = |workers: &[Events]| is_ordered(Primitive::SingleFlight, "k", workers);
    let one = || run(1, [0, 5, 10]);
    assert!(flights(&[one(), [got(20, 10), got(30, 10)].concat()]));
    assert!(!flights(&[[one(), forgot(30)].concat(), [got(20, 10), got(40, 10)].concat()]));
    assert!(!flights(&[one(), [got(20, 10), forgot(30), got(40, 10)].concat()]));
    // It may have been published after that.
    assert!(flights(&[[one(), forgot(30)].concat(), got(40, 10)]));
    // A caller that joined a call of before, unless its process knows.
    let joined = |forgot: Events| {
        let mut before = vec![(28, 7, Event::Ask), (44, 7, Event::Got(10))];
        before.extend([got(20, 10), forgot, got(40, 10)].concat());
        before.sort_by_key(|(at, _, _)| *at);
        before
    };
    assert!(flights(&[[one(), forgot(30)].concat(), joined(vec![])]));
    assert!(!flights(&[one(), joined(forgot(30))]));
}

#[test]
fn an_answer_that_was_replaced_is_found() {
    let flights = |workers: &[Events]| is_ordered(Primitive::SingleFlight, "k", workers);
    let two = || [run(1, [0, 5, 10]), run(2, [30, 35, 40])].concat();
    assert!(flights(&[two(), [got(20, 10), got(50, 40), got(60, 40)].concat()]));
    assert!(!flights(&[two(), [got(20, 10), got(50, 40), got(60, 10)].concat()]));
}

#[test]
fn a_leader_that_lost_the_lead_publishes_nothing() {
    // The other one leads before the first one is done.
    let lost = |answer| {
        let workers = [run(1, [0, 5, 30]), run(1, [10, 15, 20]), got(40, answer)];
        judged(Primitive::StaleFlight, "k", &workers)
    };
    assert_eq!((lost(20).double, lost(20).unordered.unwrap().len()), (0, 0));
    assert_eq!(lost(30).unordered.unwrap().len(), 1);
    let mut first = run(1, [0, 5, 30]);
    first.insert(3, (25, 1, Event::Held));
    assert_eq!(judged(Primitive::StaleFlight, "k", &[first, run(1, [10, 15, 20])]).double, 1, "two leaders");
}

#[test]
fn an_answer_that_nobody_made_is_found() {
    for (answer, found) in [(10, 0), (11, 1), (30, 1)] {
        let workers = [[run(1, [0, 5, 10]), run(2, [20, 25, 30])].concat(), got(15, answer)];
        let history = history(Primitive::SingleFlight, "k", &workers);
        let (operations, runs) = history.keys(Primitive::SingleFlight).remove("k").unwrap();
        assert_eq!(invented(&operations, &runs), found, "{answer}");
    }
}

fn step(at: u64, hold: u64, step: HoldStep, answer: Event) -> Events {
    call(at, u32::try_from(hold).unwrap(), Event::Hold(hold, step), answer)
}

fn balance(outcome: HoldOutcome, charged: u32, held: u32) -> Event {
    Event::Balance { outcome, remaining: BUDGET.saturating_sub(charged + held), held }
}

fn done(charged: u32, held: u32) -> Event {
    balance(HoldOutcome::Done, charged, held)
}

fn authorized(at: u64, hold: u64, tokens: u32, charged: u32, held: u32) -> Events {
    step(at, hold, HoldStep::Authorize(tokens), done(charged, held))
}

/// Of a key whose holds are released, or charged, if they end by themselves.
fn is_budget_ordered(charged: bool, steps: &[Events]) -> bool {
    is_ordered(Primitive::Budget, if charged { "1" } else { "0" }, &[steps.concat()])
}

#[test]
fn a_capture_that_counts_twice_is_found() {
    let look = |charged| step(90, 9, HoldStep::Look, done(charged, 0));
    let captured = |answer| vec![authorized(0, 1, 10, 0, 10), step(20, 1, HoldStep::Capture(7), answer)];
    for (charged, is_right) in [(7, true), (14, false), (0, false), (8, false)] {
        assert_eq!(is_budget_ordered(false, &[captured(done(7, 0)), vec![look(charged)]].concat()), is_right);
    }
    // Without an answer it is charged once, or not yet; and its hold, if that ended by itself before.
    for (charged, at_end, is_right) in
        [(0, false, true), (7, false, true), (14, false, false), (10, true, true), (17, true, false)]
    {
        let steps = [captured(failed()), vec![look(charged)]].concat();
        assert_eq!(is_budget_ordered(at_end, &steps), is_right, "{charged}");
    }
    // What was seen as charged is not charged again, and does not come back.
    for (first, second, is_right) in [(7, 7, true), (0, 7, true), (7, 14, false), (7, 0, false)] {
        let looks = [step(60, 9, HoldStep::Look, done(first, 0)), look(second)];
        assert_eq!(is_budget_ordered(false, &[captured(failed()), looks.to_vec()].concat()), is_right);
    }
}

#[test]
fn tokens_that_are_held_twice_are_found() {
    let half = BUDGET / 2;
    let first = || authorized(0, 1, half + 1, 0, half + 1);
    let second = |answer| step(20, 2, HoldStep::Authorize(half), answer);
    assert!(is_budget_ordered(false, &[first(), second(Event::Refused)]));
    assert!(!is_budget_ordered(false, &[first(), second(done(0, BUDGET + 1))]), "there are not as many");
    assert!(!is_budget_ordered(false, &[second(Event::Refused)]), "all are free");
    let more = |answer| step(40, 1, HoldStep::Extend(half + 2), answer);
    assert!(is_budget_ordered(false, &[first(), more(done(0, half + 2))]));
    assert!(!is_budget_ordered(false, &[first(), more(Event::Refused)]));
    assert!(!is_budget_ordered(false, &[first(), more(done(0, half + 1))]), "not all are held");
}

#[test]
fn a_hold_that_ends_by_itself_is_released_or_charged() {
    let late = u64::try_from(TTL.as_nanos()).unwrap() + 100;
    let steps = |charged: u32, excess: u32| {
        let ended = balance(HoldOutcome::Ended(excess), charged, 0);
        vec![authorized(0, 1, 10, 0, 10), step(late, 1, HoldStep::Capture(12), ended)]
    };
    assert!(is_budget_ordered(true, &steps(12, 2)));
    assert!(is_budget_ordered(false, &steps(12, 12)));
    assert!(!is_budget_ordered(true, &steps(2, 2)));
    assert!(!is_budget_ordered(false, &steps(22, 12)));
    // It cannot have ended so early.
    let early = step(20, 1, HoldStep::Capture(0), Event::Released(false));
    let found = judged(Primitive::Budget, "0", &[[authorized(0, 1, 10, 0, 10), early].concat()]);
    assert_eq!(found.denied, 1);
}

#[test]
fn captures_above_the_rate_are_found() {
    let captures = |count: u32, apart: u64| {
        let capture = |number: u32| {
            let at = u64::from(number) * apart;
            step(at, number.into(), HoldStep::Capture(1), Event::Released(true))
        };
        judged(Primitive::Budget, LASTING, &[(0..count).flat_map(capture).collect()]).double
    };
    assert_eq!(captures(EVERY_BURST, 1000), 0);
    assert_eq!(captures(EVERY_BURST + 2, 1000), 2);
    assert_eq!(captures(100, 50_000_000), 0);
}
