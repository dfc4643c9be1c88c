//! Which settings can be combined. No server is needed.

use rcgen::{CertifiedKey, generate_simple_self_signed};
use support::pools;
use support::scratch_dir::ScratchDir;

use super::*;
use crate::store::credentials::Credentials;

const URL: &str = "redis://127.0.0.1:1";
const TLS: &str = "rediss://127.0.0.1:1";

fn pool() -> deadpool_redis::Pool {
    pools::pool(URL)
}

fn pool_of_cluster() -> deadpool_redis::cluster::Pool {
    pools::pool_of_cluster([URL.into()])
}

#[track_caller]
fn is_refused(outcome: Result<Store, Error>, part: &str) {
    let error = outcome.unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains(part),
        "{error}"
    );
}

#[tokio::test]
async fn a_pool_connects_in_its_own_way() {
    let build = Store::builder;
    assert!(build().pool(pool()).is_ok() && build().pool(pool_of_cluster()).is_ok());
    for builder in [
        build().credentials(Credentials::password("p")),
        build().tcp_nodelay(false),
    ] {
        is_refused(builder.clone().pool(pool()), "socket options of its own");
        assert!(builder.wakeups(URL).pool(pool()).is_ok());
    }
    is_refused(build().root_certificates("").pool(pool()), "certificates");
    is_refused(
        build().client_certificate("", "").pool(pool()),
        "certificates",
    );
    is_refused(build().wakeups("nowhere").pool(pool()), "not a Redis URL");
    is_refused(
        build().wakeups("nowhere").pool(pool_of_cluster()),
        "not a Redis URL",
    );
    assert!(build().wakeups(URL).pool(pool_of_cluster()).is_ok());
    let durable = || build().replicas(1, Duration::from_millis(1));
    assert!(durable().pool(pool()).is_ok() && durable().cluster([URL]).is_ok());
    is_refused(
        durable().pool(pool_of_cluster()),
        "not for a pool of a Cluster",
    );
    is_refused(build().wakeups(URL).cluster([URL]), "wakeups");
}

#[test]
fn settings_have_bounds() {
    let build = Store::builder;
    let (none, long) = (Duration::ZERO, Duration::from_secs(61));
    for (builder, part) in [
        (build().timeout(none), "timeout"),
        (build().connect_timeout(long), "connect_timeout"),
        (build().queue_timeout(none), "queue_timeout"),
        (build().connections(65), "connections"),
        (build().max_queued(0), "max_queued"),
        (build().max_queued_bytes((1 << 16) - 1), "max_queued_bytes"),
        (build().max_keys(0), "max_keys"),
        (build().max_bytes(1), "max_bytes"),
        (build().fsync(none), "1 ms"),
        (build().prefix("a b"), "prefix"),
    ] {
        is_refused(builder.redis(URL), part);
    }
    assert!(
        build()
            .max_queued_bytes(1 << 16)
            .connections(64)
            .redis(URL)
            .is_ok()
    );
    is_refused(build().max_keys(0).in_memory(), "max_keys");
}

#[tokio::test]
async fn the_password_is_what_the_file_has_but_for_the_line_end() {
    let folder = ScratchDir::new();
    let path = folder.path().join("password");
    std::fs::write(&path, " first\r\n").unwrap();
    let builder = Store::builder().password_file(&path).unwrap();
    let credentials = builder
        .access
        .credentials
        .as_ref()
        .unwrap()
        .credentials()
        .await
        .unwrap();
    assert_eq!(
        (credentials.username, &*credentials.password),
        (None, " first")
    );
}

#[test]
fn certificates_are_checked_and_are_for_tls() {
    let build = Store::builder;
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["a".to_owned()]).unwrap();
    let (certificate, key) = (cert.pem(), signing_key.serialize_pem());
    let broken = certificate.replace("MII", "AAA");
    let with_roots = |pem: &str| build().root_certificates(pem);
    let with_client = |pem: &str, key: &str| build().client_certificate(pem, key);
    is_refused(
        with_roots(&broken).redis(TLS),
        "root certificate cannot be used",
    );
    is_refused(
        with_client(&certificate, &certificate).redis(TLS),
        "client certificate cannot be used",
    );
    for builder in [with_roots(&certificate), with_client(&certificate, &key)] {
        is_refused(builder.clone().redis(URL), "must be rediss://");
        assert!(builder.redis(TLS).is_ok());
    }
    assert!(build().redis(TLS).is_ok() && build().redis(URL).is_ok());
    is_refused(build().redis("rediss://"), "not a Redis URL");
}

/// No thread beside the runtime: the background work of the local share runs there as well.
#[test]
fn the_local_share_uses_the_background_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let store = Store::builder()
        .background(runtime.handle().clone())
        .redis(URL)
        .unwrap();
    let locks = crate::mutex::Mutex::builder().at_least_for(Duration::from_secs(10));
    let locks = locks.build(store.local_share(), "locks").unwrap();
    let guard = futures::executor::block_on(locks.lock("k")).unwrap();
    assert_eq!(
        runtime.metrics().num_alive_tasks(),
        2,
        "the sweeper, and the renewals of the lease"
    );
    drop(guard);
    assert_eq!(
        runtime.metrics().num_alive_tasks(),
        3,
        "the release, which is not due yet"
    );
}
