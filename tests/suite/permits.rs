//! Permits: several at once, of different weights.

use std::time::Duration;

use tokio::sync::mpsc;
use tower_distributed::{Lease, WaitGroup};

use crate::stores::Place;

/// Whatever limit a call has.
pub(crate) async fn all_that_is_out_is_counted(place: &Place, name: &str) {
    let group = WaitGroup::new(place, name, 5).unwrap();
    let premium = group.with_limit(7).unwrap();
    assert_eq!((group.limit(), premium.limit(), group.name()), (5, 7, name));
    assert_eq!(group.count("k").await.unwrap(), 0);
    let two = group.add_n("k", 2).await.unwrap();
    let three = group.try_add_n("k", 3).await.unwrap();
    assert!(group.try_add("k").await.unwrap_err().is_refused());
    let more = premium.try_add_n("k", 2).await.unwrap();
    assert!(premium.try_add("k").await.unwrap_err().is_refused());
    assert_eq!(
        (
            group.count("k").await.unwrap(),
            group.count("l").await.unwrap()
        ),
        (7, 0)
    );
    assert!(two.done().await.unwrap() && more.done().await.unwrap());
    assert_eq!(group.count("k").await.unwrap(), 3);
    assert!(
        group.try_add_n("k", 3).await.unwrap_err().is_refused(),
        "two are free"
    );
    assert!(group.try_add_n("k", 2).await.unwrap().done().await.unwrap());
    assert!(Lease::from(three).release().await.unwrap());
    let refused = group.with_limit(0).unwrap().try_add("k").await.unwrap_err();
    assert!(
        refused.is_refused() && refused.to_string() == "no permit: the limit is 0",
        "{refused}"
    );
    assert_eq!(group.count("k").await.unwrap(), 0);
}

pub(crate) async fn a_heavy_one_is_not_overtaken(place: &Place, name: &str) {
    let group = WaitGroup::new(place, name, 3).unwrap();
    let state = format!("{name}:k");
    let holder = group.add_n("k", 2).await.unwrap();
    let (sender, mut served) = mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for (number, weight) in [(1, 3), (2, 1), (3, 2)] {
        let (group, sender) = (group.clone(), sender.clone());
        let call = async move {
            let permit = group.add_n("k", weight).await.unwrap();
            sender.send((weight, permit)).unwrap();
        };
        waiters.push(place.line_up(&state, number, call).await);
    }
    // One is free, and yet it is for the heavy one.
    assert_eq!(group.count("k").await.unwrap(), 2);
    assert!(group.try_add("k").await.unwrap_err().is_refused());
    assert!(holder.done().await.unwrap());

    let (weight, heavy) = served.recv().await.unwrap();
    assert_eq!((weight, group.count("k").await.unwrap()), (3, 3));
    assert!(heavy.done().await.unwrap());
    let (one, other) = (served.recv().await.unwrap(), served.recv().await.unwrap());
    assert_eq!(
        (one.0 + other.0, group.count("k").await.unwrap()),
        (3, 3),
        "the two fit side by side"
    );
}

pub(crate) async fn waits_until_none_is_left(place: &Place, name: &str) {
    let group = WaitGroup::new(place, name, 2).unwrap();
    let state = format!("{name}:k");
    group.wait("k").await.unwrap();
    let (one, other) = (group.add("k").await.unwrap(), group.add("k").await.unwrap());
    let waiting = group.clone();
    let idle = place
        .line_up(&state, 1, async move { waiting.wait("k").await })
        .await;
    // Who waits for permits goes before who waits until none is left.
    let waiting = group.clone();
    let both = place
        .line_up(
            &state,
            2,
            async move { waiting.add_n("k", 2).await.unwrap() },
        )
        .await;
    assert!(one.done().await.unwrap());
    assert!(other.done().await.unwrap());
    let both = both.await.unwrap();
    assert_eq!(group.count("k").await.unwrap(), 2);
    assert!(!idle.is_finished());
    drop(both);
    idle.await.unwrap().unwrap();
    assert_eq!(group.count("k").await.unwrap(), 0);

    let held = group.add("k").await.unwrap();
    let error = group
        .with_max_wait(Duration::from_millis(50))
        .wait("k")
        .await
        .unwrap_err();
    assert!(error.is_waited_too_long(), "{error}");
    assert!(held.done().await.unwrap());
}
