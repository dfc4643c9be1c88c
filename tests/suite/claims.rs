//! Claims, on the items of a filter and without false positives: what is confirmed is a duplicate, what is given back can be
//! claimed again.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::dedupe::{Claim, Claimed, Dedupe, ExactBuilder};
use tower_distributed::{BloomFilter, Store};

use crate::stores::{Place, SOON};
use support::eventually;

const DAY: Duration = Duration::from_secs(86_400);

fn filter(store: &Store, name: &str) -> BloomFilter {
    BloomFilter::new(store, name, 1000, 1e-9).unwrap()
}

pub(crate) fn claims(store: &Store, name: &str) -> Dedupe {
    Dedupe::builder()
        .remember_forever()
        .build(&filter(store, name))
        .unwrap()
}

/// All items have one bucket.
fn exact(store: &Store, name: &str) -> ExactBuilder {
    Dedupe::exact(store, name).capacity(100).remember_for(DAY)
}

/// One of each kind.
pub(crate) fn both(store: &Store, name: &str) -> [Dedupe; 2] {
    [
        claims(store, &format!("{name}.filter")),
        exact(store, &format!("{name}.exact")).build().unwrap(),
    ]
}

/// The same, whose claims are soon over, but not on their way on a machine that is busy.
fn both_short(store: &Store, name: &str) -> [Dedupe; 2] {
    let (filter, ttl) = (
        filter(store, &format!("{name}.filter")),
        Duration::from_secs(2),
    );
    let filtered = Dedupe::builder()
        .remember_forever()
        .ttl(ttl)
        .watchdog(false)
        .build(&filter);
    let exact = exact(store, &format!("{name}.exact"))
        .ttl(ttl)
        .watchdog(false)
        .build();
    [filtered.unwrap(), exact.unwrap()]
}

/// The state of the claims on all items of a test.
fn state(dedupe: &Dedupe) -> String {
    format!("{}:0", dedupe.name())
}

/// Whether an item is new, whose claim comes along.
pub(crate) fn new(claimed: Claimed) -> Option<Claim> {
    match claimed {
        Claimed::New(claim) => Some(claim),
        Claimed::Duplicate => None,
    }
}

pub(crate) async fn take(dedupe: &Dedupe, item: impl AsRef<[u8]>) -> Claim {
    new(dedupe.try_claim(item).await.unwrap()).expect("a new item is taken for a duplicate")
}

pub(crate) async fn is_duplicate(dedupe: &Dedupe, item: impl AsRef<[u8]>) -> bool {
    new(dedupe.try_claim(item).await.unwrap()).is_none()
}

pub(crate) async fn becomes_free(dedupe: &Dedupe, item: &str) {
    eventually(&format!("{item} to be free"), SOON, async || {
        match dedupe.try_claim(item).await {
            Ok(claimed) => new(claimed).unwrap().release().await.unwrap(),
            Err(error) => {
                assert!(error.is_refused(), "{error}");
                false
            }
        }
    })
    .await;
}

pub(crate) async fn what_is_confirmed_is_a_duplicate(place: &Place, name: &str) {
    for (dedupe, other) in both(place, name).into_iter().zip(both(place, name)) {
        for item in ["a", "b"] {
            let claim = take(&dedupe, item).await;
            if let Some(filter) = dedupe.filter() {
                assert!(!filter.contains(item).await.unwrap());
            }
            assert!(claim.is_held() && claim.confirm().await.unwrap());
            for dedupe in [&dedupe, &other] {
                assert!(is_duplicate(dedupe, item).await);
                assert!(
                    new(dedupe.claim(item, SOON).await.unwrap()).is_none(),
                    "nothing to wait for"
                );
            }
        }
        match dedupe.filter() {
            Some(filter) => {
                assert!(
                    !filter.insert("a").await.unwrap() && filter.insert("inserted").await.unwrap()
                );
                assert!(is_duplicate(&dedupe, "inserted").await);
            }
            None => assert!(dedupe.fill().is_none()),
        }
    }
}

pub(crate) async fn what_is_in_flight_is_refused(place: &Place, name: &str) {
    for (one, other) in both(place, name).into_iter().zip(both(place, name)) {
        let claim = take(&one, "a").await;
        for dedupe in [&one, &other] {
            let error = dedupe.try_claim("a").await.unwrap_err();
            assert!(
                error.is_refused() && !error.is_waited_too_long() && !error.is_duplicate(),
                "{error}"
            );
            let after = error.retry_after().unwrap();
            assert!(
                after > Duration::from_secs(15) && after <= Duration::from_secs(30),
                "{after:?}"
            );
            assert!(dedupe.claim_anyway("a").await.unwrap_err().is_refused());
            let error = dedupe
                .claim("a", Duration::from_millis(40))
                .await
                .unwrap_err();
            assert!(error.is_refused() && error.is_waited_too_long(), "{error}");
            let elsewhere = take(dedupe, "b").await;
            assert!(elsewhere.release().await.unwrap());
        }
        assert!(claim.confirm().await.unwrap());
        assert!(is_duplicate(&one, "a").await && is_duplicate(&other, "a").await);
    }
}

