//! Windows, and how lists are stored, with clocks that only the inside can set.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::refused_keys::operations::look;
use crate::store::memory::clock::Clock;
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);

fn counts(refused: &RefusedKeys, now: i64) -> Vec<(String, u64, u64)> {
    let top: Vec<RefusedKey> = refused.shared.list(true, now).top(10).into();
    top.into_iter()
        .map(|one| (one.key, one.at_least, one.at_most))
        .collect()
}

fn exactly(counts: &[(&str, u64)]) -> Vec<(String, u64, u64)> {
    counts
        .iter()
        .map(|(key, count)| ((*key).to_owned(), *count, *count))
        .collect()
}

#[test]
fn refusals_are_forgotten_after_two_windows() {
    let refused = RefusedKeys::new(&Store::in_memory(), "api").unwrap();
    let (window, start) = (WINDOW, 5_000_000_000_000);
    let record = |key: &str, now| refused.shared.record(key.into(), now);
    record("ann", start);
    record("ann", start + window - 1);
    record("ben", start + window);
    assert_eq!(
        counts(&refused, start + window),
        exactly(&[("ann", 2), ("ben", 1)])
    );
    record("ann", start + 2 * window - 1);
    assert_eq!(
        counts(&refused, start + 2 * window - 1),
        exactly(&[("ann", 3), ("ben", 1)])
    );
    assert_eq!(
        counts(&refused, start + 2 * window),
        exactly(&[("ann", 1), ("ben", 1)])
    );
    assert_eq!(counts(&refused, start + 4 * window), exactly(&[]));
    record("cid", start + 9 * window);
    assert_eq!(counts(&refused, start + 9 * window), exactly(&[("cid", 1)]));
}

#[test]
fn plain_keys_are_shown_only_if_they_were_asked_for() {
    let store = Store::in_memory();
    let hashed = RefusedKeys::new(&store, "api").unwrap();
    let plain = RefusedKeys::with_plain_keys(&store, "api").unwrap();
    hashed.record("ann");
    // printf ann | sha256sum
    let digest = "%#49915e0d7d4b402e3017d010bc1c0e83cac6c797d6c16e66340fe3268693a6a1";
    assert_eq!(hashed.top(9)[0].key, digest);
    assert_eq!(plain.top(9)[0].key, "ann");
    plain.record("\u{1b}[2J\n");
    plain.record(vec![b'x'; 257]);
    let mut keys: Vec<_> = plain
        .top(9)
        .into_iter()
        .map(|refused| refused.key)
        .collect();
    keys.sort();
    assert_eq!(
        keys[..],
        [
            digest_text(&[b'x'; 257]),
            "%1b[2J%0a".to_owned(),
            "ann".to_owned()
        ]
    );
    assert!(!format!("{plain:?}{hashed:?}").contains("ann"));
}

/// The list of this process as it is stored.
async fn stored(refused: &RefusedKeys, store: &Store) -> Option<List> {
    let process = Key::from(refused.shared.store.notifier().process());
    look(&Namespace::open(store, "api"), process).await.unwrap()
}

async fn a_list_is_stored_after_refusals(store: Store) {
    let refused = RefusedKeys::with_plain_keys(&store, "api").unwrap();
    assert!(refused.shared.due().is_none(), "nothing is to be stored");
    (0..100).for_each(|_| refused.record("ann"));
    (0..50).for_each(|key| refused.record(key.to_string()));
    assert!(
        refused.shared.due().is_some_and(|due| due > Instant::now()),
        "it is stored later"
    );
    assert_eq!(stored(&refused, &store).await, None);
    Arc::clone(&refused.shared).signal(Signal::Due);
    eventually("the list", SOON, async || {
        stored(&refused, &store).await.is_some()
    })
    .await;
    let list = stored(&refused, &store).await.unwrap();
    assert_eq!((list.keys.len(), list.total, list.others), (STORED, 150, 1));
    assert_eq!(
        list.keys[0],
        (
            "ann".to_owned(),
            list::Counted {
                at_least: 100,
                at_most: 100
            }
        )
    );
    assert!(refused.shared.due().is_none(), "nothing has changed");
    // One handle without plain keys is enough for digests.
    let _hashed = RefusedKeys::new(&store, "api").unwrap();
    refused.record("ann");
    Arc::clone(&refused.shared).signal(Signal::Hurry);
    let first = async || stored(&refused, &store).await.unwrap().keys[0].0.clone();
    eventually("digests", SOON, async || {
        first().await == digest_text(b"ann")
    })
    .await;
}

