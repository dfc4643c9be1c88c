//! How a thread takes prefetched tokens.

use std::sync::Arc;

use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures::{START, state_of};
use crate::bucket::{Ask, Bucket};
use crate::key::Key;
use crate::token_bucket::local::Table;
use crate::token_bucket::local::entry::Entry;

const NOW: i64 = 1_000_000;

const BURST: i64 = 1000;

fn quotas() -> Quotas {
    Quotas::new([Quota::per_hour(1).burst(BURST as u32)]).unwrap()
}

/// An entry with a batch of tokens, which ends after a second.
fn batch(table: &Table, quotas: &Quotas, key: &Key, tokens: i64) -> Arc<Entry> {
    let entry = table.entry(table.hash(key), key, quotas).unwrap();
    let mut bucket = Bucket::full(quotas);
    bucket.charge(quotas, START, tokens);
    entry.last_state.learn(NOW, &state_of(quotas, bucket));
    entry.slots.0.put(0, tokens, NOW + 1_000_000);
    entry
}

/// Takes tokens. Returns the number left in the decision.
fn take(table: &Table, quotas: &Quotas, key: &Key, now: i64, cost: i64) -> Option<i64> {
    let decision = table
        .with(key, quotas, |copy| copy.take(now, Ask { cost, wait: 0 }))
        .flatten()?;
    assert!(decision.is_admitted() && decision.is_local && decision.cost == cost as u32);
    Some(decision.remaining().into())
}

#[test]
fn every_token_of_a_batch_is_used_once() {
    let (table, quotas, key) = (Table::default(), quotas(), Key::from("k"));
    let entry = batch(&table, &quotas, &key, 640);
    let mut used = 0;
    for cost in [1, 5, 30, 2].into_iter().cycle() {
        let cost = cost.min(640 - used);
        let Some(left) = take(&table, &quotas, &key, NOW, cost.max(1)) else {
            break;
        };
        used += cost;
        assert_eq!(left, BURST - used);
    }
    assert_eq!((used, entry.slots.0.left(0)), (640, 0));
}

#[test]
fn a_thread_that_stays_takes_a_share() {
    let (table, quotas, key) = (Table::default(), quotas(), Key::from("k"));
    let entry = batch(&table, &quotas, &key, 780);
    entry.slots.0.put(0, 641, NOW + 1_000_000);
    entry.slots.0.put(1, 139, NOW + 2_000_000);
    assert_eq!(
        take(&table, &quotas, &key, NOW, 1),
        Some(BURST - 1),
        "those of both batches are left"
    );
    let left = (1..15).map(|_| {
        take(&table, &quotas, &key, NOW, 1)
            .map(|_| entry.slots.0.left(0))
            .unwrap()
    });
    let expected = [vec![630; 10], vec![621; 4]].concat();
    assert_eq!(left.collect::<Vec<_>>(), expected);
}

#[test]
fn tokens_end_with_their_batch() {
    let (table, quotas, key) = (Table::default(), quotas(), Key::from("k"));
    let entry = batch(&table, &quotas, &key, 640);
    // It has eight tokens more.
    assert!((0..2).all(|_| take(&table, &quotas, &key, NOW, 1).is_some()));
    let end = NOW + 1_000_000;
    assert!(take(&table, &quotas, &key, end - 256, 1).is_some());
    assert!(take(&table, &quotas, &key, end, 1).is_none());
    entry.slots.0.put(1, 5, end + 1_000_000);
    assert_eq!(
        (0..10)
            .filter(|_| take(&table, &quotas, &key, end, 1).is_some())
            .count(),
        5
    );
}

/// Neither are those of a key that is blocked, or whose entry was removed.
#[test]
fn tokens_of_a_blocked_key_are_not_used() {
    let (table, quotas, key) = (Table::default(), quotas(), Key::from("k"));
    let entry = batch(&table, &quotas, &key, 640);
    batch(&table, &quotas, &Key::from("another"), 640);
    assert!((0..2).all(|_| take(&table, &quotas, &key, NOW, 1).is_some()));
    let bucket = Bucket::new(START + 1000, Bucket::full(&quotas).levels);
    entry.last_state.learn(NOW, &state_of(&quotas, bucket));
    assert_eq!(
        entry.last_state.time(NOW - 1),
        START,
        "the time of the store is not before its answer"
    );
    assert!(take(&table, &quotas, &key, NOW + 999, 1).is_none());
    assert!(take(&table, &quotas, &key, NOW + 1000, 1).is_some());
    table.forget(&key);
    assert!(take(&table, &quotas, &key, NOW + 1000, 1).is_none());
    assert!(entry.is_gone() && entry.slots.0.left(0) == 0);
    assert!(take(&table, &quotas, &Key::from("another"), NOW, 1).is_some());
}

/// More keys than a thread has places, in two tables.
#[test]
fn keys_that_alternate_leave_no_tokens_behind() {
    let (tables, quotas) = ([Table::default(), Table::default()], quotas());
    let of = || {
        tables
            .iter()
            .flat_map(|table| (0..30_u64).map(move |key| (table, Key::from(key))))
    };
    for (table, key) in of() {
        batch(table, &quotas, &key, 200);
    }
    let round = || {
        of().filter(|(table, key)| take(table, &quotas, key, NOW, 1).is_some())
            .count()
    };
    for _ in 0..200 {
        assert_eq!(round(), 60);
    }
    assert_eq!(round(), 0);
}
