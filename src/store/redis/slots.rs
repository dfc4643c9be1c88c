//! The hash slot of a key (16384 slots in a Redis Cluster), and the master of a slot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use crc16::{State, XMODEM};
use deadpool_redis::redis::{Value, cmd};

use tokio::time::timeout;

use super::source::Connection;
use crate::store::key::hash_tag;

const SLOTS: u16 = 16384;

/// How long to wait for a node's answer, because the node may be down.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns the slot of a key, by its hash tag if it has one (Redis Cluster specification, "hash tags").
pub(super) fn slot(key: &[u8]) -> u16 {
    State::<XMODEM>::calculate(hash_tag(key).unwrap_or(key)) % SLOTS
}

/// The known masters of the slots. Outdated entries affect isolation, not correctness: the client follows
/// redirections by itself.
#[derive(Debug, Default)]
pub(crate) struct Masters {
    known: RwLock<Known>,
    /// Whether a refresh is in progress.
    asking: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    /// The addresses of the masters. A number that was given to a master does not change.
    masters: Vec<String>,
    /// The number of the master by slot. Empty if nothing is known.
    by_slot: Vec<u16>,
}

impl Masters {
    /// Returns the number of the master of a slot; 0 if it is not known.
    pub(super) fn of(&self, slot: u16) -> usize {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_slot.get(usize::from(slot)).map_or(0, |master| usize::from(*master))
    }

    /// Reads the masters again. If the server does not answer, the known ones stay.
    pub(super) async fn refresh(&self, connection: &mut Connection) {
        if self.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let asked = Asked(&self.asking);
        let told = timeout(PATIENCE, connection.send(cmd("CLUSTER").arg("SLOTS"))).await;
        drop(asked);
        if let Ok(Ok(told)) = told {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(next) = known.with(&told) {
                *known = next;
            }
        }
    }
}

/// The addresses of the masters in the reply to `CLUSTER SLOTS` of a node. A node that does not know its own host leaves
/// it empty: that is `host`.
pub(super) fn masters(told: &Value, host: &str) -> Option<Vec<String>> {
    let known = Known::default().with(told)?;
    let whole = |address: String| match address.strip_prefix(':') {
        Some(port) => format!("{host}:{port}"),
        None => address,
    };
    Some(known.masters.into_iter().map(whole).collect())
}

/// Marks a refresh as in progress while it lives.
struct Asked<'a>(&'a AtomicBool);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Known {
    /// Parses the reply to `CLUSTER SLOTS`: for each range its first and last slot, then its nodes, the master
    /// first.
    fn with(&self, told: &Value) -> Option<Self> {
        let Value::Array(ranges) = told else { return None };
        let mut masters = self.masters.clone();
        let mut by_slot = vec![0; usize::from(SLOTS)];
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else {
                return None;
            };
            let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
            let [Value::BulkString(host), Value::Int(port), ..] = &master[..] else { return None };
            let address = format!("{}:{port}", String::from_utf8_lossy(host));
            let number = masters.iter().position(|known| *known == address).unwrap_or_else(|| {
                masters.push(address);
                masters.len() - 1
            });
            by_slot.get_mut(first..=last)?.fill(u16::try_from(number).ok()?);
        }
        Some(Self { masters, by_slot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"td:{123456789}:tat"), 0x31c3);
        assert_eq!(slot(b"{}123456789"), slot(b"{}123456789"));
        assert_ne!(slot(b"{}123456789"), slot(b""));
    }

    #[test]
    fn masters_are_read_and_keep_their_numbers() {
        let range = |first, last, port| {
            let node = Value::Array(vec![Value::BulkString(b"10.0.0.1".to_vec()), Value::Int(port)]);
            Value::Array(vec![Value::Int(first), Value::Int(last), node])
        };
        let known = Known::default();
        assert!(known.with(&Value::Okay).is_none());
        let told = Value::Array(vec![range(0, 8191, 7000), range(8192, 16383, 7001)]);
        let known = known.with(&told).unwrap();
        assert_eq!((known.by_slot[0], known.by_slot[8191], known.by_slot[8192]), (0, 0, 1));
        // Another master took over the first half.
        let told = Value::Array(vec![range(8192, 16383, 7001), range(0, 8191, 7002)]);
        let known = known.with(&told).unwrap();
        assert_eq!((known.by_slot[0], known.by_slot[16383]), (2, 1));
        assert!(known.with(&Value::Array(vec![range(0, 16384, 7000)])).is_none());
    }
}
