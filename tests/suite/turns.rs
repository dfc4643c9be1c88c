//! Fair shares and classes among the waiters for permits, and newest first.

use std::time::Duration;

use support::eventually;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower_distributed::fleet::FleetLimit;
use tower_distributed::wait_group::{Turn, WaitGroupBuilder};
use tower_distributed::{Error, Permit, Store, WaitGroup};

use crate::line::Line;
use crate::stores::{Place, SOON, in_memory};

/// A waiter for the permits of one key.
fn add(
    group: &WaitGroup,
    turn: Turn,
    weight: u32,
) -> impl Future<Output = Result<Permit, Error>> + Send + use<> {
    let group = group.with_turn(turn).unwrap();
    async move { group.add_n("k", weight).await }
}

/// Stands for the end of the interval of newest first.
const LATER: &str = "later";

/// The settings, the waiters with their classes in the order of their arrival, and the order in which they are served.
type Turns = (
    WaitGroupBuilder,
    &'static [(&'static str, Option<u8>)],
    &'static [&'static str],
);

pub(crate) async fn each_is_served_in_its_turn(place: &Place, name: &str) {
    let (builder, aging) = (|| WaitGroup::builder(1), 10 * SOON);
    let rows: [Turns; 3] = [
        (
            builder().priorities(3).aging(aging),
            &[
                ("c", Some(2)),
                ("b1", Some(1)),
                ("a1", Some(0)),
                ("b2", Some(1)),
                ("a2", Some(0)),
            ],
            &["a1", "a2", "b1", "b2", "c"],
        ),
        (
            builder().newest_first_after(INTERVAL),
            &[("a", None), ("b", None), (LATER, None), ("c", None)],
            &["c", "b", "a"],
        ),
        (
            builder()
                .newest_first_after(INTERVAL)
                .priorities(2)
                .aging(aging),
            &[
                ("low1", Some(1)),
                ("high1", Some(0)),
                ("high2", Some(0)),
                ("low2", Some(1)),
                (LATER, None),
            ],
            &["high2", "high1", "low2", "low1"],
        ),
    ];
    for (number, (builder, waiters, order)) in rows.into_iter().enumerate() {
        let name = &format!("{name}.{number}");
        let group = builder.build(place, name).unwrap();
        let turn = |class: Option<u8>| class.map_or(Turn::new(), |class| Turn::new().class(class));
        let (holder, mut line) = (group.add("k").await.unwrap(), Line::new(place, name));
        for (waiter, class) in waiters {
            match *waiter {
                LATER => interval().await,
                waiter => line.comes(waiter, add(&group, turn(*class), 1)).await,
            }
        }
        let highest = group.with_turn(turn(waiters[0].1.map(|_| 0))).unwrap();
        assert!(highest.try_add("k").await.unwrap_err().is_refused());
        let hasty = highest.with_max_wait(Duration::from_millis(10));
        assert!(hasty.add("k").await.unwrap_err().is_waited_too_long());
        assert!(holder.done().await.unwrap());
        assert_eq!(line.order().await, order);
    }
}

/// How long there must have been waiters.
const INTERVAL: Duration = Duration::from_millis(100);

/// Waits until the interval is over since the last waiter came: time is what counts.
async fn interval() {
    tokio::time::sleep(INTERVAL + Duration::from_millis(50)).await;
}

/// One tenant fills the queue. Others get a place, and its last callers are refused; made-up names get none.
pub(crate) async fn a_full_queue_takes_from_its_longest_line(place: &Place, name: &str) {
    let group = WaitGroup::builder(1)
        .fair()
        .max_waiters(3)
        .build(place, name)
        .unwrap();
    let holder = group.add("k").await.unwrap();
    let state = format!("{name}:k");
    let add = |flow: &'static str| {
        let group = group.with_turn(Turn::of(flow)).unwrap();
        async move { group.add("k").await?.done().await }
    };
    let mut greedy = Vec::new();
    for number in 1..=3 {
        greedy.push(place.line_up(&state, number, add("greedy")).await);
    }
    assert!(add("greedy").await.unwrap_err().is_queue_full());
    let modest = [
        place.line_up(&state, 3, add("modest")).await,
        place.line_up(&state, 3, add("other")).await,
    ];
    for nth in [2, 1] {
        let refused = timeout(SOON, greedy.remove(nth))
            .await
            .unwrap()
            .unwrap()
            .unwrap_err();
        assert!(refused.is_queue_full(), "{refused}");
    }
    for made_up in ["x", "y", "z"] {
        assert!(add(made_up).await.unwrap_err().is_queue_full());
    }
    assert!(holder.done().await.unwrap());
    for waiter in modest.into_iter().chain(greedy) {
        assert!(timeout(SOON, waiter).await.unwrap().unwrap().unwrap());
    }
}