#[tokio::test]
async fn in_memory_a_list_is_stored_after_refusals() {
    a_list_is_stored_after_refusals(Store::in_memory()).await;
}

#[tokio::test]
async fn on_redis_a_list_is_stored_after_refusals() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let began = std::time::Instant::now();
    a_list_is_stored_after_refusals(store.clone()).await;
    let keys: Vec<String> = server.query(&["KEYS", "*refused"]).unwrap();
    assert_eq!(
        keys,
        [format!("td:{{api:{}}}:refused", store.notifier().process())]
    );
    let ttl: i64 = server.query(&["PTTL", &keys[0]]).unwrap();
    let least = 600_000 - began.elapsed().as_millis() as i64 - 1;
    assert!((least..=600_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn a_list_that_could_not_be_stored_is_stored_later() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let refused = RefusedKeys::new(&store, "api").unwrap();
    server.kill9();
    refused.record("ann");
    Arc::clone(&refused.shared).signal(Signal::Due);
    eventually("another time", SOON, async || {
        refused.shared.due().is_some()
    })
    .await;
    server.restart().await;
    Arc::clone(&refused.shared).signal(Signal::Due);
    let is_there = async || {
        // While the breaker is open, the list is due again.
        Arc::clone(&refused.shared).signal(Signal::Due);
        look(
            &Namespace::open(&store, "api"),
            store.notifier().process().into(),
        )
        .await
        .is_ok_and(|list| list.is_some())
    };
    eventually("the list", SOON, is_there).await;
}

/// Lua and Rust agree, also on lists that another program has written.
#[tokio::test]
async fn stored_lists_are_read_alike() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let memory = Store::with_clock(Clock::system());
    let long = format!("1 1{}", "\n1 1 x".repeat(9000));
    for text in ["1 0\n1 1 a", "", "1", "1 0\n1 1 \u{1b}", &long] {
        let process = Key::from("0123");
        let list: Arc<str> = text.into();
        server.cli(&["DEL", "td:{api:0123}:refused"]);
        let mut read = Vec::new();
        for store in [&store, &memory] {
            let namespace = Namespace::open(store, "api");
            let put = Put::of(&list, 60_000);
            namespace.client().run(process.clone(), put).await.unwrap();
            read.push(
                look(&namespace, process.clone())
                    .await
                    .map_err(|error| error.is_wrong_type()),
            );
        }
        assert_eq!(read[0], read[1], "{text:?}");
        assert_eq!(
            read[0].is_ok(),
            text.is_empty() || text == "1 0\n1 1 a",
            "{text:?}"
        );
    }
    server.cli(&["DEL", "td:{api:0123}:refused"]);
    server.cli(&["RPUSH", "td:{api:0123}:refused", "x"]);
    let error = look(&Namespace::open(&store, "api"), "0123".into())
        .await
        .unwrap_err();
    assert!(error.is_wrong_type(), "{error}");
}

/// Many threads at once lose no refusal.
#[test]
fn threads_count_together() {
    let refused = RefusedKeys::with_plain_keys(&Store::in_memory(), "api").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let refused = refused.clone();
            scope.spawn(move || {
                for at in 0..1000 {
                    refused.record(if at % 2 == 0 {
                        "all".to_owned()
                    } else {
                        thread.to_string()
                    });
                }
            });
        }
    });
    let top = refused.top(5);
    assert_eq!(
        (top[0].key.as_str(), top[0].at_least, top.len()),
        ("all", 2000, 5)
    );
    assert!(
        top[1..]
            .iter()
            .all(|one| one.at_least == 500 && one.at_most == 500)
    );
}
