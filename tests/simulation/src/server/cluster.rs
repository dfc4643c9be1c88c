//! Which node of a Cluster serves which slot, and what it answers where a slot is elsewhere or on its way.

use std::collections::BTreeMap;

use super::host_and_port;
use super::reply::{Bytes, Reply};

const SLOTS: u16 = 16384;

pub struct Topology {
    /// The address of each master, by its number.
    pub masters: Vec<String>,
    owners: Vec<usize>,
    /// Slots on their way, and the node that gets them.
    moving: BTreeMap<u16, usize>,
}

impl Topology {
    /// Divides the slots among the masters.
    pub fn new(masters: Vec<String>) -> Self {
        let share = usize::from(SLOTS).div_ceil(masters.len());
        let owners = (0..usize::from(SLOTS)).map(|slot| slot / share).collect();
        Self {
            masters,
            owners,
            moving: BTreeMap::new(),
        }
    }

    pub fn owner(&self, slot: u16) -> usize {
        self.owners[usize::from(slot)]
    }

    /// Begins to move a slot from its owner. Returns whether it does: a slot makes one move at a time.
    pub fn migrate(&mut self, slot: u16, from: usize, to: usize) -> bool {
        let moves = self.owner(slot) == from && from != to && !self.moving.contains_key(&slot);
        if moves {
            self.moving.insert(slot, to);
        }
        moves
    }

    /// Ends the move of a slot: its new owner serves it.
    pub fn moved(&mut self, slot: u16) {
        if let Some(to) = self.moving.remove(&slot) {
            self.owners[usize::from(slot)] = to;
        }
    }

    /// Whether a node may work on a key, or on the channels in its slot.
    pub fn serves(&self, own: usize, key: &[u8]) -> bool {
        let slot = slot(key);
        self.owner(slot) == own || self.moving.get(&slot) == Some(&own)
    }

    /// The error of a node whose client has to ask another one, or the same one later.
    pub fn redirect(
        &self,
        own: usize,
        keys: &[Bytes],
        asking: bool,
        exists: impl Fn(&Bytes) -> bool,
    ) -> Option<String> {
        let slot = slot(keys.first()?);
        if keys.iter().any(|key| self::slot(key) != slot) {
            return Some("CROSSSLOT Keys in request don't hash to the same slot".into());
        }
        let (owner, to) = (self.owner(slot), self.moving.get(&slot).copied());
        let missing = keys.iter().filter(|key| !exists(key)).count();
        let again = || Some("TRYAGAIN Multiple keys request during rehashing of slot".to_owned());
        if owner == own {
            let to = to?;
            return match missing {
                0 => None,
                // A script may name keys that do not exist.
                missing if missing < keys.len() => again(),
                _ => Some(format!("ASK {slot} {}", self.masters[to])),
            };
        }
        match to == Some(own) && asking {
            true if keys.len() > 1 && missing > 0 => again(),
            true => None,
            false => Some(format!("MOVED {slot} {}", self.masters[owner])),
        }
    }

    /// The reply to `CLUSTER SLOTS`.
    pub fn told(&self) -> Reply {
        let mut ranges = Vec::new();
        let mut first = 0;
        for next in 1..=usize::from(SLOTS) {
            if self.owners.get(next) == Some(&self.owners[first]) {
                continue;
            }
            let address = &self.masters[self.owners[first]];
            let [host, port] = host_and_port(address);
            let port = Reply::Int(port.parse().unwrap_or(0));
            let master = vec![Reply::bulk(host), port, Reply::bulk(address.as_str())];
            let (from, to) = (Reply::count(first), Reply::count(next - 1));
            ranges.push(Reply::Array(vec![from, to, Reply::Array(master)]));
            first = next;
        }
        Reply::Array(ranges)
    }
}

/// The slot of a key: CRC16 (XMODEM) of its hash tag, or of all of it.
pub fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let from = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key[from..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[from..from + length])
    };
    let crc = tag().unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    });
    crc % SLOTS
}