/// How many hold, in a group whose callers hold until they are told to go on.
async fn holds(group: &WaitGroup, count: u32) {
    eventually(&format!("{count} to hold"), SOON, async || {
        group.count("k").await.unwrap() == count
    })
    .await;
}

/// Callers that came with another limit follow the one that the fleet sets, up and down, and nobody has to call or to release.
pub(crate) async fn a_limit_that_is_changed_applies_to_those_who_wait(place: &Place, name: &str) {
    let limit = FleetLimit::new(place, name, 2_u32).unwrap();
    let group = WaitGroup::new(place, name, limit.current()).unwrap();
    let (go_on, goes_on) = tokio::sync::watch::channel(());
    let callers: Vec<_> = (0..40)
        .map(|_| {
            let (group, mut goes_on) = (group.clone(), goes_on.clone());
            tokio::spawn(async move {
                let permit = group.add("k").await.unwrap();
                goes_on.changed().await.unwrap();
                assert!(permit.done().await.unwrap());
            })
        })
        .collect();
    holds(&group, 2).await;
    limit.set(10_u32, "ann").await.unwrap();
    holds(&group, 10).await;
    limit.set(3_u32, "ann").await.unwrap();
    eventually("all to be served", SOON, async || {
        go_on.send(()).unwrap();
        callers.iter().all(JoinHandle::is_finished)
    })
    .await;
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(group.count("k").await.unwrap(), 0);
}

/// It is a kill switch: callers and waiters are refused, and told so.
pub(crate) async fn a_limit_of_0_refuses_those_who_wait(place: &Place, name: &str) {
    let limit = FleetLimit::new(place, name, 1_u32).unwrap();
    let group = WaitGroup::new(place, name, 1).unwrap();
    let holder = group.add("k").await.unwrap();
    let (state, other) = (format!("{name}:k"), group.clone());
    let waiter = place
        .line_up(&state, 1, async move { other.add("k").await.unwrap_err() })
        .await;
    limit.set(0_u32, "ann").await.unwrap();
    let refused = timeout(SOON, waiter).await.expect("it waits").unwrap();
    for refused in [
        refused,
        group.add("k").await.unwrap_err(),
        group.try_add("k").await.unwrap_err(),
    ] {
        assert!(
            refused.is_refused() && refused.to_string() == "no permit: the limit is 0",
            "{refused}"
        );
    }
    limit.set(2_u32, "ann").await.unwrap();
    let again = group.add("k").await.unwrap();
    assert!(again.done().await.unwrap() && holder.done().await.unwrap());
}

/// Whatever moves the limit, a lower class keeps a permit.
pub(crate) async fn the_last_permits_are_for_the_class_above(place: &Place, name: &str) {
    let limit = FleetLimit::new(place, name, 20_u32).unwrap();
    let group = WaitGroup::builder(20)
        .priorities(2)
        .reserve(0, 5)
        .build(place, name)
        .unwrap();
    let high = group.with_turn(Turn::new().class(0)).unwrap();
    let low = group.try_add_n("k", 15).await.unwrap();
    assert!(group.try_add("k").await.unwrap_err().is_refused());
    assert!(group.add_n("k", 16).await.unwrap_err().is_exceeds_limit());
    let last = high.try_add_n("k", 5).await.unwrap();
    assert!(last.done().await.unwrap() && low.done().await.unwrap());
    let state = format!("{name}:k");
    for by in [5_u32, 1] {
        limit.set(by, "ann").await.unwrap();
        for group in [group.clone(), group.with_limit(3).unwrap()] {
            let one = group.try_add("k").await.unwrap();
            assert!(group.try_add("k").await.unwrap_err().is_refused());
            let heavy = group.clone();
            let heavy = place
                .line_up(&state, 1, async move { heavy.add_n("k", 9).await.unwrap() })
                .await;
            assert!(one.done().await.unwrap());
            assert!(
                timeout(SOON, heavy)
                    .await
                    .expect("it waits")
                    .unwrap()
                    .done()
                    .await
                    .unwrap()
            );
        }
    }
}

