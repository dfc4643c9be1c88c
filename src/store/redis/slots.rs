//! The hash slot of a key (16384 slots in a Redis Cluster), and the master of a slot.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use crc16::{State, XMODEM};
use deadpool_redis::redis::{RedisError, Value, cmd};

use tokio::time::Instant;

use super::source::Connection;
use crate::store::in_memory::lock;
use crate::store::key::hash_tag;

const SLOTS: u16 = 16384;

/// The masters are not read more often than this.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns the slot of a key, by its hash tag if it has one (Redis Cluster specification, "hash tags").
pub(super) fn slot(key: &[u8]) -> u16 {
    State::<XMODEM>::calculate(hash_tag(key).unwrap_or(key)) % SLOTS
}

/// The known masters of the slots. Outdated entries affect isolation, not correctness, because redirections are
/// followed.
#[derive(Debug, Default)]
pub(crate) struct Masters {
    known: RwLock<Known>,
    /// Whether a refresh is in progress.
    asking: AtomicBool,
    /// When the last refresh ended.
    asked: Mutex<Option<Instant>>,
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

    /// Returns the address of a master by its number.
    pub(super) fn address(&self, number: usize) -> Option<String> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).masters.get(number).cloned()
    }

    /// Returns the addresses of the masters that have slots.
    pub(super) fn addresses(&self) -> Vec<String> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let numbers: BTreeSet<_> = known.by_slot.iter().copied().map(usize::from).collect();
        numbers.into_iter().filter_map(|number| known.masters.get(number).cloned()).collect()
    }

    /// Whether a master has slots, as far as is known.
    pub(super) fn is_current(&self, number: usize) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_slot.is_empty() || known.by_slot.iter().any(|master| usize::from(*master) == number)
    }

    /// Whether it is time to read the masters again.
    pub(super) fn is_due(&self) -> bool {
        !self.asking.load(Ordering::Acquire) && lock(&self.asked).is_none_or(|asked| asked.elapsed() >= PAUSE)
    }

    /// Reads the masters again, unless another task does so. `answer`: the reply of a node, and its host. If no node
    /// answers, the known masters stay.
    pub(super) async fn refresh(&self, answer: impl Future<Output = Option<(Value, String)>>) {
        if self.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let asked = Asked(self);
        let told = answer.await;
        if let Some((told, host)) = told {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(next) = known.with(&told, &host) {
                *known = next;
            }
        }
        drop(asked);
    }
}

/// Asks for the masters over a connection.
pub(super) async fn ask(connection: &mut Connection) -> Result<Value, RedisError> {
    connection.send(cmd("CLUSTER").arg("SLOTS")).await
}

/// Marks a refresh as in progress while it lives.
struct Asked<'a>(&'a Masters);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        *lock(&self.0.asked) = Some(Instant::now());
        self.0.asking.store(false, Ordering::Release);
    }
}

impl Known {
    /// Parses the reply to `CLUSTER SLOTS`: for each range its first and last slot, then its nodes, the master
    /// first. A node that does not know its own host leaves it empty: that is `own`.
    fn with(&self, told: &Value, own: &str) -> Option<Self> {
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
            let host = String::from_utf8_lossy(host);
            let address = format!("{}:{port}", if host.is_empty() { own } else { &host });
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
        assert!(known.with(&Value::Okay, "").is_none());
        let told = Value::Array(vec![range(0, 8191, 7000), range(8192, 16383, 7001)]);
        let known = known.with(&told, "").unwrap();
        assert_eq!((known.by_slot[0], known.by_slot[8191], known.by_slot[8192]), (0, 0, 1));
        // Another master took over the first half.
        let told = Value::Array(vec![range(8192, 16383, 7001), range(0, 8191, 7002)]);
        let known = known.with(&told, "").unwrap();
        assert_eq!((known.by_slot[0], known.by_slot[16383]), (2, 1));
        assert!(known.with(&Value::Array(vec![range(0, 16384, 7000)]), "").is_none());
    }
}
