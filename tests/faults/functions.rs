//! Functions of the server: loaded once, loaded again where they are lost, and scripts where there are none.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{BloomFilter, Mutex, Store, WaitGroup};

use support::eventually;
use support::program::has_functions;
use support::proxy::{FaultProxy, Refusal};
use support::redis_server::RedisServer;
use support::requires;

use super::other_servers::{all_work, renamed, two};

const LONG: Duration = Duration::from_secs(10);

fn store(url: &str) -> Store {
    Store::builder().timeout(LONG).redis(url).unwrap()
}

/// The names of the libraries of a server.
fn libraries(server: &RedisServer) -> Vec<String> {
    let list = server.cli(&["FUNCTION", "LIST"]);
    let mut lines = list.lines();
    let mut names = Vec::new();
    while lines.any(|line| line == "library_name") {
        names.extend(lines.next().map(str::to_owned));
    }
    names
}

/// How often the library was loaded.
fn loads(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_function|load:"));
    let number = |name: &str| {
        let fields = line.into_iter().flat_map(|line| line.split(','));
        fields
            .filter_map(|field| field.strip_prefix(name))
            .next()
            .map_or(0, |value| value.parse().unwrap())
    };
    number("calls=") - number("failed_calls=")
}

async fn locks(store: &Store) {
    let mutex = Mutex::new(store, "x").unwrap();
    assert!(mutex.lock("k").await.unwrap().unlock().await.unwrap());
}

#[tokio::test]
async fn each_server_loads_the_library_once_and_with_the_first_call() {
    requires!(has_functions());
    let server = RedisServer::start().await;
    let stores: Vec<_> = (0..20).map(|_| store(&server.url())).collect();
    join_all(stores.iter().map(async |store| store.ping().await.unwrap())).await;
    assert_eq!(
        libraries(&server),
        [""; 0],
        "nothing is loaded before the first call"
    );
    let key = |at: usize| format!("k{at}");
    join_all(stores.iter().enumerate().map(async |(at, store)| {
        let mutex = Mutex::new(store, "x").unwrap();
        let locked =
            join_all((0..20).map(|_| async { mutex.lock(key(at)).await.unwrap().unlock().await }));
        assert!(locked.await.into_iter().all(|unlocked| unlocked.unwrap()));
        assert_eq!(store.stats().functions, Some(true));
    }))
    .await;
    assert_eq!((loads(&server), libraries(&server).len()), (1, 1));
    assert_eq!(server.calls_of("evalsha") + server.calls_of("eval"), 0);
}

/// All works, by scripts.
async fn scripts_serve(stores: [Store; 2], server: &RedisServer, what: &str) {
    server.cli(&["FLUSHALL"]);
    all_work(&stores, server).await;
    assert_eq!(
        stores.map(|store| store.stats().functions),
        [Some(false); 2],
        "{what}"
    );
}

/// What tells that they are not there is tested in `store::redis::functions`.
#[tokio::test]
async fn what_has_no_functions_gets_scripts() {
    requires!(has_functions());
    let server = RedisServer::start().await;
    for command in ["FCALL", "FUNCTION"] {
        let old = renamed(&[command]).await;
        scripts_serve(two(&old.url()), &old, command).await;
        for refusal in [
            Refusal::Error("unsupported command 'fcall'"),
            Refusal::Close,
        ] {
            let proxy = FaultProxy::before(&[server.port()])
                .await
                .refusing(&[command], refusal);
            scripts_serve(two(&proxy.url()), &server, command).await;
        }
    }
    for denied in ["-fcall", "-function"] {
        let url = format!("redis://app:secret@127.0.0.1:{}", server.port());
        server.set_user(
            &store(&url).acl_rule("app").unwrap(),
            &["on", ">secret", denied],
        );
        scripts_serve(two(&url), &server, denied).await;
    }
    server.cli(&["FLUSHALL"]);
    let build = || {
        Store::builder()
            .timeout(LONG)
            .functions(false)
            .redis(&server.url())
            .unwrap()
    };
    all_work(&[build(), build()], &server).await;
    assert_eq!(libraries(&server), [""; 0]);
}

/// A connection that is closed once, when it asks, says nothing.
#[tokio::test]
async fn a_connection_that_breaks_while_it_asks_is_made_again() {
    requires!(has_functions());
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = store(&proxy.url());
    proxy.drop_next_reply_after(b"FCALL");
    locks(&store).await;
    assert_eq!(store.stats().functions, Some(true));
}

