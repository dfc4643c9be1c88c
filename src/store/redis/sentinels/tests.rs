//! What Sentinels tell, and what a server says of itself.

use std::pin::pin;

use support::program::since_7_0;
use support::redis_server::RedisServer;
use support::requires;
use support::sentinel::Sentinel;

use super::*;
use crate::store::redis::link::Link;
use crate::store::redis::source::Source;
use crate::telemetry::Server;

#[test]
fn the_master_of_the_latest_failover_counts() {
    let urls = ["redis://a:1", "redis://b:1"];
    let sentinels = Sentinels::new(urls, &Access::default(), "m", &Background::thread()).unwrap();
    let asked = &sentinels.asked;
    let after = |address, epoch| {
        asked.learn(address, epoch);
        let named = asked.named.borrow();
        (named.address.clone().unwrap().to_string(), named.switches)
    };
    let (a, b) = ("a:1".to_owned(), "b:1".to_owned());
    assert_eq!(after("a:1", 7), (a.clone(), 0), "the first is no switch");
    assert_eq!(after("b:1", 7), (a.clone(), 0));
    assert_eq!(after("b:1", 8), (b.clone(), 1));
    assert_eq!(after("a:1", 7), (b.clone(), 1), "a Sentinel that is behind");
    assert_eq!(after("b:1", 9), (b.clone(), 1), "a failover back, of which the first part was missed");
    asked.named.send_modify(|named| named.confirmed = Instant::now().checked_sub(FORGOTTEN / 2));
    let confirmed = || asked.named.borrow().confirmed.unwrap();
    let before = confirmed();
    assert_eq!((after("b:1", 8), confirmed()), ((b.clone(), 1), before), "a Sentinel that is behind");
    assert!(after("b:1", 9) == (b.clone(), 1) && confirmed() > before);
    // Sentinels that were set up anew: nobody confirms the master of the former ones.
    asked.named.send_modify(|named| named.confirmed = Instant::now().checked_sub(2 * FORGOTTEN));
    assert_eq!(after("a:1", 0), (a, 2));
    assert_eq!(after("b:1", 1), (b, 3));
    assert_eq!(sentinels.switches(), 3);
}

#[test]
fn the_master_has_its_own_user_and_the_sentinels_have_no_database() {
    let urls = ["redis://u:p@a:1/3"];
    let sentinels = Sentinels::new(urls, &Access::default(), "m", &Background::thread()).unwrap();
    let sentinel = sentinels.asked.sentinels().next().unwrap();
    let settings = sentinel.info.redis_settings();
    assert_eq!((settings.username(), settings.password(), settings.db()), (Some("u"), Some("p"), 0));
    let master = sentinels.asked.server("::1:6379");
    let settings = master.info.redis_settings();
    assert_eq!((settings.username(), settings.password(), settings.db()), (None, None, 3));
    assert_eq!(*master.info.addr(), ConnectionAddr::Tcp("::1".into(), 6379));
}

/// Of the addresses, the last is that of a server that is not there.
async fn endpoints(arguments: &[&[&str]]) -> (Vec<RedisServer>, Vec<Endpoint>) {
    let mut servers = Vec::new();
    for arguments in arguments {
        servers.push(RedisServer::with_args(arguments).await);
    }
    let urls = servers.iter().map(RedisServer::url).chain(["redis://127.0.0.1:1".into()]);
    let endpoints = urls.map(|url| Endpoint::new(&url, &Access::default()).unwrap()).collect();
    (servers, endpoints)
}

#[tokio::test]
async fn a_server_that_says_that_it_is_no_master_is_not_used() {
    let replica = ["--replicaof", "127.0.0.1", "1"];
    let (_servers, endpoints) = endpoints(&[&[], &["--rename-command", "ROLE", "NONE"], &replica]).await;
    for (endpoint, told) in endpoints.iter().zip([Ok(()), Ok(()), Err("is a slave")]) {
        let role = check_role(&mut endpoint.connect().await.ok().unwrap(), endpoint).await;
        assert_eq!(role.is_ok(), told.is_ok());
        let outage = role.err().zip(told.err());
        assert!(outage.is_none_or(|(outage, told)| outage.text.contains(told)));
    }
}

