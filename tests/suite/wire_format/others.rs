//! Forms that are not recognised, and locks of other programs.

use tokio::time::timeout;
use tower_distributed::single_flight::Postcard;
use tower_distributed::{
    BloomFilter, Dedupe, Error, Mutex, Quota, RwLock, SingleFlight, TokenBucket, WaitGroup,
};

use super::{HOUR, MINUTE, Scene, are_stored};
use crate::claims::take;
use crate::stores::SOON;
use support::eventually;

fn is_refused<T>(outcome: &Result<T, Error>) -> bool {
    outcome.as_ref().is_err_and(Error::is_refused)
}

/// What is in another form is an error, or is respected, as the page says. It is left as it is, except for answers.
#[tokio::test]
async fn forms_of_others_are_respected() {
    const TOKEN: &str = "0123456789abcdef-1.3938700/1/2";
    let scene = Scene::new().await;
    let store = &scene.here;
    let kept = [
        ("td:{bucket:k}:tat", "tat2 1 2 3"),
        ("td:{mutex:fence}:fence", "fence2:1"),
        ("td:{rw:fence}:rw:fence", "1 2 3"),
        ("td:{filter:0}:config", "bloom2 x"),
        ("td:{items:layout}:layout", "exact2 x"),
        ("td:{mutex:lock}:lock", "another form"),
    ];
    kept.iter()
        .for_each(|(key, text)| scene.set(&[&["SET", key, text, "PX", "60000"]]));
    let (second, minute) = (&*scene.after(2), &*scene.after(60));
    scene.set(&[
        &[
            "ZADD",
            "td:{permits:k}:permits:holders",
            second,
            "another-form",
            minute,
            TOKEN,
        ],
        &["ZADD", "td:{rw:k}:rw:holders", minute, "another-form"],
        &[
            "ZADD",
            "td:{permits:waiters}:permits:waiters",
            "0",
            "another-form",
        ],
        &[
            "ZADD",
            "td:{permits:waiters}:permits:beats",
            minute,
            "another-form",
        ],
        &["ZADD", "td:{mutex:waiters}:waiters", "0", "another-form"],
        &["ZADD", "td:{mutex:waiters}:beats", minute, "another-form"],
        &[
            "SET",
            "td:{flights:k}:flight:answer",
            "another form",
            "PX",
            "60000",
        ],
        &["SET", "{shop}:42", "theirs", "NX", "PX", "60000"],
        &[
            "SET",
            "{shop}:42:td:=fence",
            "4000000000000000",
            "PX",
            "691200000",
        ],
    ]);
    let is_wrong_type = |error: Error| error.is_wrong_type() && error.is_unavailable();
    let bucket = TokenBucket::new(store, "bucket", Quota::per_minute(1)).unwrap();
    assert!(is_wrong_type(bucket.allow("k").await.unwrap_err()));
    let mutex = Mutex::new(store, "mutex").unwrap();
    assert!(is_wrong_type(mutex.try_lock("fence").await.unwrap_err()));
    assert!(is_refused(&mutex.try_lock("lock").await));
    assert_eq!(
        mutex.inspect("lock").await.unwrap().holders[0].token(),
        "another form"
    );
    let locks = RwLock::new(store, "rw").unwrap();
    assert!(is_wrong_type(locks.try_write("fence").await.unwrap_err()));
    assert!(
        scene.stored("{rw:fence}:rw:holders").is_empty(),
        "it holds in spite of the error"
    );
    assert!(is_refused(&locks.try_write("k").await) && is_refused(&locks.try_read("k").await));
    let filter = BloomFilter::new(store, "filter", 1000, 0.01).unwrap();
    assert!(filter.insert("a").await.unwrap_err().is_invalid());
    let items = Dedupe::exact(store, "items")
        .capacity(100)
        .remember_for(2 * HOUR)
        .build()
        .unwrap();
    assert!(items.try_claim("a").await.unwrap_err().is_invalid());
    for (key, text) in kept {
        assert_eq!(scene.server.query::<String>(&["GET", key]).unwrap(), text);
    }

    // An item in a slice whose number is in another form.
    let items = Dedupe::exact(store, "slices")
        .capacity(100)
        .remember_for(2 * HOUR)
        .build()
        .unwrap();
    assert!(take(&items, "evt_1").await.confirm().await.unwrap());
    for (slice, ..) in scene.stored("{slices:0}:exact:?") {
        scene.set(&[&["HSET", &slice, "s", "another-form"]]);
    }
    assert!(is_wrong_type(items.try_claim("evt_1").await.unwrap_err()));

    // A lock of another library, whose name has a hash tag.
    let exact = Mutex::builder()
        .exact_names()
        .build(store, "exact")
        .unwrap();
    assert!(
        exact.is_locked("{shop}:42").await.unwrap()
            && is_refused(&exact.try_lock("{shop}:42").await)
    );
    scene.set(&[&["DEL", "{shop}:42"]]);
    let guard = exact.try_lock("{shop}:42").await.unwrap();
    assert_eq!(
        guard.fence(),
        4_000_000_000_000_032,
        "behind the one that is stored"
    );
    assert!(guard.unlock().await.unwrap());

    let group = WaitGroup::new(store, "permits", 2).unwrap();
    assert!(is_refused(&group.try_add("k").await), "each counts as one");
    let mut permit = None;
    eventually("the permit in another form to expire", SOON, async || {
        permit = group.try_add("k").await.ok();
        permit.is_some()
    })
    .await;
    assert_eq!(group.count("k").await.unwrap(), 2);
    assert!(
        timeout(SOON, group.add("waiters"))
            .await
            .unwrap()
            .unwrap()
            .done()
            .await
            .unwrap()
    );
    assert!(
        timeout(SOON, mutex.lock("waiters"))
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap()
    );
    let flights = SingleFlight::<u64>::builder(Postcard)
        .ttl(MINUTE)
        .build(store, "flights")
        .unwrap();
    assert_eq!(flights.run("k", || async { 9 }).await.unwrap(), 9);
    let row = "td:{flights:k}:flight:answer | 60 | # 60000000 60000000 postcard/1+ +\\x09";
    eventually("the answer", SOON, async || {
        are_stored(&scene.stored("{flights:k}"), row)
    })
    .await;
}
