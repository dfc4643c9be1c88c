//! Credentials that change, Unix sockets, and users with few permissions.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_redis::redis::cmd;
use tower_distributed::dedupe::{Claimed, Dedupe};
use tower_distributed::operator::{Entry, Kind, Operator};
use tower_distributed::single_flight::Json;
use tower_distributed::{
    BloomFilter, Credentials, Error, Mutex, Quota, RwLock, SingleFlight, Store, TokenBucket,
    WaitGroup,
};

use crate::woken::a_waiter_is_woken;
use support::eventually;
use support::redis_server::RedisServer;
use support::requires;
use support::scratch_dir::ScratchDir;

const SOON: Duration = Duration::from_secs(20);

fn set_password(server: &RedisServer, password: &str) {
    server.cli(&[
        "ACL",
        "SETUSER",
        "app",
        "on",
        "resetpass",
        &format!(">{password}"),
        "~*",
        "&*",
        "+@all",
    ]);
    // As a server does that ends connections after some hours.
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
}

async fn allow(store: &Store) -> Result<(), Error> {
    TokenBucket::new(store, "x", Quota::per_hour(100))?
        .allow("k")
        .await
        .map(drop)
}

/// A waiter is woken by a message: the subscription has the new credentials, too.
async fn check_waiter(store: &Store, server: &RedisServer, database: u8) {
    let elsewhere = Store::redis(&format!("{}/{database}", server.url())).unwrap();
    a_waiter_is_woken(store, &elsewhere, 1, server).await;
}

#[tokio::test]
async fn a_password_file_is_read_again_for_each_connection() {
    let (server, files) = (RedisServer::start().await, ScratchDir::new());
    let path = files.path().join("password");
    std::fs::write(&path, "first\n").unwrap();
    set_password(&server, "first");
    let url = format!("redis://app@127.0.0.1:{}", server.port());
    let store = Store::builder()
        .password_file(&path)
        .unwrap()
        .redis(&url)
        .unwrap();
    allow(&store).await.unwrap();
    check_waiter(&store, &server, 0).await;
    std::fs::write(&path, "second").unwrap();
    set_password(&server, "second");
    eventually("the new password", SOON, async || {
        allow(&store).await.is_ok()
    })
    .await;
    check_waiter(&store, &server, 0).await;
    std::fs::remove_file(&path).unwrap();
    set_password(&server, "second");
    eventually("a word on the file", SOON, async || {
        let told = allow(&store).await.map_err(|error| error.to_string());
        told.is_err_and(|text| text.contains("password file") && text.contains("/password"))
    })
    .await;
    let error = Store::builder().password_file(&path).unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("/password"),
        "{error}"
    );
}

#[tokio::test]
async fn a_closure_is_asked_for_each_connection_and_its_failure_is_told() {
    let server = RedisServer::start().await;
    set_password(&server, "token-0");
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let store = Store::builder()
        .credentials(move || {
            let number = counter.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, Infallible>(Credentials::new("app", format!("token-{number}"))) }
        })
        .redis(&server.url())
        .unwrap();
    allow(&store).await.unwrap();
    allow(&store).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    set_password(&server, "token-1");
    eventually("the second token", SOON, async || {
        allow(&store).await.is_ok()
    })
    .await;
    assert_eq!(asked.load(Ordering::SeqCst), 2);

    let failing =
        Store::builder().credentials(|| async { Err::<Credentials, _>("the vault is sealed") });
    let error = allow(&failing.redis(&server.url()).unwrap())
        .await
        .unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("the vault is sealed"),
        "{error}"
    );
    let shown = format!("{:?}", Credentials::new("app", "secret"));
    assert!(!shown.contains("secret"), "{shown}");
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn a_cluster_gets_new_credentials_when_the_old_ones_end() {
    requires!(support::program::since_7_0());
    let cluster = support::cluster::RedisCluster::start().await;
    let set = |password: &str| {
        cluster
            .nodes()
            .iter()
            .for_each(|node| set_password(node, password))
    };
    set("first");
    let password = Arc::new(std::sync::Mutex::new("first"));
    let known = Arc::clone(&password);
    let store = Store::builder()
        .credentials(move || {
            let password = *known.lock().unwrap();
            async move { Ok::<_, Infallible>(Credentials::new("app", password)) }
        })
        .cluster(cluster.urls())
        .unwrap();
    let bucket = TokenBucket::new(&store, "x", Quota::per_hour(1000)).unwrap();
    let all = async || {
        futures::future::join_all((0..12_u64).map(|key| bucket.allow(key)))
            .await
            .iter()
            .all(Result::is_ok)
    };
    assert!(all().await);
    *password.lock().unwrap() = "second";
    set("second");
    eventually("the new password at each node", SOON, all).await;
}

