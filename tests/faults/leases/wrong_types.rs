//! Keys of a lease hold something else.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;
use tower_distributed::{Error, Mutex, RwLock, WaitGroup};

use crate::leases::kinds::{Family, SOON, open, two_of_each};
use support::eventually;
use support::redis_server::RedisServer;

fn names_the_cause(error: &Error) -> bool {
    error.is_wrong_type() && error.is_unavailable() && error.to_string().contains("WRONGTYPE")
}

/// Those that were asked for with it get their answer, it is left as it is, and who held it before is told, once it asks.
#[tokio::test]
async fn a_holder_of_another_type_concerns_no_other_key() {
    let server = RedisServer::start().await;
    let [near, far] = two_of_each(&server);
    for (family, far) in near.iter().zip(far) {
        let (lost, other) = (
            far.take("list").await.unwrap(),
            far.take("other").await.unwrap(),
        );
        family.take("warm").await.unwrap().release().await.unwrap();
        let name = family.holders("list");
        server.cli(&["DEL", &name]);
        server.cli(&["RPUSH", &name, "a", "b"]);
        // The first leaves alone, the others in one call.
        let keys = ["a", "list", "b", "list", "c"];
        let outcomes = join_all(keys.map(|key| family.take(key))).await;
        let tries = join_all(["d", "list", "e"].map(|key| family.try_take(key))).await;
        let keys = keys.into_iter().chain(["d", "list", "e"]);
        let mut held = Vec::new();
        for (key, outcome) in keys.zip(outcomes.into_iter().chain(tries)) {
            match outcome {
                Ok(taken) => held.push((key, taken)),
                Err(error) => assert!(key == "list" && names_the_cause(&error), "{key}: {error}"),
            }
        }
        assert_eq!(
            held.iter().map(|(key, _)| *key).collect::<String>(),
            "abcde"
        );
        match family {
            Family::Permits(permits) => {
                assert!(names_the_cause(&permits.count("list").await.unwrap_err()))
            }
            // Whatever it is, nobody has locked it.
            Family::Mutex(mutex) => {
                let outcome = mutex.is_locked("list").await;
                assert!(
                    outcome
                        .as_ref()
                        .map_or_else(names_the_cause, |locked| !locked),
                    "{outcome:?}"
                );
            }
            Family::Writers(lock) => {
                assert!(names_the_cause(&lock.read("list").await.unwrap_err()))
            }
        }
        let extended = join_all(held.iter().map(|(_, taken)| taken.extend())).await;
        assert!(extended.iter().all(Result::is_ok), "{extended:?}");
        let extended = join_all([other.extend(), lost.extend(), other.extend()]).await;
        assert!(extended[0].is_ok() && extended[2].is_ok(), "{extended:?}");
        let error = extended[1].as_ref().unwrap_err();
        assert!(names_the_cause(error) || error.is_lost(), "{error}");
        let was_held = lost.release().await;
        assert!(
            was_held
                .as_ref()
                .map_or_else(names_the_cause, |was_held| !was_held),
            "{was_held:?}"
        );
        assert!(other.release().await.unwrap());
        for released in join_all(held.into_iter().map(|(_, taken)| taken.release())).await {
            assert!(released.unwrap());
        }
        assert_eq!(server.cli(&["LRANGE", &name, "0", "-1"]), "a\nb");
        // It is not taken for an outage, and is over with its cause.
        server.cli(&["DEL", &name]);
        assert!(
            family
                .try_take("list")
                .await
                .unwrap()
                .release()
                .await
                .unwrap()
        );
    }
}

/// Whatever part it is, free or contended: who meets it is told its name, or gets the lease, or waits for its holder.
#[tokio::test]
async fn any_part_of_another_type_is_named() {
    let server = RedisServer::start().await;
    let (store, wait) = (open(&server.url()), Duration::from_millis(300));
    let families = [
        Family::Permits(
            WaitGroup::builder(1)
                .max_wait(wait)
                .build(&store, "permits")
                .unwrap(),
        ),
        Family::Mutex(
            Mutex::builder()
                .max_wait(wait)
                .build(&store, "mutex")
                .unwrap(),
        ),
        Family::Writers(
            RwLock::builder()
                .max_wait(wait)
                .build(&store, "rw")
                .unwrap(),
        ),
    ];
    let mut told = 0;
    for family in families {
        for part in ["lock", "holders", "fence", "waiters", "flows", "beats"] {
            let name = family.part(part, part);
            for is_held in [false, true] {
                let holder = if is_held {
                    Some(family.take(part).await.unwrap())
                } else {
                    None
                };
                server.cli(&["DEL", &name]);
                server.cli(&["XADD", &name, "*", "field", "value"]);
                match timeout(SOON, family.take(part)).await.expect("it hangs") {
                    Ok(taken) => drop(taken),
                    Err(error) if error.is_waited_too_long() => assert!(is_held, "{part}: {error}"),
                    Err(error) => {
                        assert!(names_the_cause(&error), "{part}: {error}");
                        told += 1;
                    }
                }
                assert_eq!(
                    server.cli(&["TYPE", &name]),
                    "stream",
                    "{name} was overwritten"
                );
                server.cli(&["DEL", &name]);
                drop(holder);
                eventually("it to be free", SOON, async || {
                    family.try_take(part).await.is_ok()
                })
                .await;
            }
        }
    }
    println!("{told} of 36 attempts were told the cause");
    assert!(told >= 12, "{told}");
}
