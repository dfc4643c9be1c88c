//! Permits and those who wait for them.

use std::io;
use std::time::Duration;

use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::wait_group::{Adaptive, Signal, Turn};
use tower_distributed::{ConcurrencyLimitLayer, WaitGroup};

use super::{MINUTE, Scene};
use crate::stores::SOON;
use support::eventually;

#[tokio::test]
async fn permits() {
    let scene = Scene::new().await;
    let (here, there) = (&scene.here, &scene.there);
    let one = async || {
        let [group, other] =
            [here, there].map(|store| WaitGroup::new(store, "permits", 5).unwrap());
        let held = group.add_n("k", 2).await.unwrap();
        let idle = other.clone();
        let heavy = scene
            .behind("permits", 1, async move { other.add_n("k", 5).await })
            .await;
        let idle = scene
            .behind("permits", 2, async move { idle.wait("k").await })
            .await;
        (held, heavy, idle)
    };
    let rows = "
        td:{permits:k}:permits:holders | 172800 | @-@.@/2/5 #, excess 2^52+1
        td:{permits:k}:permits:waiters | 60 | @-@.@/5/5 3940649673949184, @-@.@/idle 2^52+0
        td:{permits:k}:permits:beats | 60 | @-@.@/5/5 #, @-@.@/idle #
        td:{permits:k}:permits:flows | 60 | o # 0 0 -1125899906842624, …
    ";
    scene.row("permits", one, rows, "").await;

    // Its waiter, of a third process, has not renewed the grant: half a µs.
    let granted = async || {
        let held = WaitGroup::new(here, "granted", 1)
            .unwrap()
            .add("k")
            .await
            .unwrap();
        let (token, alive) = ("fedcba9876543210-3.3938700/1/1", scene.after(60));
        scene.set(&[
            &[
                "ZADD",
                "td:{granted:k}:permits:waiters",
                "3940649673949184",
                token,
            ],
            &["ZADD", "td:{granted:k}:permits:beats", &alive, token],
        ]);
        assert!(held.done().await.unwrap());
    };
    let rows = "td:{granted:k}:permits:holders | 172800 | fedcba9876543210-3.3938700/1/1 #.5";
    scene
        .row("granted", granted, rows, "td:wake:fedcba9876543210 | # 0 3")
        .await;

    let shares = async || {
        let build = |store| WaitGroup::builder(1).fair().build(store, "shares").unwrap();
        let [group, other] = [here, there].map(build);
        let other = other.with_turn(Turn::of("a").share(3)).unwrap();
        let held = group.add("k").await.unwrap();
        let mut waiters = Vec::new();
        for number in 1..=2 {
            let other = other.clone();
            waiters.push(
                scene
                    .behind("shares", number, async move { other.add("k").await })
                    .await,
            );
        }
        (held, waiters)
    };
    let rows = "
        td:{shares:k}:permits:holders | 172800 | @-@.@/1/1/@.1.. #
        td:{shares:k}:permits:waiters | 60 | @-@.@/1/1/@.3.. 4081387162305193, @-@.@/1/1/@.3.. 4222124650659840
        td:{shares:k}:permits:beats | 60 | @-@.@/1/1/@.3.. #, @-@.@/1/1/@.3.. #
        td:{shares:k}:permits:flows | 60 | 7:@ 3940649673949865, \\x237:@ -246290608816129, N7 2^52+1, o # 0 0 -1125899906842624, …
    ";
    scene.row("shares", shares, rows, "").await;

    let classes = async || {
        let builder = || {
            WaitGroup::builder(5)
                .priorities(2)
                .aging(MINUTE)
                .reserve(0, 2)
        };
        let [group, low] = [here, there].map(|store| builder().build(store, "classes").unwrap());
        let high = low.with_turn(Turn::new().class(0)).unwrap();
        let held = group
            .with_turn(Turn::new().class(0))
            .unwrap()
            .add_n("k", 5)
            .await
            .unwrap();
        let low = scene
            .behind("classes", 1, async move { low.add("k").await })
            .await;
        let high = scene
            .behind("classes", 2, async move { high.add("k").await })
            .await;
        (held, low, high)
    };
    let rows = "
        td:{classes:k}:permits:holders | 172800 | @-@.@/5/5 #, excess 2^52+4
        td:{classes:k}:permits:waiters | 60 | @-@.@/1/5 0, @-@.@/1/3/..2. 3940649673949184
        td:{classes:k}:permits:beats | 60 | @-@.@/1/5 #, @-@.@/1/3/..2. #
        td:{classes:k}:permits:flows | 60 | o # 60000000 0 0 2 2 2 2 2 2 2 -1125899906842624, t7 2^52+#, …
    ";
    scene.row("classes", classes, rows, "").await;

    let newest = async || {
        let builder = || WaitGroup::builder(1).newest_first_after(MINUTE);
        let [group, other] = [here, there].map(|store| builder().build(store, "newest").unwrap());
        let held = group.add("k").await.unwrap();
        let waiter = scene
            .behind("newest", 1, async move { other.add("k").await })
            .await;
        (held, waiter)
    };
    let rows = "
        td:{newest:k}:permits:holders | 172800 | @-@.@/1/1 #
        td:{newest:k}:permits:waiters | 60 | @-@.@/1/1 3940649673949184
        td:{newest:k}:permits:beats | 60 | @-@.@/1/1 #
        td:{newest:k}:permits:flows | 60 | o # 0 60000000 -1125899906842624, n7 2^52+#, …
    ";
    scene.row("newest", newest, rows, "").await;

    let adapts = async || {
        let group = WaitGroup::new(here, "adapts", 20).unwrap();
        let adaptive = Adaptive::aimd().window(Duration::from_millis(10));
        let adaptive = adaptive.classify(|_: &Result<(), io::Error>| Signal::Success);
        let layer = ConcurrencyLimitLayer::new(group, |(): &()| "k")
            .adaptive(adaptive)
            .unwrap();
        let service = layer.layer(service_fn(async |()| Ok::<_, io::Error>(())));
        eventually("a report", SOON, async || {
            service.clone().oneshot(()).await.unwrap();
            scene
                .server
                .query(&["EXISTS", "td:{adapts:k}:permits:limit"])
                == Ok(1)
        })
        .await;
    };
    let rows = "td:{adapts:k}:permits:limit | 3600 | # # # # # # # # # # # # # # # #";
    scene.row("adapts", adapts, rows, "").await;
}
