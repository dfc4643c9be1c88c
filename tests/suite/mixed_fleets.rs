//! Half of the processes of a fleet have turned a setting on: the callers of both are served, whichever half is newer.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::mpsc;
use tower_distributed::wait_group::{Turn, WaitGroupBuilder};
use tower_distributed::{Store, WaitGroup};

use crate::stores::SOON;
use support::redis_server::RedisServer;

const MILLISECOND: Duration = Duration::from_millis(1);

/// How many waiters each half has at any time.
const WAITERS: usize = 8;

/// How many are served in all.
const SERVED: usize = 160;

/// Two processes on one server that want the same permit. Returns how many of each half were served.
///
/// `settings` are those of each half, the later built one last. `turns` are those of the callers of each.
async fn served(
    settings: [fn() -> WaitGroupBuilder; 2],
    turns: [fn(usize) -> Turn; 2],
    weights: [u32; 2],
) -> [usize; 2] {
    let server = RedisServer::start().await;
    let store = || {
        Store::builder()
            .timeout(SOON)
            .queue_timeout(SOON)
            .redis(&server.url())
            .unwrap()
    };
    let (stores, mut groups) = ([store(), store()], VecDeque::new());
    let holder = WaitGroup::new(&stores[0], "group", 4)
        .unwrap()
        .add_n("k", 4)
        .await
        .unwrap();
    for (store, settings) in stores.iter().zip(settings) {
        groups.push_back(settings().build(store, "group").unwrap());
    }
    let (says, mut told) = mpsc::unbounded_channel();
    let comes = |half: usize, nth: usize| {
        let group = groups[half].with_turn(turns[half](nth)).unwrap();
        let (says, weight) = (says.clone(), weights[half]);
        tokio::spawn(async move {
            let permit = group.add_n("k", weight).await.unwrap();
            says.send(half).unwrap();
            permit.done().await.unwrap();
        })
    };
    let mut callers: Vec<_> = (0..2 * WAITERS)
        .map(|nth| comes(nth % 2, nth / 2))
        .collect();
    support::eventually("all to wait", SOON, async || {
        groups[0].inspect("k").await.unwrap().waiting == 2 * WAITERS as u64
    })
    .await;
    // So that newest first has begun: time is what counts.
    tokio::time::sleep(20 * MILLISECOND).await;
    assert!(holder.done().await.unwrap());
    let mut counts = [0; 2];
    for nth in 0..SERVED {
        let half = tokio::time::timeout(SOON, told.recv())
            .await
            .expect("nobody is served")
            .unwrap();
        counts[half] += 1;
        // Of each half comes another one, so there are always more than can be served.
        callers.extend([nth % 2, 1 - nth % 2].map(|half| comes(half, WAITERS + nth)));
    }
    callers.iter().for_each(|caller| caller.abort());
    drop::<[Store; 2]>(stores);
    counts
}

fn plain() -> WaitGroupBuilder {
    WaitGroup::builder(4)
}

fn no_turn(_: usize) -> Turn {
    Turn::new()
}

/// One in two goes first.
fn one_in_two(nth: usize) -> Turn {
    if nth.is_multiple_of(2) {
        Turn::new().class(0)
    } else {
        Turn::new()
    }
}

/// Turned on and off: each half is the newer one once.
async fn on_and_off(
    setting: fn() -> WaitGroupBuilder,
    turn: fn(usize) -> Turn,
    weight: u32,
) -> [[usize; 2]; 2] {
    let on = served([plain, setting], [no_turn, turn], [1, weight]).await;
    let off = served([setting, plain], [turn, no_turn], [weight, 1]).await;
    [on, off]
}

/// The setting of one half; the turns and the weights of its callers.
type Half = (fn() -> WaitGroupBuilder, fn(usize) -> Turn, u32);

/// Each half gets four fifths of its share. With newest first it gets half of it: who is the newest, of two that come at once, is
/// up to the machine. The share over time is the figure `mixed-fleet-share-newest`.
#[tokio::test]
async fn both_are_served() {
    let fifth = SERVED / 5;
    let rows: [(&str, usize, Half); 9] = [
        (
            "of 2 classes",
            2 * fifth,
            (
                || plain().priorities(2).aging(Duration::from_secs(1)),
                no_turn,
                1,
            ),
        ),
        (
            "the last of 3 classes",
            2 * fifth,
            (|| plain().priorities(3), |_| Turn::new().class(2), 1),
        ),
        (
            "fair shares without flows",
            2 * fifth,
            (|| plain().fair(), no_turn, 1),
        ),
        (
            "fair shares",
            2 * fifth,
            (
                || plain().fair(),
                |nth| Turn::of(["a", "b", "c", "d"][nth % 4]),
                1,
            ),
        ),
        (
            "aging",
            2 * fifth,
            (|| plain().priorities(2).aging(MILLISECOND), no_turn, 1),
        ),
        (
            "reserve",
            2 * fifth,
            (|| plain().priorities(2).reserve(0, 2), no_turn, 1),
        ),
        ("weights", 2 * fifth, (plain, no_turn, 2)),
        // Callers of the lowest class are served beside others of the highest, by the aging of either half.
        (
            "a higher class",
            SERVED / 8,
            (
                || plain().priorities(2).aging(20 * MILLISECOND),
                one_in_two,
                1,
            ),
        ),
        (
            "newest",
            SERVED / 4,
            (|| plain().newest_first_after(MILLISECOND), no_turn, 1),
        ),
    ];
    join_all(rows.map(async |(what, least, (setting, turn, weight))| {
        for counts in on_and_off(setting, turn, weight).await {
            assert!(
                counts.iter().all(|served| *served >= least),
                "{what}: {counts:?}"
            );
        }
    }))
    .await;
}
