//! Connections over TLS, and what users read if one cannot be made.

use std::time::Duration;

use tower_distributed::{Error, Quota, Store, StoreBuilder, TokenBucket};

use crate::certificates::{Authority, TlsServer};
use crate::woken::a_waiter_is_woken;
use support::eventually;
use support::program::with_tls;
use support::redis_server::RedisServer;
use support::requires;

const HOST: [&str; 2] = ["127.0.0.1", "localhost"];
const SOON: Duration = Duration::from_secs(20);

const ASKS: &str = "tls-auth-clients yes";
const DOES_NOT_ASK: &str = "tls-auth-clients no";

fn trusting(authority: &Authority) -> StoreBuilder {
    // A handshake takes long where many tests run.
    let builder = Store::builder().connect_timeout(SOON).timeout(SOON);
    builder.root_certificates(authority.pem())
}

/// A call, and a waiter that is woken over the subscription.
async fn check(store: &Store, server: &RedisServer) {
    let bucket = TokenBucket::new(store, "tls", Quota::per_hour(1)).unwrap();
    assert!(bucket.allow("k").await.unwrap().is_admitted());
    assert!(!bucket.allow("k").await.unwrap().is_admitted());
    a_waiter_is_woken(store, &Store::redis(&server.url()).unwrap(), 1, server).await;
}

async fn error_of(store: &Store) -> Error {
    TokenBucket::new(store, "tls", Quota::per_hour(1))
        .unwrap()
        .allow("k")
        .await
        .unwrap_err()
}

#[tokio::test]
async fn a_store_works_over_tls() {
    requires!(with_tls());
    let authority = Authority::new("ours");
    let server = TlsServer::start(&authority, &authority.server(&HOST), DOES_NOT_ASK).await;
    for host in HOST {
        server.server.cli(&["FLUSHALL"]);
        check(
            &trusting(&authority).redis(&server.url_of(host)).unwrap(),
            &server.server,
        )
        .await;
    }
}

