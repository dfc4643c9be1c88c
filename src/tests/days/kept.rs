//! Data that is kept for a time: answers, handled items, items of filters.

use std::collections::VecDeque;
use std::time::Duration;

use crate::bloom_filter::BloomFilter;
use crate::dedupe::{Claimed, Dedupe};
use crate::single_flight::SingleFlight;
use crate::single_flight::outcome::Postcard;
use crate::tests::days::{DAY, World, days, in_both};

const STEP: Duration = Duration::from_secs(600);

/// An answer is served while it is fresh, and then computed again. A process's query has the time of its last call, by
/// the server's clock. The clock of the process does not skip time, so the query may be up to a step old.
async fn answers(mut world: World) {
    let ttl = 4 * STEP + STEP / 2;
    let flights = world.each(|store| -> SingleFlight<u64> {
        SingleFlight::builder(Postcard)
            .ttl(ttl)
            .lease_ttl(DAY)
            .build(store, "flights")
            .unwrap()
    });
    let (mut made, mut runs, mut asked) = (None, 0, 0);
    while world.passed < days() {
        let now = world.passed.as_secs();
        let flight = &flights[asked % flights.len()];
        asked += 1;
        let answer = flight.run("k", move || async move { now }).await.unwrap();
        match made {
            Some(made) if answer == made => {
                assert!(now < made + (ttl + STEP).as_secs(), "at {now}: {made}")
            }
            before => {
                assert!(
                    before.is_none_or(|made| now >= made + ttl.as_secs()),
                    "at {now}: {before:?}"
                );
                assert_eq!(answer, now);
                (made, runs) = (Some(now), runs + 1);
            }
        }
        world.skip(STEP);
    }
    assert!(runs >= asked / 6 && asked > runs, "{runs} of {asked}");
    world.ends().await;
}

/// A handled item is known for the configured time, and forgotten some time after it.
async fn handled_items(mut world: World) {
    let exact = |store: &_| {
        Dedupe::exact(store, "exact")
            .remember_for(DAY)
            .ttl(DAY)
            .build()
            .unwrap()
    };
    let filter = |store: &_| {
        let filter = BloomFilter::builder()
            .capacity(10_000)
            .false_positive_rate(1e-9)
            .remember_for(DAY);
        let filter = filter.build(store, "filter").unwrap();
        Dedupe::builder().ttl(DAY).build(&filter).unwrap()
    };
    let all = [world.each(exact), world.each(filter)];
    let mut handled = VecDeque::new();
    let mut number = 0_usize;
    let mut forgotten = 0;
    let claim = async |dedupe: &Dedupe, item: &str| match dedupe.try_claim(item).await.unwrap() {
        Claimed::New(claim) => Some(claim),
        Claimed::Duplicate => None,
    };
    while world.passed < days() {
        number += 1;
        let item = format!("item {number}");
        for each in &all {
            let dedupe = &each[number % each.len()];
            let claim = claim(dedupe, &item).await.expect("a new item");
            assert!(claim.confirm().await.unwrap());
        }
        handled.push_back((world.passed, item));
        // The oldest that must be known, and the newest; and one that is long over.
        while handled
            .front()
            .is_some_and(|(at, _)| *at + 4 * DAY < world.passed)
        {
            handled.pop_front();
        }
        // A day ago by the steps is some ms more by the server's clock, and a filter forgets at a whole day.
        let known = handled
            .iter()
            .find(|(at, _)| world.passed < *at + DAY)
            .into_iter()
            .chain(handled.back());
        for (at, item) in known {
            for each in &all {
                let dedupe = &each[(number + 1) % each.len()];
                assert!(
                    claim(dedupe, item).await.is_none(),
                    "handled at {at:?}, at {:?}",
                    world.passed
                );
            }
        }
        if let Some((_, item)) = handled
            .iter()
            .find(|(at, _)| *at + 2 * DAY + STEP < world.passed)
        {
            for each in &all {
                let Some(claim) = claim(&each[0], item).await else {
                    panic!("{item} is known for ever")
                };
                assert!(claim.release().await.unwrap());
                forgotten += 1;
            }
        }
        world.skip(STEP);
    }
    assert!(forgotten > 100 || days() < 3 * DAY, "{forgotten}");
    world.ends().await;
}

in_both! { answers handled_items }
