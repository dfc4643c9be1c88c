//! The filter's own script, one EVALSHA per item on one connection that all callers share.

use std::sync::Arc;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, AsyncConnectionConfig, Script};
use tower_distributed::BloomFilter;
use xxhash_rust::xxh3::xxh3_128;

/// As the crate puts it together for a server without functions.
const SCRIPT: &str = concat!(
    include_str!("../../lua/clock.lua"),
    include_str!("../../lua/state.lua"),
    "local bloom, filter = {}, {}\n",
    include_str!("../../lua/bloom.lua"),
    include_str!("../../lua/filter.lua"),
    include_str!("../../lua/serve.lua"),
    "return serve(KEYS, ARGV)",
);

#[derive(Clone)]
pub struct Bare {
    connection: MultiplexedConnection,
    filter: Arc<Filter>,
}

struct Filter {
    sha: String,
    keys: [String; 3],
    config: String,
    bits: u64,
    hashes: u32,
}

impl Bare {
    /// For a filter that is not spread and does not forget.
    pub async fn connect(url: &str, filter: &BloomFilter) -> Self {
        assert_eq!((filter.size().keys, filter.size().remember_for), (1, None));
        let client = redis::Client::open(url).unwrap();
        // Without the time-out per command that is redis-rs's default: as fast as it gets.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .unwrap();
        let (bits, hashes) = (filter.size().bits, filter.size().hashes);
        let filter = Filter {
            sha: Script::new(SCRIPT).get_hash().to_owned(),
            keys: ["config", "bits0", "bits1"]
                .map(|part| format!("td:{{{}:0}}:{part}", filter.name())),
            config: format!("bloom1 1 {bits} {hashes} 0 0"),
            bits,
            hashes,
        };
        let mut loaded = connection.clone();
        let sha: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(SCRIPT)
            .query_async(&mut loaded)
            .await
            .unwrap();
        assert_eq!(sha, filter.sha);
        Self {
            connection,
            filter: Arc::new(filter),
        }
    }

    /// Whether it was new.
    pub async fn check_and_insert(&mut self, item: &[u8]) -> bool {
        let Filter {
            sha,
            keys,
            config,
            bits,
            hashes,
        } = &*self.filter;
        let mut call = redis::cmd("EVALSHA");
        call.arg(sha).arg(keys.len()).arg(keys);
        call.arg("check_and_insert")
            .arg(config)
            .arg(hashes)
            .arg(0)
            .arg(bits.div_ceil(8) - 1);
        // As the documentation of the filter has it.
        let hash = xxh3_128(item);
        let (mut x, y) = (hash as u64, (hash >> 64) as u64);
        for _ in 0..*hashes {
            call.arg(((u128::from(x) * u128::from(*bits)) >> 64) as u64);
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(y);
        }
        let (_now, seen): (u64, u8) = call.query_async(&mut self.connection).await.unwrap();
        seen == 0
    }
}
