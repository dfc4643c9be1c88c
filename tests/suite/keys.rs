//! Hostile keys, and what is left behind.

use std::time::Duration;

use tower_distributed::{BloomFilter, Mutex, Quota, RwLock, SingleFlight, TokenBucket, WaitGroup};

use crate::claims::{both, is_duplicate, take};
use crate::flights::{Origin, builder, several};
use crate::kinds::each;
use crate::stores::{self, Place};
use support::keys::keys_without_ttl;

/// Keys that take care.
fn hostile() -> Vec<Vec<u8>> {
    let megabyte = vec![b'x'; 1 << 20];
    let mut longer = megabyte.clone();
    longer.push(0);
    let short: [&[u8]; 12] =
        [b"", b"\0", b"{", b"}", b"{}", b"}{", b"{a}b", b"a:b", b"%7b", b"%#", b"\xff\xfe", b"*"];
    short.into_iter().map(Vec::from).chain([megabyte, longer]).collect()
}

pub(crate) async fn any_key_is_legal_and_apart_from_others(place: &Place, name: &str) {
    let bucket = TokenBucket::new(place, name, Quota::per_hour(1).burst(1)).unwrap();
    let filter = BloomFilter::new(place, &format!("{name}.items"), 10_000, 1e-9).unwrap();
    let (families, dedupes) = (each!(place, name), both(place, name));
    let flights: Vec<SingleFlight<u64>> = several(place, name, 2, builder);
    let (origin, keys) = (Origin::open(), hostile());
    let (mut held, mut claims) = (Vec::new(), Vec::new());
    for (number, key) in keys.iter().enumerate() {
        let shown = key[..key.len().min(9)].escape_ascii();
        assert!(bucket.allow(key).await.unwrap().is_admitted(), "{shown}");
        assert!(filter.insert(key).await.unwrap(), "{shown}");
        for flight in &flights {
            assert_eq!(flight.run(key, origin.work()).await.unwrap(), number as u64 + 1, "{shown}");
        }
        for family in &families {
            let taken = family.try_take(key).await.unwrap();
            assert_eq!(taken.key().as_bytes(), key);
            held.push(taken);
        }
        for dedupe in &dedupes {
            claims.push(take(dedupe, key).await);
        }
    }
    assert!(filter.contains_all(&keys).await.unwrap().into_iter().all(|contained| contained));
    let (mut held, mut claims) = (held.into_iter(), claims.into_iter());
    for key in &keys {
        let shown = key[..key.len().min(9)].escape_ascii();
        assert!(!bucket.allow(key).await.unwrap().is_admitted(), "{shown}");
        bucket.reset(key).await.unwrap();
        for family in &families {
            let error = family.try_take(key).await.unwrap_err();
            assert!(error.is_refused(), "{shown}: {error}");
            assert!(held.next().unwrap().release().await.unwrap());
        }
        for dedupe in &dedupes {
            assert!(dedupe.try_claim(key).await.unwrap_err().is_refused(), "{shown}");
            assert!(claims.next().unwrap().confirm().await.unwrap() && is_duplicate(dedupe, key).await);
        }
    }
}

/// Leases, those who wait for them, and those who have gone away leave nothing that stays for ever.
#[tokio::test]
async fn no_lease_leaves_a_key_without_ttl() {
    for place in stores::with_servers().await {
        let servers = place.servers();
        let short = Duration::from_millis(30);
        let permits = WaitGroup::builder(3).max_wait(short).build(&place, "left-permits").unwrap();
        let mutex = Mutex::builder().max_wait(short).build(&place, "left-mutex").unwrap();
        let lock = RwLock::builder().max_wait(short).build(&place, "left-lock").unwrap();
        for key in ["a", "b", "c"] {
            let held = (permits.try_add_n(key, 3).await.unwrap(), mutex.try_lock(key).await.unwrap());
            let (reader, writer) = (lock.try_read(key).await.unwrap(), lock.write(key).await);
            assert!(writer.is_err() && permits.add(key).await.is_err() && permits.wait(key).await.is_err());
            assert!(mutex.lock(key).await.is_err());
            for extended in [held.0.extend().await, held.1.extend().await, reader.extend().await] {
                extended.unwrap();
            }
            let kept: Vec<_> = servers.iter().flat_map(|server| keys_without_ttl(server)).collect();
            let unexpected: Vec<_> = kept.iter().filter(|key| key.contains("{left-")).collect();
            assert!(unexpected.is_empty(), "{unexpected:?}");
            drop(held);
            assert!(reader.release().await.unwrap());
        }
        let kept: Vec<_> = servers.into_iter().flat_map(keys_without_ttl).collect();
        assert!(!kept.iter().any(|key| key.contains("{left-")), "{kept:?}");
    }
}