/// A group that refuses early, and knows for how long permits are held.
async fn known(store: &Store, name: &str, builder: WaitGroupBuilder, millis: u64) -> WaitGroup {
    let group = builder
        .max_wait(SOON)
        .refuse_early(true)
        .build(store, name)
        .unwrap();
    let held = group.add("k").await.unwrap();
    tokio::time::sleep(Duration::from_millis(millis)).await;
    assert!(held.done().await.unwrap());
    group
}

#[test]
fn bad_turns_are_errors() {
    let builder = || WaitGroup::builder(4);
    let build = |builder: WaitGroupBuilder| builder.build(&Store::in_memory(), "turns");
    let (group, newest) = (
        builder().fair().priorities(2),
        builder().newest_first_after(INTERVAL),
    );
    let [group, newest] = [group, newest].map(|builder| build(builder).unwrap());
    for turn in [
        Turn::of("a").share(0),
        Turn::of("a").share(1001),
        Turn::new().class(2),
    ] {
        assert!(group.with_turn(turn).unwrap_err().is_invalid());
    }
    assert!(newest.with_turn(Turn::of("a")).unwrap_err().is_invalid());
    for bad in [
        builder().priorities(0),
        builder().priorities(9),
        builder().aging(Duration::ZERO),
        builder().reserve(1, 1),
        builder().priorities(2).reserve(0, 4),
        builder().newest_first_after(Duration::ZERO),
        builder().newest_first_after(Duration::from_secs(86_401)),
        builder().fair().newest_first_after(INTERVAL),
    ] {
        assert!(build(bad).unwrap_err().is_invalid());
    }
}

/// Who would wait for too long is told so at once, as soon as it is known how long permits are held. Where the newest goes first,
/// the places of those who came earlier do not count. How many are before whom is the same in all stores: see the agreement of
/// leases. So this is in memory, by a clock that a busy machine does not change.
#[tokio::test(start_paused = true)]
async fn who_cannot_be_served_in_time_is_refused() {
    let place = &in_memory().await;
    for (name, newest_first) in [("fair", false), ("newest", true)] {
        let builder = WaitGroup::builder(1);
        let builder = if newest_first {
            builder.newest_first_after(INTERVAL)
        } else {
            builder.fair()
        };
        let group = known(place, name, builder, 200).await;
        let (holder, mut line) = (group.add("k").await.unwrap(), Line::new(place, name));
        for waiter in ["a", "b", "c", "d"] {
            line.comes(waiter, add(&group, Turn::new(), 1)).await;
        }
        let mut hasty = group.with_max_wait(Duration::from_millis(700));
        if newest_first {
            interval().await;
        } else {
            let refused = hasty.add("k").await.unwrap_err();
            assert!(
                refused.is_queue_full() && refused.retry_after().is_some(),
                "{refused}"
            );
            // It is the first of its flow.
            hasty = hasty.with_turn(Turn::of("other")).unwrap();
        }
        let refused = hasty.add("k").await.unwrap_err();
        assert!(refused.is_waited_too_long(), "{refused}");
        assert!(holder.done().await.unwrap());
        let order = if newest_first {
            ["d", "c", "b", "a"]
        } else {
            ["a", "b", "c", "d"]
        };
        assert_eq!(line.order().await, order);
    }
}

/// Eight permits are free eight times as soon as one.
#[tokio::test(start_paused = true)]
async fn turns_come_sooner_with_more_permits() {
    let group = known(&Store::in_memory(), "early", WaitGroup::builder(8), 400).await;
    let held = group.add_n("k", 8).await.unwrap();
    let add = async |millis| {
        group
            .with_max_wait(Duration::from_millis(millis))
            .add("k")
            .await
            .unwrap_err()
    };
    let refused = add(800).await;
    assert!(refused.is_waited_too_long(), "{refused}");
    let refused = add(10).await;
    let after = refused.retry_after().unwrap();
    assert!(
        refused.is_queue_full() && after < Duration::from_millis(400),
        "{refused}"
    );
    assert!(held.done().await.unwrap());
}