#[tokio::test]
async fn a_unix_socket_is_a_place() {
    let files = ScratchDir::new();
    let socket = files.path().join("redis.sock").display().to_string();
    let server = RedisServer::with_args(&["--unixsocket", &socket]).await;
    let store = Store::redis(&format!("redis+unix://{socket}?db=3")).unwrap();
    allow(&store).await.unwrap();
    check_waiter(&store, &server, 3).await;
    assert_eq!(server.cli(&["DBSIZE"]), "0", "it is another database");
}

/// A user with the permissions of `acl_rule` and `more`.
async fn user(server: &RedisServer, more: &[&str]) -> Store {
    let store = Store::builder()
        .credentials(Credentials::new("app", "secret"))
        .redis(&server.url())
        .unwrap();
    server.set_user(
        &store.acl_rule("app").unwrap(),
        &[&["on", ">secret"], more].concat(),
    );
    store
}

fn nothing_was_denied(server: &RedisServer) {
    let log = server.cli(&["ACL", "LOG"]);
    let lines: Vec<_> = log.lines().collect();
    let denied = lines
        .windows(2)
        .filter(|two| two[0] == "object")
        .map(|two| two[1]);
    // The client library tells its name by CLIENT SETINFO.
    let denied: Vec<_> = denied
        .filter(|object| !["client", "client|setinfo"].contains(object))
        .collect();
    assert!(denied.is_empty(), "{denied:?}");
}

#[tokio::test]
async fn the_rule_allows_what_a_store_does_and_nothing_else() {
    let server = RedisServer::start().await;
    let store = user(&server, &[]).await;
    allow(&store).await.unwrap();
    check_waiter(&store, &server, 0).await;
    store.ping().await.unwrap();
    nothing_was_denied(&server);
    let mut client = server.client().unwrap();
    client
        .query::<()>(cmd("AUTH").arg("app").arg("secret"))
        .unwrap();
    for denied in [cmd("GET").arg("other:key"), &mut cmd("FLUSHALL")] {
        let denied = client.query::<()>(denied).unwrap_err();
        assert_eq!(denied.code(), Some("NOPERM"), "{denied}");
    }
}

/// A user with the permissions of an operator.
async fn operator(server: &RedisServer) -> Operator {
    let store = Store::builder()
        .credentials(Credentials::new("ops", "secret"))
        .redis(&server.url())
        .unwrap();
    let operator = Operator::new(&store);
    server.set_user(&operator.acl_rule("ops").unwrap(), &["on", ">secret"]);
    operator
}

async fn listed(operator: &Operator) -> Result<Vec<Entry>, Error> {
    let (mut scan, mut entries) = (operator.scan(), Vec::new());
    while let Some(page) = scan.next().await? {
        entries.extend(page);
    }
    Ok(entries)
}

#[tokio::test]
async fn the_rule_of_an_operator_allows_what_it_does_and_nothing_else() {
    let server = RedisServer::start().await;
    let (operator, store) = (
        operator(&server).await,
        Store::redis(&server.url()).unwrap(),
    );
    allow(&store).await.unwrap();
    let guard = Mutex::new(&store, "x").unwrap().lock("k").await.unwrap();
    let permits = WaitGroup::new(&store, "x", 3).unwrap();
    let held = (
        permits.add_n("k", 2).await.unwrap(),
        permits.add("k").await.unwrap(),
    );
    let waiters = [(); 6]
        .map(|()| permits.clone())
        .map(|permits| tokio::spawn(async move { permits.add("k").await }));
    let shared = RwLock::new(&store, "x").unwrap();
    let reader = shared.read("k").await.unwrap();
    let writer = tokio::spawn(async move { shared.write("k").await });
    let answers = SingleFlight::<u32>::builder(Json)
        .ttl(SOON)
        .build(&store, "x")
        .unwrap();
    answers.run("k", || async { 7 }).await.unwrap();
    let items = Dedupe::exact(&store, "x")
        .remember_for(SOON)
        .build()
        .unwrap();
    let Claimed::New(claim) = items.try_claim("k").await.unwrap() else {
        panic!("it is new")
    };
    claim.confirm().await.unwrap();
    let Claimed::New(claim) = items.try_claim("other").await.unwrap() else {
        panic!("it is new")
    };
    BloomFilter::new(&store, "x", 1000, 0.01)
        .unwrap()
        .insert("item")
        .await
        .unwrap();
    let item = Entry::new(Kind::Dedupe, "x", "k").unwrap();
    eventually("all of them", SOON, async || {
        let waiting = permits.inspect("k").await.unwrap().waiting == 6;
        waiting && listed(&operator).await.unwrap().len() == 8
    })
    .await;
    for entry in listed(&operator).await.unwrap().into_iter().chain([item]) {
        let state = operator.inspect(&entry).await.unwrap().unwrap();
        for holder in state.leases().map_or(&[][..], |leases| &leases.holders) {
            operator.revoke(&entry, holder).await.unwrap();
        }
        match entry.kind() {
            Kind::TokenBucket => operator.reset(&entry).await.unwrap(),
            Kind::SingleFlight => assert!(operator.forget(&entry).await.unwrap()),
            Kind::Dedupe if entry.key().is_some() => {
                assert!(operator.forget(&entry).await.unwrap())
            }
            _ => {}
        }
    }
    assert!(writer.await.unwrap().unwrap().is_held(), "it was woken");
    assert!(
        futures::future::select_all(waiters)
            .await
            .0
            .unwrap()
            .is_ok()
    );
    nothing_was_denied(&server);
    let mut client = server.client().unwrap();
    client
        .query::<()>(cmd("AUTH").arg("ops").arg("secret"))
        .unwrap();
    for denied in [
        cmd("GET").arg("other:key"),
        &mut cmd("FLUSHALL"),
        cmd("KEYS").arg("*"),
    ] {
        assert_eq!(
            client.query::<()>(denied).unwrap_err().code(),
            Some("NOPERM")
        );
    }
    drop((guard, held, reader, claim));
}

