//! Buckets, settings of the fleet, and what counts its processes.

use std::time::Duration;

use tower_distributed::fleet::FleetLimit;
use tower_distributed::fleet::FleetTable;
use tower_distributed::fleet::RefusedKeys;
use tower_distributed::{FleetQuotas, Quota, RateLimitLayer, StoreFailure, TokenBucket};

use super::{MINUTE, Scene};

#[tokio::test]
async fn buckets_and_settings() {
    let scene = Scene::new().await;
    let here = &scene.here;
    let bucket = |name: &str, quota: Quota| TokenBucket::new(here, name, quota).unwrap();
    let minute = || Quota::per_minute(1).burst(5);
    let rows = "td:{bucket:k}:tat | 180 | # 0 60000000 1 5";
    scene
        .row(
            "bucket",
            async || bucket("bucket", minute()).allow_n("k", 3).await.unwrap(),
            rows,
            "",
        )
        .await;
    let rows = "td:{debt:k}:tat | 420 | # 0 60000000 1 5 #";
    scene
        .row(
            "debt",
            async || bucket("debt", minute()).charge("k", 7).await.unwrap(),
            rows,
            "",
        )
        .await;
    let rows = "td:{blocked:k}:tat | 60 | # 0 0 0 0 60000000 1 5 #";
    let block = async || {
        bucket("blocked", minute())
            .block_for("k", MINUTE)
            .await
            .unwrap()
    };
    scene.row("blocked", block, rows, "").await;
    let rows = "td:{two:k}:tat | 3600 | 0 # 0 # 0 60000000 1 5 # 0 # 0 3600000000 1 2";
    let two = TokenBucket::new(here, "two", [minute(), Quota::per_hour(1).burst(2)]).unwrap();
    scene
        .row("two", async || two.allow("k").await.unwrap(), rows, "")
        .await;
    let rows = "td:{thirds:k}:tat | 34 | # # 100000000 3 3";
    let thirds = Quota::new(3, Duration::from_secs(100)).burst(3);
    scene
        .row(
            "thirds",
            async || bucket("thirds", thirds).allow("k").await.unwrap(),
            rows,
            "",
        )
        .await;
    let rows = "td:{total:k}:tat | - | 3 -1 0 1 10";
    let total = async || {
        bucket("total", Quota::non_refilling(10))
            .allow_n("k", 3)
            .await
            .unwrap()
    };
    scene.row("total", total, rows, "").await;
    // A month from the 17th on: (20 + 17) · 2880 + 1440 + 120. A day: 1 · 2880 + 1440; its window, and a day more.
    let rows = "td:{month:k}:tat | * | 0 3 -1 # 0 0 108120 10";
    let month = Quota::per_calendar_month(10).starting(17).at_offset(120);
    scene
        .row(
            "month",
            async || bucket("month", month).allow_n("k", 3).await.unwrap(),
            rows,
            "",
        )
        .await;
    let rows = "td:{day:k}:tat | 172800 | 0 3 -1 # 0 0 4320 10";
    let day = async || {
        bucket("day", Quota::per_calendar_day(10))
            .allow_n("k", 3)
            .await
            .unwrap()
    };
    scene.row("day", day, rows, "").await;

    let quotas = async || {
        let quotas = FleetQuotas::new(here, "quotas", "1/s").unwrap();
        quotas
            .set("10/s; 1000/h, burst 100", "ann b")
            .await
            .unwrap();
        quotas.undo("ben").await.unwrap();
        quotas
    };
    let [set, undone] = [
        "1 # @\\x0aann b\\x0a+10/s; 1000/h, burst 100",
        "2 # @\\x0aben\\x0a-",
    ];
    let rows = format!("td:{{quotas:}}:setting:quotas | - | {set} | {undone}");
    let heard =
        [set, undone].map(|text| format!("td:wake:all | setting:quotas\\x0aquotas\\x0a{text}\n"));
    scene.row("quotas", quotas, &rows, &heard.concat()).await;
    let rows = "td:{exports:}:setting:limit | - | 1 # @\\x0aann\\x0a+7";
    let limit = async || {
        FleetLimit::new(here, "exports", 1_u32)
            .unwrap()
            .set(7_u32, "ann")
            .await
            .unwrap()
    };
    scene
        .row(
            "exports",
            limit,
            rows,
            "td:wake:all | setting:limit\\x0aexports\\x0a1 # @\\x0aann\\x0a+7",
        )
        .await;
    let rows = "td:{routes:}:setting:table | - | 1 # @\\x0aann\\x0a+/a = 1/s\\x0a/b = 2/s";
    let table = async || {
        FleetTable::new(here, "routes", "")
            .unwrap()
            .set("/a = 1/s\n/b = 2/s", "ann")
            .await
            .unwrap()
    };
    scene.row("routes", table, rows, "").await;

    let counted = async || {
        let refused = RefusedKeys::with_plain_keys(here, "counted").unwrap();
        let share = StoreFailure::CountedShare {
            replicas: 4.try_into().unwrap(),
            at_least: 1.try_into().unwrap(),
        };
        let bucket = bucket("counted", Quota::non_refilling(1));
        let layer: RateLimitLayer<&str, ()> =
            RateLimitLayer::new(bucket, |user: &&'static str| *user);
        let layer = layer.on_store_failure(share).count_refused(&refused);
        ["ann", "a\x1bb", "ann"]
            .iter()
            .for_each(|key| refused.record(*key));
        (layer, refused)
    };
    let rows = "
        td:{counted:}:members | 30 | @ #
        td:{counted:@}:refused | 600 | 3 0\\x0a2 2 ann\\x0a1 1 a%1bb
    ";
    scene.row("counted", counted, rows, "").await;
}
