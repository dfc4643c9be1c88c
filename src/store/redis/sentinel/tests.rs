//! The masters that Sentinels report, and the role that a server reports.

use support::redis_server::RedisServer;

use super::*;

#[test]
fn the_master_of_the_latest_failover_counts() {
    let urls = ["redis://a:1", "redis://b:1"];
    let sentinels = Sentinels::new(urls, &Access::default(), "m", &Background::thread()).unwrap();
    let asked = &sentinels.queries;
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
    assert_eq!(
        after("b:1", 9),
        (b.clone(), 1),
        "a failover back, of which the first part was missed"
    );
    asked
        .named
        .send_modify(|named| named.confirmed = Instant::now().checked_sub(FORGOTTEN / 2));
    let confirmed = || asked.named.borrow().confirmed.unwrap();
    let before = confirmed();
    assert_eq!(
        (after("b:1", 8), confirmed()),
        ((b.clone(), 1), before),
        "a Sentinel that is behind"
    );
    assert!(after("b:1", 9) == (b.clone(), 1) && confirmed() > before);
    // Sentinels that were set up anew: none confirms the master of the former ones.
    asked
        .named
        .send_modify(|named| named.confirmed = Instant::now().checked_sub(2 * FORGOTTEN));
    assert_eq!(after("a:1", 0), (a, 2));
    assert_eq!(after("b:1", 1), (b, 3));
    assert_eq!(sentinels.switches(), 3);
    assert_eq!(sentinels.to_string(), "the master \"m\" of a:1, b:1");
}

#[test]
fn the_master_has_its_own_user_and_the_sentinels_have_no_database() {
    let urls = ["redis://u:p@a:1/3"];
    let sentinels = Sentinels::new(urls, &Access::default(), "m", &Background::thread()).unwrap();
    let sentinel = sentinels.queries.sentinels().next().unwrap();
    let settings = sentinel.info.redis_settings();
    assert_eq!(
        (settings.username(), settings.password(), settings.db()),
        (Some("u"), Some("p"), 0)
    );
    let master = sentinels.queries.server("::1:6379");
    let settings = master.info.redis_settings();
    assert_eq!(
        (settings.username(), settings.password(), settings.db()),
        (None, None, 3)
    );
    assert_eq!(*master.info.addr(), ConnectionAddr::Tcp("::1".into(), 6379));
}

#[tokio::test]
async fn a_server_that_says_that_it_is_no_master_is_not_used() {
    let replica = ["--replicaof", "127.0.0.1", "1"];
    let kinds: [(&[&str], _); 3] = [
        (&[], None),
        (&["--rename-command", "ROLE", "NONE"], None),
        (&replica, Some("is a slave")),
    ];
    for (arguments, told) in kinds {
        let server = RedisServer::with_args(arguments).await;
        let endpoint = Endpoint::new(&server.url(), &Access::default()).unwrap();
        let role = check_role(&mut endpoint.connect().await.ok().unwrap(), &endpoint).await;
        let outage = role.err().map(|outage| outage.text.into_owned());
        assert_eq!(
            outage.is_some(),
            told.is_some(),
            "{arguments:?}: {outage:?}"
        );
        assert!(outage.is_none_or(|outage| outage.contains(told.unwrap())));
    }
}