#[tokio::test]
async fn a_server_can_ask_for_a_certificate() {
    requires!(with_tls());
    let (authority, other) = (Authority::new("ours"), Authority::new("other"));
    let server = TlsServer::start(&authority, &authority.server(&HOST), ASKS).await;
    let with = |authority: &Authority, of: &Authority| {
        let client = of.client();
        let builder = trusting(authority).client_certificate(client.certificate, client.key);
        builder.redis(&server.url()).unwrap()
    };
    check(&with(&authority, &authority), &server.server).await;
    for store in [
        with(&authority, &other),
        trusting(&authority).redis(&server.url()).unwrap(),
    ] {
        let error = error_of(&store).await;
        assert!(
            error.is_unavailable()
                && error
                    .to_string()
                    .contains("StoreBuilder::client_certificate"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_trusted_is_told_with_the_remedy() {
    requires!(with_tls());
    let (authority, other) = (Authority::new("ours"), Authority::new("other"));
    let good = TlsServer::start(&authority, &authority.server(&HOST), DOES_NOT_ASK).await;
    let expired =
        TlsServer::start(&authority, &authority.expired_server(&HOST), DOES_NOT_ASK).await;
    let elsewhere = authority.server(&["redis.example.com"]);
    let elsewhere = TlsServer::start(&authority, &elsewhere, DOES_NOT_ASK).await;
    for (store, told) in [
        (
            trusting(&other).redis(&good.url()),
            "StoreBuilder::root_certificates",
        ),
        // The certificates of the operating system, or Mozilla's.
        (Store::redis(&good.url()), "StoreBuilder::root_certificates"),
        (trusting(&authority).redis(&expired.url()), "has expired"),
        (trusting(&authority).redis(&elsewhere.url()), "another host"),
        // Not over TLS.
        (
            Store::redis(&format!("redis://127.0.0.1:{}", good.port())),
            "rediss://",
        ),
    ] {
        let error = error_of(&store.unwrap()).await;
        assert!(
            error.is_unavailable() && error.to_string().contains(told),
            "{told}: {error}"
        );
    }
}

#[cfg(all(feature = "cluster", feature = "rustls"))]
#[tokio::test]
async fn a_cluster_works_over_tls() {
    requires!(with_tls() && support::program::since_7_0());
    let authority = Authority::new("ours");
    let more = format!(
        "{DOES_NOT_ASK}\ncluster-enabled yes\ntls-cluster yes\ncluster-announce-ip 127.0.0.1"
    );
    let more = format!("{more}\ncluster-port {}", support::ports::free_port());
    let node = TlsServer::start(&authority, &authority.server(&HOST), &more).await;
    node.server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("the cluster", SOON, async || {
        node.server
            .cli(&["CLUSTER", "INFO"])
            .contains("cluster_state:ok")
    })
    .await;
    check(
        &trusting(&authority).cluster([node.url()]).unwrap(),
        &node.server,
    )
    .await;
    let error = error_of(
        &trusting(&Authority::new("other"))
            .cluster([node.url()])
            .unwrap(),
    )
    .await;
    assert!(
        error
            .to_string()
            .contains("StoreBuilder::root_certificates"),
        "{error}"
    );
}

#[cfg(all(feature = "sentinel", feature = "rustls"))]
#[tokio::test]
async fn sentinel_works_over_tls() {
    use support::sentinel::Sentinel;

    requires!(with_tls() && support::program::since_7_0());
    let authority = Authority::new("ours");
    let sentinel = Sentinel::started_by(async |config: String, arguments: &[&str]| {
        // The servers know each other, and the sentinel knows them, by the ports that speak TLS.
        let more = format!("{DOES_NOT_ASK}\ntls-replication yes\n{config}");
        let server =
            TlsServer::with_args(&authority, &authority.server(&HOST), &more, arguments).await;
        let port = server.port();
        (server.server, port)
    })
    .await;
    let urls = [format!("rediss://127.0.0.1:{}", sentinel.sentinel_port())];
    let name = sentinel.service_name();
    let store = trusting(&authority).sentinel(&urls, name).unwrap();
    check(&store, sentinel.master()).await;

    let old = sentinel.master().port();
    sentinel.failover().await;
    let bucket = TokenBucket::new(&store, "after", Quota::per_hour(1).burst(100_000)).unwrap();
    eventually("the new master to be used", SOON, async || {
        bucket.allow("k").await.is_ok()
            && sentinel.master().query(&["EXISTS", "td:{after:k}:tat"]) == Ok(1)
    })
    .await;
    assert_ne!(sentinel.master().port(), old);
    sentinel.master().cli(&["FLUSHALL"]);
    check(&store, sentinel.master()).await;

    for store in [trusting(&Authority::new("other")), Store::builder()] {
        let error = error_of(&store.sentinel(&urls, name).unwrap()).await;
        assert!(
            error.is_unavailable()
                && error
                    .to_string()
                    .contains("StoreBuilder::root_certificates"),
            "{error}"
        );
    }
}

#[test]
fn certificates_that_are_none_and_tls_without_trust_are_refused() {
    let authority = Authority::new("ours");
    let (one, two) = (authority.client(), authority.client());
    let url = "rediss://127.0.0.1";
    let builder = Store::builder;
    for (store, told) in [
        (Store::redis("rediss://127.0.0.1/#insecure"), "#insecure"),
        (
            builder().root_certificates("none").redis(url),
            "contain no certificate",
        ),
        (
            builder()
                .client_certificate("none", one.key.clone())
                .redis(url),
            "contains no certificate",
        ),
        #[cfg(feature = "rustls")]
        (
            builder()
                .client_certificate(one.certificate, two.key)
                .redis(url),
            "certificate cannot be used",
        ),
    ] {
        let error = store.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(told),
            "{told}: {error}"
        );
    }
}
