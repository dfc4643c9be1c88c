//! Hostile keys.

use tower_distributed::{BloomFilter, Quota, SingleFlight, TokenBucket};

use crate::claims::{both, is_duplicate, take};
use crate::flights::{Origin, builder, several};
use crate::kinds::each;
use crate::stores::Place;

/// Keys that take care.
fn hostile() -> Vec<Vec<u8>> {
    let megabyte = vec![b'x'; 1 << 20];
    let mut longer = megabyte.clone();
    longer.push(0);
    let short: [&[u8]; 12] = [
        b"",
        b"\0",
        b"{",
        b"}",
        b"{}",
        b"}{",
        b"{a}b",
        b"a:b",
        b"%7b",
        b"%#",
        b"\xff\xfe",
        b"*",
    ];
    short
        .into_iter()
        .map(Vec::from)
        .chain([megabyte, longer])
        .collect()
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
            assert_eq!(
                flight.run(key, origin.work()).await.unwrap(),
                number as u64 + 1,
                "{shown}"
            );
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
    assert!(
        filter
            .contains_all(&keys)
            .await
            .unwrap()
            .into_iter()
            .all(|contained| contained)
    );
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
            assert!(
                dedupe.try_claim(key).await.unwrap_err().is_refused(),
                "{shown}"
            );
            assert!(
                claims.next().unwrap().confirm().await.unwrap() && is_duplicate(dedupe, key).await
            );
        }
    }
}
