//! How many entries there are, and which are removed.

use std::sync::Arc;

use futures::FutureExt as _;

use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::key::Key;
use crate::sync::atomic::Ordering::Relaxed;
use crate::token_bucket::local::entry::Entry;
use crate::token_bucket::local::{MOST, SHARDS, SWEEP_AT, Table};

fn quotas() -> Quotas {
    Quotas::new([Quota::per_hour(1).burst(10)]).unwrap()
}

#[test]
fn unused_entries_make_room() {
    let (table, quotas) = (Table::default(), quotas());
    let keys = || (0..20_000_u64).map(Key::from);
    for key in keys() {
        assert!(table.entry(table.hash(&key), &key, &quotas).is_some());
    }
    let shards = || {
        table
            .shards
            .iter()
            .map(|shard| shard.read().unwrap().entries.len())
    };
    assert_eq!(table.count.load(Relaxed), shards().sum::<usize>());
    assert!(
        shards().all(|entries| (1..=SWEEP_AT).contains(&entries)),
        "{:?}",
        shards().collect::<Vec<_>>()
    );
    assert_eq!(shards().len(), SHARDS);
    keys().for_each(|key| table.forget(&key));
    assert!(table.is_empty());
}

#[test]
fn entries_in_use_stay() {
    let (table, quotas, another) = (Table::default(), quotas(), Key::from("another"));
    // All in one shard.
    let entry = |n: u64| {
        let entry = table.entry(n, &Key::from(n), &quotas).unwrap();
        entry.known_until.store(i64::MAX, Relaxed);
        entry
    };
    let entries: Vec<_> = (0..MOST as u64).map(entry).collect();
    assert!(
        table.entry(0, &another, &quotas).is_none(),
        "there is no room"
    );
    assert!(
        table.entry(1 << 48, &another, &quotas).is_some(),
        "another shard has room"
    );
    assert!(
        entries
            .iter()
            .enumerate()
            .all(|(n, known)| Arc::ptr_eq(&entry(n as u64), known))
    );
    assert!(entries.iter().all(|entry| !entry.is_gone()));
    entries[9].known_until.store(0, Relaxed);
    assert!(table.entry(0, &another, &quotas).is_some());
    assert!(
        entries
            .iter()
            .enumerate()
            .all(|(n, entry)| entry.is_gone() == (n == 9))
    );
    assert_eq!(table.count.load(Relaxed), MOST + 1);
}

#[test]
fn an_entry_is_in_use_for_a_known_state_a_request_or_a_task() {
    let entry = || Entry::new(0, 0, &Key::from("k"), &quotas());
    assert!(entry().is_idle(1));
    let known = entry();
    known.known_until.store(6, Relaxed);
    assert_eq!((known.is_idle(5), known.is_idle(6)), (false, true));
    let asked = entry();
    asked.in_flight.store(1, Relaxed);
    assert!(!asked.is_idle(1));
    let prefetches = entry();
    prefetches.has_prefetch_task.store(true, Relaxed);
    assert!(!prefetches.is_idle(1));
}

#[test]
fn more_tokens_are_wanted_when_a_quarter_is_left() {
    let entry = Entry::new(0, 0, &Key::from("k"), &quotas());
    let wants =
        || entry.more.notified().now_or_never().is_some() && entry.wants.swap(false, Relaxed);
    let takes = |tokens| entry.take(0, tokens, 63).unwrap();
    entry.batch.store(100, Relaxed);
    entry.slots.0.put(0, 100, 1_000_000);
    takes(74);
    assert!(!wants());
    takes(1);
    assert!(wants());
    entry.slots.0.put(1, 50, 2_000_000);
    takes(1);
    assert!(!wants(), "there is another batch");
    entry.drop_tokens();
    assert_eq!((entry.slots.0.left(0), entry.slots.0.left(1)), (0, 0));
    // Tokens that are requested from the store in the meantime.
    entry.missed(3);
    assert_eq!(
        (wants(), entry.missed.load(Relaxed)),
        (false, 0),
        "no task prefetches them"
    );
    entry.has_prefetch_task.store(true, Relaxed);
    entry.missed(3);
    entry.missed(4);
    assert_eq!((wants(), entry.missed.load(Relaxed)), (true, 7));
}