#[tokio::test]
async fn a_user_of_a_service_may_not_list() {
    let server = RedisServer::start().await;
    let service = Operator::new(&user(&server, &[]).await);
    let error = listed(&service).await.unwrap_err();
    let text = error.to_string();
    assert!(
        error.is_unavailable() && text.contains("'scan'") && text.contains("Operator::acl_rule"),
        "{text}"
    );
    assert!(
        Operator::new(&Store::in_memory())
            .acl_rule("ops")
            .unwrap_err()
            .is_invalid()
    );
    assert!(
        operator(&server)
            .await
            .acl_rule("ops on")
            .unwrap_err()
            .is_invalid()
    );
}

/// A name with more words in it would give the user more than the rule says.
#[test]
fn names_of_users_are_checked() {
    let store = Store::redis("redis://127.0.0.1").unwrap();
    for user in ["", "app on nopass ~* +@all", "app\nFLUSHALL"] {
        assert!(store.acl_rule(user).unwrap_err().is_invalid(), "{user:?}");
    }
    assert!(Store::in_memory().acl_rule("app").unwrap_err().is_invalid());
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let server = RedisServer::start().await;
    for (more, told) in [
        (&["-fcall", "-evalsha"][..], "'evalsha' command"),
        (&["-time"], "acl_rule"),
        (&["-set", "-get"], "acl_rule"),
        (&["resetkeys", "~other:*"], "~<prefix>:*"),
    ] {
        let store = user(&server, more).await;
        let error = allow(&store).await.unwrap_err();
        let text = error.to_string();
        assert!(
            error.is_unavailable() && text.contains(told),
            "{more:?}: {text}"
        );
        assert!(!text.contains("td:{x:k}"), "{more:?}: {text}");
    }
    // A lock of another name is refused at once, though an outage would be waited for.
    let store = user(&server, &[]).await;
    let mutex = Mutex::builder().exact_names().build(&store, "x").unwrap();
    let error = tokio::time::timeout(SOON, mutex.lock("outside"))
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains("exact_names"), "{error}");
    let filter = BloomFilter::new(&user(&server, &["-bitfield"]).await, "x", 1000, 0.01);
    let error = filter.unwrap().insert("item").await.unwrap_err();
    assert!(error.to_string().contains("acl_rule"), "{error}");
}

/// A waiter that may not subscribe, then a holder that may not publish.
#[tokio::test]
async fn without_channels_waiters_poll() {
    let server = RedisServer::start().await;
    let store = user(&server, &["resetchannels"]).await;
    let all = Store::redis(&server.url()).unwrap();
    for (holder, waiter) in [(&all, &store), (&store, &all)] {
        let guard = Mutex::new(holder, "x").unwrap().lock("k").await.unwrap();
        let mutex = Mutex::new(waiter, "x").unwrap();
        let waiter = tokio::spawn(async move { mutex.lock("k").await.map(drop) });
        eventually("the waiter", SOON, async || {
            server.cli(&["KEYS", "*"]).contains("beats")
        })
        .await;
        assert!(guard.unlock().await.unwrap());
        tokio::time::timeout(SOON, waiter)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        server.cli(&["FLUSHALL"]);
    }
}
