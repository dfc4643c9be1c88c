//! Forged calls: each check finds what breaks its promise, and nothing else.

use clap::Parser as _;

use crate::args::Load;
use crate::check::{Limit, Verdict, check};
use crate::message::{Counts, Held, Message, Note, Progress};
use crate::totals::Totals;

async fn verdicts(arguments: &str, notes: Vec<Note>) -> Vec<Verdict> {
    let arguments = std::iter::once("load").chain(arguments.split(' '));
    let load = Load::try_parse_from(arguments).unwrap();
    let limit = match load.target.quota() {
        Some(quota) => Some(Limit::of(quota).await.unwrap()),
        None => None,
    };
    let mut totals = Totals::new(1);
    totals.hear(0, Message::Progress(Progress { bins: [(0, Counts::default())].into(), notes }));
    check(&load.target, limit.as_ref(), &totals)
}

/// Whether each check of the target found its promise kept.
async fn kept(arguments: &str, notes: Vec<Note>) -> Vec<bool> {
    verdicts(arguments, notes).await.iter().map(|verdict| verdict.holds).collect()
}

fn held(from: u64, to: u64, shared: bool, fence: u64) -> Note {
    Note::Held(Held { key: 7, from, to, shared, fence })
}

#[tokio::test]
async fn one_admission_too_many_is_found() {
    let burst =
        |key, count: u64| (0..count).map(move |call| Note::Admitted { key, from: call, to: call + 5 });
    // 10/s for 1 ms of tolerance is less than a token.
    let bucket = "token-bucket --in-memory --quota 10/s --burst 20";
    assert_eq!(kept(bucket, burst(0, 20).collect()).await, [true]);
    assert_eq!(kept(bucket, burst(0, 20).chain(burst(1, 20)).collect()).await, [true]);
    let found = verdicts(bucket, burst(0, 20).chain(burst(1, 21)).collect()).await;
    assert!(!found[0].holds);
    assert!(found[0].text.contains("key 1), with 21 admitted and 20.0 allowed"), "{}", found[0].text);
    // A call that takes longer may have been admitted later.
    let late = Note::Admitted { key: 0, from: 0, to: 200_000 };
    assert_eq!(kept(bucket, burst(0, 20).chain([late]).collect()).await, [true]);
}

#[tokio::test]
async fn rates_that_are_no_whole_numbers_are_exact() {
    // One in 3 s, a third of a token a second.
    let every = |micros: u64| {
        (0..2000).map(move |call| call * micros).map(|at| Note::Admitted { key: 0, from: at, to: at })
    };
    let bucket = "token-bucket --in-memory --quota 1/3s --burst 1";
    assert_eq!(kept(bucket, every(3_000_000).collect()).await, [true]);
    assert_eq!(kept(bucket, every(2_990_000).collect()).await, [false]);
}

#[tokio::test]
async fn one_permit_too_many_is_found() {
    let group = "wait-group --in-memory --cap 2";
    let two = [held(0, 10, true, 0), held(5, 20, true, 0), held(10, 20, true, 0)];
    assert_eq!(kept(group, two.to_vec()).await, [true]);
    let three = [held(0, 11, true, 0), held(5, 20, true, 0), held(10, 20, true, 0)];
    assert_eq!(kept(group, three.to_vec()).await, [false]);
}

#[tokio::test]
async fn two_holders_and_fences_that_do_not_rise_are_found() {
    let one = held(0, 10, false, 1);
    assert_eq!(kept("mutex --in-memory", vec![held(10, 20, false, 2), one]).await, [true, true]);
    assert_eq!(kept("mutex --in-memory", vec![held(9, 20, false, 2), one]).await, [false, true]);
    assert_eq!(kept("mutex --in-memory", vec![held(10, 20, false, 1), one]).await, [true, false]);
    // Two that were held within the same microsecond, told in the other order.
    let (first, second) = (held(20, 20, false, 2), held(20, 20, false, 3));
    assert_eq!(kept("mutex --in-memory", vec![one, second, first]).await, [true, true]);
    assert_eq!(kept("mutex --in-memory", vec![one, first, first]).await, [true, false]);
}

#[tokio::test]
async fn a_writer_beside_a_reader_is_found() {
    let readers = [held(0, 10, true, 0), held(5, 20, true, 0)];
    assert_eq!(
        kept("rw-lock --in-memory", [&readers[..], &[held(20, 30, false, 1)]].concat()).await,
        [true, true]
    );
    assert_eq!(
        kept("rw-lock --in-memory", [&readers[..], &[held(19, 30, false, 1)]].concat()).await,
        [false, true]
    );
}

#[tokio::test]
async fn an_item_that_passes_twice_is_found_and_false_positives_are_counted() {
    let notes =
        vec![Note::Passed(1), Note::Duplicate(1), Note::Duplicate(2), Note::Duplicate(2), Note::Unknown(3)];
    assert_eq!(kept("dedupe --in-memory --exact", notes.clone()).await, [true, false]);
    let found = verdicts("dedupe --in-memory", notes).await;
    assert!(found[1].text.contains(": 1 of 2 new items"), "{}", found[1].text);
    let twice = vec![Note::Passed(1), Note::Passed(1), Note::Passed(3), Note::Passed(3), Note::Unknown(3)];
    let found = verdicts("dedupe --in-memory", twice).await;
    assert!(!found[0].holds && found[0].text.contains("item 1 passed 2 times"), "{}", found[0].text);
}
