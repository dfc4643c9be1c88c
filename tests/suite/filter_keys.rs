//! What Bloom filters keep in Redis.

use std::time::Duration;

use tower_distributed::{BloomFilter, Dedupe};

use crate::claims::take;
use crate::filters::calls;
use crate::stores;
use support::redis_server::RedisServer;

fn server() -> &'static RedisServer {
    stores::SERVER.get().unwrap()
}

/// Within 5 % of n·ln(1/p)/ln²2 bits, as the server counts.
#[tokio::test]
async fn filters_take_little_more_memory_than_needed() {
    let store = stores::redis().await;
    let filter = BloomFilter::new(&store, "filters-memory", 10_000_000, 0.001).unwrap();
    filter
        .insert_all((0..1000_u32).map(u32::to_le_bytes))
        .await
        .unwrap();
    let usage = |key: String| {
        server()
            .query::<Option<u64>>(&["MEMORY", "USAGE", &key])
            .unwrap()
            .unwrap_or(0)
    };
    let parts =
        (0..filter.size().keys).flat_map(|i| ["config", "bits0", "bits1"].map(|part| (i, part)));
    let bytes: u64 = parts
        .map(|(i, part)| usage(format!("td:{{filters-memory:{i}}}:{part}")))
        .sum();
    let optimum = 1e7 * 1000_f64.ln() / std::f64::consts::LN_2.powi(2) / 8.0;
    assert!(bytes as f64 <= 1.05 * optimum, "{bytes}, {optimum}");
    filter.clear().await.unwrap();
    let kept: Vec<String> = server().query(&["KEYS", "td:{filters-memory:*"]).unwrap();
    assert!(kept.is_empty(), "{kept:?}");
}

/// A configuration that was lost comes back with the next insertion; the bits are not lost with it. Where the server evicted the bits,
/// the next item sets up the whole array again: a shorter one, without its configuration, could be that of a smaller filter, which no
/// process would use.
#[tokio::test]
async fn filters_outlive_the_loss_of_their_bits_and_of_their_configuration() {
    let store = stores::redis().await;
    let usual = BloomFilter::builder().bits(9_999).hashes(3);
    let hour = usual.remember_for(Duration::from_secs(3600));
    let cases = [
        ("filters-lost", usual, Dedupe::builder().remember_forever()),
        ("filters-lost-hour", hour, Dedupe::builder()),
    ];
    for (name, builder, claims) in cases {
        let filter = builder.build(&store, name).unwrap();
        let claims = claims.build(&filter).unwrap();
        let parts = ["config", "bits0", "bits1"].map(|part| format!("td:{{{name}:0}}:{part}"));
        for by_claim in [false, true] {
            filter.insert("a").await.unwrap();
            server().cli(&["DEL", &parts[1], &parts[2]]);
            if by_claim {
                assert!(take(&claims, "b").await.confirm().await.unwrap());
            } else {
                assert!(filter.insert("b").await.unwrap());
            }
            let lengths = parts[1..]
                .iter()
                .map(|key| server().query::<u64>(&["STRLEN", key]).unwrap());
            assert_eq!(lengths.max(), Some(1_250), "{name}, by a claim: {by_claim}");
            server().cli(&["DEL", &parts[0]]);
            assert!(
                filter.contains("b").await.unwrap() && filter.estimated_count().await.unwrap() == 1
            );
            let other = builder.bits(99).build(&store, name).unwrap();
            assert!(other.contains("b").await.unwrap_err().is_invalid());
            assert!(other.insert("b").await.unwrap_err().is_invalid());
            assert!(filter.insert("c").await.unwrap() && !filter.insert("b").await.unwrap());
            assert_eq!(server().query::<u8>(&["EXISTS", &parts[0]]), Ok(1));
            filter.clear().await.unwrap();
        }
    }
}

/// Keys of another type are told as such, and left as they are.
#[tokio::test]
async fn filters_tell_keys_of_another_type() {
    let store = stores::redis().await;
    let usual = BloomFilter::builder().bits(999).hashes(3);
    let hour = Duration::from_secs(3600);
    for (kind, builder) in [("usual", usual), ("hour", usual.remember_for(hour))] {
        for part in ["config", "bits0", "bits1"] {
            let name = format!("filters-type-{kind}-{part}");
            let key = format!("td:{{{name}:0}}:{part}");
            server().cli(&["RPUSH", &key, "a", "b"]);
            let filter = builder.build(&store, &name).unwrap();
            for outcome in calls(&filter, ["x", "y"]).await {
                let error = outcome.unwrap_err();
                assert!(
                    error.is_wrong_type() && error.to_string().contains("WRONGTYPE"),
                    "{name}: {error}"
                );
            }
            assert_eq!(server().cli(&["LRANGE", &key, "0", "-1"]), "a\nb");
            server().cli(&["DEL", &key]);
            filter.insert("x").await.unwrap();
        }
    }
}