#[tokio::test]
async fn a_library_and_scripts_that_are_lost_are_loaded_again() {
    let server = RedisServer::start().await;
    let store = store(&server.url());
    let group = WaitGroup::new(&store, "x", 1).unwrap();
    let filter = BloomFilter::new(&store, "x", 1000, 1e-6).unwrap();
    for round in 0..20_u32 {
        let permit = group.add("k").await.unwrap();
        match round % 3 {
            0 if has_functions() => server.cli(&["FUNCTION", "FLUSH"]),
            1 if has_functions() => server.cli(&["FUNCTION", "DELETE", &libraries(&server)[0]]),
            _ => server.cli(&["SCRIPT", "FLUSH"]),
        };
        // Sent at most once: it would find its own item.
        assert!(filter.insert(round.to_be_bytes()).await.unwrap());
        assert!(permit.done().await.unwrap());
    }
    server.restart().await;
    locks(&store).await;
    if has_functions() {
        assert_eq!(libraries(&server).len(), 1);
    }
}

/// Libraries of other versions stay as they are.
#[tokio::test]
async fn a_library_of_the_same_name_is_left_alone() {
    requires!(has_functions());
    let server = RedisServer::start().await;
    locks(&store(&server.url())).await;
    let [name] = &libraries(&server)[..] else {
        panic!("one library")
    };
    server.cli(&["FUNCTION", "FLUSH"]);
    let library = |name: &str, function: &str| {
        let text = format!(
            "#!lua name={name}\nredis.register_function('{function}', function() return 'nothing of ours' end)"
        );
        assert_eq!(server.cli(&["FUNCTION", "LOAD", &text]).trim(), name);
    };
    // Ours cannot be loaded beside it.
    library(name, "other");
    let before = server.calls_of("function|load");
    let store_beside = store(&server.url());
    for _ in 0..10 {
        locks(&store_beside).await;
    }
    assert!(
        server.calls_of("function|load") < before + 5,
        "it is not loaded for each call"
    );
    assert_eq!(libraries(&server), [name.as_str()]);
    // It answers instead of ours.
    server.cli(&["FUNCTION", "FLUSH"]);
    library("other", name);
    let error = Mutex::new(&store(&server.url()), "x")
        .unwrap()
        .try_lock("k")
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        error.is_unavailable() && text.contains("FUNCTION LIST") && text.contains(name),
        "{text}"
    );
}

/// A server that is out of memory loads nothing, and what is held is released.
#[tokio::test]
async fn what_is_held_is_released_also_where_the_library_cannot_be_loaded() {
    requires!(has_functions());
    let server = RedisServer::start().await;
    let store = store(&server.url());
    let (mutex, group) = (
        Mutex::new(&store, "x").unwrap(),
        WaitGroup::new(&store, "x", 2).unwrap(),
    );
    for is_lost in [false, true] {
        let (guard, permit) = (
            mutex.lock("k").await.unwrap(),
            group.add("k").await.unwrap(),
        );
        if is_lost {
            server.cli(&["FUNCTION", "FLUSH"]);
        }
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(
            mutex.try_lock("k").await.unwrap_err().is_refused(),
            "who asks is told who holds"
        );
        let error = mutex.try_lock("other").await.unwrap_err();
        assert!(
            error.is_unavailable() && error.to_string().contains("OOM"),
            "{error}"
        );
        assert!(guard.unlock().await.unwrap() && permit.done().await.unwrap());
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(libraries(&server).is_empty(), is_lost);
        eventually("the library to be loaded", LONG, async || {
            locks(&store).await;
            libraries(&server).len() == 1
        })
        .await;
        assert_eq!(store.stats().functions, Some(true));
    }
}

/// The names of keys are in no error, so that none can look like an answer.
#[tokio::test]
async fn a_name_with_line_feeds_forges_no_answer() {
    let server = RedisServer::start().await;
    let store = store(&server.url());
    let mutex = Mutex::new(&store, "x").unwrap();
    for key in [
        "a\r\n:1700000000000000\r\n",
        "\r\n$2\r\nOK\r\n",
        "\n+OK\r\n",
    ] {
        let name = format!("td:{{x:{key}}}:lock");
        assert_eq!(server.query::<u64>(&["RPUSH", &name, "not a lock"]), Ok(1));
        assert!(mutex.try_lock(key).await.unwrap_err().is_wrong_type());
        locks(&store).await;
    }
}
