//! URLs of several servers that do not go together, and settings that have no effect beside them.

use tower_distributed::{Mutex, Store};

use crate::leases::bad_settings::is_told;

#[cfg(feature = "cluster")]
#[test]
fn wakeups_beside_a_cluster_are_refused() {
    let url = "redis://127.0.0.1:1";
    is_told(Store::builder().wakeups(url).cluster([url]), &["wakeups", "cluster", "each master"]);
    assert!(Store::builder().cluster([url]).is_ok());
}

#[cfg(feature = "sentinel")]
#[test]
fn sentinels_with_different_settings_are_refused() {
    let store = |urls: [&str; 2]| Store::builder().sentinel(urls, "mymaster");
    let plain = "redis://10.0.0.1:26379";
    for (second, told) in [
        ("redis://10.0.0.2:26379/1", "database"),
        ("redis://app:secret@10.0.0.2:26379", "user"),
        ("redis://:secret@10.0.0.2:26379", "password"),
    ] {
        for urls in [[plain, second], [second, plain]] {
            is_told(store(urls), &["Sentinel", told, "10.0.0.1:26379", "10.0.0.2:26379"]);
            let text = store(urls).unwrap_err().to_string();
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(store([second, &second.replace("10.0.0.2", "10.0.0.3")]).is_ok());
    }
    let other = ["redis://:secret@10.0.0.1:26379", "redis://:sacred@10.0.0.2:26379"];
    is_told(store(other), &["password", "10.0.0.2:26379"]);
    assert!(!store(other).unwrap_err().to_string().contains("s@"));
}

#[cfg(feature = "cluster")]
#[test]
fn a_cluster_is_one_store_of_a_quorum_whatever_nodes_name_it() {
    let node = |host: u8| format!("redis://10.0.0.{host}:6379");
    let cluster = |hosts: &[u8]| Store::builder().cluster(hosts.iter().map(|host| node(*host))).unwrap();
    let quorum =
        |one: &[u8], other: &[u8]| Mutex::builder().build_quorum([cluster(one), cluster(other)], "x");
    for (one, other) in [(&[1, 2][..], &[2, 1][..]), (&[1, 2], &[3, 2]), (&[1], &[2, 3, 1])] {
        is_told(quorum(one, other), &["independent", "the same"]);
    }
    assert!(quorum(&[1, 2], &[3, 4]).is_ok());
    let one_node = Store::redis(&node(2)).unwrap();
    is_told(Mutex::builder().build_quorum([cluster(&[1, 2]), one_node], "x"), &["independent", "the same"]);
}

#[cfg(feature = "sentinel")]
#[test]
fn a_master_is_one_store_of_a_quorum_whatever_sentinels_name_it() {
    let node = |host: u8| format!("redis://10.0.0.{host}:26379");
    let store = |hosts: [u8; 2], master| Store::builder().sentinel(hosts.map(node), master).unwrap();
    let quorum =
        |one, other, master| Mutex::builder().build_quorum([store(one, "a"), store(other, master)], "x");
    is_told(quorum([1, 2], [2, 1], "a"), &["independent", "the same"]);
    is_told(quorum([1, 2], [3, 2], "a"), &["independent", "the same"]);
    assert!(quorum([1, 2], [1, 2], "b").is_ok(), "another master");
    assert!(quorum([1, 2], [3, 4], "a").is_ok(), "other Sentinels");
}
