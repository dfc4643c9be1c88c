//! Finds keys that are left on a server.

use deadpool_redis::redis;

use crate::client::Client;
use crate::redis_server::RedisServer;

const PER_SCAN: u32 = 1_000;

/// Returns all keys of the server's database 0 that have no ttl, sorted.
pub fn keys_without_ttl(server: &RedisServer) -> Vec<String> {
    let mut client = server.client().unwrap();
    let mut found = Vec::new();
    let mut cursor = 0;
    loop {
        let (next, keys) = scan(&mut client, cursor);
        found.extend(without_ttl(&mut client, &keys));
        if next == 0 {
            break;
        }
        cursor = next;
    }
    found.sort();
    // SCAN may return a key twice.
    found.dedup();
    found
}

fn scan(client: &mut Client, cursor: u64) -> (u64, Vec<Vec<u8>>) {
    client
        .query(redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(PER_SCAN))
        .unwrap()
}

fn without_ttl(client: &mut Client, keys: &[Vec<u8>]) -> Vec<String> {
    let mut pipeline = redis::pipe();
    for key in keys {
        pipeline.cmd("PTTL").arg(key);
    }
    let ttls: Vec<i64> = client.query_all(&pipeline).unwrap();
    let lasting = keys.iter().zip(ttls).filter(|(_, ttl)| *ttl == -1);
    lasting
        .map(|(key, _)| String::from_utf8_lossy(key).into_owned())
        .collect()
}