#[tokio::test]
async fn messages_of_a_sentinel_that_denies_them_are_done_without() {
    let (_servers, endpoints) = endpoints(&[&[], &["--rename-command", "SUBSCRIBE", "NONE"]]).await;
    for (endpoint, told) in endpoints.iter().zip([Some(true), Some(false), None]) {
        let messages = subscribed(endpoint).await;
        assert_eq!(messages.ok().map(|messages| messages.is_some()), told, "{}", endpoint.address());
    }
}

#[tokio::test]
async fn a_switch_is_noticed_by_all_that_wait_for_one() {
    let home = Background::thread();
    let sentinels = Sentinels::new(["redis://a:1"], &Access::default(), "m", &home).unwrap();
    sentinels.asked.learn("a:1", 1);
    let mut switched = tokio_test::task::spawn(sentinels.switched(0));
    assert!(switched.poll().is_pending());
    sentinels.asked.learn("b:1", 2);
    assert!(switched.is_woken() && switched.poll().is_ready());
    assert!(tokio_test::task::spawn(sentinels.switched(1)).poll().is_pending());
    assert_eq!(sentinels.to_string(), "the master \"m\" of a:1");
}

/// No Sentinel answers: the master is the one that was named last.
#[tokio::test]
async fn calls_leave_a_former_master_for_the_one_that_is_named() {
    let (servers, _) = endpoints(&[&[], &[]]).await;
    let sentinels = Sentinels::new(["redis://127.0.0.1:1"], &Access::default(), "m", &Background::thread());
    let sentinels = Arc::new(sentinels.unwrap());
    let named =
        |server: usize, epoch| sentinels.asked.learn(&format!("127.0.0.1:{}", servers[server].port()), epoch);
    let source = Source::Sentinel(Arc::clone(&sentinels));
    let link = Link::new(source.clone(), LONGEST, std::process::id(), Server::new("test"), None);
    let (link, runtime) = (Arc::new(link), tokio::runtime::Handle::current());
    named(0, 1);
    let first = link.hold(&runtime).await.unwrap();
    assert!(Arc::ptr_eq(&first, &link.hold(&runtime).await.unwrap()) && !link.has_switched());

    let under_way = pin!(pending::<Result<(), redis::RedisError>>());
    let mut under_way = tokio_test::task::spawn(source.unless_switched(first.switches, under_way));
    assert!(under_way.poll().is_pending());
    named(1, 2);
    assert!(under_way.is_woken());
    let std::task::Poll::Ready(Err(error)) = under_way.poll() else { panic!("it goes on") };
    assert_eq!(failure::outage(error).cause, Cause::Disconnected);
    let second = link.hold(&runtime).await.unwrap();
    assert_eq!((first.switches, second.switches), (0, 1));
    let port = second.connection.clone().send(cmd("CONFIG").arg("GET").arg("port")).await.unwrap();
    assert!(format!("{port:?}").contains(&servers[1].port().to_string()), "{port:?}");
    assert_eq!([(); 2].map(|()| link.has_switched()), [true, false]);

    sentinels.stop();
    let follows = || Arc::strong_count(&sentinels.asked) > 1;
    support::eventually("nothing to follow the Sentinels", LONGEST, async || !follows()).await;
}

#[tokio::test]
async fn a_failover_is_noticed_without_a_call() {
    requires!(since_7_0());
    let servers = Sentinel::start().await;
    servers.settled().await;
    let (urls, home) = (servers.sentinel_urls(), Background::thread());
    let sentinels = Sentinels::new(urls, &Access::default(), servers.service_name(), &home).unwrap();
    let is_named = async || {
        let master = sentinels.master().await.ok().unwrap();
        master.address().ends_with(&format!(":{}", servers.master().port()))
    };
    assert!(is_named().await);
    servers.failover().await;
    timeout(FORGOTTEN, sentinels.switched(0)).await.expect("the Sentinel is followed");
    assert!(is_named().await);
}