pub(crate) async fn who_waits_hears_what_came_of_it(place: &Place, name: &str) {
    for dedupe in both(place, name) {
        let state = state(&dedupe);
        // Each that gives it back lets the next have it; the last confirms, and those behind it need nothing.
        let claim = take(&dedupe, "a").await;
        let mut waiters = Vec::new();
        for number in 1..=5 {
            let dedupe = dedupe.clone();
            let visit = async move {
                let claim = new(dedupe.claim("a", SOON).await.unwrap())?;
                match number {
                    1 => drop(claim),
                    2 => assert!(claim.release().await.unwrap()),
                    _ => assert!(claim.confirm().await.unwrap()),
                }
                Some(number)
            };
            waiters.push(place.line_up(&state, number, visit).await);
        }
        drop(claim);
        for (waiter, came_of_it) in waiters
            .into_iter()
            .zip([Some(1), Some(2), Some(3), None, None])
        {
            assert_eq!(waiter.await.unwrap(), came_of_it);
        }
        place.lined_up(&state, 0).await;
        assert!(is_duplicate(&dedupe, "a").await);
    }
}

pub(crate) async fn a_duplicate_can_be_claimed_anyway(place: &Place, name: &str) {
    for dedupe in both(place, name) {
        assert!(take(&dedupe, "a").await.confirm().await.unwrap());
        let claim = dedupe.claim_anyway("a").await.unwrap();
        assert!(dedupe.claim_anyway("a").await.unwrap_err().is_refused());
        assert!(is_duplicate(&dedupe, "a").await, "others need not wait");
        assert!(claim.confirm().await.unwrap());
        assert!(
            dedupe
                .claim_anyway("a")
                .await
                .unwrap()
                .release()
                .await
                .unwrap()
        );
        assert!(
            dedupe
                .claim_anyway("new")
                .await
                .unwrap()
                .confirm()
                .await
                .unwrap()
        );
        assert!(is_duplicate(&dedupe, "a").await && is_duplicate(&dedupe, "new").await);
    }
}

/// Who confirms too late tells all the same that it was handled: who still waits has nothing to do.
pub(crate) async fn a_claim_that_ran_out_is_lost(place: &Place, name: &str) {
    for (late, dedupe) in both_short(place, name).into_iter().zip(both(place, name)) {
        let items = ["nobody else", "another", "one who waits"];
        let claims = join_all(items.map(|item| take(&late, item))).await;
        for (item, claim) in items.into_iter().zip(claims) {
            claim.lost().await;
            assert!(!claim.is_held());
            becomes_free(&dedupe, item).await;
            let other = if item == "nobody else" {
                None
            } else {
                Some(take(&dedupe, item).await)
            };
            let waiting = dedupe.clone();
            let waits = async move { new(waiting.claim(item, SOON).await.unwrap()).is_none() };
            let waiter = match item {
                "one who waits" => Some(place.line_up(&state(&dedupe), 1, waits).await),
                _ => None,
            };
            assert!(!claim.confirm().await.unwrap(), "it was lost");
            assert!(
                is_duplicate(&late, item).await,
                "it was handled, whoever holds the claim by now"
            );
            match (other, waiter) {
                (Some(other), Some(waiter)) => {
                    assert!(other.release().await.unwrap());
                    assert!(waiter.await.unwrap(), "what was confirmed is handled again");
                }
                // It was not lost to the one who confirmed too late.
                (Some(other), None) => assert!(other.confirm().await.unwrap()),
                (None, _) => {}
            }
            assert!(is_duplicate(&dedupe, item).await);
        }
    }
}

/// Handled once, and forgotten after a second at the earliest.
pub(crate) async fn is_forgotten(dedupe: &Dedupe) {
    let began = std::time::Instant::now();
    assert!(take(dedupe, "a").await.confirm().await.unwrap());
    eventually("it to be forgotten", SOON, async || {
        match new(dedupe.try_claim("a").await.unwrap()) {
            Some(claim) => claim.release().await.unwrap(),
            None => false,
        }
    })
    .await;
    assert!(
        began.elapsed() >= Duration::from_millis(999),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn settings_out_of_range_are_told() {
    let (store, name, day) = (&Store::in_memory(), "claims", DAY);
    let filter = filter(store, name);
    for ttl in [
        Duration::ZERO,
        Duration::from_micros(9_999),
        day + Duration::from_nanos(1),
        Duration::MAX,
    ] {
        let error = Dedupe::builder()
            .remember_forever()
            .ttl(ttl)
            .build(&filter)
            .unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(&format!("{ttl:?}")),
            "{error}"
        );
    }
    let error = Dedupe::new(&filter).unwrap_err();
    let text = error.to_string();
    assert!(
        error.is_invalid()
            && ["remember_for", "remember_forever", name]
                .iter()
                .all(|it| text.contains(it)),
        "{text}"
    );
    let forgets = BloomFilter::builder()
        .bits(1000)
        .hashes(3)
        .remember_for(day)
        .build(store, name)
        .unwrap();
    let error = Dedupe::builder()
        .remember_forever()
        .build(&forgets)
        .unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("86400s"),
        "{error}"
    );
    assert!(Dedupe::new(&forgets).is_ok());
    for ttl in [Duration::from_millis(10), day] {
        let dedupe = Dedupe::builder()
            .remember_forever()
            .ttl(ttl)
            .build(&filter)
            .unwrap();
        assert_eq!(dedupe.name(), name);
    }
}
